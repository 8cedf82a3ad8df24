//! Random calls of several callers at once, over a backend that hangs, fails and answers late: every history
//! of them is one that a sequential fleet could have.

mod plans;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use api::orchestrator::{DenialReason, EngineStatus};
use api::{KeyHash, ProductId, Timestamp, UserId};
use futures::future::join_all;
use http_service::clock::Clock as _;
use proptest::prelude::*;
use serde_json::{Value, json};

use self::plans::{ActionKind, Plan, PlannedAction, plans};
use super::linearize::{History, RecordedCall};
use super::model::{Failure, Id, Request, Response};
use crate::config::SupervisionRules;
use crate::fleet::FleetError;
use crate::fleet::execute::OperationRequest;
use crate::fleet::lifecycle::{Refusal, Trigger};
use crate::registry::EngineOwner;
use crate::testing::{BackendCall, Fault, ProductClient, SimulatedHealth, TestApp};

const USERS: [&str; 3] = ["ann", "bob", "eve"];

/// How long a caller waits at most: the boot timeout and 40 s.
const MAX_CALL_DURATION: Duration = Duration::from_secs(100);
/// Two comparisons of the registry with what runs, and what they may take.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(90);
/// The steps in which time passes: from the first, ever longer while nothing happens.
const CLOCK_STEP_RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));

/// All restarts that are still due have been attempted after so long, and the last one has worked.
const RESTART_TIMEOUT: Duration = Duration::from_mins(3);

/// So that a history of a few minutes has checks, restarts and, where a policy says so, sleep.
const RULES: SupervisionRules = SupervisionRules {
    check_interval: Duration::from_secs(5),
    check_timeout: Duration::from_secs(2),
    max_failures: 3,
    backoff_base: Duration::from_secs(1),
    backoff_max: Duration::from_secs(10),
    max_restarts: 8,
    idle_threshold: Duration::ZERO,
};

/// After so long, by the clock on the wall, something waits for what never comes.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// The backend's calls that change anything.
const MUTATING_CALLS: [BackendCall; 4] =
    [BackendCall::Launch, BackendCall::Stop, BackendCall::Kill, BackendCall::Remove];

/// More than any history has of one of them.
const MAX_CALLS: usize = 60;

const BACKEND_CALLS: [BackendCall; 7] = [
    BackendCall::Ping,
    BackendCall::CheckImage,
    BackendCall::Launch,
    BackendCall::Stop,
    BackendCall::Kill,
    BackendCall::Remove,
    BackendCall::List,
];

/// Numbers for names, in the order in which they come up.
#[derive(Default)]
struct IdNumbering(RefCell<HashMap<String, u8>>);

impl IdNumbering {
    fn number_of(&self, name: &str) -> u8 {
        let mut names = self.0.borrow_mut();
        let next = u8::try_from(names.len()).unwrap();
        *names.entry(name.to_owned()).or_insert(next)
    }

    fn name(&self, number: u8) -> String {
        let names = self.0.borrow();
        names.iter().find(|(_, of)| **of == number).unwrap().0.clone()
    }
}

/// A history as it is made.
struct HistoryRecorder<'a> {
    app: &'a TestApp,
    product: ProductClient<'a>,
    product_id: ProductId,
    ids: IdNumbering,
    keys: IdNumbering,
    event_counter: Cell<usize>,
    calls: RefCell<Vec<RecordedCall>>,
    /// Who was admitted to a running engine, from when to when by the wall clock.
    admits: RefCell<Vec<(usize, Timestamp, Timestamp)>>,
    /// How many rotations have begun, and how many are over.
    rotations: Cell<(usize, usize)>,
}

impl HistoryRecorder<'_> {
    fn next_event(&self) -> usize {
        self.event_counter.replace(self.event_counter.get() + 1)
    }

    /// Does `work`. Time passes, in small steps while anything happens, but stands still while the registry is
    /// at work: a slow disk must not look like a slow backend.
    async fn while_time_passes<T>(&self, work: impl Future<Output = T>) -> T {
        let mut step = CLOCK_STEP_RANGE.0;
        let mut before = self.event_count();
        let pass = async {
            loop {
                // All that can go on does so first.
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
                if !self.app.orchestrator.fleet().is_idle() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                self.app.clock.advance(step);
                let now = self.event_count();
                step = if now == before { CLOCK_STEP_RANGE.1.min(step * 2) } else { CLOCK_STEP_RANGE.0 };
                before = now;
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = pass => unreachable!("time never ends"),
        }
    }

    /// Counts what can be seen to happen.
    fn event_count(&self) -> usize {
        BACKEND_CALLS.iter().map(|call| self.app.backend.count(*call)).sum::<usize>()
            + self.event_counter.get()
    }

    /// The engines that users have in the end, as the registry and, folded, the ledger have them.
    async fn final_engines(&self) -> Vec<Option<(EngineStatus, Id)>> {
        let mut folded: HashMap<String, (String, Value)> = HashMap::new();
        let ledger =
            "SELECT user_id, engine_id, detail FROM audit_log WHERE engine_id IS NOT NULL ORDER BY id";
        for row in self.app.rows(ledger).await {
            let [user, engine, detail] = <[String; 3]>::try_from(row).unwrap();
            let detail: Value = serde_json::from_str(&detail).unwrap();
            if detail.get("to").is_none() {
                // A key was rotated: nothing has moved.
                assert_eq!(folded.get(&user), Some(&(engine, json!("running"))), "{detail}");
                continue;
            }
            let before = folded.remove(&user);
            let from = before.as_ref().map_or(&Value::Null, |(_, state)| state);
            assert_eq!(*from, detail["from"], "{user}: {before:?}, then {detail}");
            assert!(before.is_none_or(|(before, _)| before == engine), "{user} has two engines: {detail}");
            if !detail["to"].is_null() {
                folded.insert(user, (engine, detail["to"].clone()));
            }
        }
        let rows = self.app.rows("SELECT user_id, engine_id, status FROM engines").await;
        let rows = rows.into_iter().map(|row| <[String; 3]>::try_from(row).unwrap());
        let rows: HashMap<_, _> = rows.map(|[user, engine, state]| (user, (engine, json!(state)))).collect();
        assert_eq!(rows, folded, "the registry and its ledger");
        let engine = |user: &&str| {
            let (engine, state) = rows.get(*user)?;
            Some((EngineStatus::from_name(state.as_str()?)?, self.ids.number_of(engine)))
        };
        USERS.iter().map(engine).collect()
    }

    /// Waits until no restart is due any more.
    async fn wait_for_restarts(&self) {
        let until = self.app.elapsed() + RESTART_TIMEOUT;
        let due = "SELECT engine_id FROM engines WHERE status = 'failed' AND restart_at IS NOT NULL \
                   OR claim_kind IS NOT NULL";
        while !self.app.rows(due).await.is_empty() {
            assert!(self.app.elapsed() < until, "an engine is never brought back");
            self.app.sleep(CLOCK_STEP_RANGE.1).await;
        }
    }

    /// Nobody's engine was put to sleep as idle so soon after they had been admitted.
    async fn assert_none_slept_too_soon(&self, threshold: u64) {
        let sleeps = "SELECT user_id, CAST(at - duration_ms AS TEXT) FROM audit_log \
                      WHERE event = 'sleep' AND detail LIKE '%\"idle\"%'";
        let threshold = i64::try_from(threshold).unwrap() * 1_000;
        let step = i64::try_from(CLOCK_STEP_RANGE.1.as_millis()).unwrap();
        for row in self.app.rows(sleeps).await {
            let stopped = Timestamp::from_unix_ms(row[1].parse().unwrap());
            for (user, begun, answered) in self.admits.borrow().iter() {
                // It was noted before it was answered, at most one step of the clock.
                let noted = begun.unix_ms().max(answered.unix_ms() - step);
                let soon = *answered < stopped && noted + threshold > stopped.unix_ms();
                assert!(
                    !soon || USERS[*user] != row[0],
                    "{} slept at {stopped:?}, admitted from {begun:?} to {answered:?}\n{:?}",
                    row[0],
                    self.calls.borrow()
                );
            }
        }
    }

    /// Every engine that runs takes the key that its user is given, and no other.
    async fn assert_keys_hold(&self) {
        let mut given = Vec::new();
        for user in USERS {
            let (_, answer) = self.product.get(user).await;
            if answer["status"] == "running" {
                given.push(KeyHash::of(answer["api_key"].as_str().unwrap()).to_hex());
            }
        }
        let mut taken: Vec<_> = self.app.backend.key_hashes().into_iter().map(KeyHash::to_hex).collect();
        given.sort();
        taken.sort();
        assert_eq!(given, taken, "the keys given and those taken");
    }

    /// Does it, and writes down how it went.
    async fn perform(&self, deed: PlannedAction) {
        self.app.sleep(deed.pause).await;
        let user = USERS[deed.user];
        let (made, begun, begun_at) = (self.next_event(), self.app.elapsed(), self.app.clock.now());
        let (ask, answer) = match deed.kind {
            ActionKind::Request(ask) => (ask, self.send_checking_key(user, ask).await),
            ActionKind::Freeze => return self.freeze(user).await,
            ActionKind::Crash => match self.crash(user).await {
                Some(id) => (Request::Crash(id), Response::Done),
                None => return,
            },
        };
        if let (Request::Admit { .. }, Response::Engine { .. }) = (ask, answer) {
            self.admits.borrow_mut().push((deed.user, begun_at, self.app.clock.now()));
        }
        let took = self.app.since(begun);
        assert!(
            took <= MAX_CALL_DURATION + CLOCK_STEP_RANGE.1,
            "{ask:?} of {user}: {answer:?} after {took:?}"
        );
        let answered = Some(self.next_event()).filter(|_| !matches!(ask, Request::Crash(_)));
        self.calls.borrow_mut().push(RecordedCall {
            user: deed.user,
            request: ask,
            response: answer,
            called_at: made,
            answered_at: answered,
        });
    }

    /// Asks; and looks whether a key that is given while nobody changes one is what the engine takes.
    async fn send_checking_key(&self, user: &str, ask: Request) -> Response {
        let before = self.rotations.get();
        if ask == Request::Rotate {
            self.rotations.set((before.0 + 1, before.1));
        }
        let answer = self.send(user, ask).await;
        let (begun, over) = self.rotations.get();
        match answer {
            // It may go on, and change the key at any time.
            Response::OperationTimeout => {}
            Response::Engine { id, key, .. } if (begun, begun) == before => {
                let runs = self
                    .app
                    .backend
                    .running()
                    .iter()
                    .any(|engine| self.ids.number_of(&engine.to_string()) == id);
                let hash = KeyHash::of(&self.keys.name(key));
                let taken = self.app.backend.key_hashes().contains(&hash);
                assert!(taken || !runs, "{ask:?} of {user} gave a key that the engine does not take");
            }
            _ if ask == Request::Rotate => self.rotations.set((begun, over + 1)),
            _ => {}
        }
        answer
    }

    async fn send(&self, user: &str, ask: Request) -> Response {
        let product = &self.product;
        let (status, body) = match ask {
            Request::Provision => product.provision(user).await,
            Request::Admit { provision, wake } => {
                product.admit(user, json!({"auto_provision": provision, "auto_wake": wake})).await
            }
            Request::Start => product.start(user).await,
            Request::Stop => product.stop(user).await,
            Request::Delete => product.delete(user).await,
            Request::Get => product.get(user).await,
            Request::Rotate => {
                product.call("POST", &format!("/engines/{user}/rotate-key"), &Value::Null).await
            }
            Request::Sleep => return self.sleep(user).await,
            Request::Crash(_) => unreachable!("nobody asks for it"),
        };
        match (status, body["error"]["code"].as_str()) {
            (200, None) => self.parse_success(ask, &body),
            (404, Some("ENGINE_NOT_FOUND")) => Response::Refused(Refusal::NotFound),
            (409, Some("ENGINE_ALREADY_EXISTS")) => Response::Refused(Refusal::AlreadyExists),
            (409, Some("ENGINE_ALREADY_RUNNING")) => Response::Refused(Refusal::AlreadyRunning),
            (409, Some("ENGINE_NOT_RUNNING")) => Response::Refused(Refusal::NotRunning),
            (429, Some("QUOTA_EXCEEDED")) => Response::Failed(Failure::Quota),
            (504, Some("BOOT_TIMEOUT")) => Response::Failed(Failure::BootTimeout),
            (502, Some("BACKEND_ERROR")) => {
                let slow = FleetError::OperationTimeout.to_string();
                let gave_up = body["error"]["message"] == slow.as_str();
                if gave_up { Response::OperationTimeout } else { Response::Failed(Failure::Backend) }
            }
            _ => panic!("{ask:?} of {user}: {status} {body}"),
        }
    }

    /// What an answer of 200 says.
    fn parse_success(&self, ask: Request, body: &Value) -> Response {
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{ask:?}: {body}")).to_owned();
        let engine = |engine: &Value| Response::Engine {
            status: EngineStatus::from_name(&text(&engine["status"])).unwrap(),
            id: self.ids.number_of(&text(&engine["engine_id"])),
            key: self.keys.number_of(&text(&engine["api_key"])),
        };
        match ask {
            Request::Provision | Request::Get => engine(body),
            Request::Admit { .. } if body["admitted"] == true => engine(&body["engine"]),
            Request::Admit { .. } => Response::Denied(denial_reason(&text(&body["reason"]))),
            Request::Delete => Response::Destroyed(self.ids.number_of(&text(&body["engine_id"]))),
            Request::Rotate => Response::NewKey(self.keys.number_of(&text(&body["new_api_key"]))),
            Request::Start => {
                assert_eq!(body["status"], "running");
                Response::Done
            }
            Request::Stop | Request::Sleep | Request::Crash(_) => {
                assert_eq!(body["status"], "stopped");
                Response::Done
            }
        }
    }

    /// As the orchestrator puts an engine to sleep.
    async fn sleep(&self, user: &str) -> Response {
        let trigger = Trigger::Sleep { if_idle: false };
        match self
            .app
            .orchestrator
            .fleet()
            .execute(&OperationRequest::new(self.engine_owner(user), trigger, "up_ended"))
            .await
        {
            Ok(_) => Response::Done,
            Err(FleetError::EngineNotFound) => Response::Refused(Refusal::NotFound),
            Err(FleetError::EngineNotRunning) => Response::Refused(Refusal::NotRunning),
            Err(FleetError::Backend(_)) => Response::Failed(Failure::Backend),
            Err(FleetError::OperationTimeout) => Response::OperationTimeout,
            Err(error) => panic!("sleep of {user}: {error}"),
        }
    }

    /// Ends the user's engine, if one runs.
    async fn crash(&self, user: &str) -> Option<Id> {
        let row = self.app.orchestrator.fleet().registry.engine(&self.engine_owner(user)).await.unwrap()?;
        let runs = self.app.backend.running().contains(&row.engine_id);
        self.app.backend.crash(row.engine_id);
        runs.then(|| self.ids.number_of(&row.engine_id.to_string()))
    }

    async fn freeze(&self, user: &str) {
        let row = self.app.orchestrator.fleet().registry.engine(&self.engine_owner(user)).await.unwrap();
        if let Some(row) = row {
            self.app.backend.freeze(row.engine_id);
        }
    }

    fn engine_owner(&self, user: &str) -> EngineOwner {
        EngineOwner { product_id: self.product_id, user_id: UserId::new(user).unwrap() }
    }
}

impl Plan {
    async fn run(self) {
        let app = TestApp::with_rules(RULES).await;
        let policy = json!({"max_engines": self.quota, "idle_sleep_threshold_s": self.idle_threshold_s});
        let product = app.register_product("demo", policy).await;
        let product_id =
            app.orchestrator.fleet().authenticate(&product.key).await.unwrap().unwrap().product_id;
        let making = HistoryRecorder {
            app: &app,
            product,
            product_id,
            ids: IdNumbering::default(),
            keys: IdNumbering::default(),
            event_counter: Cell::new(0),
            calls: RefCell::default(),
            admits: RefCell::default(),
            rotations: Cell::default(),
        };
        making.while_time_passes(self.run_setup(&making)).await;
        self.inject_faults(&app);
        making.while_time_passes(self.run_callers(&making)).await;
        self.recover_and_check(&making).await;
        let end = making.final_engines().await;
        let history = History { environment: self.environment(), calls: making.calls.take(), end };
        history.linearize().unwrap_or_else(|why| panic!("{why}"));
    }

    /// What goes before, until crashes among it are noticed.
    async fn run_setup(&self, making: &HistoryRecorder<'_>) {
        for deed in &self.setup {
            making.perform(*deed).await;
        }
        making.app.sleep(Duration::from_secs(2)).await;
    }

    /// From here on the backend fails and is slow.
    fn inject_faults(&self, app: &TestApp) {
        let late =
            self.backend_delay.iter().flat_map(|by| MUTATING_CALLS.map(|call| (call, Fault::Delay(*by))));
        let late = std::iter::repeat_n(late, MAX_CALLS).flatten();
        for (call, fault) in self.faults.iter().cloned().chain(late) {
            app.backend.inject(call, fault);
        }
    }

    /// All that the callers do, at once.
    async fn run_callers(&self, making: &HistoryRecorder<'_>) {
        let callers = self.callers.iter().map(async |actions| {
            for deed in actions {
                making.perform(*deed).await;
            }
        });
        let silence = async {
            let Some((from, length)) = self.outage else { return };
            making.app.sleep(from).await;
            making.app.backend.set_health(SimulatedHealth::Unreachable);
            making.app.sleep(length).await;
            making.app.backend.set_health(SimulatedHealth::Healthy);
        };
        tokio::join!(join_all(callers), silence);
    }

    /// All is well again: everything comes to rest, and nothing is left over or missing.
    async fn recover_and_check(&self, making: &HistoryRecorder<'_>) {
        let app = making.app;
        app.backend.clear_faults();
        app.backend.thaw();
        making.product.set_policy(json!({"max_engines": self.quota})).await;
        making.while_time_passes(app.sleep(RECONCILE_TIMEOUT)).await;
        making.while_time_passes(making.wait_for_restarts()).await;
        app.assert_consistent().await;
        making.assert_keys_hold().await;
        if let Some(threshold) = self.idle_threshold_s {
            making.assert_none_slept_too_soon(threshold).await;
        }
    }
}

fn denial_reason(reason: &str) -> DenialReason {
    match reason {
        "engine_not_found" => DenialReason::EngineNotFound,
        "engine_sleeping" => DenialReason::EngineSleeping,
        "engine_stopped" => DenialReason::EngineStopped,
        "engine_unhealthy" => DenialReason::EngineUnhealthy,
        _ => panic!("no such reason: {reason}"),
    }
}

/// Carries `plan` out, on a thread that need not end: something on it may spin.
fn run_with_timeout(plan: Plan) {
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let working = std::thread::spawn(move || {
        // Dropped at the end, well or not.
        let _done = done;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(plan.run());
    });
    let ended = is_done.recv_timeout(HANG_TIMEOUT);
    assert!(ended == Err(RecvTimeoutError::Disconnected), "something waits for ever, or spins");
    working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// As many cases as the environment says, else what takes some seconds.
fn cases() -> ProptestConfig {
    // What hangs is not worth many attempts at something smaller that hangs.
    let (failure_persistence, max_shrink_time) = (None, 60_000);
    let default = ProptestConfig { failure_persistence, max_shrink_time, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        default
    } else {
        ProptestConfig { cases: 24, ..default }
    }
}

proptest! {
    #![proptest_config(cases())]
    #[test]
    fn every_history_is_one_of_a_sequential_fleet(plan in plans()) {
        run_with_timeout(plan);
    }
}
