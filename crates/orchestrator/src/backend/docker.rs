//! Engines as containers of a Docker daemon.
//!
//! Containers outlive the orchestrator. Each carries its deployment and its engine in its labels, by which a later
//! orchestrator finds it again, even if the earlier one died between creating it and writing it down. A container
//! is made for one launch and never begun twice, so that no engine ever runs in a stale environment.

mod daemon;
mod error;
mod label;
mod log;
mod network;
mod spec;
mod watch;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error;
use contract::{EngineId, EngineImage};
use futures::stream::BoxStream;
use service::clock::Clock;

use self::daemon::{Container, Daemon, Life};
use self::error::{is_network_gone, is_status, of_launch, told};
use self::label::{container_name, engine_of, generation_of};
use self::network::EngineNetwork;
pub(crate) use self::network::NetworkFault;
use self::watch::Watch;
use super::blocking::{blocking, failed};
use super::folder::{Folder, Folders, STILL_RUNS};
use super::kept_log::KEPT_LINES;
use super::target::Fenced;
use super::{Answer, BackendError, BrainCopy, Caps, EngineBackend, Exit, Instance, Launch, Listed, Target};
use crate::locks::KeyedLocks;
use crate::sabotage::{self, Saboteur};

/// How long the first look at the network may take: it is a part of the time in which an orchestrator is ready.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// How long a stop waits for the removal of the container, once the engine has ended.
const TIDYING: Duration = Duration::from_secs(2);

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
    pub(crate) fn of_engines() -> Self {
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
enum NotBegun {
    /// The daemon's word.
    Daemon(Error),
    /// The engine's name has a container that this launch must not touch.
    Fenced(BackendError),
}

impl From<Error> for NotBegun {
    fn from(error: Error) -> Self {
        Self::Daemon(error)
    }
}

struct Inner {
    options: Options,
    daemon: Daemon,
    network: EngineNetwork,
    folders: Folders,
    watch: Watch,
    clock: Arc<dyn Clock>,
    /// Launch, stop and removal of one engine go one after the other.
    locks: KeyedLocks<EngineId>,
}

impl DockerBackend {
    pub(crate) fn new(options: Options, clock: Arc<dyn Clock>) -> Self {
        let inner = Inner {
            daemon: Daemon::new(options.socket.clone()),
            network: EngineNetwork::new(options.network.clone()),
            folders: Folders::new(options.data_root.clone()),
            watch: Watch::default(),
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
        match tokio::time::timeout(FIRST_LOOK, looked).await {
            Ok(Err(fault @ NetworkFault::Open { .. })) => Err(fault),
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
        let found = self.daemon.containers(&filters).await.map_err(|error| told(&error))?;
        let of_engine = |container: Container| {
            let engine_id = engine_of(&self.options.deployment_id, &container.labels)?;
            Some((engine_id, container))
        };
        Ok(found.into_iter().filter_map(of_engine).collect())
    }

    /// The containers of the target's engine. Each is acted on by its own id from then on: whatever is created in its
    /// place meanwhile is another one.
    async fn fenced(&self, target: Target) -> Result<Fenced<Container>, BackendError> {
        let found = self.containers(Some(target.engine_id)).await?.into_iter();
        Ok(target.fence(found.map(|(_, container)| (generation_of(&container.labels), container))))
    }

    /// Ends and removes whatever container the engine has.
    async fn clear(&self, target: Target) -> Result<(), BackendError> {
        let found = self.fenced(target).await?;
        for container in &found.own {
            self.keep_log(target.engine_id, container).await;
            self.daemon.remove(&container.id).await.map_err(|error| told(&error))?;
        }
        found.check()
    }

    /// Keeps the last lines of a container that is about to go: best effort, and for a moment.
    async fn keep_log(&self, engine_id: EngineId, container: &Container) {
        if container.life == Life::Unborn {
            return;
        }
        let kept = async {
            let lines = log::tail(&self.daemon, &container.id, KEPT_LINES).await;
            let lines = lines.map_err(|error| told(&error))?;
            let folder = self.folders.of(engine_id);
            blocking(move || if lines.is_empty() { Ok(()) } else { folder.keep_log(&lines) }).await
        };
        match tokio::time::timeout(TIDYING, kept).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(%engine_id, %error, "The log of a container was not kept."),
            Err(_) => tracing::info!(%engine_id, "The log of a container was not kept: it took too long."),
        }
    }

    async fn launch(&self, launch: &Launch) -> Result<Instance, BackendError> {
        self.clear(launch.target()).await?;
        self.prepare_folder(launch).await?;
        let network = self.ensure_network().await?;
        match self.begin(launch, &network).await {
            Err(NotBegun::Daemon(error)) if is_network_gone(&error) => {
                self.network.forget();
                let network = self.ensure_network().await?;
                self.begin(launch, &network).await
            }
            begun => begun,
        }
        .map_err(|not_begun| match not_begun {
            NotBegun::Daemon(error) => of_launch(&error, launch),
            NotBegun::Fenced(error) => error,
        })
    }

    /// Prepares the engine's folder, its user's own.
    async fn prepare_folder(&self, launch: &Launch) -> Result<(), BackendError> {
        let (folder, user, first) = (self.folders.of(launch.engine_id), self.options.user, launch.first);
        let path = folder.path().display().to_string();
        let prepared = blocking(move || {
            folder.prepare(first)?;
            folder.give_to(user.uid, user.gid)
        });
        let named = |why: String| format!("the engine's folder cannot be used: {why}");
        // Only the operator is told of paths.
        let log = |error: &BackendError| {
            tracing::error!(engine.id = %launch.engine_id, path, %error, "An engine's folder cannot be used.");
        };
        prepared.await.inspect_err(log).map_err(|error| match error {
            BackendError::Full(why) => BackendError::Full(named(why)),
            BackendError::Failed(why) => BackendError::Failed(named(why)),
            error => error,
        })
    }

    async fn ensure_network(&self) -> Result<String, BackendError> {
        match self.network.ensure(&self.daemon).await {
            Err(NetworkFault::Backend(error)) => Err(error),
            Err(fault @ NetworkFault::Open { .. }) => Err(BackendError::Failed(fault.to_string())),
            Ok(id) => Ok(id),
        }
    }

    /// Creates the engine's container and begins it; one that cannot begin is removed again.
    async fn begin(&self, launch: &Launch, network: &str) -> Result<Instance, NotBegun> {
        let id = self.create(launch, network).await?;
        self.watch.beginning(&id, launch.engine_id);
        if let Err(error) = self.daemon.start(&id).await {
            self.watch.forget(&id);
            // Best effort: what is left of it is found by its labels.
            let _ = self.daemon.remove(&id).await;
            return Err(error.into());
        }
        self.watch.begun(&id);
        Ok(Instance::new(id))
    }

    /// Creates the engine's container. One of its own that an earlier call left behind makes room for it; the daemon
    /// gives the name to one container, so none is created beside that of a later launch.
    async fn create(&self, launch: &Launch, network: &str) -> Result<String, NotBegun> {
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
                launch.target().fence([(generation_of(&labels), ())]).check().map_err(NotBegun::Fenced)?;
                self.daemon.remove(&id).await?;
                Ok(self.daemon.create(&name, body()).await?)
            }
            created => Ok(created?),
        }
    }

    async fn stop(&self, target: Target, grace: Duration) -> Result<(), BackendError> {
        let found = self.fenced(target).await?;
        for container in &found.own {
            let ended = async {
                if container.life == Life::Halted {
                    // What is halted hears nothing.
                    self.daemon.unpause(&container.id).await?;
                }
                if sabotage::by(Saboteur::ForgiveTerm) {
                    return self.daemon.signal(&container.id, "SIGTERM").await;
                }
                if container.life.is_alive() {
                    self.daemon.stop(&container.id, grace).await?;
                }
                self.keep_log(target.engine_id, container).await;
                self.tidy_up(target.engine_id, &container.id).await;
                Ok(())
            };
            ended.await.map_err(|error| told(&error))?;
        }
        found.check()
    }

    /// Removes the container of an engine that has ended, which is what was asked. Where this takes long, what is
    /// left is found again by its labels: the stop is over, and its caller does not wait.
    async fn tidy_up(&self, engine_id: EngineId, container: &str) {
        match tokio::time::timeout(TIDYING, self.daemon.remove(container)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%engine_id, error, "The container of a stopped engine could not be removed yet.");
            }
            Err(_) => tracing::warn!(%engine_id, "The container of a stopped engine is still being removed."),
        }
    }

    /// Does `work` in the folder of an engine that does not run.
    async fn at_rest<T: Send + 'static>(
        &self,
        target: Target,
        work: impl FnOnce(&Folder) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let turn = self.locks.take(target.engine_id).await;
        let found = self.fenced(target).await?;
        found.check()?;
        if found.own.iter().any(|container| container.life.is_alive()) {
            return Err(BackendError::Failed(STILL_RUNS.to_owned()));
        }
        let folder = self.folders.of(target.engine_id);
        blocking(move || {
            let done = work(&folder);
            drop(turn);
            done
        })
        .await
    }

    async fn kill(&self, target: Target) -> Result<(), BackendError> {
        let found = self.fenced(target).await?;
        for container in &found.own {
            let ended = async {
                match container.life {
                    Life::Unborn => self.daemon.remove(&container.id).await,
                    Life::Running | Life::Halted => self.daemon.kill(&container.id).await,
                    Life::Over => Ok(()),
                }
            };
            ended.await.map_err(|error| told(&error))?;
        }
        found.check()
    }

    async fn list(&self) -> Result<Vec<Listed>, BackendError> {
        let listed = self.containers(None).await?.into_iter().map(|(engine_id, container)| {
            let (alive, generation) = (container.life.is_alive(), generation_of(&container.labels));
            if alive {
                self.watch.seen(&container.id, engine_id);
            }
            Listed { engine_id, instance: Instance::new(container.id), generation, alive }
        });
        Ok(listed.collect())
    }

    async fn runs(&self, instance: &Instance) -> Result<bool, BackendError> {
        let inspected = self.daemon.inspect(instance.as_str()).await.map_err(|error| told(&error))?;
        let Some(inspected) = inspected else { return Ok(false) };
        let labels = inspected.config.and_then(|config| config.labels).unwrap_or_default();
        let runs = inspected.state.and_then(|state| state.running).unwrap_or(false);
        match engine_of(&self.options.deployment_id, &labels) {
            Some(engine_id) if runs => {
                self.watch.seen(instance.as_str(), engine_id);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn log_tail(&self, engine_id: EngineId, lines: usize) -> Result<Vec<String>, BackendError> {
        // Of a launch that is under way nothing may have been written yet.
        if let Some((_, container)) = self.containers(Some(engine_id)).await?.pop() {
            let tail = log::tail(&self.daemon, &container.id, lines).await.map_err(|error| told(&error))?;
            if !tail.is_empty() {
                return Ok(tail);
            }
        }
        let folder = self.folders.of(engine_id);
        blocking(move || folder.log_tail(lines)).await
    }

    async fn caps(&self, engine_id: EngineId) -> Result<Option<Caps>, BackendError> {
        let containers = self.containers(Some(engine_id)).await?;
        let Some((_, container)) = containers.iter().find(|(_, container)| container.life.is_alive()) else {
            return Ok(None);
        };
        let inspected = self.daemon.inspect(&container.id).await.map_err(|error| told(&error))?;
        Ok(inspected.and_then(|inspected| inspected.host_config).map(|host| spec::caps_of(&host)))
    }
}

impl EngineBackend for DockerBackend {
    fn ping(&self) -> Answer<'_, ()> {
        Box::pin(async move { self.inner.daemon.ping().await.map_err(|error| told(&error)) })
    }

    fn has_one_image(&self) -> bool {
        false
    }

    fn check_image<'a>(&'a self, image: &'a EngineImage) -> Answer<'a, ()> {
        Box::pin(async move {
            let there = self.inner.daemon.has_image(image).await.map_err(|error| told(&error))?;
            if there { Ok(()) } else { Err(BackendError::NoImage(image.clone())) }
        })
    }

    /// What the daemon itself has promised to a container may not show here; then a launch says so.
    fn port_is_free(&self, port: u16) -> bool {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    }

    fn has_data(&self, engine_id: EngineId) -> Answer<'_, bool> {
        let folder = self.inner.folders.of(engine_id);
        Box::pin(blocking(move || folder.has_brain()))
    }

    fn launch(&self, launch: Launch) -> Answer<'_, Instance> {
        Box::pin(async move {
            let turn = self.inner.locks.take(launch.engine_id).await;
            let inner = Arc::clone(&self.inner);
            // On its own from here: a caller that gives up leaves no container half-made, and whoever comes next for
            // this engine waits until this is through.
            let launched = tokio::spawn(async move {
                let launched = inner.launch(&launch).await;
                drop(turn);
                launched
            });
            launched.await.unwrap_or_else(|error| Err(failed("the launch broke off", &error)))
        })
    }

    fn stop(&self, target: Target, grace: Duration) -> Answer<'_, ()> {
        Box::pin(async move {
            let _turn = self.inner.locks.take(target.engine_id).await;
            self.inner.stop(target, grace).await
        })
    }

    fn kill(&self, target: Target) -> Answer<'_, ()> {
        Box::pin(async move {
            let _turn = self.inner.locks.take(target.engine_id).await;
            self.inner.kill(target).await
        })
    }

    fn clear(&self, target: Target) -> Answer<'_, ()> {
        Box::pin(async move {
            let _turn = self.inner.locks.take(target.engine_id).await;
            self.inner.clear(target).await
        })
    }

    fn remove(&self, target: Target) -> Answer<'_, ()> {
        Box::pin(async move {
            let turn = self.inner.locks.take(target.engine_id).await;
            self.inner.clear(target).await?;
            let folder = self.inner.folders.of(target.engine_id);
            blocking(move || {
                let removed = folder.remove();
                drop(turn);
                removed
            })
            .await
        })
    }

    fn keep_copy(&self, target: Target) -> Answer<'_, BrainCopy> {
        Box::pin(self.inner.at_rest(target, Folder::keep_copy))
    }

    fn restore_copy(&self, target: Target) -> Answer<'_, ()> {
        Box::pin(self.inner.at_rest(target, Folder::restore_copy))
    }

    fn list(&self) -> Answer<'_, Vec<Listed>> {
        Box::pin(self.inner.list())
    }

    fn exits(&self) -> BoxStream<'static, Exit> {
        watch::exits(Arc::clone(&self.inner))
    }

    fn runs<'a>(&'a self, instance: &'a Instance) -> Answer<'a, bool> {
        Box::pin(self.inner.runs(instance))
    }

    fn log_tail(&self, engine_id: EngineId, lines: usize) -> Answer<'_, Vec<String>> {
        Box::pin(self.inner.log_tail(engine_id, lines))
    }

    fn caps(&self, engine_id: EngineId) -> Answer<'_, Option<Caps>> {
        Box::pin(self.inner.caps(engine_id))
    }
}
