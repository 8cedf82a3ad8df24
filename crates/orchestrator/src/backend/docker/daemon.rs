//! The Docker daemon behind its socket: looked for when it is first needed, every question with a deadline.

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

/// How long a daemon may take for one step. Whoever waits for a whole call has a deadline of their own; this one
/// ends what nobody waits for any more.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Between two looks at a container that somebody else is removing.
const REMOVAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The daemon, reached or not.
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
    /// How it is, in the daemon's words.
    pub(super) status: String,
}

/// How far a container's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerState {
    /// It was created, and never begun.
    Created,
    Running,
    /// It runs, and was halted by somebody.
    Paused,
    /// It has ended.
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

    /// Asks the daemon something that it has `limit` to answer.
    pub(super) async fn request<T, F>(
        &self,
        limit: Duration,
        question: impl FnOnce(Docker) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let asked = async { question(self.client().await?).await };
        let answer = tokio::time::timeout(limit, asked).await.unwrap_or(Err(Error::RequestTimeoutError));
        if answer.as_ref().is_err_and(is_version_mismatch) {
            // A daemon of another version is in its place: the next question settles it.
            *self.client.lock().await = None;
        }
        answer
    }

    /// The client, in the version of the interface that both sides know.
    async fn client(&self) -> Result<Docker, Error> {
        let mut client = self.client.lock().await;
        if let Some(client) = client.as_ref() {
            return Ok(client.clone());
        }
        // Its own deadlines are for an answer's head alone, ours are for the whole.
        let socket = self.socket.to_string_lossy();
        let connected =
            Docker::connect_with_unix(&socket, REQUEST_TIMEOUT.as_secs() * 10, API_DEFAULT_VERSION)?;
        Ok(client.insert(connected.negotiate_version().await?).clone())
    }

    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.request(REQUEST_TIMEOUT, |docker| async move { docker.ping().await.map(drop) }).await
    }

    /// Whether it has `image`.
    pub(super) async fn has_image(&self, image: &EngineImage) -> Result<bool, Error> {
        let name = image.as_str();
        none_if_not_found(
            self.request(REQUEST_TIMEOUT, |docker| async move { docker.inspect_image(name).await }).await,
        )
        .map(|image| image.is_some())
    }

    /// The containers that `filters` let through, whatever their state.
    pub(super) async fn containers(
        &self,
        filters: &HashMap<String, Vec<String>>,
    ) -> Result<Vec<Container>, Error> {
        let options = ListContainersOptionsBuilder::new().all(true).filters(filters).build();
        let listed = self
            .request(REQUEST_TIMEOUT, |docker| async move { docker.list_containers(Some(options)).await })
            .await?;
        let container = |listed: bollard::models::ContainerSummary| {
            let life = match listed.state {
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
            listed.id.map(|id| Container { id, labels, state: life, status })
        };
        Ok(listed.into_iter().filter_map(container).collect())
    }

    /// A container by its id or name; none if there is none.
    pub(super) async fn inspect(&self, name: &str) -> Result<Option<ContainerInspectResponse>, Error> {
        let inspected = self.request(REQUEST_TIMEOUT, |docker| async move {
            docker.inspect_container(name, None::<InspectContainerOptions>).await
        });
        none_if_not_found(inspected.await)
    }

    /// Creates a container, and returns its id.
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

    /// Asks a container to end, and makes it after `grace`. One that has ended, or is not there, is left alone.
    pub(super) async fn stop(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::new().t(seconds).build();
        let stopped = self.request(grace + REQUEST_TIMEOUT, |docker| async move {
            docker.stop_container(id, Some(options)).await
        });
        none_if_not_found(stopped.await).map(drop)
    }

    /// Ends a container at once. One that has ended, or is not there, is left alone.
    pub(super) async fn kill(&self, id: &str) -> Result<(), Error> {
        self.signal(id, "SIGKILL").await
    }

    pub(super) async fn signal(&self, id: &str, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        let killed = self
            .request(REQUEST_TIMEOUT, |docker| async move { docker.kill_container(id, Some(options)).await })
            .await;
        match none_if_not_found(killed) {
            // It does not run.
            Err(error) if super::error::is_status(&error, 409) => Ok(()),
            killed => killed.map(drop),
        }
    }

    /// Lets a halted container go on.
    pub(super) async fn unpause(&self, id: &str) -> Result<(), Error> {
        none_if_not_found(
            self.request(REQUEST_TIMEOUT, |docker| async move { docker.unpause_container(id).await }).await,
        )
        .map(drop)
    }

    /// Removes a container with what it wrote into itself, whether it runs or not.
    pub(super) async fn remove(&self, id: &str) -> Result<(), Error> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed =
            self.request(REQUEST_TIMEOUT, |docker| async move {
                docker.remove_container(id, Some(options)).await
            })
            .await;
        match none_if_not_found(removed) {
            // Somebody else is removing it.
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

    /// The ends of containers that `filters` let through, those since `since` (in seconds) included.
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
        // For the head alone: the body lasts.
        Ok(client.with_timeout(REQUEST_TIMEOUT).events(Some(options)).boxed())
    }
}

/// Whether the daemon does not speak the version of the interface that was settled with it.
fn is_version_mismatch(error: &Error) -> bool {
    matches!(
        error,
        Error::DockerResponseServerError { status_code: 400, message } if message.contains("client version")
    )
}

/// An answer; none where what was asked about is not there.
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
