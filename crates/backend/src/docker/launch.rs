//! The launch of an engine: its folder, the network, and a new container.

use bollard::errors::Error;

use super::error::{is_network_gone, is_status, launch_error};
use super::label::{container_name, engine_of, generation_of};
use super::{Inner, NetworkFault, spec};
use crate::blocking::run_blocking;
use crate::{BackendError, Instance, LaunchSpec};

/// Why a container was not started.
pub(super) enum StartError {
    /// The daemon failed or refused.
    Daemon(Error),
    /// The engine has a container of a later launch, which this launch must not touch.
    Fenced(BackendError),
}

impl From<Error> for StartError {
    fn from(error: Error) -> Self {
        Self::Daemon(error)
    }
}

impl Inner {
    /// Launches the engine in a container of its own, in place of any that an earlier launch left.
    pub(super) async fn launch(&self, launch: &LaunchSpec) -> Result<Instance, BackendError> {
        self.remove_instance(launch.target()).await?;
        self.prepare_folder(launch).await?;
        let network = self.ensure_network().await?;
        match self.create_and_start(launch, &network).await {
            Err(StartError::Daemon(error)) if is_network_gone(&error) => {
                self.network.clear_cached_id();
                let network = self.ensure_network().await?;
                self.create_and_start(launch, &network).await
            }
            started => started,
        }
        .map_err(|error| match error {
            StartError::Daemon(error) => launch_error(&error, launch),
            StartError::Fenced(error) => error,
        })
    }

    /// Prepares the engine's folder, and makes the engines' user its owner.
    pub(super) async fn prepare_folder(&self, launch: &LaunchSpec) -> Result<(), BackendError> {
        let (folder, user, first) =
            (self.folders.folder(launch.engine_id), self.options.user, launch.is_first);
        let path = folder.path().display().to_string();
        let prepared = run_blocking(move || {
            folder.prepare(first)?;
            folder.chown(user.uid, user.gid)
        });
        let with_context = |reason: String| format!("the engine's folder cannot be used: {reason}");
        // The path goes into the log only: products must not learn it.
        let log = |error: &BackendError| {
            tracing::error!(engine_id = %launch.engine_id, path, %error, "An engine's folder cannot be used.");
        };
        prepared.await.inspect_err(log).map_err(|error| match error {
            BackendError::NoCapacity(reason) => BackendError::NoCapacity(with_context(reason)),
            BackendError::Failed(reason) => BackendError::Failed(with_context(reason)),
            error => error,
        })
    }

    pub(super) async fn ensure_network(&self) -> Result<String, BackendError> {
        match self.network.ensure(&self.daemon).await {
            Err(NetworkFault::Backend(error)) => Err(error),
            Err(fault @ NetworkFault::NotIsolated { .. }) => Err(BackendError::Failed(fault.to_string())),
            Ok(id) => Ok(id),
        }
    }

    /// Creates the engine's container and starts it. A container that does not start is removed.
    async fn create_and_start(&self, launch: &LaunchSpec, network: &str) -> Result<Instance, StartError> {
        let id = self.create(launch, network).await?;
        self.exit_watch.note_starting(&id, launch.engine_id);
        if let Err(error) = self.daemon.start(&id).await {
            self.exit_watch.forget(&id);
            // Best effort: the next launch or reconciliation finds a leftover by its labels.
            let _ = self.daemon.remove(&id).await;
            return Err(error.into());
        }
        self.exit_watch.note_started(&id);
        Ok(Instance::new(id))
    }

    /// Creates the engine's container, and first removes a container of the engine that an earlier call left
    /// behind. Names are unique in the daemon, so no container is ever created beside that of a later launch.
    pub(super) async fn create(&self, launch: &LaunchSpec, network: &str) -> Result<String, StartError> {
        let name = container_name(launch.engine_id);
        let body = || spec::container(&self.options, launch, network);
        match self.daemon.create(&name, body()).await {
            Err(error) if is_status(&error, 409) => {
                let Some(other) = self.daemon.inspect(&name).await? else { return Err(error.into()) };
                let labels = other.config.and_then(|config| config.labels).unwrap_or_default();
                let (engine_id, id) = (engine_of(&self.options.deployment_id, &labels), other.id);
                let (Some(id), true) = (id, engine_id == Some(launch.engine_id)) else {
                    return Err(error.into());
                };
                launch
                    .target()
                    .fence([(generation_of(&labels), ())])
                    .reject_superseded()
                    .map_err(StartError::Fenced)?;
                self.daemon.remove(&id).await?;
                Ok(self.daemon.create(&name, body()).await?)
            }
            created => Ok(created?),
        }
    }
}
