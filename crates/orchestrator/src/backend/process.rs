//! Engines as processes of this machine: each is this very binary, started again as `roundhouse engine`.
//!
//! Engines outlive the orchestrator. Each carries its deployment and its id on its command line, by which a
//! later orchestrator finds it again, even if the earlier one died between starting it and writing it down.
//! From the moment a process is known it is held by a pidfd: what is watched and signalled is that process,
//! never another one that got its number later.

mod identity;
mod label;
mod spawn;
mod watched_process;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use api::{EngineId, EngineImage};
use futures::StreamExt as _;
use futures::stream::{BoxStream, FuturesUnordered};
use http_service::clock::Clock;
use rustix::process::Signal;
use tokio::sync::mpsc;

use self::label::{FoundProcess, Label};
use self::watched_process::WatchedProcess;
use super::blocking::{failed_with, run_blocking};
use super::engine_folder::{EngineFolder, EngineFolders, STILL_RUNNING_MESSAGE};
use super::engine_log::MAX_LOG_BYTES;
use super::fence::Fenced;
use super::{
    BackendError, BackendFuture, BrainCopy, EngineBackend, EngineListing, Instance, InstanceExit, LaunchSpec,
    ResourceLimits, Target,
};
use crate::config::VERSION;
use crate::fault_injection::{self, Mutation};
use crate::keyed_locks::KeyedLocks;

/// How often the logs of running engines are looked at.
const LOG_ROTATION_INTERVAL: Duration = Duration::from_secs(10);

/// Where the process backend finds and keeps things.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The program that is an engine when called with `engine`.
    pub(crate) program: PathBuf,
    /// The label of this deployment's processes.
    pub(crate) deployment_id: String,
    /// Holds one folder per engine.
    pub(crate) data_root: PathBuf,
    /// The catalog that all engines read.
    pub(crate) catalog: PathBuf,
}

/// Runs engines as processes.
pub(crate) struct ProcessBackend {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    folders: EngineFolders,
    clock: Arc<dyn Clock>,
    /// What runs, as far as it is known. An engine has more than one only if an earlier orchestrator died in
    /// mid-launch, or goes on launching without knowing that it was replaced.
    running: Mutex<HashMap<EngineId, Vec<Arc<WatchedProcess>>>>,
    /// Launch, stop and removal of one engine go one after the other.
    locks: KeyedLocks<EngineId>,
    /// Held while processes are looked for, and while one is launched: what is found was launched by others.
    search: tokio::sync::Mutex<LastSearch>,
    /// How many searches have begun.
    searches: AtomicU64,
    exits: mpsc::UnboundedSender<InstanceExit>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<InstanceExit>>>,
}

/// The last search that succeeded, by its number; 0 before the first.
#[derive(Default)]
struct LastSearch(u64);

impl ProcessBackend {
    pub(crate) fn new(options: Options, clock: Arc<dyn Clock>) -> Self {
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

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<EngineId, Vec<Arc<WatchedProcess>>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes of the target's engine.
    async fn fenced_processes(
        self: &Arc<Self>,
        target: Target,
    ) -> Result<Fenced<Arc<WatchedProcess>>, BackendError> {
        self.search().await?;
        let found = self.running().get(&target.engine_id).cloned().unwrap_or_default();
        Ok(target.fence(found.into_iter().map(|process| (process.generation(), process))))
    }

    /// Watches `process` until it ends, and then says so.
    fn watch(self: &Arc<Self>, engine_id: EngineId, process: Arc<WatchedProcess>) {
        self.running().entry(engine_id).or_default().push(Arc::clone(&process));
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let how = process.wait().await;
            {
                let mut running = inner.running();
                if let Some(processes) = running.get_mut(&engine_id) {
                    processes.retain(|other| !Arc::ptr_eq(other, &process));
                    if processes.is_empty() {
                        running.remove(&engine_id);
                    }
                }
            }
            // Nobody listens only while the orchestrator ends.
            let _ = inner.exits.send(InstanceExit { engine_id, instance: process.instance(), reason: how });
        });
    }

    /// Finds what other orchestrators launched: an earlier one, or one that has been replaced without knowing it. Each
    /// action begins with this, so that none acts without knowing of all the engine's processes.
    ///
    /// Those that wait while one looks share the next look: it reads all processes of the machine, and hundreds of
    /// launches at once would do little else.
    async fn search(self: &Arc<Self>) -> Result<(), BackendError> {
        let begun_before = self.searches.load(Ordering::SeqCst);
        let mut searched = self.search.lock().await;
        if searched.0 > begun_before {
            return Ok(());
        }
        let number = self.searches.fetch_add(1, Ordering::SeqCst) + 1;
        let known: HashSet<_> = self.running().values().flatten().map(|process| process.pid()).collect();
        let deployment_id = self.options.deployment_id.clone();
        let found = run_blocking(move || label::find_processes(&deployment_id, &known)).await?;
        self.watch_all(found)
            .map_err(|error| failed_with("a running engine could not be watched", &error))?;
        *searched = LastSearch(number);
        Ok(())
    }

    /// Watches all that were found, or none: whoever tries again finds them all again.
    fn watch_all(self: &Arc<Self>, found: Vec<FoundProcess>) -> std::io::Result<()> {
        let mut held = Vec::new();
        for FoundProcess { engine_id, generation, identity } in found {
            held.extend(
                WatchedProcess::adopt(identity, generation)?.map(|process| (engine_id, Arc::new(process))),
            );
        }
        for (engine_id, process) in held {
            self.watch(engine_id, process);
        }
        Ok(())
    }

    /// Sends `signal` to processes and waits until they are gone; those that are not after `grace` are killed.
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
        let gone = || async {
            processes.iter().map(|process| process.exited()).collect::<FuturesUnordered<_>>().count().await
        };
        tokio::select! {
            biased;
            _ = gone() => return Ok(()),
            () = self.clock.sleep(grace) => {}
        }
        if fault_injection::active(Mutation::ForgiveTerm) && signal == Signal::TERM {
            return Ok(());
        }
        for process in processes {
            process
                .signal(Signal::KILL)
                .map_err(|error| failed_with("an engine could not be killed", &error))?;
        }
        gone().await;
        Ok(())
    }

    /// Does `work` in the folder of an engine that does not run.
    async fn while_stopped<T: Send + 'static>(
        self: &Arc<Self>,
        target: Target,
        work: impl FnOnce(&EngineFolder) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let turn = self.locks.lock(target.engine_id).await;
        let found = self.fenced_processes(target).await?;
        found.reject_superseded()?;
        if !found.own.is_empty() {
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

    async fn kill(self: &Arc<Self>, target: Target) -> Result<(), BackendError> {
        let found = self.fenced_processes(target).await?;
        self.terminate(&found.own, Signal::KILL, Duration::ZERO).await?;
        found.reject_superseded()
    }

    /// Launches the engine as a process. Whoever else launches it at the same time looks for other processes as well,
    /// afterwards: the later of the two looks sees both, and only the process of the later change stays.
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
        let mut ended = found.own;
        ended.retain(|other| superseded.is_err() || !Arc::ptr_eq(other, &process));
        self.terminate(&ended, Signal::KILL, Duration::ZERO).await?;
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

    fn port_is_free(&self, port: u16) -> bool {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    }

    fn has_data(&self, engine_id: EngineId) -> BackendFuture<'_, bool> {
        let folder = self.inner.folders.folder(engine_id);
        Box::pin(run_blocking(move || folder.has_brain()))
    }

    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance> {
        Box::pin(async move {
            check_own_image(&launch.image)?;
            let inner = &self.inner;
            let turn = inner.locks.lock(launch.engine_id).await;
            inner.kill(launch.target()).await?;
            let inner = Arc::clone(inner);
            // On its own from here: a caller that gives up leaves no process that nobody knows of, and whoever
            // comes next for this engine waits until this is through.
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
            let found = self.inner.fenced_processes(target).await?;
            self.inner.terminate(&found.own, Signal::TERM, grace).await?;
            found.reject_superseded()
        })
    }

    fn kill(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _product_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.kill(target).await
        })
    }

    /// The log is in its folder: of a process that has ended nothing else is left.
    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()> {
        self.kill(target)
    }

    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let turn = self.inner.locks.lock(target.engine_id).await;
            self.inner.kill(target).await?;
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
        Box::pin(async move {
            self.inner.search().await?;
            let running = self.inner.running();
            let listed = running.iter().flat_map(|(engine_id, processes)| {
                let listed = |process: &Arc<WatchedProcess>| EngineListing {
                    engine_id: *engine_id,
                    instance: process.instance(),
                    generation: process.generation(),
                    running: true,
                };
                processes.iter().map(listed)
            });
            Ok(listed.collect())
        })
    }

    fn exits(&self) -> BoxStream<'static, InstanceExit> {
        // Whoever listens keeps the engines: from now on, and for as long as the backend lives.
        tokio::spawn(rotate_logs(Arc::downgrade(&self.inner)));
        let listener = self.inner.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let exits = futures::stream::unfold(listener, |listener| async move {
            let mut listener = listener?;
            Some((listener.recv().await?, Some(listener)))
        });
        exits.boxed()
    }

    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool> {
        Box::pin(async move {
            let known = || {
                let running = self.inner.running();
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

    /// None are applied yet.
    fn resource_limits(&self, _: EngineId) -> BackendFuture<'_, Option<ResourceLimits>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// Keeps the logs of running engines from filling the disk.
async fn rotate_logs(inner: Weak<Inner>) {
    loop {
        let Some(clock) = inner.upgrade().map(|inner| Arc::clone(&inner.clock)) else { return };
        clock.sleep(LOG_ROTATION_INTERVAL).await;
        let Some(inner) = inner.upgrade() else { return };
        let running: Vec<_> = inner.running().keys().copied().collect();
        for engine_id in running {
            let folder = inner.folders.folder(engine_id);
            // One after the other: where the disk hangs, one thread does.
            if let Err(error) = run_blocking(move || folder.rotate_log(MAX_LOG_BYTES)).await {
                tracing::warn!(%engine_id, %error, "An engine's log could not be shortened.");
            }
        }
    }
}

/// The only image is this binary itself.
fn check_own_image(image: &EngineImage) -> Result<(), BackendError> {
    let own = image.as_str() == format!("svc-engine:{VERSION}");
    if own { Ok(()) } else { Err(BackendError::NoImage(image.clone())) }
}
