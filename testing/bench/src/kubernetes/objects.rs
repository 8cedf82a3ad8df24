//! A listing of objects of the cluster that is kept up to date by a watch.

use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use serde::de::DeserializeOwned;

use crate::context::log_progress;

/// How long the API server keeps a watch open.
const WATCH_TIMEOUT_S: u32 = 290;
/// The pause before a broken watch is replaced by a listing.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// What is known to have changed.
pub(super) enum Change<K> {
    /// The object is there, and is like this.
    Present(K),
    Gone(K),
}

/// Tells `note` of all objects, and then of each change. Never ends.
pub(super) async fn follow<K>(api: Api<K>, mut note: impl FnMut(Change<K>))
where
    K: Clone + std::fmt::Debug + DeserializeOwned + kube::Resource,
{
    loop {
        if let Err(error) = follow_once(&api, &mut note).await {
            log_progress(&format!("a watch broke: {error:#}"));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn follow_once<K>(api: &Api<K>, note: &mut impl FnMut(Change<K>)) -> anyhow::Result<()>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + kube::Resource,
{
    let listed = api.list(&ListParams::default()).await?;
    let mut version = listed.metadata.resource_version.context("a listing has no version")?;
    listed.items.into_iter().for_each(|object| note(Change::Present(object)));
    loop {
        let params = WatchParams::default().timeout(WATCH_TIMEOUT_S);
        let mut events = std::pin::pin!(api.watch(&params, &version).await?);
        while let Some(event) = events.next().await {
            let (change, seen) = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let seen = object.meta().resource_version.clone();
                    (Some(Change::Present(object)), seen)
                }
                WatchEvent::Deleted(object) => {
                    let seen = object.meta().resource_version.clone();
                    (Some(Change::Gone(object)), seen)
                }
                WatchEvent::Bookmark(bookmark) => (None, Some(bookmark.metadata.resource_version)),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
            };
            change.into_iter().for_each(&mut *note);
            version = seen.unwrap_or(version);
        }
    }
}
