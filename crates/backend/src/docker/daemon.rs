//! The client of the Docker daemon, which connects on first use and puts a deadline on every request.
//!
//! The orchestrator starts without a daemon, and survives its restarts and upgrades: the API version is
//! negotiated again when the daemon refuses the current one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use api::EngineImage;
use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummaryStateEnum, EventMessage,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, EventsOptionsBuilder, InspectContainerOptions,
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    StartContainerOptions, StopContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::sync::Mutex;

/// Time limit of one request. Callers of the backend have their own deadlines
/// ([`crate::DeadlineBackend`]); this one ends requests that nobody waits for any more.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// The interval between checks whether a container that another client is removing is gone.
const REMOVAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The daemon, which may not have been reached yet.
pub(super) struct Daemon {
    socket: PathBuf,
    client: Mutex<Option<Docker>>,
}

/// A container as the daemon lists it.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) labels: HashMap<String, String>,
    pub(super) state: ContainerState,
    /// The daemon's description of the state, such as `Exited (137) 3 seconds ago`.
    pub(super) status: String,
}

/// The lifecycle state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerState {
    /// It was created but never started.
    Created,
    Running,
    /// It runs but was paused by another client.
    Paused,
    /// It has exited, or is being removed.
    Exited,
}

impl ContainerState {
    pub(super) const fn is_alive(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

impl Daemon {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket, client: Mutex::new(None) }
    }

    /// Sends a request, with `timeout` for connecting and for the complete response.
    pub(super) async fn request<T, F>(
        &self,
        timeout: Duration,
        call: impl FnOnce(Docker) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let request = async { call(self.client().await?).await };
        let result = tokio::time::timeout(timeout, request).await.unwrap_or(Err(Error::RequestTimeoutError));
        if result.as_ref().is_err_and(is_version_mismatch) {
            // The daemon was replaced by one of another version: the next request negotiates again.
            *self.client.lock().await = None;
        }
        result
    }

    /// Returns the client. The first call connects and negotiates the API version.
    async fn client(&self) -> Result<Docker, Error> {
        let mut client = self.client.lock().await;
        if let Some(client) = client.as_ref() {
            return Ok(client.clone());
        }
        // The client's timeout covers only a response's head, so it is long; `request` limits the whole response.
        let socket = self.socket.to_string_lossy();
        let connected =
            Docker::connect_with_unix(&socket, REQUEST_TIMEOUT.as_secs() * 10, API_DEFAULT_VERSION)?;
        Ok(client.insert(connected.negotiate_version().await?).clone())
    }

    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.request(REQUEST_TIMEOUT, |docker| async move { docker.ping().await.map(drop) }).await
    }

    /// Whether the daemon has `image`.
    pub(super) async fn has_image(&self, image: &EngineImage) -> Result<bool, Error> {
        let name = image.as_str();
        none_if_not_found(
            self.request(REQUEST_TIMEOUT, |docker| async move { docker.inspect_image(name).await }).await,
        )
        .map(|image| image.is_some())
    }

    /// Lists the containers that match `filters`, in any state.
    pub(super) async fn containers(
        &self,
        filters: &HashMap<String, Vec<String>>,
    ) -> Result<Vec<Container>, Error> {
        let options = ListContainersOptionsBuilder::new().all(true).filters(filters).build();
        let listed = self
            .request(REQUEST_TIMEOUT, |docker| async move { docker.list_containers(Some(options)).await })
            .await?;
        let container = |listed: bollard::models::ContainerSummary| {
            let state = match listed.state {
                Some(ContainerSummaryStateEnum::CREATED) => ContainerState::Created,
                Some(
                    ContainerSummaryStateEnum::EXITED
                    | ContainerSummaryStateEnum::DEAD
                    | ContainerSummaryStateEnum::REMOVING,
                ) => ContainerState::Exited,
                Some(ContainerSummaryStateEnum::PAUSED) => ContainerState::Paused,
                _ => ContainerState::Running,
            };
            let (labels, status) = (listed.labels.unwrap_or_default(), listed.status.unwrap_or_default());
            listed.id.map(|id| Container { id, labels, state, status })
        };
        Ok(listed.into_iter().filter_map(container).collect())
    }

    /// Returns the container with this id or name; `None` if there is none.
    pub(super) async fn inspect(&self, name: &str) -> Result<Option<ContainerInspectResponse>, Error> {
        let inspected = self.request(REQUEST_TIMEOUT, |docker| async move {
            docker.inspect_container(name, None::<InspectContainerOptions>).await
        });
        none_if_not_found(inspected.await)
    }

    /// Creates a container and returns its id.
    pub(super) async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String, Error> {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let created = self.request(REQUEST_TIMEOUT, |docker| async move {
            docker.create_container(Some(options), body).await
        });
        Ok(created.await?.id)
    }

    pub(super) async fn start(&self, id: &str) -> Result<(), Error> {
        self.request(REQUEST_TIMEOUT, |docker| async move {
            docker.start_container(id, None::<StartContainerOptions>).await
        })
        .await
    }

    /// Asks a container to exit, and kills it after `grace`. Succeeds if it has exited or does not exist.
    pub(super) async fn stop(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::new().t(seconds).build();
        let stopped = self.request(grace + REQUEST_TIMEOUT, |docker| async move {
            docker.stop_container(id, Some(options)).await
        });
        none_if_not_found(stopped.await).map(drop)
    }

    /// Kills a container. Succeeds if it has exited or does not exist.
    pub(super) async fn kill(&self, id: &str) -> Result<(), Error> {
        self.signal(id, "SIGKILL").await
    }

    pub(super) async fn signal(&self, id: &str, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        let killed = self
            .request(REQUEST_TIMEOUT, |docker| async move { docker.kill_container(id, Some(options)).await })
            .await;
        match none_if_not_found(killed) {
            // The container does not run.
            Err(error) if super::error::is_status(&error, 409) => Ok(()),
            killed => killed.map(drop),
        }
    }

    /// Resumes a paused container.
    pub(super) async fn unpause(&self, id: &str) -> Result<(), Error> {
        none_if_not_found(
            self.request(REQUEST_TIMEOUT, |docker| async move { docker.unpause_container(id).await }).await,
        )
        .map(drop)
    }

    /// Removes a container and its anonymous volumes, even if it runs.
    pub(super) async fn remove(&self, id: &str) -> Result<(), Error> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed =
            self.request(REQUEST_TIMEOUT, |docker| async move {
                docker.remove_container(id, Some(options)).await
            })
            .await;
        match none_if_not_found(removed) {
            // Another client is removing it.
            Err(error) if super::error::is_status(&error, 409) => self.wait_until_removed(id).await,
            removed => removed.map(drop),
        }
    }

    async fn wait_until_removed(&self, id: &str) -> Result<(), Error> {
        let gone = async {
            while self.inspect(id).await?.is_some() {
                tokio::time::sleep(REMOVAL_POLL_INTERVAL).await;
            }
            Ok(())
        };
        tokio::time::timeout(REQUEST_TIMEOUT, gone).await.unwrap_or(Err(Error::RequestTimeoutError))
    }

    /// Streams the exits of the containers that match `filters`, including past ones since `since` (Unix time
    /// in seconds).
    pub(super) async fn exit_events(
        &self,
        filters: &HashMap<String, Vec<String>>,
        since: &str,
    ) -> Result<BoxStream<'static, Result<EventMessage, Error>>, Error> {
        let mut filters = filters.clone();
        filters.insert("type".to_owned(), vec!["container".to_owned()]);
        filters.insert("event".to_owned(), vec!["die".to_owned()]);
        let options = EventsOptionsBuilder::new().filters(&filters).since(since).build();
        let client = self.request(REQUEST_TIMEOUT, |docker| async move { Ok(docker) }).await?;
        // This timeout covers only the response's head: the body is endless.
        Ok(client.with_timeout(REQUEST_TIMEOUT).events(Some(options)).boxed())
    }
}

/// Whether the daemon refuses the API version that was negotiated.
fn is_version_mismatch(error: &Error) -> bool {
    matches!(
        error,
        Error::DockerResponseServerError { status_code: 400, message } if message.contains("client version")
    )
}

/// Turns a 404 answer into `None`.
fn none_if_not_found<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if super::error::is_status(&error, 404) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_of_another_version_is_told_from_one_that_fails() {
        let error = |status_code, message: &str| Error::DockerResponseServerError {
            status_code,
            message: message.to_owned(),
        };
        let newer = "client version 1.51 is too new. Maximum supported API version is 1.41";
        assert!(is_version_mismatch(&error(400, newer)));
        assert!(is_version_mismatch(&error(
            400,
            "client version 1.23 is too old. Minimum supported API version is 1.24"
        )));
        assert!(!is_version_mismatch(&error(400, "invalid reference format")));
        assert!(!is_version_mismatch(&error(500, newer)));
    }
}
