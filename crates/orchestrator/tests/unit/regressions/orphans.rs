//! An orchestrator that is killed between any two steps of a change leaves no orphaned process, folder or row.

use std::time::Duration;

use backend::BackendError;
use serde_json::{Value, json};

use super::{SECOND, STEP};
use crate::testing::{BackendCall, Fault, ProductClient, SimulatedHealth, TestApp, summarize};

/// Changes, each with a step during which the orchestrator is killed.
const KILL_POINTS: [(&str, KillPoint); 20] = [
    ("provision", KillPoint::Call(BackendCall::CheckImage)),
    ("provision", KillPoint::Call(BackendCall::Launch)),
    ("provision", KillPoint::Boot),
    ("provision", KillPoint::Rollback(BackendCall::Remove)),
    ("start", KillPoint::Call(BackendCall::CheckImage)),
    ("start", KillPoint::Call(BackendCall::Launch)),
    ("start", KillPoint::Boot),
    ("start", KillPoint::Rollback(BackendCall::Kill)),
    ("wake", KillPoint::Call(BackendCall::CheckImage)),
    ("wake", KillPoint::Call(BackendCall::Launch)),
    ("stop", KillPoint::Call(BackendCall::Stop)),
    ("sleep", KillPoint::Call(BackendCall::Rpc)),
    ("sleep", KillPoint::Call(BackendCall::Stop)),
    ("rotate", KillPoint::Call(BackendCall::Rpc)),
    ("restart", KillPoint::Call(BackendCall::CheckImage)),
    ("restart", KillPoint::Call(BackendCall::Launch)),
    ("restart", KillPoint::Boot),
    ("restart", KillPoint::Rollback(BackendCall::Kill)),
    ("destroy", KillPoint::Call(BackendCall::Ping)),
    ("destroy", KillPoint::Call(BackendCall::Remove)),
];

/// The step of a change during which the orchestrator is killed.
#[derive(Clone, Copy, Debug)]
enum KillPoint {
    /// During this call.
    Call(BackendCall),
    /// During this call of the rollback of a failed launch.
    Rollback(BackendCall),
    /// While the engine boots.
    Boot,
}

/// Two reconciliation intervals, with a margin.
const TWO_RECONCILE_INTERVALS: Duration = Duration::from_secs(65);

/// Brings ann's engine into the state from which `change` starts.
async fn prepare(product: &ProductClient<'_>, change: &str) {
    if change == "provision" {
        return;
    }
    let provisioned = product.provision("ann").await;
    match change {
        "start" => assert_eq!(summarize(product.stop("ann").await), "200 stopped"),
        "wake" => assert_eq!(product.app.orchestrator.fleet().sleep_all("idle").await.unwrap(), 1),
        "restart" => product.app.backend.crash(super::engine_id(&provisioned)),
        _ => {}
    }
}

/// Requests `change`. Sleep and restart need no request; they happen as time passes.
async fn send_change(product: &ProductClient<'_>, change: &str) -> (u16, Value) {
    match change {
        "provision" => product.provision("ann").await,
        "start" => product.start("ann").await,
        "wake" => product.admit("ann", json!({"auto_wake": true})).await,
        "stop" => product.stop("ann").await,
        "rotate" => product.rotate("ann").await,
        "destroy" => product.delete("ann").await,
        _ => std::future::pending().await,
    }
}

/// Performs `change` and kills the orchestrator during `step`: before the call takes effect, or after if `acted`.
async fn kill_during(app: TestApp, key: &str, change: &str, step: KillPoint, acted: bool) -> TestApp {
    let product = ProductClient { app: &app, key: key.to_owned() };
    prepare(&product, change).await;
    let call = match step {
        KillPoint::Call(call) => call,
        KillPoint::Rollback(call) => {
            app.backend.inject(BackendCall::Launch, Fault::Error(BackendError::Failed("broken".into())));
            call
        }
        KillPoint::Boot => {
            app.backend.set_health(SimulatedHealth::Unreachable);
            BackendCall::Launch
        }
    };
    let before = app.backend.count(call);
    if !matches!(step, KillPoint::Boot) {
        app.backend.inject(call, if acted { Fault::Delay(Duration::from_hours(1)) } else { Fault::Hang });
    }
    let reached = app.advance_until(STEP, async || app.backend.count(call) > before);
    tokio::select! {
        biased;
        answer = send_change(&product, change) => panic!("{change} {step:?}: {answer:?}"),
        () = reached => {}
    }
    let app = app.kill_and_replace().await;
    app.backend.clear_faults();
    app.backend.set_health(SimulatedHealth::Healthy);
    app.start().await;
    app
}

#[tokio::test]
async fn regression_o01_killed_in_any_step_of_any_change_nothing_is_left_over() {
    let mut app = TestApp::new().await;
    let key = app.register_product("demo", json!({"idle_sleep_threshold_s": 0})).await.key;
    let sleepy_key = app.register_product("dozing", json!({"idle_sleep_threshold_s": 60})).await.key;
    for (change, step) in KILL_POINTS {
        for acted in [false, true] {
            let key = if change == "sleep" { &sleepy_key } else { &key };
            app = kill_during(app, key, change, step, acted).await;
            app.while_time_passes(SECOND * 5, app.sleep(TWO_RECONCILE_INTERVALS)).await;
            app.wait_unclaimed().await;
            app.assert_consistent().await;
            for row in
                app.rows("SELECT engine_id, CAST(port AS TEXT) FROM engines WHERE status = 'running'").await
            {
                assert_eq!(app.backend.ports()[&row[0].parse().unwrap()].to_string(), row[1]);
            }
            let product = ProductClient { app: &app, key: key.clone() };
            let deleted = app.while_time_passes(STEP, product.delete("ann")).await;
            assert!(matches!(deleted.0, 200 | 404), "{change} {step:?}: {deleted:?}");
            assert!(app.backend.folders().is_empty(), "{change} {step:?}: a folder is left over");
            assert!(app.backend.running().is_empty(), "{change} {step:?}: a process is left over");
            assert!(
                app.rows("SELECT engine_id FROM engines").await.is_empty(),
                "{change} {step:?}: a row is left over"
            );
        }
    }
    app.assert_hash_chain().await;
}
