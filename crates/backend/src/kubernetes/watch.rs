//! One watch of the deployment's Pods, from which exits and addresses come.
//!
//! A watch that breaks is resumed where it ended. Where the API server cannot do that, a listing finds what has
//! changed meanwhile. As long as it does not answer, nothing is known to have happened.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::WatchEvent;
use tokio_util::task::AbortOnDropHandle;

use super::error::ClusterError;
use super::pod_state::PodView;
use super::{Inner, label};
use crate::InstanceExit;

/// The shortest and the longest delay before the watch is opened again after a failure.
const RECONNECT_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The status with which the API server refuses to resume a watch that it no longer remembers.
const GONE: u16 = 410;

/// Returns a stream of the exits of this deployment's Pods from now on. Dropping it ends the watching.
pub(super) fn exits(inner: Arc<Inner>) -> BoxStream<'static, InstanceExit> {
    let mut exits = inner.pods.exits();
    let watch_task = AbortOnDropHandle::new(tokio::spawn(watch(inner)));
    futures::stream::poll_fn(move |context| {
        let _watch_task = &watch_task;
        exits.poll_next_unpin(context)
    })
    .boxed()
}

/// Watches the Pods, and resumes with a backoff whenever the watch fails.
async fn watch(inner: Arc<Inner>) {
    let mut delay = RECONNECT_DELAYS.0;
    // The version of the cluster's state up to which everything is known.
    let mut version = None;
    loop {
        let started = inner.clock.monotonic();
        let result = inner.watch_once(&mut version).await;
        let was_stable = inner.clock.monotonic().saturating_sub(started) > RECONNECT_DELAYS.1;
        if was_stable {
            delay = RECONNECT_DELAYS.0;
        }
        if let Err(error) = result {
            if error.status() == Some(GONE) {
                version = None;
            }
            let error: &dyn std::error::Error = &error;
            if was_stable {
                tracing::warn!(error, "The watch of the Pods broke; it is opened again soon.");
            } else {
                tracing::debug!(error, "The Pods cannot be watched; the attempt is repeated.");
            }
        } else if was_stable {
            // The API server ended it in time, as it was asked to.
            continue;
        }
        inner.clock.sleep(delay).await;
        delay = (delay * 2).min(RECONNECT_DELAYS.1);
    }
}

impl Inner {
    /// Watches the Pods from `version` on until the watch ends, and keeps `version` up to date. Without one, begins
    /// with a listing.
    async fn watch_once(&self, version: &mut Option<String>) -> Result<(), ClusterError> {
        let from = match version.clone() {
            Some(from) => from,
            None => version.insert(self.compare_with_listing().await?).clone(),
        };
        let selector = label::selector(&self.options.deployment_id);
        let mut events = pin!(self.cluster.watch_pods(&selector, &from).await?);
        while let Some(event) = events.next().await {
            let seen = match event? {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    self.observe(&pod);
                    pod.metadata.resource_version
                }
                WatchEvent::Deleted(pod) => {
                    self.observe(&pod);
                    self.note_deleted(&pod);
                    pod.metadata.resource_version
                }
                WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
            };
            if let Some(seen) = seen {
                *version = Some(seen);
            }
        }
        Ok(())
    }

    /// Lists all Pods, reports the exits of those that are gone, and returns the version that the listing shows.
    async fn compare_with_listing(&self) -> Result<String, ClusterError> {
        // A Pod that is created from now on may be missing in the listing.
        let mut missing = self.pods.all();
        let listed = self.cluster.pods(&label::selector(&self.options.deployment_id)).await?;
        for pod in &listed.pods {
            if let Some(pod) = self.observe(pod) {
                missing.remove(&(pod.engine_id, pod.uid));
            }
        }
        for (engine_id, uid) in missing {
            self.pods.note_gone(engine_id, &uid);
        }
        Ok(listed.version)
    }

    /// Notes the state of a Pod; `None` if it is not this deployment's.
    pub(super) fn observe(&self, pod: &Pod) -> Option<PodView> {
        let pod = PodView::of(&self.options.deployment_id, pod)?;
        self.pods.observe(pod.clone(), &self.logs);
        Some(pod)
    }

    fn note_deleted(&self, pod: &Pod) {
        if let Some(pod) = PodView::of(&self.options.deployment_id, pod) {
            self.pods.note_gone(pod.engine_id, &pod.uid);
        }
    }
}
