//! Whatever the backend does, every call ends in bounded time, and the engine is in a defined state.

use std::time::Duration;

use api::orchestrator::EngineStatus;
use backend::BackendError;
use futures::future::join_all;
use http_service::clock::Clock as _;
use serde_json::{Value, json};

use crate::config::SupervisionRules;
use crate::testing::{BackendCall, Fault, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
/// The step by which the clock advances where no state may be missed.
const STEP: Duration = Duration::from_millis(250);

/// The longest time that a call takes: the boot timeout and 40 s.
const MAX_CALL_DURATION: Duration = Duration::from_secs(100);
/// The interval between two reconciliations.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);
/// The longest time that a reconciliation under way and its repairs may still take: a listing and a removal.
const MAX_RECONCILE_DURATION: Duration = Duration::from_secs(25);

/// The states, and those with a change under way that does not show as one: `failing` and `restarting` are
/// `failed` with a restart due and under way, `rotating` is `running`.
const STATES: [&str; 9] = [
    "provisioning",
    "running",
    "rotating",
    "sleeping",
    "stopped",
    "failed",
    "failing",
    "restarting",
    "destroying",
];
const CALLS: [&str; 5] = ["delete", "start", "stop", "rotate", "admit"];
const BACKEND_CALLS: [BackendCall; 8] = [
    BackendCall::Ping,
    BackendCall::CheckImage,
    BackendCall::Launch,
    BackendCall::Stop,
    BackendCall::Kill,
    BackendCall::Remove,
    BackendCall::List,
    BackendCall::Rpc,
];

/// Sends `request` and leaves the operation hanging in the backend's `call`.
async fn leave_hanging(app: &TestApp, call: BackendCall, request: impl Future<Output = (u16, Value)>) {
    app.backend.inject(call, Fault::Hang);
    let before = app.backend.count(call);
    tokio::select! {
        biased;
        answer = request => panic!("{answer:?}"),
        () = app.wait_until(|| app.backend.count(call) > before) => {}
    }
}

/// Brings ann's engine into `state`. In transitional states, the operation is left hanging in the backend.
async fn bring_into(state: &str, app: &TestApp, product: &ProductClient<'_>) {
    if state == "provisioning" {
        return leave_hanging(app, BackendCall::Launch, product.provision("ann")).await;
    }
    assert_eq!(summarize(product.provision("ann").await), "200 running");
    match state {
        "stopped" => assert_eq!(summarize(product.stop("ann").await), "200 stopped"),
        "sleeping" => assert_eq!(app.orchestrator.fleet().sleep_all("idle").await.unwrap(), 1),
        "failed" => {
            let image = "svc-engine:0.1.0".parse().unwrap();
            app.backend.inject(BackendCall::CheckImage, Fault::Error(BackendError::NoImage(image)));
            crash(app).await;
            let given_up =
                async || app.audit_lines().await.last().unwrap().starts_with("restart failed→failed");
            app.advance_until(STEP, given_up).await;
        }
        "failing" => crash(app).await,
        "restarting" => {
            crash(app).await;
            app.backend.inject(BackendCall::Launch, Fault::Hang);
            app.advance_until(STEP, async || app.backend.count(BackendCall::Launch) == 2).await;
        }
        "rotating" => leave_hanging(app, BackendCall::Rpc, product.rotate("ann")).await,
        "destroying" => leave_hanging(app, BackendCall::Remove, product.delete("ann")).await,
        _ => assert_eq!(state, "running"),
    }
}

/// Lets ann's engine crash, and waits until that is noticed.
async fn crash(app: &TestApp) {
    app.backend.crash(*app.backend.running().iter().next().unwrap());
    app.advance_until(STEP, async || app.audit_lines().await.last().unwrap().starts_with("crash")).await;
}

/// Waits until no engine has a claim. No claim outlives its deadline by more than a period; if the deadline passed
/// while the backend was still failing, the period starts at `recovered_at`.
async fn wait_until_settled(app: &TestApp, recovered_at: Duration, cell: &str) {
    let started = app.clock.now().unix_ms() - i64::try_from(app.elapsed().as_millis()).unwrap();
    loop {
        let claims = "SELECT CAST(claim_deadline AS TEXT) FROM engines WHERE claim_kind IS NOT NULL";
        // Taken before the query: time passes while the registry is read.
        let now = app.elapsed();
        let Some(claim) = app.rows(claims).await.pop() else { return };
        let deadline = u64::try_from(claim[0].parse::<i64>().unwrap() - started).unwrap();
        let limit = Duration::from_millis(deadline).max(recovered_at + MAX_RECONCILE_DURATION)
            + RECONCILE_INTERVAL
            + SECOND;
        assert!(now <= limit, "{cell}: claimed after {now:?}, at most {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn send_call(call: &str, product: &ProductClient<'_>) -> String {
    summarize(match call {
        "delete" => product.delete("ann").await,
        "start" => product.start("ann").await,
        "stop" => product.stop("ann").await,
        "rotate" => product.rotate("ann").await,
        _ => product.admit("ann", json!({"auto_provision": true, "auto_wake": true})).await,
    })
}

#[tokio::test]
async fn regression_o02_every_cell_of_states_calls_and_faults_ends() {
    let faults = [
        Fault::Hang,
        Fault::Error(BackendError::Unreachable("connection refused".into())),
        Fault::Error(BackendError::Failed("broken".into())),
        Fault::Delay(SECOND * 7),
    ];
    for state in STATES {
        let calls =
            CALLS.iter().flat_map(|call| faults.iter().map(move |fault| check_cell(state, call, fault)));
        join_all(calls).await;
    }
}

async fn check_cell(state: &str, call: &str, fault: &Fault) {
    let scene = format!("{call} on {state} with {fault:?}");
    let app = TestApp::with_rules(SupervisionRules::default()).await;
    let product = app.register_product("demo", json!({})).await;
    bring_into(state, &app, &product).await;
    for backend_call in BACKEND_CALLS {
        // More faults than there are backend calls during the call.
        for _ in 0..20 {
            app.backend.inject(backend_call, fault.clone());
        }
    }
    let started_at = app.elapsed();
    let answer = app.while_time_passes(SECOND, send_call(call, &product)).await;
    let took = app.since(started_at);
    assert!(took <= MAX_CALL_DURATION + SECOND, "{scene}: {answer} after {took:?}");
    // Whatever the outcome, the engine can be read: immediately, unless its key is being rotated.
    let read = product.get("ann");
    let status = summarize(if call == "rotate" || state == "rotating" {
        app.while_time_passes(SECOND, read).await
    } else {
        read.await
    });
    let readable = EngineStatus::ALL.map(|status| format!("200 {}", status.as_str()));
    assert!(status == "404 ENGINE_NOT_FOUND" || readable.contains(&status), "{scene}: {status}");
    // Once the backend works again, everything is repaired within a period, and the engine can be deleted.
    app.backend.clear_faults();
    let recovered_at = app.elapsed();
    app.while_time_passes(SECOND, wait_until_settled(&app, recovered_at, &scene)).await;
    let deleted = app.while_time_passes(SECOND, send_call("delete", &product)).await;
    assert!(["200 destroyed", "404 ENGINE_NOT_FOUND"].contains(&deleted.as_str()), "{scene}: {deleted}");
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_hung_engine_holds_up_no_other() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("well").await;
    app.backend.inject(BackendCall::Launch, Fault::Hang);
    tokio::select! {
        biased;
        answer = product.provision("hung") => panic!("{answer:?}"),
        // The clock stands still: nothing here waits for the deadline of the hung launch.
        () = async {
            app.wait_until(|| app.backend.count(BackendCall::Launch) == 2).await;
            assert_eq!(summarize(product.admit("well", json!({})).await), "200 running");
            assert_eq!(summarize(product.provision("other").await), "200 running");
            assert_eq!(summarize(product.stop("well").await), "200 stopped");
        } => {}
    }
}
