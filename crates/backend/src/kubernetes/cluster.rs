//! The client of the Kubernetes API server, which connects on first use, bounds the requests under way and puts a
//! deadline on each.
//!
//! The orchestrator starts without an API server, and survives its restarts. The client repeats requests that the
//! API server refuses for a moment (429, 503), as late as the server asks; the deadline bounds that.

use std::path::Path;
use std::time::Duration;

use futures::Stream;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service};
use kube::api::{
    Api, DeleteParams, ListParams, LogParams, ObjectList, Patch, PatchParams, PostParams, Preconditions,
    WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use resources::text::error_chain;
use tokio::sync::{Mutex, Semaphore};

use super::error::ClusterError;
use super::options::Options;

/// Time limit of one request, including the wait for its turn. Callers of the backend have their own deadlines
/// ([`crate::DeadlineBackend`]); this one ends requests that nobody waits for any more.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Time limit for a connection to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests under way at once. The API server shares its capacity among its clients, and refuses what is too much.
const MAX_REQUESTS: usize = 32;

/// Objects per page of a listing, so that no answer is too large for the API server or for this client.
const PAGE_SIZE: u32 = 500;

/// How long the API server keeps a watch open. A connection that broke silently is noticed
/// [`WATCH_SLACK`] later.
const WATCH_TIMEOUT_S: u32 = 60;
/// How long a watch may be silent beyond its time.
const WATCH_SLACK: Duration = Duration::from_secs(10);

/// The API server, which may not have been reached yet.
pub(super) struct Cluster {
    kubeconfig: Option<std::path::PathBuf>,
    namespace: String,
    client: Mutex<Option<Client>>,
    requests: Semaphore,
}

/// The Pods of a listing, and the version of the cluster's state that it shows.
pub(super) struct PodList {
    pub(super) pods: Vec<Pod>,
    pub(super) version: String,
}

impl Cluster {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            kubeconfig: options.settings.kubeconfig.clone(),
            namespace: options.settings.namespace.clone(),
            client: Mutex::new(None),
            requests: Semaphore::new(MAX_REQUESTS),
        }
    }

    /// Sends a request when it is its turn, within [`REQUEST_TIMEOUT`].
    async fn request<T, F>(&self, call: impl FnOnce(Client) -> F) -> Result<T, ClusterError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let request = async {
            // The semaphore is never closed.
            let _turn = self.requests.acquire().await;
            // The futures of requests are large, and callers wait for several, one after the other.
            Ok(Box::pin(call(self.client().await?)).await?)
        };
        tokio::time::timeout(REQUEST_TIMEOUT, request)
            .await
            .unwrap_or(Err(ClusterError::Timeout(REQUEST_TIMEOUT)))
    }

    /// Returns the client. The first call reads the credentials.
    async fn client(&self) -> Result<Client, ClusterError> {
        let mut client = self.client.lock().await;
        if let Some(client) = client.as_ref() {
            return Ok(client.clone());
        }
        let mut config = config(self.kubeconfig.as_deref()).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        Ok(client.insert(Client::try_from(config)?).clone())
    }

    fn api<K>(&self, client: Client) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(client, &self.namespace)
    }

    pub(super) async fn ping(&self) -> Result<(), ClusterError> {
        self.request(|client| async move { client.apiserver_version().await }).await.map(drop)
    }

    /// Lists the Pods that match `selector`.
    pub(super) async fn pods(&self, selector: &str) -> Result<PodList, ClusterError> {
        let mut list = PodList { pods: Vec::new(), version: String::new() };
        let mut next_page = None;
        loop {
            let mut params = ListParams::default().labels(selector).limit(PAGE_SIZE);
            params.continue_token = next_page;
            let page: ObjectList<Pod> =
                self.request(|client| async move { self.api(client).list(&params).await }).await?;
            list.pods.extend(page.items);
            // All pages show the same version.
            list.version = page.metadata.resource_version.unwrap_or_default();
            next_page = page.metadata.continue_.filter(|token| !token.is_empty());
            if next_page.is_none() {
                return Ok(list);
            }
        }
    }

    /// Returns the Pod of this name; `None` if there is none.
    pub(super) async fn pod(&self, name: &str) -> Result<Option<Pod>, ClusterError> {
        self.request(|client| async move { self.api(client).get_opt(name).await }).await
    }

    /// Creates a Pod; `None` if there is one of its name.
    pub(super) async fn create_pod(&self, pod: &Pod) -> Result<Option<Pod>, ClusterError> {
        let created =
            self.request(|client| async move { self.api(client).create(&PostParams::default(), pod).await });
        none_if_exists(created.await)
    }

    /// Deletes the Pod of this name if it is the one with `uid`, with `grace_s` for its container to end.
    /// Succeeds if it does not exist.
    pub(super) async fn delete_pod(&self, name: &str, uid: &str, grace_s: u32) -> Result<(), ClusterError> {
        let params = DeleteParams {
            grace_period_seconds: Some(grace_s),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        let deleted = self
            .request(|client| async move { self.api::<Pod>(client).delete(name, &params).await.map(drop) });
        match deleted.await {
            // It is gone; with a conflict, another Pod has its name.
            Err(error) if matches!(error.status(), Some(404 | 409)) => Ok(()),
            deleted => deleted,
        }
    }

    /// Creates a Secret. Succeeds if it exists: an attempt whose answer was lost created it.
    pub(super) async fn create_secret(&self, secret: &Secret) -> Result<(), ClusterError> {
        let created = self.request(|client| async move {
            self.api(client).create(&PostParams::default(), secret).await.map(drop)
        });
        none_if_exists(created.await).map(drop)
    }

    /// Creates the Service unless it exists.
    pub(super) async fn ensure_service(&self, name: &str, service: &Service) -> Result<(), ClusterError> {
        let found: Option<Service> =
            self.request(|client| async move { self.api(client).get_opt(name).await }).await?;
        if found.is_some() {
            return Ok(());
        }
        let created = self.request(|client| async move {
            self.api(client).create(&PostParams::default(), service).await.map(drop)
        });
        none_if_exists(created.await).map(drop)
    }

    /// Returns the claim of this name; `None` if there is none.
    pub(super) async fn claim(&self, name: &str) -> Result<Option<PersistentVolumeClaim>, ClusterError> {
        self.request(|client| async move { self.api(client).get_opt(name).await }).await
    }

    /// Creates a claim; `None` if there is one of its name.
    pub(super) async fn create_claim(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Result<Option<PersistentVolumeClaim>, ClusterError> {
        let created = self
            .request(|client| async move { self.api(client).create(&PostParams::default(), claim).await });
        none_if_exists(created.await)
    }

    /// Merges `patch` into a claim; `None` if it has another version than the one in the patch.
    pub(super) async fn patch_claim(
        &self,
        name: &str,
        patch: serde_json::Value,
    ) -> Result<Option<PersistentVolumeClaim>, ClusterError> {
        let patched = self.request(|client| async move {
            self.api(client).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
        });
        none_if(patched.await, 409)
    }

    /// Deletes the claim of this name if it still is as `preconditions` say; `None` if it is not. Succeeds if it
    /// does not exist.
    pub(super) async fn delete_claim(
        &self,
        name: &str,
        preconditions: Preconditions,
    ) -> Result<Option<()>, ClusterError> {
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = self.request(|client| async move {
            self.api::<PersistentVolumeClaim>(client).delete(name, &params).await.map(drop)
        });
        match none_if(deleted.await, 404) {
            Ok(_) => Ok(Some(())),
            Err(error) => none_if(Err(error), 409),
        }
    }

    /// Opens the log of a Pod. Waits for its end if `params` say so, and therefore takes no turn and has no
    /// deadline: that is the caller's.
    pub(super) async fn log(
        &self,
        name: &str,
        params: &LogParams,
    ) -> Result<impl futures::AsyncBufRead + use<>, ClusterError> {
        let api: Api<Pod> = self.api(self.client().await?);
        Ok(api.log_stream(name, params).await?)
    }

    /// Watches the Pods that match `selector`, from `version` on, for at most [`WATCH_TIMEOUT_S`].
    pub(super) async fn watch_pods(
        &self,
        selector: &str,
        version: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Pod>, ClusterError>> + use<>, ClusterError> {
        let params = WatchParams::default().labels(selector).timeout(WATCH_TIMEOUT_S);
        let api: Api<Pod> = self.api(self.client().await?);
        let opened = tokio::time::timeout(REQUEST_TIMEOUT, api.watch(&params, version)).await;
        let events = opened.map_err(|_| ClusterError::Timeout(REQUEST_TIMEOUT))??;
        let limit = Duration::from_secs(WATCH_TIMEOUT_S.into()) + WATCH_SLACK;
        Ok(futures::stream::unfold(Box::pin(events), move |mut events| async move {
            match tokio::time::timeout(limit, futures::StreamExt::next(&mut events)).await {
                Ok(event) => event.map(|event| (event.map_err(ClusterError::from), events)),
                Err(_) => Some((Err(ClusterError::Timeout(limit)), events)),
            }
        }))
    }
}

/// Reads the address of the cluster and the credentials.
async fn config(kubeconfig: Option<&Path>) -> Result<Config, ClusterError> {
    let Some(path) = kubeconfig else {
        return Config::incluster().map_err(|error| {
            ClusterError::Config(format!(
                "the service account of this Pod cannot be used ({}): set automountServiceAccountToken, or, outside \
                 a cluster, name a kubeconfig file in KUBECONFIG",
                error_chain(&error)
            ))
        });
    };
    let failed = |error: &dyn std::error::Error| {
        ClusterError::Config(format!(
            "{} (KUBECONFIG) cannot be used: {}",
            path.display(),
            error_chain(error)
        ))
    };
    let file = Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(file, &options).await.map_err(|error| failed(&error))
}

/// Turns the answer that an object of the name exists into `None`.
fn none_if_exists<T>(answer: Result<T, ClusterError>) -> Result<Option<T>, ClusterError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_already_exists() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns an answer with this status into `None`.
fn none_if<T>(answer: Result<T, ClusterError>, status: u16) -> Result<Option<T>, ClusterError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.status() == Some(status) => Ok(None),
        Err(error) => Err(error),
    }
}
