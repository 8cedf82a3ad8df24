//! Runs engines as containers of a Docker daemon.
//!
//! Containers outlive the orchestrator. The labels of each container name its deployment and its engine, so
//! that a later orchestrator finds it again, even if the earlier one died between creating and recording it.
//! A container is created for one launch and never started twice, so that no engine runs with a stale
//! environment.

mod daemon;
mod error;
mod exit_watch;
mod label;
mod launch;
mod log;
mod network;
mod spec;

#[cfg(test)]
#[path = "../tests/unit/docker/mod.rs"]
mod tests;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{EngineId, EngineImage};
use futures::stream::BoxStream;
use http_service::clock::Clock;
use resources::keyed_locks::KeyedLocks;

use self::daemon::{Container, ContainerState, Daemon};
use self::error::docker_backend_error;
use self::exit_watch::ExitWatch;
use self::label::{engine_of, generation_of};
use self::network::EngineNetwork;
pub use self::network::NetworkFault;
use super::blocking::{run_blocking, run_to_end};
use super::engine_folder::{EngineFolder, EngineFolders, STILL_RUNNING_MESSAGE};
use super::engine_log::MAX_SAVED_LINES;
use super::fence::Fenced;
use super::{
    Addressing, BackendError, BackendFuture, BrainCopy, BrainFormats, DataListing, EngineBackend,
    EngineListing, Instance, InstanceExit, LaunchSpec, Placement, ResourceLimits, Target,
};

/// Time limit of the network check at startup, which delays the orchestrator's readiness.
const NETWORK_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for saving the log of an exited container, and for removing the container at the end of a stop.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The configuration of the Docker backend.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The name of the network that the engines join.
    pub network: String,
    /// The deployment's id, with which its containers are labelled.
    pub deployment_id: String,
    /// The folder that contains one folder per engine.
    pub data_root: PathBuf,
    /// The folder of the catalog that all engines read.
    pub catalog: PathBuf,
    /// The host in the engines' URLs, as products reach it.
    pub url_host: String,
    /// The user and group that the engines run as.
    pub user: User,
}

/// A user id and a group id of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// The user of the engines if the orchestrator runs as root. Nothing else uses these ids.
    const ENGINE: Self = Self { uid: 10_001, gid: 10_001 };

    /// Returns the user that engines run as: the orchestrator's own, unless that is root.
    pub fn for_engines() -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if uid.is_root() { Self::ENGINE } else { Self { uid: uid.as_raw(), gid: gid.as_raw() } }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

/// The [`EngineBackend`] that runs engines as Docker containers.
pub struct DockerBackend {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    daemon: Daemon,
    network: EngineNetwork,
    folders: EngineFolders,
    exit_watch: ExitWatch,
    clock: Arc<dyn Clock>,
    /// Serializes launch, stop and removal of one engine.
    locks: KeyedLocks<EngineId>,
}

impl DockerBackend {
    /// Creates the backend. Does not contact the daemon yet.
    pub fn new(options: Options, clock: Arc<dyn Clock>) -> Self {
        let inner = Inner {
            daemon: Daemon::new(options.socket.clone()),
            network: EngineNetwork::new(options.network.clone()),
            folders: EngineFolders::new(options.data_root.clone()),
            exit_watch: ExitWatch::default(),
            clock,
            locks: KeyedLocks::default(),
            options,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Creates the network if it is missing, and fails if it does not isolate engines from each other. If the
    /// daemon fails or does not answer, this succeeds, because every launch repeats the check.
    pub async fn check_network(&self) -> Result<(), NetworkFault> {
        let check = self.inner.network.ensure(&self.inner.daemon);
        match tokio::time::timeout(NETWORK_CHECK_TIMEOUT, check).await {
            Ok(Err(fault @ NetworkFault::NotIsolated { .. })) => Err(fault),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(NetworkFault::Backend(error))) => {
                tracing::warn!(%error, "The engines' network cannot be checked yet.");
                Ok(())
            }
            Err(_) => {
                tracing::warn!("The Docker daemon does not answer; the engines' network is not checked yet.");
                Ok(())
            }
        }
    }
}

impl Inner {
    /// Lists the containers of this deployment, or of one of its engines.
    async fn containers(
        &self,
        engine_id: Option<EngineId>,
    ) -> Result<Vec<(EngineId, Container)>, BackendError> {
        let filters = label::filters(&self.options.deployment_id, engine_id);
        let found = self.daemon.containers(&filters).await.map_err(|error| docker_backend_error(&error))?;
        let of_engine = |container: Container| {
            let engine_id = engine_of(&self.options.deployment_id, &container.labels)?;
            Some((engine_id, container))
        };
        Ok(found.into_iter().filter_map(of_engine).collect())
    }

    /// Lists the containers of the target's engine. Callers address them by id, not by name, so that they
    /// never act on a container that was created in the meantime.
    async fn fenced_containers(&self, target: Target) -> Result<Fenced<Container>, BackendError> {
        let found = self.containers(Some(target.engine_id)).await?.into_iter();
        Ok(target.fence(found.map(|(_, container)| (generation_of(&container.labels), container))))
    }

    /// Kills and removes the containers of the target's engine.
    async fn remove_instance(&self, target: Target) -> Result<(), BackendError> {
        let found = self.fenced_containers(target).await?;
        for container in &found.own {
            self.save_log(target.engine_id, container).await;
            self.daemon.remove(&container.id).await.map_err(|error| docker_backend_error(&error))?;
        }
        found.reject_superseded()
    }

    /// Saves the last lines of the log of a container that is about to be removed: best effort, within
    /// [`CLEANUP_TIMEOUT`].
    async fn save_log(&self, engine_id: EngineId, container: &Container) {
        if container.state == ContainerState::Created {
            return;
        }
        let saved = async {
            let lines = log::tail(&self.daemon, &container.id, MAX_SAVED_LINES).await;
            let lines = lines.map_err(|error| docker_backend_error(&error))?;
            let folder = self.folders.folder(engine_id);
            run_blocking(move || if lines.is_empty() { Ok(()) } else { folder.save_log(&lines) }).await
        };
        match tokio::time::timeout(CLEANUP_TIMEOUT, saved).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(%engine_id, %error, "The log of a container was not saved."),
            Err(_) => tracing::info!(%engine_id, "The log of a container was not saved in time."),
        }
    }

    async fn stop(&self, target: Target, grace: Duration) -> Result<(), BackendError> {
        let found = self.fenced_containers(target).await?;
        for container in &found.own {
            let stopped = async {
                if container.state == ContainerState::Paused {
                    // A paused container does not receive signals.
                    self.daemon.unpause(&container.id).await?;
                }
                if container.state.is_alive() {
                    self.daemon.stop(&container.id, grace).await?;
                }
                self.save_log(target.engine_id, container).await;
                self.remove_stopped(target.engine_id, &container.id).await;
                Ok(())
            };
            stopped.await.map_err(|error| docker_backend_error(&error))?;
        }
        found.reject_superseded()
    }

    /// Removes the container of an engine that has exited. The stop is complete by then, so its caller waits
    /// at most [`CLEANUP_TIMEOUT`]; a container that remains is found later by its labels.
    async fn remove_stopped(&self, engine_id: EngineId, container: &str) {
        match tokio::time::timeout(CLEANUP_TIMEOUT, self.daemon.remove(container)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%engine_id, error, "The container of a stopped engine could not be removed.");
            }
            Err(_) => tracing::warn!(%engine_id, "The container of a stopped engine is still being removed."),
        }
    }

    /// Runs `work` on the folder of the target's engine. Fails if the engine runs.
    async fn while_stopped<T: Send + 'static>(
        &self,
        target: Target,
        work: impl FnOnce(&EngineFolder) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let engine_lock = self.locks.lock(target.engine_id).await;
        let found = self.fenced_containers(target).await?;
        found.reject_superseded()?;
        if found.own.iter().any(|container| container.state.is_alive()) {
            return Err(BackendError::Failed(STILL_RUNNING_MESSAGE.to_owned()));
        }
        let folder = self.folders.folder(target.engine_id);
        run_blocking(move || {
            let result = work(&folder);
            drop(engine_lock);
            result
        })
        .await
    }

    async fn kill(&self, target: Target) -> Result<(), BackendError> {
        let found = self.fenced_containers(target).await?;
        for container in &found.own {
            let killed = async {
                match container.state {
                    ContainerState::Created => self.daemon.remove(&container.id).await,
                    ContainerState::Running | ContainerState::Paused => self.daemon.kill(&container.id).await,
                    ContainerState::Exited => Ok(()),
                }
            };
            killed.await.map_err(|error| docker_backend_error(&error))?;
        }
        found.reject_superseded()
    }

    async fn list(&self) -> Result<Vec<EngineListing>, BackendError> {
        let listed = self.containers(None).await?.into_iter().map(|(engine_id, container)| {
            let (running, generation) = (container.state.is_alive(), generation_of(&container.labels));
            if running {
                self.exit_watch.note_running(&container.id, engine_id);
            }
            EngineListing { engine_id, instance: Instance::new(container.id), generation, running }
        });
        Ok(listed.collect())
    }

    async fn is_running(&self, instance: &Instance) -> Result<bool, BackendError> {
        let inspected =
            self.daemon.inspect(instance.as_str()).await.map_err(|error| docker_backend_error(&error))?;
        let Some(inspected) = inspected else { return Ok(false) };
        let labels = inspected.config.and_then(|config| config.labels).unwrap_or_default();
        let running = inspected.state.and_then(|state| state.running).unwrap_or(false);
        match engine_of(&self.options.deployment_id, &labels) {
            Some(engine_id) if running => {
                self.exit_watch.note_running(instance.as_str(), engine_id);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn log_tail(&self, engine_id: EngineId, lines: usize) -> Result<Vec<String>, BackendError> {
        // A container that was just launched may have written nothing yet; the saved log is better than none.
        if let Some((_, container)) = self.containers(Some(engine_id)).await?.pop() {
            let tail = log::tail(&self.daemon, &container.id, lines)
                .await
                .map_err(|error| docker_backend_error(&error))?;
            if !tail.is_empty() {
                return Ok(tail);
            }
        }
        let folder = self.folders.folder(engine_id);
        run_blocking(move || folder.log_tail(lines)).await
    }

    async fn resource_limits(&self, engine_id: EngineId) -> Result<Option<ResourceLimits>, BackendError> {
        let containers = self.containers(Some(engine_id)).await?;
        let Some((_, container)) = containers.iter().find(|(_, container)| container.state.is_alive()) else {
            return Ok(None);
        };
        let inspected =
            self.daemon.inspect(&container.id).await.map_err(|error| docker_backend_error(&error))?;
        Ok(inspected.and_then(|inspected| inspected.host_config).map(|host| spec::limits_of(&host)))
    }
}

impl EngineBackend for DockerBackend {
    fn ping(&self) -> BackendFuture<'_, ()> {
        Box::pin(async move { self.inner.daemon.ping().await.map_err(|error| docker_backend_error(&error)) })
    }

    fn has_single_image(&self) -> bool {
        false
    }

    fn check_image<'a>(&'a self, image: &'a EngineImage) -> BackendFuture<'a, ()> {
        Box::pin(async move {
            let exists =
                self.inner.daemon.has_image(image).await.map_err(|error| docker_backend_error(&error))?;
            if exists { Ok(()) } else { Err(BackendError::NoImage(image.clone())) }
        })
    }

    fn addressing(&self) -> Addressing {
        Addressing::HostPort
    }

    /// A port that the daemon has published for a container may look free here; then the launch fails with
    /// [`BackendError::PortTaken`].
    fn port_is_free(&self, port: u16) -> bool {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    }

    fn address(&self, _: EngineId, placement: Placement) -> Option<SocketAddr> {
        placement.loopback_address()
    }

    fn url_authority(&self, _: EngineId, placement: Placement) -> Option<String> {
        placement.authority_on(&self.inner.options.url_host)
    }

    fn has_data(&self, engine_id: EngineId) -> BackendFuture<'_, bool> {
        let folder = self.inner.folders.folder(engine_id);
        Box::pin(run_blocking(move || folder.has_brain()))
    }

    fn list_data(&self, engine_id: Option<EngineId>) -> BackendFuture<'_, Option<Vec<DataListing>>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(run_blocking(move || inner.folders.list(engine_id).map(Some)))
    }

    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance> {
        Box::pin(async move {
            let engine_lock = self.inner.locks.lock(launch.engine_id).await;
            let inner = Arc::clone(&self.inner);
            run_to_end(engine_lock, async move { inner.launch(&launch).await }).await
        })
    }

    fn stop(&self, target: Target, grace: Duration) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.stop(target, grace).await
        })
    }

    fn kill(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.kill(target).await
        })
    }

    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.remove_instance(target).await
        })
    }

    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.remove_instance(target).await?;
            let folder = self.inner.folders.folder(target.engine_id);
            run_blocking(move || {
                let removed = folder.remove();
                drop(engine_lock);
                removed
            })
            .await
        })
    }

    fn copy_brain(&self, target: Target) -> BackendFuture<'_, BrainCopy> {
        Box::pin(self.inner.while_stopped(target, EngineFolder::copy_brain))
    }

    fn restore_brain(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(self.inner.while_stopped(target, EngineFolder::restore_brain))
    }

    fn brain_formats(&self, target: Target) -> BackendFuture<'_, BrainFormats> {
        Box::pin(self.inner.while_stopped(target, EngineFolder::brain_formats))
    }

    fn list(&self) -> BackendFuture<'_, Vec<EngineListing>> {
        Box::pin(self.inner.list())
    }

    fn exits(&self) -> BoxStream<'static, InstanceExit> {
        exit_watch::exits(Arc::clone(&self.inner))
    }

    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool> {
        Box::pin(self.inner.is_running(instance))
    }

    fn log_tail(&self, engine_id: EngineId, lines: usize) -> BackendFuture<'_, Vec<String>> {
        Box::pin(self.inner.log_tail(engine_id, lines))
    }

    fn resource_limits(&self, engine_id: EngineId) -> BackendFuture<'_, Option<ResourceLimits>> {
        Box::pin(self.inner.resource_limits(engine_id))
    }
}
