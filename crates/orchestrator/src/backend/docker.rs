//! Engines as containers of a Docker daemon.
//!
//! Containers outlive the orchestrator. Each carries its deployment and its engine in its labels, by which a later
//! orchestrator finds it again, even if the earlier one died between creating it and writing it down. A container
//! is made for one launch and never begun twice, so that no engine ever runs in a stale environment.

mod daemon;
mod error;
mod exit_watch;
mod label;
mod log;
mod network;
mod spec;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{EngineId, EngineImage};
use bollard::errors::Error;
use futures::stream::BoxStream;
use http_service::clock::Clock;

use self::daemon::{Container, ContainerState, Daemon};
use self::error::{docker_backend_error, is_network_gone, is_status, launch_error};
use self::exit_watch::ExitWatch;
use self::label::{container_name, engine_of, generation_of};
use self::network::EngineNetwork;
pub(crate) use self::network::NetworkFault;
use super::blocking::{failed_with, run_blocking};
use super::engine_folder::{EngineFolder, EngineFolders, STILL_RUNNING_MESSAGE};
use super::engine_log::MAX_SAVED_LINES;
use super::fence::Fenced;
use super::{
    BackendError, BackendFuture, BrainCopy, EngineBackend, EngineListing, Instance, InstanceExit, LaunchSpec,
    ResourceLimits, Target,
};
use crate::fault_injection::{self, Mutation};
use crate::keyed_locks::KeyedLocks;

/// How long the first look at the network may take: it is a part of the time in which an orchestrator is ready.
const NETWORK_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a stop waits for the removal of the container, once the engine has ended.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the Docker backend finds and keeps things.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The daemon's socket.
    pub(crate) socket: PathBuf,
    /// The network that the engines join.
    pub(crate) network: String,
    /// The label of this deployment's containers.
    pub(crate) deployment_id: String,
    /// Holds one folder per engine.
    pub(crate) data_root: PathBuf,
    /// The catalog that all engines read.
    pub(crate) catalog: PathBuf,
    /// Whom the engines run as.
    pub(crate) user: User,
}

/// A user and a group of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Whom root's engines run as: nobody else.
    const ENGINE: Self = Self { uid: 10_001, gid: 10_001 };

    /// Whom this orchestrator's engines run as: itself, unless it is root.
    pub(crate) fn for_engines() -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if uid.is_root() { Self::ENGINE } else { Self { uid: uid.as_raw(), gid: gid.as_raw() } }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

/// Runs engines as containers.
pub(crate) struct DockerBackend {
    inner: Arc<Inner>,
}

/// Why a container was not begun.
enum StartError {
    /// The daemon's word.
    Daemon(Error),
    /// The engine's name has a container that this launch must not touch.
    Fenced(BackendError),
}

impl From<Error> for StartError {
    fn from(error: Error) -> Self {
        Self::Daemon(error)
    }
}

struct Inner {
    options: Options,
    daemon: Daemon,
    network: EngineNetwork,
    folders: EngineFolders,
    exit_watch: ExitWatch,
    clock: Arc<dyn Clock>,
    /// Launch, stop and removal of one engine go one after the other.
    locks: KeyedLocks<EngineId>,
}

impl DockerBackend {
    pub(crate) fn new(options: Options, clock: Arc<dyn Clock>) -> Self {
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

    /// Makes sure that the network is as it must be, as far as the daemon answers: one that does not yet will be
    /// asked again before the first launch.
    pub(crate) async fn check_network(&self) -> Result<(), NetworkFault> {
        let looked = self.inner.network.ensure(&self.inner.daemon);
        match tokio::time::timeout(NETWORK_CHECK_TIMEOUT, looked).await {
            Ok(Err(fault @ NetworkFault::NotIsolated { .. })) => Err(fault),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(NetworkFault::Backend(error))) => {
                tracing::warn!(%error, "The engines' network could not be looked at yet.");
                Ok(())
            }
            Err(_) => {
                tracing::warn!("The Docker daemon does not answer yet.");
                Ok(())
            }
        }
    }
}

impl Inner {
    /// All containers of this deployment, or of one engine of it.
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

    /// The containers of the target's engine. Each is acted on by its own id from then on: whatever is created in its
    /// place meanwhile is another one.
    async fn fenced_containers(&self, target: Target) -> Result<Fenced<Container>, BackendError> {
        let found = self.containers(Some(target.engine_id)).await?.into_iter();
        Ok(target.fence(found.map(|(_, container)| (generation_of(&container.labels), container))))
    }

    /// Ends and removes whatever container the engine has.
    async fn remove_instance(&self, target: Target) -> Result<(), BackendError> {
        let found = self.fenced_containers(target).await?;
        for container in &found.own {
            self.save_log(target.engine_id, container).await;
            self.daemon.remove(&container.id).await.map_err(|error| docker_backend_error(&error))?;
        }
        found.reject_superseded()
    }

    /// Keeps the last lines of a container that is about to go: best effort, and for a moment.
    async fn save_log(&self, engine_id: EngineId, container: &Container) {
        if container.state == ContainerState::Created {
            return;
        }
        let kept = async {
            let lines = log::tail(&self.daemon, &container.id, MAX_SAVED_LINES).await;
            let lines = lines.map_err(|error| docker_backend_error(&error))?;
            let folder = self.folders.folder(engine_id);
            run_blocking(move || if lines.is_empty() { Ok(()) } else { folder.save_log(&lines) }).await
        };
        match tokio::time::timeout(CLEANUP_TIMEOUT, kept).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(%engine_id, %error, "The log of a container was not kept."),
            Err(_) => tracing::info!(%engine_id, "The log of a container was not kept: it took too long."),
        }
    }

    async fn launch(&self, launch: &LaunchSpec) -> Result<Instance, BackendError> {
        self.remove_instance(launch.target()).await?;
        self.prepare_folder(launch).await?;
        let network = self.ensure_network().await?;
        match self.create_and_start(launch, &network).await {
            Err(StartError::Daemon(error)) if is_network_gone(&error) => {
                self.network.clear_cached_id();
                let network = self.ensure_network().await?;
                self.create_and_start(launch, &network).await
            }
            begun => begun,
        }
        .map_err(|not_begun| match not_begun {
            StartError::Daemon(error) => launch_error(&error, launch),
            StartError::Fenced(error) => error,
        })
    }

    /// Prepares the engine's folder, its user's own.
    async fn prepare_folder(&self, launch: &LaunchSpec) -> Result<(), BackendError> {
        let (folder, user, first) =
            (self.folders.folder(launch.engine_id), self.options.user, launch.is_first);
        let path = folder.path().display().to_string();
        let prepared = run_blocking(move || {
            folder.prepare(first)?;
            folder.chown(user.uid, user.gid)
        });
        let named = |why: String| format!("the engine's folder cannot be used: {why}");
        // Only the operator is told of paths.
        let log = |error: &BackendError| {
            tracing::error!(engine.id = %launch.engine_id, path, %error, "An engine's folder cannot be used.");
        };
        prepared.await.inspect_err(log).map_err(|error| match error {
            BackendError::NoCapacity(why) => BackendError::NoCapacity(named(why)),
            BackendError::Failed(why) => BackendError::Failed(named(why)),
            error => error,
        })
    }

    async fn ensure_network(&self) -> Result<String, BackendError> {
        match self.network.ensure(&self.daemon).await {
            Err(NetworkFault::Backend(error)) => Err(error),
            Err(fault @ NetworkFault::NotIsolated { .. }) => Err(BackendError::Failed(fault.to_string())),
            Ok(id) => Ok(id),
        }
    }

    /// Creates the engine's container and begins it; one that cannot begin is removed again.
    async fn create_and_start(&self, launch: &LaunchSpec, network: &str) -> Result<Instance, StartError> {
        let id = self.create(launch, network).await?;
        self.exit_watch.note_starting(&id, launch.engine_id);
        if let Err(error) = self.daemon.start(&id).await {
            self.exit_watch.forget(&id);
            // Best effort: what is left of it is found by its labels.
            let _ = self.daemon.remove(&id).await;
            return Err(error.into());
        }
        self.exit_watch.note_started(&id);
        Ok(Instance::new(id))
    }

    /// Creates the engine's container. One of its own that an earlier call left behind makes room for it; the daemon
    /// gives the name to one container, so none is created beside that of a later launch.
    async fn create(&self, launch: &LaunchSpec, network: &str) -> Result<String, StartError> {
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

    async fn stop(&self, target: Target, grace: Duration) -> Result<(), BackendError> {
        let found = self.fenced_containers(target).await?;
        for container in &found.own {
            let ended = async {
                if container.state == ContainerState::Paused {
                    // What is halted hears nothing.
                    self.daemon.unpause(&container.id).await?;
                }
                if fault_injection::active(Mutation::ForgiveTerm) {
                    return self.daemon.signal(&container.id, "SIGTERM").await;
                }
                if container.state.is_alive() {
                    self.daemon.stop(&container.id, grace).await?;
                }
                self.save_log(target.engine_id, container).await;
                self.remove_stopped(target.engine_id, &container.id).await;
                Ok(())
            };
            ended.await.map_err(|error| docker_backend_error(&error))?;
        }
        found.reject_superseded()
    }

    /// Removes the container of an engine that has ended, which is what was asked. Where this takes long, what is
    /// left is found again by its labels: the stop is over, and its caller does not wait.
    async fn remove_stopped(&self, engine_id: EngineId, container: &str) {
        match tokio::time::timeout(CLEANUP_TIMEOUT, self.daemon.remove(container)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%engine_id, error, "The container of a stopped engine could not be removed yet.");
            }
            Err(_) => tracing::warn!(%engine_id, "The container of a stopped engine is still being removed."),
        }
    }

    /// Does `work` in the folder of an engine that does not run.
    async fn while_stopped<T: Send + 'static>(
        &self,
        target: Target,
        work: impl FnOnce(&EngineFolder) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let turn = self.locks.lock(target.engine_id).await;
        let found = self.fenced_containers(target).await?;
        found.reject_superseded()?;
        if found.own.iter().any(|container| container.state.is_alive()) {
            return Err(BackendError::Failed(STILL_RUNNING_MESSAGE.to_owned()));
        }
        let folder = self.folders.folder(target.engine_id);
        run_blocking(move || {
            let done = work(&folder);
            drop(turn);
            done
        })
        .await
    }

    async fn kill(&self, target: Target) -> Result<(), BackendError> {
        let found = self.fenced_containers(target).await?;
        for container in &found.own {
            let ended = async {
                match container.state {
                    ContainerState::Created => self.daemon.remove(&container.id).await,
                    ContainerState::Running | ContainerState::Paused => self.daemon.kill(&container.id).await,
                    ContainerState::Exited => Ok(()),
                }
            };
            ended.await.map_err(|error| docker_backend_error(&error))?;
        }
        found.reject_superseded()
    }

    async fn list(&self) -> Result<Vec<EngineListing>, BackendError> {
        let listed = self.containers(None).await?.into_iter().map(|(engine_id, container)| {
            let (alive, generation) = (container.state.is_alive(), generation_of(&container.labels));
            if alive {
                self.exit_watch.note_running(&container.id, engine_id);
            }
            EngineListing { engine_id, instance: Instance::new(container.id), generation, running: alive }
        });
        Ok(listed.collect())
    }

    async fn is_running(&self, instance: &Instance) -> Result<bool, BackendError> {
        let inspected =
            self.daemon.inspect(instance.as_str()).await.map_err(|error| docker_backend_error(&error))?;
        let Some(inspected) = inspected else { return Ok(false) };
        let labels = inspected.config.and_then(|config| config.labels).unwrap_or_default();
        let runs = inspected.state.and_then(|state| state.running).unwrap_or(false);
        match engine_of(&self.options.deployment_id, &labels) {
            Some(engine_id) if runs => {
                self.exit_watch.note_running(instance.as_str(), engine_id);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn log_tail(&self, engine_id: EngineId, lines: usize) -> Result<Vec<String>, BackendError> {
        // Of a launch that is under way nothing may have been written yet.
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
            let there =
                self.inner.daemon.has_image(image).await.map_err(|error| docker_backend_error(&error))?;
            if there { Ok(()) } else { Err(BackendError::NoImage(image.clone())) }
        })
    }

    /// What the daemon itself has promised to a container may not show here; then a launch says so.
    fn port_is_free(&self, port: u16) -> bool {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    }

    fn has_data(&self, engine_id: EngineId) -> BackendFuture<'_, bool> {
        let folder = self.inner.folders.folder(engine_id);
        Box::pin(run_blocking(move || folder.has_brain()))
    }

    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance> {
        Box::pin(async move {
            let turn = self.inner.locks.lock(launch.engine_id).await;
            let inner = Arc::clone(&self.inner);
            // On its own from here: a caller that gives up leaves no container half-made, and whoever comes next for
            // this engine waits until this is through.
            let launched = tokio::spawn(async move {
                let launched = inner.launch(&launch).await;
                drop(turn);
                launched
            });
            launched.await.unwrap_or_else(|error| Err(failed_with("the launch broke off", &error)))
        })
    }

    fn stop(&self, target: Target, grace: Duration) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _product_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.stop(target, grace).await
        })
    }

    fn kill(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _product_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.kill(target).await
        })
    }

    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _product_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.remove_instance(target).await
        })
    }

    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let turn = self.inner.locks.lock(target.engine_id).await;
            self.inner.remove_instance(target).await?;
            let folder = self.inner.folders.folder(target.engine_id);
            run_blocking(move || {
                let removed = folder.remove();
                drop(turn);
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
