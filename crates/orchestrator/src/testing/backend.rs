//! A backend without processes. It does as it is told, unless a test has scripted a fault for the call; and it
//! refuses, by a panic, what the rules must never ask of a backend.

mod engines;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::{EngineId, EngineImage, KeyHash};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http_service::clock::Clock;
use tokio::sync::mpsc;

use crate::backend::{
    BackendError, BackendFuture, BrainCopy, EngineBackend, EngineListing, Instance, InstanceExit, LaunchSpec,
    ResourceLimits, Target,
};
use crate::fault_injection::{self, Mutation};

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
    /// What an engine is told: not the backend's, but as likely to fail.
    Rpc,
}

/// What goes wrong with a call.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It is never answered, and nothing happens.
    Hang,
    /// It fails, and nothing happens.
    Error(BackendError),
    /// It is done, and answered so much later.
    Delay(Duration),
    /// The launched engine ends at once.
    Exit,
}

/// How the engines say they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SimulatedHealth {
    Healthy,
    /// The provider is unwell, for this reason.
    Provider(&'static str),
    /// The brain is unwell, for this reason.
    Database(&'static str),
    /// No answer at all.
    Unreachable,
    /// Something else answers on every port: it is well, and takes no engine's key.
    WrongEngine,
}

/// A backend that fails as a test says.
pub(crate) struct FaultBackend {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    exits: Mutex<mpsc::UnboundedSender<InstanceExit>>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<InstanceExit>>>,
}

struct State {
    running: HashMap<EngineId, (Instance, LaunchSpec)>,
    /// What runs beside them: launched by an orchestrator that had been replaced.
    strays: Vec<EngineListing>,
    /// What is left of engines that ended, or never began.
    remains: HashMap<EngineId, Instance>,
    /// What each engine is held to.
    resource_limits: Option<ResourceLimits>,
    folders: HashSet<EngineId>,
    faults: HashMap<BackendCall, VecDeque<Fault>>,
    calls: Vec<BackendCall>,
    /// How many of a call are under way, and the most that ever were.
    in_flight: HashMap<BackendCall, (usize, usize)>,
    missing_images: HashSet<EngineImage>,
    /// Images of later major versions than that of the tests.
    extra_images: HashSet<EngineImage>,
    /// Engines of these images end as soon as they have begun, and have brought the brain to their format before.
    crashing_images: HashSet<EngineImage>,
    /// The format of each brain: the major version that opened it last.
    brain_formats: HashMap<EngineId, u64>,
    brain_copies: HashMap<EngineId, u64>,
    single_image: bool,
    launches: Vec<LaunchSpec>,
    health: SimulatedHealth,
    /// Engines prove their keys, as later ones do.
    proves_keys: bool,
    /// How often a key was sent to show whose an engine is.
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

    /// Makes the next `call` fail with `fault`; further scripts for it come after.
    pub(crate) fn inject(&self, call: BackendCall, fault: Fault) {
        self.state().faults.entry(call).or_default().push_back(fault);
    }

    /// Forgets all scripts: the backend is well again.
    pub(crate) fn clear_faults(&self) {
        self.state().faults.clear();
    }

    pub(crate) fn set_health(&self, health: SimulatedHealth) {
        self.state().health = health;
    }

    /// All engines prove their keys from now on.
    pub(crate) fn prove_keys(&self) {
        self.state().proves_keys = true;
    }

    /// How often a key was sent to show whose an engine is.
    pub(crate) fn keys_sent(&self) -> usize {
        self.state().keys_sent
    }

    /// A turn runs in this engine, or none does any more.
    pub(crate) fn set_busy(&self, engine_id: EngineId, busy: bool) {
        let mut state = self.state();
        if busy {
            state.busy.insert(engine_id)
        } else {
            state.busy.remove(&engine_id)
        };
    }

    /// This engine answers nothing any more, until its process is another one.
    pub(crate) fn freeze(&self, engine_id: EngineId) {
        self.state().frozen.insert(engine_id);
    }

    /// All engines answer again.
    pub(crate) fn thaw(&self) {
        self.state().frozen.clear();
    }

    /// The hashes of the keys that the running engines take.
    pub(crate) fn key_hashes(&self) -> Vec<KeyHash> {
        self.state().running.values().map(|(_, launch)| launch.key_hash).collect()
    }

    /// No running engine takes its key any more.
    pub(crate) fn invalidate_keys(&self) {
        for (_, launch) in self.state().running.values_mut() {
            launch.key_hash = KeyHash::of("another key");
        }
    }

    /// How often this engine was asked how it is.
    pub(crate) fn probe_count(&self, engine_id: EngineId) -> usize {
        self.state().probe_counts.get(&engine_id).copied().unwrap_or_default()
    }

    /// Something else on the host holds `port` from now on.
    pub(crate) fn occupy_port(&self, port: u16) {
        self.state().occupied_ports.insert(port);
    }

    /// How often `call` was made.
    pub(crate) fn count(&self, call: BackendCall) -> usize {
        self.state().calls.iter().filter(|made| **made == call).count()
    }

    /// How often anything was asked, of the backend or of an engine.
    pub(crate) fn count_all_calls(&self) -> usize {
        let state = self.state();
        state.calls.len() + state.probe_counts.values().sum::<usize>()
    }

    /// The most of `call` that were ever under way at once.
    pub(crate) fn max_concurrent(&self, call: BackendCall) -> usize {
        self.state().in_flight.get(&call).map_or(0, |(_, most)| *most)
    }

    /// There is but one image from now on, as where engines are processes.
    pub(crate) fn use_single_image(&self) {
        let mut state = self.state();
        state.single_image = true;
        // It is the orchestrator's own, which proves its key.
        state.proves_keys = true;
    }

    /// This image of another major version is there from now on.
    pub(crate) fn add_image(&self, image: EngineImage) {
        self.state().extra_images.insert(image);
    }

    /// Engines of this image do not come up from now on, or do again.
    pub(crate) fn set_crashing(&self, image: EngineImage, sick: bool) {
        let mut state = self.state();
        if sick {
            state.crashing_images.insert(image)
        } else {
            state.crashing_images.remove(&image)
        };
    }

    /// The format of an engine's brain.
    pub(crate) fn brain_format(&self, engine_id: EngineId) -> u64 {
        self.state().brain_formats[&engine_id]
    }

    /// This image is not there any more.
    pub(crate) fn remove_image(&self, image: EngineImage) {
        self.state().missing_images.insert(image);
    }

    /// Where the running engines listen.
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

    /// The folder of this engine is taken away.
    pub(crate) fn remove_folder(&self, engine_id: EngineId) {
        self.state().folders.remove(&engine_id);
    }

    /// The folder of this engine is there again.
    pub(crate) fn restore_folder(&self, engine_id: EngineId) {
        self.state().folders.insert(engine_id);
    }

    /// Ends an engine from outside.
    pub(crate) fn crash(&self, engine_id: EngineId) {
        self.end(engine_id, "signal: 9 (SIGKILL)");
    }

    /// Ends an engine from outside, and nobody is told.
    pub(crate) fn crash_silently(&self, engine_id: EngineId) {
        self.state().running.remove(&engine_id);
    }

    /// Tells the end of an engine that runs again already.
    pub(crate) fn send_stale_exit(&self, engine_id: EngineId) {
        let instance = self.state().running[&engine_id].0.clone();
        let _ = self.exits.lock().unwrap().send(InstanceExit { engine_id, instance, reason: None });
    }

    /// Lets an engine run that nobody launched.
    pub(crate) fn run_orphan(&self, engine_id: EngineId, launch: LaunchSpec) {
        self.state().running.insert(engine_id, (Instance::new("orphan"), launch));
    }

    /// A running engine was launched for a change that the registry does not know.
    pub(crate) fn set_generation(&self, engine_id: EngineId, generation: i64) {
        self.state().running.get_mut(&engine_id).unwrap().1.generation = generation;
    }

    /// An orchestrator that has been replaced launches an engine that runs already, for an earlier change.
    pub(crate) fn run_stray(&self, engine_id: EngineId) {
        let stray =
            EngineListing { engine_id, instance: Instance::new("stray"), generation: 0, running: true };
        self.state().strays.push(stray);
    }

    /// What runs beside the engines.
    pub(crate) fn strays(&self) -> usize {
        self.state().strays.len()
    }

    /// Something is left of an engine that does not run.
    pub(crate) fn leave_remains(&self, engine_id: EngineId) {
        self.state().remains.insert(engine_id, Instance::new("remains"));
    }

    /// Of which engines something is left.
    pub(crate) fn remains(&self) -> HashSet<EngineId> {
        self.state().remains.keys().copied().collect()
    }

    /// Every running engine is held to these.
    pub(crate) fn set_resource_limits(&self, caps: ResourceLimits) {
        self.state().resource_limits = Some(caps);
    }

    /// Another orchestrator takes over: it hears of exits from now on.
    pub(crate) fn reconnect(&self) {
        let (exits, listener) = mpsc::unbounded_channel();
        *self.exits.lock().unwrap() = exits;
        *self.listener.lock().unwrap() = Some(listener);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Ends an engine, unless it was launched for a later change.
    fn end_target(&self, target: Target, how: &str) -> Result<(), BackendError> {
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
        self.end(target.engine_id, how);
        Ok(())
    }

    fn end(&self, engine_id: EngineId, how: &str) {
        let ended = {
            let mut state = self.state();
            state.frozen.remove(&engine_id);
            state.running.remove(&engine_id)
        };
        if let Some((instance, _)) = ended {
            let exit = InstanceExit { engine_id, instance, reason: Some(how.to_owned()) };
            let _ = self.exits.lock().unwrap().send(exit);
        }
    }

    /// Answers `call` with what `act` does, unless a fault is scripted.
    fn respond<'a, T: Send + 'a>(
        &'a self,
        call: BackendCall,
        act: impl FnOnce(&Self) -> Result<T, BackendError> + Send + 'a,
    ) -> BackendFuture<'a, T> {
        Box::pin(async move {
            let fault = {
                let mut state = self.state();
                state.calls.push(call);
                let (now, most) = state.in_flight.entry(call).or_default();
                *now += 1;
                *most = (*most).max(*now);
                state.faults.get_mut(&call).and_then(VecDeque::pop_front)
            };
            let _over = CallGuard { backend: self, call };
            match fault {
                None => act(self),
                Some(Fault::Hang) => std::future::pending().await,
                Some(Fault::Error(error)) => Err(error),
                Some(Fault::Delay(by)) => {
                    let done = act(self);
                    self.clock.sleep(by).await;
                    done
                }
                Some(Fault::Exit) => {
                    let before = self.running();
                    let done = act(self);
                    for launched in self.running().difference(&before) {
                        self.end(*launched, "exit status: 1");
                    }
                    done
                }
            }
        })
    }
}

/// Notes the end of a call, also of one that is dropped.
struct CallGuard<'a> {
    backend: &'a FaultBackend,
    call: BackendCall,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if let Some((now, _)) = self.backend.state().in_flight.get_mut(&self.call) {
            *now -= 1;
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
        let has = self.state().folders.contains(&engine_id);
        Box::pin(std::future::ready(Ok(has)))
    }

    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance> {
        let has_data = self.state().folders.contains(&launch.engine_id);
        assert!(launch.is_first || has_data, "only the first launch of an engine makes its folder");
        self.respond(BackendCall::Launch, move |backend| {
            let engine_id = launch.engine_id;
            backend.end_target(launch.target(), "replaced")?;
            assert!(backend.port_is_free(launch.port), "two engines on port {}", launch.port);
            let mut state = backend.state();
            let instance = Instance::new(format!("instance {}", state.launches.len()));
            state.remains.remove(&engine_id);
            state.folders.insert(engine_id);
            state.launches.push(launch.clone());
            let (major, brain) = (launch.image.major(), state.brain_formats.entry(engine_id).or_default());
            let opens = *brain <= major;
            *brain = major.max(*brain);
            let well = opens && !state.crashing_images.contains(&launch.image);
            state.running.insert(engine_id, (instance.clone(), launch));
            drop(state);
            if !well {
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
            let brain = state.brain_formats.get(&target.engine_id).copied().unwrap_or_default();
            state.brain_copies.insert(target.engine_id, brain);
            Ok(BrainCopy { format: u32::try_from(brain).ok() })
        })
    }

    fn restore_brain(&self, target: Target) -> BackendFuture<'_, ()> {
        self.respond(BackendCall::RestoreCopy, move |backend| {
            let mut state = backend.state();
            assert!(
                !state.running.contains_key(&target.engine_id),
                "the brain of a running engine is replaced"
            );
            let brain = state.brain_copies[&target.engine_id];
            if !fault_injection::active(Mutation::ForgetCopy) {
                state.brain_formats.insert(target.engine_id, brain);
            }
            Ok(())
        })
    }

    fn list(&self) -> BackendFuture<'_, Vec<EngineListing>> {
        self.respond(BackendCall::List, |backend| {
            let state = backend.state();
            let listed = state.running.iter().map(|(engine_id, (instance, launch))| EngineListing {
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
            Ok(listed.chain(strays).chain(remains).collect())
        })
    }

    fn exits(&self) -> BoxStream<'static, InstanceExit> {
        let mut listener = self.listener.lock().unwrap().take().expect("one listener");
        futures::stream::poll_fn(move |context| listener.poll_recv(context)).boxed()
    }

    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool> {
        let runs = self.state().running.values().any(|(other, _)| other == instance);
        Box::pin(std::future::ready(Ok(runs)))
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
