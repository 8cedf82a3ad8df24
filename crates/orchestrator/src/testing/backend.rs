//! A backend without processes. It does as it is told, unless a test has scripted a fault for the call; and it
//! refuses, by a panic, what the rules must never ask of a backend.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use contract::engine::{EngineHealth, Subsystems};
use contract::{EngineId, EngineImage, EngineKey, KeyHash};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use serde_json::{Value, json};
use service::clock::Clock;
use tokio::sync::mpsc;

use crate::backend::{Answer, BackendError, EngineBackend, Exit, Instance, Launch, Listed, Probe, Unwell};

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Ping,
    CheckImage,
    Launch,
    Stop,
    Kill,
    Remove,
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
    Late(Duration),
    /// The launched engine ends at once.
    Exit,
}

/// How the engines say they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// The provider is unwell, for this reason.
    Provider(&'static str),
    /// The brain is unwell, for this reason.
    Database(&'static str),
    /// No answer at all.
    Silent,
    /// Something else answers on every port: it is well, and takes no engine's key.
    Stranger,
}

/// A backend that fails as a test says.
pub(crate) struct FaultBackend {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    exits: Mutex<mpsc::UnboundedSender<Exit>>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<Exit>>>,
}

struct State {
    running: HashMap<EngineId, (Instance, Launch)>,
    folders: HashSet<EngineId>,
    faults: HashMap<Call, VecDeque<Fault>>,
    calls: Vec<Call>,
    /// How many of a call are under way, and the most that ever were.
    under_way: HashMap<Call, (usize, usize)>,
    broken_images: HashSet<EngineImage>,
    launches: Vec<Launch>,
    health: Health,
    held_ports: HashSet<u16>,
    busy: HashSet<EngineId>,
    frozen: HashSet<EngineId>,
    asked: HashMap<EngineId, usize>,
}

impl FaultBackend {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let (exits, listener) = mpsc::unbounded_channel();
        let state = State {
            running: HashMap::new(),
            folders: HashSet::new(),
            faults: HashMap::new(),
            calls: Vec::new(),
            under_way: HashMap::new(),
            broken_images: HashSet::new(),
            launches: Vec::new(),
            health: Health::Well,
            held_ports: HashSet::new(),
            busy: HashSet::new(),
            frozen: HashSet::new(),
            asked: HashMap::new(),
        };
        Arc::new(Self {
            clock,
            state: Mutex::new(state),
            exits: Mutex::new(exits),
            listener: Mutex::new(Some(listener)),
        })
    }

    /// Makes the next `call` fail with `fault`; further scripts for it come after.
    pub(crate) fn script(&self, call: Call, fault: Fault) {
        self.state().faults.entry(call).or_default().push_back(fault);
    }

    /// Forgets all scripts: the backend is well again.
    pub(crate) fn mend(&self) {
        self.state().faults.clear();
    }

    pub(crate) fn set_health(&self, health: Health) {
        self.state().health = health;
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
    pub(crate) fn forget_keys(&self) {
        for (_, launch) in self.state().running.values_mut() {
            launch.key_hash = KeyHash::of("another key");
        }
    }

    /// How often this engine was asked how it is.
    pub(crate) fn asked(&self, engine_id: EngineId) -> usize {
        self.state().asked.get(&engine_id).copied().unwrap_or_default()
    }

    /// Something else on the host holds `port` from now on.
    pub(crate) fn hold_port(&self, port: u16) {
        self.state().held_ports.insert(port);
    }

    /// How often `call` was made.
    pub(crate) fn count(&self, call: Call) -> usize {
        self.state().calls.iter().filter(|made| **made == call).count()
    }

    /// How often anything was asked, of the backend or of an engine.
    pub(crate) fn count_all(&self) -> usize {
        let state = self.state();
        state.calls.len() + state.asked.values().sum::<usize>()
    }

    /// The most of `call` that were ever under way at once.
    pub(crate) fn most_at_once(&self, call: Call) -> usize {
        self.state().under_way.get(&call).map_or(0, |(_, most)| *most)
    }

    /// This image is not there any more.
    pub(crate) fn break_image(&self, image: EngineImage) {
        self.state().broken_images.insert(image);
    }

    /// Where the running engines listen.
    pub(crate) fn ports(&self) -> HashMap<EngineId, u16> {
        self.state().running.iter().map(|(engine_id, (_, launch))| (*engine_id, launch.port)).collect()
    }

    pub(crate) fn launches(&self) -> Vec<Launch> {
        self.state().launches.clone()
    }

    pub(crate) fn running(&self) -> HashSet<EngineId> {
        self.state().running.keys().copied().collect()
    }

    pub(crate) fn folders(&self) -> HashSet<EngineId> {
        self.state().folders.clone()
    }

    /// Ends an engine from outside.
    pub(crate) fn crash(&self, engine_id: EngineId) {
        self.end(engine_id, "signal: 9 (SIGKILL)");
    }

    /// Lets an engine run that nobody launched.
    pub(crate) fn run_orphan(&self, engine_id: EngineId, launch: Launch) {
        self.state().running.insert(engine_id, (Instance::new("orphan"), launch));
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

    fn end(&self, engine_id: EngineId, how: &str) {
        let ended = {
            let mut state = self.state();
            state.frozen.remove(&engine_id);
            state.running.remove(&engine_id)
        };
        if let Some((instance, _)) = ended {
            let exit = Exit { engine_id, instance, how: Some(how.to_owned()) };
            let _ = self.exits.lock().unwrap().send(exit);
        }
    }

    /// Answers `call` with what `act` does, unless a fault is scripted.
    fn answer<'a, T: Send + 'a>(
        &'a self,
        call: Call,
        act: impl FnOnce(&Self) -> T + Send + 'a,
    ) -> Answer<'a, T> {
        Box::pin(async move {
            let fault = {
                let mut state = self.state();
                state.calls.push(call);
                let (now, most) = state.under_way.entry(call).or_default();
                *now += 1;
                *most = (*most).max(*now);
                state.faults.get_mut(&call).and_then(VecDeque::pop_front)
            };
            let _over = Over { backend: self, call };
            match fault {
                None => Ok(act(self)),
                Some(Fault::Hang) => std::future::pending().await,
                Some(Fault::Error(error)) => Err(error),
                Some(Fault::Late(by)) => {
                    let done = act(self);
                    self.clock.sleep(by).await;
                    Ok(done)
                }
                Some(Fault::Exit) => {
                    let before = self.running();
                    let done = act(self);
                    for launched in self.running().difference(&before) {
                        self.end(*launched, "exit status: 1");
                    }
                    Ok(done)
                }
            }
        })
    }
}

/// Notes the end of a call, also of one that is dropped.
struct Over<'a> {
    backend: &'a FaultBackend,
    call: Call,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if let Some((now, _)) = self.backend.state().under_way.get_mut(&self.call) {
            *now -= 1;
        }
    }
}

impl FaultBackend {
    /// What the engine on `port` does when it is told something.
    fn obey(&self, port: u16, key: &EngineKey, command: &Value) -> Result<Value, Unwell> {
        let mut state = self.state();
        let State { running, busy, .. } = &mut *state;
        let found = running.iter_mut().find(|(_, (_, launch))| launch.port == port);
        let Some((engine_id, (_, launch))) = found else {
            return Err(Unwell::Silent { port, reason: "connection refused".to_owned() });
        };
        if !launch.key_hash.matches(key.expose()) {
            return Err(Unwell::Refused { port });
        }
        match command["op"].as_str() {
            Some("set_key_hash") => {
                launch.key_hash = KeyHash::from_hex(command["key_hash"].as_str().unwrap()).unwrap();
                Ok(json!({}))
            }
            Some("quiesce") => Ok(json!({"quiesced": command["lift"] != true && !busy.contains(engine_id)})),
            Some("activity") => Ok(json!({
                "running_turns": i32::from(busy.contains(engine_id)), "pending_hitl": 0,
                "last_activity_at": null, "confinement": "none",
            })),
            other => panic!("engines do not know {other:?}"),
        }
    }
}

impl EngineBackend for FaultBackend {
    fn ping(&self) -> Answer<'_, ()> {
        self.answer(Call::Ping, |_| ())
    }

    fn check_image<'a>(&'a self, image: &'a EngineImage) -> Answer<'a, ()> {
        Box::pin(async move {
            self.answer(Call::CheckImage, |_| ()).await?;
            let known = image.major() == 0 && !self.state().broken_images.contains(image);
            if known { Ok(()) } else { Err(BackendError::NoImage(image.clone())) }
        })
    }

    fn port_is_free(&self, port: u16) -> bool {
        let state = self.state();
        !state.held_ports.contains(&port) && state.running.values().all(|(_, launch)| launch.port != port)
    }

    fn launch(&self, launch: Launch) -> Answer<'_, Instance> {
        self.answer(Call::Launch, move |backend| {
            let engine_id = launch.engine_id;
            backend.end(engine_id, "replaced");
            assert!(backend.port_is_free(launch.port), "two engines on port {}", launch.port);
            let mut state = backend.state();
            let instance = Instance::new(format!("instance {}", state.launches.len()));
            state.folders.insert(engine_id);
            state.launches.push(launch.clone());
            state.running.insert(engine_id, (instance.clone(), launch));
            instance
        })
    }

    fn stop(&self, engine_id: EngineId, grace: Duration) -> Answer<'_, ()> {
        assert_eq!(grace, Duration::from_secs(30), "the contract's grace");
        self.answer(Call::Stop, move |backend| backend.end(engine_id, "exit status: 0"))
    }

    fn kill(&self, engine_id: EngineId) -> Answer<'_, ()> {
        self.answer(Call::Kill, move |backend| backend.end(engine_id, "killed"))
    }

    fn remove(&self, engine_id: EngineId) -> Answer<'_, ()> {
        self.answer(Call::Remove, move |backend| {
            backend.end(engine_id, "killed");
            backend.state().folders.remove(&engine_id);
        })
    }

    fn list(&self) -> Answer<'_, Vec<Listed>> {
        self.answer(Call::List, |backend| {
            let state = backend.state();
            let listed = state.running.iter().map(|(engine_id, (instance, _))| Listed {
                engine_id: *engine_id,
                instance: instance.clone(),
            });
            listed.collect()
        })
    }

    fn exits(&self) -> BoxStream<'static, Exit> {
        let mut listener = self.listener.lock().unwrap().take().expect("one listener");
        futures::stream::poll_fn(move |context| listener.poll_recv(context)).boxed()
    }

    fn log_tail(&self, _: EngineId, lines: usize) -> Answer<'_, Vec<String>> {
        self.answer(Call::LogTail, move |_| {
            let log = ["engine began", "the last words"];
            log.iter().skip(log.len().saturating_sub(lines)).map(ToString::to_string).collect()
        })
    }
}

impl Probe for FaultBackend {
    fn ask(&self, port: u16) -> BoxFuture<'_, Result<EngineHealth, Unwell>> {
        let mut state = self.state();
        let on_port = state.running.iter().find(|(_, (_, launch))| launch.port == port);
        let engine_id = on_port.map(|(engine_id, _)| *engine_id);
        let runs = engine_id.is_some();
        if let Some(engine_id) = engine_id {
            *state.asked.entry(engine_id).or_default() += 1;
            if state.frozen.contains(&engine_id) {
                return Box::pin(std::future::pending());
            }
        }
        let subsystems = |database: &str, provider: &str| Subsystems {
            database: database.to_owned(),
            llm_provider: provider.to_owned(),
            asset_directory: "ok".to_owned(),
        };
        let health = |status: &str, subsystems| EngineHealth {
            status: status.to_owned(),
            uptime_seconds: 0.5,
            subsystems,
        };
        let answer = match &state.health {
            Health::Stranger => Ok(health("ok", subsystems("ok", "ok"))),
            Health::Well if runs => Ok(health("ok", subsystems("ok", "ok"))),
            Health::Provider(reason) if runs => Ok(health("degraded", subsystems("ok", reason))),
            Health::Database(reason) if runs => Ok(health("degraded", subsystems(reason, "ok"))),
            Health::Silent | Health::Well | Health::Provider(_) | Health::Database(_) => {
                Err(Unwell::Silent { port, reason: "connection refused".to_owned() })
            }
        };
        Box::pin(std::future::ready(answer))
    }

    fn identify<'a>(&'a self, port: u16, key: &'a EngineKey) -> BoxFuture<'a, Result<(), Unwell>> {
        let state = self.state();
        let mut launches = state.running.values().map(|(_, launch)| launch);
        let own = launches.any(|launch| launch.port == port && launch.key_hash.matches(key.expose()));
        if state.running.iter().any(|(id, (_, launch))| launch.port == port && state.frozen.contains(id)) {
            return Box::pin(std::future::pending());
        }
        let answer = match state.health {
            Health::Stranger => Err(Unwell::Stranger { port, answer: "200".to_owned() }),
            Health::Silent => Err(Unwell::Silent { port, reason: "connection refused".to_owned() }),
            Health::Well | Health::Provider(_) | Health::Database(_) if own => Ok(()),
            Health::Well | Health::Provider(_) | Health::Database(_) => {
                let runs = state.running.values().any(|(_, launch)| launch.port == port);
                let silent = Unwell::Silent { port, reason: "connection refused".to_owned() };
                Err(if runs { Unwell::Refused { port } } else { silent })
            }
        };
        Box::pin(std::future::ready(answer))
    }

    fn rpc<'a>(
        &'a self,
        port: u16,
        key: &'a EngineKey,
        command: &'a Value,
    ) -> BoxFuture<'a, Result<Value, Unwell>> {
        Box::pin(async move {
            let silent = || Unwell::Silent { port, reason: "connection refused".to_owned() };
            let frozen = {
                let state = self.state();
                state.running.iter().any(|(id, (_, launch))| launch.port == port && state.frozen.contains(id))
            };
            if frozen {
                std::future::pending::<()>().await;
            }
            self.answer(Call::Rpc, |backend| backend.obey(port, key, command)).await.map_err(|_| silent())?
        })
    }
}
