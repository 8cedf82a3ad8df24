//! A simulated backend without processes. Each call succeeds unless a test has injected a fault for it. Calls that
//! the fleet must never make, such as two engines on one port, panic.

mod engines;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::{EngineId, EngineImage, KeyHash};
use backend::{
    BackendError, BackendFuture, BrainCopy, EngineBackend, EngineListing, Instance, InstanceExit, LaunchSpec,
    ResourceLimits, Target,
};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http_service::clock::Clock;
use tokio::sync::mpsc;

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BackendCall {
    Ping,
    CheckImage,
    Launch,
    Stop,
    Kill,
    Remove,
    KeepCopy,
    RestoreCopy,
    List,
    LogTail,
    /// A command to an engine. It is not a call to the backend, but it can fail in the same ways.
    Rpc,
}

/// A fault of a call.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The call never returns and has no effect.
    Hang,
    /// The call fails and has no effect.
    Error(BackendError),
    /// The call takes effect at once and returns after this delay.
    Delay(Duration),
    /// The launched engine exits at once.
    Exit,
}

/// The health that all engines report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SimulatedHealth {
    Healthy,
    /// The provider is unhealthy, for this reason.
    Provider(&'static str),
    /// The brain is unhealthy, for this reason.
    Database(&'static str),
    /// Health checks cannot connect.
    Unreachable,
    /// Another service answers on every port: it is healthy but accepts no engine's key.
    WrongEngine,
}

/// A backend that fails as a test specifies.
pub(crate) struct FaultBackend {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    exits: Mutex<mpsc::UnboundedSender<InstanceExit>>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<InstanceExit>>>,
}

struct State {
    running: HashMap<EngineId, (Instance, LaunchSpec)>,
    /// Further instances of engines, launched by an orchestrator that had been replaced.
    strays: Vec<EngineListing>,
    /// Remains, such as exited containers, of engines that ended or never started.
    remains: HashMap<EngineId, Instance>,
    /// The limits of every running engine.
    resource_limits: Option<ResourceLimits>,
    folders: HashSet<EngineId>,
    faults: HashMap<BackendCall, VecDeque<Fault>>,
    calls: Vec<BackendCall>,
    /// The number of each call in flight, and its maximum so far.
    in_flight: HashMap<BackendCall, (usize, usize)>,
    missing_images: HashSet<EngineImage>,
    /// Images with a later major version than the tests' own.
    extra_images: HashSet<EngineImage>,
    /// Images whose engines migrate the brain to their format and then exit.
    crashing_images: HashSet<EngineImage>,
    /// The format of each brain: the latest major version that opened it.
    brain_formats: HashMap<EngineId, u64>,
    brain_copies: HashMap<EngineId, u64>,
    single_image: bool,
    launches: Vec<LaunchSpec>,
    health: SimulatedHealth,
    /// Whether engines prove their keys, as current versions do.
    proves_keys: bool,
    /// The number of times that a key was sent to identify an engine.
    keys_sent: usize,
    occupied_ports: HashSet<u16>,
    busy: HashSet<EngineId>,
    frozen: HashSet<EngineId>,
    probe_counts: HashMap<EngineId, usize>,
}

impl FaultBackend {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let (exits, listener) = mpsc::unbounded_channel();
        let state = State {
            running: HashMap::new(),
            strays: Vec::new(),
            remains: HashMap::new(),
            resource_limits: None,
            folders: HashSet::new(),
            faults: HashMap::new(),
            calls: Vec::new(),
            in_flight: HashMap::new(),
            missing_images: HashSet::new(),
            extra_images: HashSet::new(),
            crashing_images: HashSet::new(),
            brain_formats: HashMap::new(),
            brain_copies: HashMap::new(),
            single_image: false,
            launches: Vec::new(),
            health: SimulatedHealth::Healthy,
            proves_keys: false,
            keys_sent: 0,
            occupied_ports: HashSet::new(),
            busy: HashSet::new(),
            frozen: HashSet::new(),
            probe_counts: HashMap::new(),
        };
        Arc::new(Self {
            clock,
            state: Mutex::new(state),
            exits: Mutex::new(exits),
            listener: Mutex::new(Some(listener)),
        })
    }

    /// Injects `fault` into the next `call`. Further faults for it apply to the calls after that.
    pub(crate) fn inject(&self, call: BackendCall, fault: Fault) {
        self.state().faults.entry(call).or_default().push_back(fault);
    }

    /// Removes all injected faults.
    pub(crate) fn clear_faults(&self) {
        self.state().faults.clear();
    }

    pub(crate) fn set_health(&self, health: SimulatedHealth) {
        self.state().health = health;
    }

    /// Makes all engines prove their keys from now on.
    pub(crate) fn prove_keys(&self) {
        self.state().proves_keys = true;
    }

    /// The number of times that a key was sent to identify an engine.
    pub(crate) fn keys_sent(&self) -> usize {
        self.state().keys_sent
    }

    /// Simulates the start or the end of a turn in this engine.
    pub(crate) fn set_busy(&self, engine_id: EngineId, busy: bool) {
        let mut state = self.state();
        if busy {
            state.busy.insert(engine_id)
        } else {
            state.busy.remove(&engine_id)
        };
    }

    /// Makes this engine answer nothing until it is launched again.
    pub(crate) fn freeze(&self, engine_id: EngineId) {
        self.state().frozen.insert(engine_id);
    }

    /// Makes all engines answer again.
    pub(crate) fn thaw(&self) {
        self.state().frozen.clear();
    }

    /// Returns the hashes of the keys that the running engines accept.
    pub(crate) fn key_hashes(&self) -> Vec<KeyHash> {
        self.state().running.values().map(|(_, launch)| launch.key_hash).collect()
    }

    /// Makes every running engine refuse its key.
    pub(crate) fn invalidate_keys(&self) {
        for (_, launch) in self.state().running.values_mut() {
            launch.key_hash = KeyHash::of("another key");
        }
    }

    /// Returns the number of health checks of this engine.
    pub(crate) fn probe_count(&self, engine_id: EngineId) -> usize {
        self.state().probe_counts.get(&engine_id).copied().unwrap_or_default()
    }

    /// Simulates another program on the host that listens on `port`.
    pub(crate) fn occupy_port(&self, port: u16) {
        self.state().occupied_ports.insert(port);
    }

    /// Returns how often `call` was made.
    pub(crate) fn count(&self, call: BackendCall) -> usize {
        self.state().calls.iter().filter(|made| **made == call).count()
    }

    /// Returns the number of all calls to the backend and of all health checks.
    pub(crate) fn count_all_calls(&self) -> usize {
        let state = self.state();
        state.calls.len() + state.probe_counts.values().sum::<usize>()
    }

    /// Returns the maximum number of concurrent `call`s.
    pub(crate) fn max_concurrent(&self, call: BackendCall) -> usize {
        self.state().in_flight.get(&call).map_or(0, |(_, max)| *max)
    }

    /// Restricts the backend to a single image, like the process backend.
    pub(crate) fn use_single_image(&self) {
        let mut state = self.state();
        state.single_image = true;
        // It is the orchestrator's own version, which proves its key.
        state.proves_keys = true;
    }

    /// Adds an image of another major version.
    pub(crate) fn add_image(&self, image: EngineImage) {
        self.state().extra_images.insert(image);
    }

    /// Makes engines of this image exit at launch, or start normally again.
    pub(crate) fn set_crashing(&self, image: EngineImage, crashing: bool) {
        let mut state = self.state();
        if crashing {
            state.crashing_images.insert(image)
        } else {
            state.crashing_images.remove(&image)
        };
    }

    /// Returns the format of an engine's brain.
    pub(crate) fn brain_format(&self, engine_id: EngineId) -> u64 {
        self.state().brain_formats[&engine_id]
    }

    /// Removes an image.
    pub(crate) fn remove_image(&self, image: EngineImage) {
        self.state().missing_images.insert(image);
    }

    /// Returns the ports of the running engines.
    pub(crate) fn ports(&self) -> HashMap<EngineId, u16> {
        self.state().running.iter().map(|(engine_id, (_, launch))| (*engine_id, launch.port)).collect()
    }

    pub(crate) fn launches(&self) -> Vec<LaunchSpec> {
        self.state().launches.clone()
    }

    pub(crate) fn running(&self) -> HashSet<EngineId> {
        self.state().running.keys().copied().collect()
    }

    pub(crate) fn folders(&self) -> HashSet<EngineId> {
        self.state().folders.clone()
    }

    /// Removes the folder of this engine.
    pub(crate) fn remove_folder(&self, engine_id: EngineId) {
        self.state().folders.remove(&engine_id);
    }

    /// Restores the folder of this engine.
    pub(crate) fn restore_folder(&self, engine_id: EngineId) {
        self.state().folders.insert(engine_id);
    }

    /// Kills an engine from outside.
    pub(crate) fn crash(&self, engine_id: EngineId) {
        self.end(engine_id, "signal: 9 (SIGKILL)");
    }

    /// Kills an engine from outside, without an exit event.
    pub(crate) fn crash_silently(&self, engine_id: EngineId) {
        self.state().running.remove(&engine_id);
    }

    /// Reports the exit of an engine that is already running again.
    pub(crate) fn send_stale_exit(&self, engine_id: EngineId) {
        let instance = self.state().running[&engine_id].0.clone();
        let _ = self.exits.lock().unwrap().send(InstanceExit { engine_id, instance, reason: None });
    }

    /// Adds a running engine that no orchestrator launched.
    pub(crate) fn run_orphan(&self, engine_id: EngineId, launch: LaunchSpec) {
        self.state().running.insert(engine_id, (Instance::new("orphan"), launch));
    }

    /// Sets the generation of a running engine to one that the registry does not know.
    pub(crate) fn set_generation(&self, engine_id: EngineId, generation: i64) {
        self.state().running.get_mut(&engine_id).unwrap().1.generation = generation;
    }

    /// Adds a second instance of an engine, launched for an earlier change by an orchestrator that has been
    /// replaced.
    pub(crate) fn run_stray(&self, engine_id: EngineId) {
        let stray =
            EngineListing { engine_id, instance: Instance::new("stray"), generation: 0, running: true };
        self.state().strays.push(stray);
    }

    /// Returns the number of such second instances.
    pub(crate) fn strays(&self) -> usize {
        self.state().strays.len()
    }

    /// Leaves remains of an engine that does not run.
    pub(crate) fn leave_remains(&self, engine_id: EngineId) {
        self.state().remains.insert(engine_id, Instance::new("remains"));
    }

    /// Returns the engines with remains.
    pub(crate) fn remains(&self) -> HashSet<EngineId> {
        self.state().remains.keys().copied().collect()
    }

    /// Sets the limits that every running engine reports.
    pub(crate) fn set_resource_limits(&self, limits: ResourceLimits) {
        self.state().resource_limits = Some(limits);
    }

    /// Connects another orchestrator, which receives all exit events from now on.
    pub(crate) fn reconnect(&self) {
        let (exits, listener) = mpsc::unbounded_channel();
        *self.exits.lock().unwrap() = exits;
        *self.listener.lock().unwrap() = Some(listener);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Ends an engine unless it was launched for a later change.
    fn end_target(&self, target: Target, reason: &str) -> Result<(), BackendError> {
        let later = {
            let mut state = self.state();
            state
                .strays
                .retain(|stray| stray.engine_id != target.engine_id || stray.generation > target.generation);
            let running = state.running.get(&target.engine_id);
            running.map(|(_, launch)| launch.generation).filter(|generation| *generation > target.generation)
        };
        if let Some(generation) = later {
            return Err(BackendError::Superseded { generation });
        }
        self.end(target.engine_id, reason);
        Ok(())
    }

    fn end(&self, engine_id: EngineId, reason: &str) {
        let ended = {
            let mut state = self.state();
            state.frozen.remove(&engine_id);
            state.running.remove(&engine_id)
        };
        if let Some((instance, _)) = ended {
            let exit = InstanceExit { engine_id, instance, reason: Some(reason.to_owned()) };
            let _ = self.exits.lock().unwrap().send(exit);
        }
    }

    /// Performs `call` with `act`, unless a fault has been injected.
    fn respond<'a, T: Send + 'a>(
        &'a self,
        call: BackendCall,
        act: impl FnOnce(&Self) -> Result<T, BackendError> + Send + 'a,
    ) -> BackendFuture<'a, T> {
        Box::pin(async move {
            let fault = {
                let mut state = self.state();
                state.calls.push(call);
                let (current, max) = state.in_flight.entry(call).or_default();
                *current += 1;
                *max = (*max).max(*current);
                state.faults.get_mut(&call).and_then(VecDeque::pop_front)
            };
            let _guard = CallGuard { backend: self, call };
            match fault {
                None => act(self),
                Some(Fault::Hang) => std::future::pending().await,
                Some(Fault::Error(error)) => Err(error),
                Some(Fault::Delay(delay)) => {
                    let result = act(self);
                    self.clock.sleep(delay).await;
                    result
                }
                Some(Fault::Exit) => {
                    let before = self.running();
                    let result = act(self);
                    for launched in self.running().difference(&before) {
                        self.end(*launched, "exit status: 1");
                    }
                    result
                }
            }
        })
    }
}

/// RAII guard: the call counts as in flight while it is held, so that a dropped call is counted correctly.
struct CallGuard<'a> {
    backend: &'a FaultBackend,
    call: BackendCall,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if let Some((current, _)) = self.backend.state().in_flight.get_mut(&self.call) {
            *current -= 1;
        }
    }
}

impl EngineBackend for FaultBackend {
    fn ping(&self) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::Ping, |_| Ok(()))
    }

    fn has_single_image(&self) -> bool {
        self.state().single_image
    }

    fn check_image<'a>(&'a self, image: &'a EngineImage) -> BackendFuture<'a, ()> {
        Box::pin(async move {
            self.respond(BackendCall::CheckImage, |_| Ok(())).await?;
            let known = {
                let state = self.state();
                let known = image.major() == 0 || state.extra_images.contains(image);
                known && !state.missing_images.contains(image)
            };
            if known { Ok(()) } else { Err(BackendError::NoImage(image.clone())) }
        })
    }

    fn port_is_free(&self, port: u16) -> bool {
        let state = self.state();
        !state.occupied_ports.contains(&port) && state.running.values().all(|(_, launch)| launch.port != port)
    }

    fn has_data(&self, engine_id: EngineId) -> BackendFuture<'_, bool> {
        let has_data = self.state().folders.contains(&engine_id);
        Box::pin(std::future::ready(Ok(has_data)))
    }

    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance> {
        let has_data = self.state().folders.contains(&launch.engine_id);
        assert!(launch.is_first || has_data, "only the first launch of an engine creates its folder");
        self.respond(BackendCall::Launch, move |backend| {
            let engine_id = launch.engine_id;
            backend.end_target(launch.target(), "replaced")?;
            assert!(backend.port_is_free(launch.port), "two engines on port {}", launch.port);
            let mut state = backend.state();
            let instance = Instance::new(format!("instance {}", state.launches.len()));
            state.remains.remove(&engine_id);
            state.folders.insert(engine_id);
            state.launches.push(launch.clone());
            let (major, format) = (launch.image.major(), state.brain_formats.entry(engine_id).or_default());
            let can_open = *format <= major;
            *format = major.max(*format);
            let starts = can_open && !state.crashing_images.contains(&launch.image);
            state.running.insert(engine_id, (instance.clone(), launch));
            drop(state);
            if !starts {
                backend.end(engine_id, "exit status: 1");
            }
            Ok(instance)
        })
    }

    fn stop(&self, target: Target, grace: Duration) -> BackendFuture<'_, ()> {
        assert_eq!(grace, Duration::from_secs(30), "the contract's grace");
        self.respond(BackendCall::Stop, move |backend| backend.end_target(target, "exit status: 0"))
    }

    fn kill(&self, target: Target) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::Kill, move |backend| backend.end_target(target, "killed"))
    }

    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::Kill, move |backend| {
            backend.end_target(target, "killed")?;
            backend.state().remains.remove(&target.engine_id);
            Ok(())
        })
    }

    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::Remove, move |backend| {
            backend.end_target(target, "killed")?;
            let mut state = backend.state();
            state.remains.remove(&target.engine_id);
            state.folders.remove(&target.engine_id);
            Ok(())
        })
    }

    fn copy_brain(&self, target: Target) -> BackendFuture<'_, BrainCopy> {
        self.respond(BackendCall::KeepCopy, move |backend| {
            let mut state = backend.state();
            assert!(
                !state.running.contains_key(&target.engine_id),
                "the brain of a running engine is copied"
            );
            let format = state.brain_formats.get(&target.engine_id).copied().unwrap_or_default();
            state.brain_copies.insert(target.engine_id, format);
            Ok(BrainCopy { format: u32::try_from(format).ok() })
        })
    }

    fn restore_brain(&self, target: Target) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::RestoreCopy, move |backend| {
            let mut state = backend.state();
            assert!(
                !state.running.contains_key(&target.engine_id),
                "the brain of a running engine is replaced"
            );
            let format = state.brain_copies[&target.engine_id];
            state.brain_formats.insert(target.engine_id, format);
            Ok(())
        })
    }

    fn list(&self) -> BackendFuture<'_, Vec<EngineListing>> {
        self.respond(BackendCall::List, |backend| {
            let state = backend.state();
            let running = state.running.iter().map(|(engine_id, (instance, launch))| EngineListing {
                engine_id: *engine_id,
                instance: instance.clone(),
                generation: launch.generation,
                running: true,
            });
            let strays = state.strays.iter().cloned();
            let remains = state.remains.iter().map(|(engine_id, instance)| EngineListing {
                engine_id: *engine_id,
                instance: instance.clone(),
                generation: 0,
                running: false,
            });
            Ok(running.chain(strays).chain(remains).collect())
        })
    }

    fn exits(&self) -> BoxStream<'static, InstanceExit> {
        let mut listener = self.listener.lock().unwrap().take().expect("one listener");
        futures::stream::poll_fn(move |context| listener.poll_recv(context)).boxed()
    }

    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool> {
        let is_running = self.state().running.values().any(|(other, _)| other == instance);
        Box::pin(std::future::ready(Ok(is_running)))
    }

    fn log_tail(&self, _: EngineId, lines: usize) -> BackendFuture<'_, Vec<String>> {
        self.respond(BackendCall::LogTail, move |_| {
            let log = ["engine began", "the last words"];
            Ok(log.iter().skip(log.len().saturating_sub(lines)).map(ToString::to_string).collect())
        })
    }

    fn resource_limits(&self, engine_id: EngineId) -> BackendFuture<'_, Option<ResourceLimits>> {
        let state = self.state();
        let resource_limits = state.resource_limits.filter(|_| state.running.contains_key(&engine_id));
        Box::pin(std::future::ready(Ok(resource_limits)))
    }
}
