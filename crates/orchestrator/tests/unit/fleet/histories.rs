//! Random concurrent calls with a backend that hangs, fails and responds late: every history of them must be
//! linearizable, that is, possible for a fleet that executes one call after the other.

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
use crate::domain::EngineOwner;
use crate::domain::lifecycle::Refusal;
use crate::fleet::FleetError;
use crate::fleet::request::{OperationRequest, RequestKind};
use crate::testing::{BackendCall, Fault, ProductClient, SimulatedHealth, TestApp};

const USERS: [&str; 3] = ["ann", "bob", "eve"];

/// The longest time that a call takes: the boot timeout and 40 s.
const MAX_CALL_DURATION: Duration = Duration::from_secs(100);
/// The interval between two reconciliations, and the time that they may take.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(90);
/// The shortest and the longest step of the clock; steps get longer while nothing happens.
const CLOCK_STEP_RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));

/// The time after which all restarts that are still due have been attempted, and the last one has succeeded.
const RESTART_TIMEOUT: Duration = Duration::from_mins(3);

/// Rules with which a history of a few minutes has checks, restarts and, if the policy says so, sleeps.
const RULES: SupervisionRules = SupervisionRules {
    check_interval: Duration::from_secs(5),
    check_timeout: Duration::from_secs(2),
    max_failures: 3,
    backoff_base: Duration::from_secs(1),
    backoff_max: Duration::from_secs(10),
    max_restarts: 8,
    idle_threshold: Duration::ZERO,
};

/// The real time after which a history counts as hung.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// The backend calls that change anything.
const MUTATING_CALLS: [BackendCall; 4] =
    [BackendCall::Launch, BackendCall::Stop, BackendCall::Kill, BackendCall::Remove];

/// More calls of one kind than any history has.
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

/// Assigns numbers to names in the order in which they appear.
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

/// Runs a plan and records its history.
struct HistoryRecorder<'a> {
    app: &'a TestApp,
    product: ProductClient<'a>,
    product_id: ProductId,
    ids: IdNumbering,
    keys: IdNumbering,
    event_counter: Cell<usize>,
    calls: RefCell<Vec<RecordedCall>>,
    /// The users admitted to a running engine, each with the start and the end of the call by the wall clock.
    admits: RefCell<Vec<(usize, Timestamp, Timestamp)>>,
    /// The numbers of rotations that have started and that are over.
    rotations: Cell<(usize, usize)>,
}

impl HistoryRecorder<'_> {
    fn next_event(&self) -> usize {
        self.event_counter.replace(self.event_counter.get() + 1)
    }

    /// Runs `work` while simulated time passes, in small steps while anything happens. Time stands still while the
    /// registry is busy, because a slow disk must not look like a slow backend.
    async fn while_time_passes<T>(&self, work: impl Future<Output = T>) -> T {
        let mut step = CLOCK_STEP_RANGE.0;
        let mut before = self.event_count();
        let pass = async {
            loop {
                // All tasks that can make progress do so first.
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

    /// The number of observable events so far.
    fn event_count(&self) -> usize {
        BACKEND_CALLS.iter().map(|call| self.app.backend.count(*call)).sum::<usize>()
            + self.event_counter.get()
    }

    /// The engines that users have at the end. The registry must agree with the audit log, folded over its rows.
    async fn final_engines(&self) -> Vec<Option<(EngineStatus, Id)>> {
        let mut folded: HashMap<String, (String, Value)> = HashMap::new();
        let audit_rows =
            "SELECT user_id, engine_id, detail FROM audit_log WHERE engine_id IS NOT NULL ORDER BY id";
        for row in self.app.rows(audit_rows).await {
            let [user, engine, detail] = <[String; 3]>::try_from(row).unwrap();
            let detail: Value = serde_json::from_str(&detail).unwrap();
            if detail.get("to").is_none() {
                // A key rotation does not change the state.
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
        assert_eq!(rows, folded, "the registry differs from its audit log");
        let engine = |user: &&str| {
            let (engine, state) = rows.get(*user)?;
            Some((EngineStatus::from_name(state.as_str()?)?, self.ids.number_of(engine)))
        };
        USERS.iter().map(engine).collect()
    }

    /// Waits until no restart and no wake is due any more.
    async fn wait_for_restarts(&self) {
        let until = self.app.elapsed() + RESTART_TIMEOUT;
        let due = "SELECT engine_id FROM engines WHERE status = 'failed' AND restart_at IS NOT NULL \
                   OR status = 'sleeping' AND wake_at IS NOT NULL OR claim_kind IS NOT NULL";
        while !self.app.rows(due).await.is_empty() {
            assert!(self.app.elapsed() < until, "an engine is never restarted");
            self.app.sleep(CLOCK_STEP_RANGE.1).await;
        }
    }

    /// Checks that no engine was put to sleep as idle within `threshold` seconds after its user was admitted.
    async fn assert_none_slept_too_soon(&self, threshold: u64) {
        let sleeps = "SELECT user_id, CAST(at - duration_ms AS TEXT) FROM audit_log \
                      WHERE event = 'sleep' AND detail LIKE '%\"idle\"%'";
        let threshold = i64::try_from(threshold).unwrap() * 1_000;
        let step = i64::try_from(CLOCK_STEP_RANGE.1.as_millis()).unwrap();
        for row in self.app.rows(sleeps).await {
            let stopped = Timestamp::from_unix_ms(row[1].parse().unwrap());
            for (user, started, answered_at) in self.admits.borrow().iter() {
                // The admit was recorded at most one step of the clock before its response.
                let noted = started.unix_ms().max(answered_at.unix_ms() - step);
                let soon = *answered_at < stopped && noted + threshold > stopped.unix_ms();
                assert!(
                    !soon || USERS[*user] != row[0],
                    "{} slept at {stopped:?}, admitted from {started:?} to {answered_at:?}\n{:?}",
                    row[0],
                    self.calls.borrow()
                );
            }
        }
    }

    /// Checks that every running engine accepts exactly the key that its user gets.
    async fn assert_keys_hold(&self) {
        let mut handed_out = Vec::new();
        for user in USERS {
            let (_, response) = self.product.get(user).await;
            if response["status"] == "running" {
                handed_out.push(KeyHash::of(response["api_key"].as_str().unwrap()).to_hex());
            }
        }
        let mut accepted: Vec<_> = self.app.backend.key_hashes().into_iter().map(KeyHash::to_hex).collect();
        handed_out.sort();
        accepted.sort();
        assert_eq!(handed_out, accepted, "the keys that users get differ from those that engines accept");
    }

    /// Performs `action` and records its call.
    async fn perform(&self, action: PlannedAction) {
        self.app.sleep(action.pause).await;
        let user = USERS[action.user];
        let (called_at, started, started_at) = (self.next_event(), self.app.elapsed(), self.app.clock.now());
        let (request, response) = match action.kind {
            ActionKind::Request(request) => (request, self.send_checking_key(user, request).await),
            ActionKind::Freeze => return self.freeze(user).await,
            ActionKind::Crash => match self.crash(user).await {
                Some(id) => (Request::Crash(id), Response::Done),
                None => return,
            },
        };
        if let (Request::Admit { .. }, Response::Engine { .. }) = (request, response) {
            self.admits.borrow_mut().push((action.user, started_at, self.app.clock.now()));
        }
        let took = self.app.since(started);
        assert!(
            took <= MAX_CALL_DURATION + CLOCK_STEP_RANGE.1,
            "{request:?} of {user}: {response:?} after {took:?}"
        );
        let answered_at = Some(self.next_event()).filter(|_| !matches!(request, Request::Crash(_)));
        self.calls.borrow_mut().push(RecordedCall {
            user: action.user,
            request,
            response,
            called_at,
            answered_at,
        });
    }

    /// Sends `request`. If no rotation runs meanwhile, checks that the engine accepts a key in the response.
    async fn send_checking_key(&self, user: &str, request: Request) -> Response {
        let before = self.rotations.get();
        if request == Request::Rotate {
            self.rotations.set((before.0 + 1, before.1));
        }
        let response = self.send(user, request).await;
        let (started, finished) = self.rotations.get();
        match response {
            // The call may continue, and change the key at any time.
            Response::OperationTimeout => {}
            Response::Engine { id, key, .. } if (started, started) == before => {
                let runs = self
                    .app
                    .backend
                    .running()
                    .iter()
                    .any(|engine| self.ids.number_of(&engine.to_string()) == id);
                let hash = KeyHash::of(&self.keys.name(key));
                let accepted = self.app.backend.key_hashes().contains(&hash);
                assert!(
                    accepted || !runs,
                    "{request:?} of {user} returned a key that the engine does not accept"
                );
            }
            _ if request == Request::Rotate => self.rotations.set((started, finished + 1)),
            _ => {}
        }
        response
    }

    async fn send(&self, user: &str, request: Request) -> Response {
        let product = &self.product;
        let (status, body) = match request {
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
            Request::Crash(_) => unreachable!("a crash is no call"),
        };
        match (status, body["error"]["code"].as_str()) {
            (200, None) => self.parse_success(request, &body),
            (404, Some("ENGINE_NOT_FOUND")) => Response::Refused(Refusal::NotFound),
            (409, Some("ENGINE_ALREADY_EXISTS")) => Response::Refused(Refusal::AlreadyExists),
            (409, Some("ENGINE_ALREADY_RUNNING")) => Response::Refused(Refusal::AlreadyRunning),
            (409, Some("ENGINE_NOT_RUNNING")) => Response::Refused(Refusal::NotRunning),
            (429, Some("QUOTA_EXCEEDED")) => Response::Failed(Failure::Quota),
            (504, Some("BOOT_TIMEOUT")) => Response::Failed(Failure::BootTimeout),
            (502, Some("BACKEND_ERROR")) => {
                let timeout_message = FleetError::OperationTimeout.to_string();
                let gave_up = body["error"]["message"] == timeout_message.as_str();
                if gave_up { Response::OperationTimeout } else { Response::Failed(Failure::Backend) }
            }
            _ => panic!("{request:?} of {user}: {status} {body}"),
        }
    }

    /// Parses the body of a response with the status 200.
    fn parse_success(&self, request: Request, body: &Value) -> Response {
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{request:?}: {body}")).to_owned();
        let engine = |engine: &Value| Response::Engine {
            status: EngineStatus::from_name(&text(&engine["status"])).unwrap(),
            id: self.ids.number_of(&text(&engine["engine_id"])),
            key: self.keys.number_of(&text(&engine["api_key"])),
        };
        match request {
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

    /// Puts an engine to sleep as the orchestrator does.
    async fn sleep(&self, user: &str) -> Response {
        let kind = RequestKind::Sleep { if_idle: false };
        match self
            .app
            .orchestrator
            .fleet()
            .executor
            .execute(&OperationRequest::new(self.engine_owner(user), kind, "up_ended"))
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

    /// Crashes the user's engine, if one runs.
    async fn crash(&self, user: &str) -> Option<Id> {
        let row = self.app.orchestrator.fleet().registry().engine(&self.engine_owner(user)).await.unwrap()?;
        let runs = self.app.backend.running().contains(&row.engine_id);
        self.app.backend.crash(row.engine_id);
        runs.then(|| self.ids.number_of(&row.engine_id.to_string()))
    }

    async fn freeze(&self, user: &str) {
        let row = self.app.orchestrator.fleet().registry().engine(&self.engine_owner(user)).await.unwrap();
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
            app.orchestrator.fleet().admission.authenticate(&product.key).await.unwrap().unwrap().product_id;
        let recorder = HistoryRecorder {
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
        Box::pin(recorder.while_time_passes(self.run_setup(&recorder))).await;
        self.inject_faults(&app);
        recorder.while_time_passes(self.run_callers(&recorder)).await;
        self.recover_and_check(&recorder).await;
        let end = recorder.final_engines().await;
        let history = History { environment: self.environment(), calls: recorder.calls.take(), end };
        history.linearize().unwrap_or_else(|why| panic!("{why}"));
    }

    /// Performs the setup, and waits until crashes in it are noticed.
    async fn run_setup(&self, recorder: &HistoryRecorder<'_>) {
        for action in &self.setup {
            recorder.perform(*action).await;
        }
        recorder.app.sleep(Duration::from_secs(2)).await;
    }

    /// Makes the backend fail and slow from here on.
    fn inject_faults(&self, app: &TestApp) {
        let delays =
            self.backend_delay.iter().flat_map(|by| MUTATING_CALLS.map(|call| (call, Fault::Delay(*by))));
        let delays = std::iter::repeat_n(delays, MAX_CALLS).flatten();
        for (call, fault) in self.faults.iter().cloned().chain(delays) {
            app.backend.inject(call, fault);
        }
    }

    /// Runs all callers concurrently.
    async fn run_callers(&self, recorder: &HistoryRecorder<'_>) {
        let callers = self.callers.iter().map(async |actions| {
            for action in actions {
                recorder.perform(*action).await;
            }
        });
        let outage = async {
            let Some((from, length)) = self.outage else { return };
            recorder.app.sleep(from).await;
            recorder.app.backend.set_health(SimulatedHealth::Unreachable);
            recorder.app.sleep(length).await;
            recorder.app.backend.set_health(SimulatedHealth::Healthy);
        };
        tokio::join!(join_all(callers), outage);
    }

    /// Lets everything recover, and checks that nothing is left over or missing.
    async fn recover_and_check(&self, recorder: &HistoryRecorder<'_>) {
        let app = recorder.app;
        app.backend.clear_faults();
        app.backend.thaw();
        recorder.product.set_policy(json!({"max_engines": self.quota})).await;
        recorder.while_time_passes(app.sleep(RECONCILE_TIMEOUT)).await;
        recorder.while_time_passes(recorder.wait_for_restarts()).await;
        app.assert_consistent().await;
        recorder.assert_keys_hold().await;
        if let Some(threshold) = self.idle_threshold_s {
            recorder.assert_none_slept_too_soon(threshold).await;
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

/// Runs `plan` on a thread that may never end, because a task on it may spin.
fn run_with_timeout(plan: Plan) {
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let working = std::thread::spawn(move || {
        // Dropped at the end, also after a panic.
        let _done = done;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(plan.run());
    });
    let ended = is_done.recv_timeout(HANG_TIMEOUT);
    assert!(ended == Err(RecvTimeoutError::Disconnected), "the history hangs or spins");
    working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// The number of cases that the environment sets, or one that takes a few seconds.
fn cases() -> ProptestConfig {
    // Shrinking a case that hangs takes too long to be worth many attempts.
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
