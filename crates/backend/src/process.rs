//! Runs engines as processes of this host: each is this binary, started as `roundhouse engine`.
//!
//! Engines outlive the orchestrator. The command line of each names its deployment and its engine, so that a
//! later orchestrator finds it again, even if the earlier one died between starting and recording it. A known
//! process is held by a pidfd, so that only that process is watched and signalled, never another one that
//! received its pid later.

mod identity;
mod label;
mod spawn;
mod watched_process;

#[cfg(test)]
#[path = "../tests/unit/process.rs"]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use api::{EngineId, EngineImage};
use futures::StreamExt as _;
use futures::stream::{BoxStream, FuturesUnordered};
use http_service::clock::Clock;
use parking_lot::Mutex;
use resources::keyed_locks::KeyedLocks;
use rustix::process::Signal;
use tokio::sync::mpsc;

use self::label::{FoundProcess, Label};
use self::watched_process::WatchedProcess;
use super::blocking::{failed_with, run_blocking, run_to_end};
use super::engine_folder::{EngineFolder, EngineFolders, STILL_RUNNING_MESSAGE};
use super::engine_log::MAX_LOG_BYTES;
use super::fence::Fenced;
use super::{
    Addressing, BackendError, BackendFuture, BrainCopy, BrainFormats, DataListing, EngineBackend,
    EngineListing, Instance, InstanceExit, LaunchSpec, Placement, ResourceLimits, Target,
};
use crate::VERSION;

/// How often the logs of running engines are checked and, if they are too large, rotated.
const LOG_ROTATION_INTERVAL: Duration = Duration::from_secs(10);

/// The configuration of the process backend.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program whose subcommand `engine` runs an engine.
    pub program: PathBuf,
    /// The deployment's id, with which its processes are labelled.
    pub deployment_id: String,
    /// The folder that contains one folder per engine.
    pub data_root: PathBuf,
    /// The folder of the catalog that all engines read.
    pub catalog: PathBuf,
    /// The host in the engines' URLs, as products reach it.
    pub url_host: String,
}

/// The [`EngineBackend`] that runs engines as processes.
pub struct ProcessBackend {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    folders: EngineFolders,
    clock: Arc<dyn Clock>,
    /// The running processes known so far. An engine has more than one only if an earlier orchestrator died
    /// during a launch, or keeps launching because it does not know that it was replaced.
    running: Mutex<HashMap<EngineId, Vec<Arc<WatchedProcess>>>>,
    /// Serializes launch, stop and removal of one engine.
    locks: KeyedLocks<EngineId>,
    /// Held during a search, and while a process is spawned, so that a search finds only processes that
    /// others spawned.
    search: tokio::sync::Mutex<LastSearch>,
    /// The number of searches started so far.
    searches: AtomicU64,
    exits: mpsc::UnboundedSender<InstanceExit>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<InstanceExit>>>,
}

/// The number of the last search that succeeded; 0 before the first.
#[derive(Default)]
struct LastSearch(u64);

impl ProcessBackend {
    /// Creates the backend. Does not search for running engines yet.
    pub fn new(options: Options, clock: Arc<dyn Clock>) -> Self {
        let (exits, listener) = mpsc::unbounded_channel();
        let folders = EngineFolders::new(options.data_root.clone());
        let inner = Inner {
            options,
            folders,
            clock,
            running: Mutex::default(),
            locks: KeyedLocks::default(),
            search: tokio::sync::Mutex::default(),
            searches: AtomicU64::new(0),
            exits,
            listener: Mutex::new(Some(listener)),
        };
        Self { inner: Arc::new(inner) }
    }
}

impl Inner {
    fn label(&self, target: Target) -> Label {
        let Target { engine_id, generation } = target;
        Label { deployment_id: self.options.deployment_id.clone(), engine_id, generation }
    }

    /// Searches, and returns the processes of the target's engine.
    async fn fenced_processes(
        self: &Arc<Self>,
        target: Target,
    ) -> Result<Fenced<Arc<WatchedProcess>>, BackendError> {
        self.search().await?;
        let found = self.running.lock().get(&target.engine_id).cloned().unwrap_or_default();
        Ok(target.fence(found.into_iter().map(|process| (process.generation(), process))))
    }

    /// Watches `process` until it exits, and then reports its exit.
    fn watch(self: &Arc<Self>, engine_id: EngineId, process: Arc<WatchedProcess>) {
        self.running.lock().entry(engine_id).or_default().push(Arc::clone(&process));
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let reason = process.wait().await;
            {
                let mut running = inner.running.lock();
                if let Some(processes) = running.get_mut(&engine_id) {
                    processes.retain(|other| !Arc::ptr_eq(other, &process));
                    if processes.is_empty() {
                        running.remove(&engine_id);
                    }
                }
            }
            // The receiver is gone only while the orchestrator shuts down.
            let _ = inner.exits.send(InstanceExit { engine_id, instance: process.instance(), reason });
        });
    }

    /// Finds processes that other orchestrators launched: an earlier one, or one that does not know that it
    /// was replaced. Every action on an engine begins with a search, so that it knows all of the engine's
    /// processes.
    ///
    /// Callers that wait while a search runs share the next one: a search reads all processes of the host,
    /// and hundreds of simultaneous launches would do little else.
    async fn search(self: &Arc<Self>) -> Result<(), BackendError> {
        let started_before = self.searches.load(Ordering::SeqCst);
        let mut last_search = self.search.lock().await;
        if last_search.0 > started_before {
            return Ok(());
        }
        let number = self.searches.fetch_add(1, Ordering::SeqCst) + 1;
        let known: HashSet<_> = self.running.lock().values().flatten().map(|process| process.pid()).collect();
        let deployment_id = self.options.deployment_id.clone();
        let found = run_blocking(move || label::find_processes(&deployment_id, &known)).await?;
        self.watch_all(found)
            .map_err(|error| failed_with("a running engine could not be watched", &error))?;
        *last_search = LastSearch(number);
        Ok(())
    }

    /// Watches all processes that were found, or none, so that a repeated search finds all of them again.
    fn watch_all(self: &Arc<Self>, found: Vec<FoundProcess>) -> std::io::Result<()> {
        let mut adopted = Vec::new();
        for FoundProcess { engine_id, generation, identity } in found {
            adopted.extend(
                WatchedProcess::adopt(identity, generation)?.map(|process| (engine_id, Arc::new(process))),
            );
        }
        for (engine_id, process) in adopted {
            self.watch(engine_id, process);
        }
        Ok(())
    }

    /// Sends `signal` to the processes and waits until they have exited. Kills those that still run after `grace`.
    async fn terminate(
        &self,
        processes: &[Arc<WatchedProcess>],
        signal: Signal,
        grace: Duration,
    ) -> Result<(), BackendError> {
        for process in processes {
            process
                .signal(signal)
                .map_err(|error| failed_with("an engine could not be signalled", &error))?;
        }
        let all_exited = || async {
            processes.iter().map(|process| process.exited()).collect::<FuturesUnordered<_>>().count().await
        };
        tokio::select! {
            biased;
            _ = all_exited() => return Ok(()),
            () = self.clock.sleep(grace) => {}
        }
        for process in processes {
            process
                .signal(Signal::KILL)
                .map_err(|error| failed_with("an engine could not be killed", &error))?;
        }
        all_exited().await;
        Ok(())
    }

    /// Runs `work` on the folder of the target's engine. Fails if the engine runs.
    async fn while_stopped<T: Send + 'static>(
        self: &Arc<Self>,
        target: Target,
        work: impl FnOnce(&EngineFolder) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let engine_lock = self.locks.lock(target.engine_id).await;
        let found = self.fenced_processes(target).await?;
        found.reject_superseded()?;
        if !found.own.is_empty() {
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

    async fn kill(self: &Arc<Self>, target: Target) -> Result<(), BackendError> {
        let found = self.fenced_processes(target).await?;
        self.terminate(&found.own, Signal::KILL, Duration::ZERO).await?;
        found.reject_superseded()
    }

    /// Launches the engine as a process, and then searches for others. If another orchestrator launches the
    /// engine at the same time, the later of the two searches finds both processes, and only that of the
    /// later generation survives.
    async fn launch(self: &Arc<Self>, launch: &LaunchSpec) -> Result<Instance, BackendError> {
        let target = launch.target();
        let folder = self.folders.folder(launch.engine_id);
        let command = spawn::command(&self.options, &self.label(target), launch, &folder);
        let first = launch.is_first;
        let prepare = move || {
            folder.prepare(first)?;
            folder.rotate_log(MAX_LOG_BYTES)?;
            folder.open_log()
        };
        let log = run_blocking(prepare).await?;
        let process = {
            let _search = self.search.lock().await;
            let child = run_blocking(move || spawn::spawn(command, log)).await?;
            let process = WatchedProcess::from_child(child, launch.generation)
                .map_err(|error| failed_with("a launched engine could not be watched", &error))?;
            let process = Arc::new(process);
            self.watch(launch.engine_id, Arc::clone(&process));
            process
        };
        let found = self.fenced_processes(target).await?;
        let superseded = found.reject_superseded();
        let mut obsolete = found.own;
        obsolete.retain(|other| superseded.is_err() || !Arc::ptr_eq(other, &process));
        self.terminate(&obsolete, Signal::KILL, Duration::ZERO).await?;
        superseded.map(|()| process.instance())
    }
}

impl EngineBackend for ProcessBackend {
    fn ping(&self) -> BackendFuture<'_, ()> {
        Box::pin(self.inner.search())
    }

    fn has_single_image(&self) -> bool {
        true
    }

    fn check_image<'a>(&'a self, image: &'a EngineImage) -> BackendFuture<'a, ()> {
        Box::pin(std::future::ready(check_own_image(image)))
    }

    fn addressing(&self) -> Addressing {
        Addressing::HostPort
    }

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
            check_own_image(&launch.image)?;
            let inner = &self.inner;
            let engine_lock = inner.locks.lock(launch.engine_id).await;
            inner.kill(launch.target()).await?;
            let inner = Arc::clone(inner);
            run_to_end(engine_lock, async move { inner.launch(&launch).await }).await
        })
    }

    fn stop(&self, target: Target, grace: Duration) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            let found = self.inner.fenced_processes(target).await?;
            self.inner.terminate(&found.own, Signal::TERM, grace).await?;
            found.reject_superseded()
        })
    }

    fn kill(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.kill(target).await
        })
    }

    /// Only kills: nothing remains of a process that has exited except its data and its log, which is in its
    /// folder.
    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()> {
        self.kill(target)
    }

    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.kill(target).await?;
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
        Box::pin(async move {
            self.inner.search().await?;
            let running = self.inner.running.lock();
            let listed = running.iter().flat_map(|(engine_id, processes)| {
                let to_listing = |process: &Arc<WatchedProcess>| EngineListing {
                    engine_id: *engine_id,
                    instance: process.instance(),
                    generation: process.generation(),
                    running: true,
                };
                processes.iter().map(to_listing)
            });
            Ok(listed.collect())
        })
    }

    fn exits(&self) -> BoxStream<'static, InstanceExit> {
        // The caller is the active orchestrator, so it rotates logs from now on, until the backend is dropped.
        tokio::spawn(rotate_logs(Arc::downgrade(&self.inner)));
        let listener = self.inner.listener.lock().take();
        let exits = futures::stream::unfold(listener, |listener| async move {
            let mut listener = listener?;
            Some((listener.recv().await?, Some(listener)))
        });
        exits.boxed()
    }

    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool> {
        Box::pin(async move {
            let known = || {
                let running = self.inner.running.lock();
                running.values().flatten().any(|process| process.instance() == *instance)
            };
            if !known() {
                self.inner.search().await?;
            }
            Ok(known())
        })
    }

    fn log_tail(&self, engine_id: EngineId, lines: usize) -> BackendFuture<'_, Vec<String>> {
        let folder = self.inner.folders.folder(engine_id);
        Box::pin(run_blocking(move || folder.log_tail(lines)))
    }

    /// Returns `None`: this backend applies no limits.
    fn resource_limits(&self, _: EngineId) -> BackendFuture<'_, Option<ResourceLimits>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// Rotates the logs of running engines periodically, so that they do not fill the disk.
async fn rotate_logs(inner: Weak<Inner>) {
    loop {
        let Some(clock) = inner.upgrade().map(|inner| Arc::clone(&inner.clock)) else { return };
        clock.sleep(LOG_ROTATION_INTERVAL).await;
        let Some(inner) = inner.upgrade() else { return };
        let running: Vec<_> = inner.running.lock().keys().copied().collect();
        for engine_id in running {
            let folder = inner.folders.folder(engine_id);
            // One after the other: if the disk hangs, it blocks one thread, not one per engine.
            if let Err(error) = run_blocking(move || folder.rotate_log(MAX_LOG_BYTES)).await {
                tracing::warn!(%engine_id, %error, "An engine's log could not be rotated.");
            }
        }
    }
}

/// Fails unless `image` is this binary's own version, the only one that this backend can run.
fn check_own_image(image: &EngineImage) -> Result<(), BackendError> {
    let is_own = image.as_str() == format!("svc-engine:{VERSION}");
    if is_own { Ok(()) } else { Err(BackendError::NoImage(image.clone())) }
}
