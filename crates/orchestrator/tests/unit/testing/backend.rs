//! A simulated backend without processes, whose engines have ports of the host, or addresses of their own. Each call
//! succeeds unless a test has injected a fault for it. Calls that the fleet must never make, such as two engines on one
//! port, panic.

mod addresses;
mod calls;
mod controls;
mod engines;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::{EngineId, EngineImage, KeyHash};
use backend::{
    Addressing, BackendError, BackendFuture, BrainCopy, BrainFormats, DataListing, EngineBackend,
    EngineListing, Instance, InstanceExit, LaunchSpec, Placement, ResourceLimits, Target,
};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http_service::clock::Clock;
use serde_json::Value;
use tokio::sync::mpsc;

pub(crate) use self::addresses::{addressing, also_with_own_addresses, use_own_addresses};

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
    BrainFormats,
    List,
    ListData,
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
    addressing: Addressing,
    /// The port of every engine that has an address of its own.
    own_port: u16,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    exits: Mutex<mpsc::UnboundedSender<InstanceExit>>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<InstanceExit>>>,
}

struct State {
    running: HashMap<EngineId, (Instance, LaunchSpec)>,
    /// The addresses of running engines that have one of their own.
    own_addresses: HashMap<EngineId, SocketAddr>,
    /// Whether engines get no address.
    withholds_addresses: bool,
    /// How many addresses were given to engines.
    addresses_given: u32,
    /// Further instances of engines, launched by an orchestrator that had been replaced.
    strays: Vec<EngineListing>,
    /// Remains, such as exited containers, of engines that ended or never started.
    remains: HashMap<EngineId, Instance>,
    /// The limits of every running engine.
    resource_limits: Option<ResourceLimits>,
    folders: HashSet<EngineId>,
    /// The folders that have not changed for a long time.
    old_folders: HashSet<EngineId>,
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
    /// When schedules of engines are due.
    next_due: HashMap<EngineId, String>,
    /// What engines report to have used.
    usage: HashMap<EngineId, Vec<api::usage_days::UsageOfDay>>,
    /// What engines were last told about browsers.
    browser_access: HashMap<EngineId, Value>,
    frozen: HashSet<EngineId>,
    probe_counts: HashMap<EngineId, usize>,
}

impl FaultBackend {
    pub(crate) fn new(clock: Arc<dyn Clock>, addressing: Addressing, own_port: u16) -> Arc<Self> {
        let (exits, listener) = mpsc::unbounded_channel();
        let state = State {
            running: HashMap::new(),
            own_addresses: HashMap::new(),
            withholds_addresses: false,
            addresses_given: 0,
            strays: Vec::new(),
            remains: HashMap::new(),
            resource_limits: None,
            folders: HashSet::new(),
            old_folders: HashSet::new(),
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
            next_due: HashMap::new(),
            usage: HashMap::new(),
            browser_access: HashMap::new(),
            frozen: HashSet::new(),
            probe_counts: HashMap::new(),
        };
        Arc::new(Self {
            addressing,
            own_port,
            clock,
            state: Mutex::new(state),
            exits: Mutex::new(exits),
            listener: Mutex::new(Some(listener)),
        })
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
            state.own_addresses.remove(&engine_id);
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
