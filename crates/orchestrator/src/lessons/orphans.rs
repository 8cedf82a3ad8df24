//! Killed between any two steps of a change, the orchestrator leaves nothing behind that nobody knows of.

use std::time::Duration;

use serde_json::{Value, json};

use super::{SECOND, STEP};
use crate::backend::BackendError;
use crate::testing::{Call, Caller, Fault, Health, TestApp, short};

/// Each change, and a step of it in which the orchestrator is killed.
const CUTS: [(&str, Step); 20] = [
    ("provision", Step::In(Call::CheckImage)),
    ("provision", Step::In(Call::Launch)),
    ("provision", Step::Booting),
    ("provision", Step::Undoing(Call::Remove)),
    ("start", Step::In(Call::CheckImage)),
    ("start", Step::In(Call::Launch)),
    ("start", Step::Booting),
    ("start", Step::Undoing(Call::Kill)),
    ("wake", Step::In(Call::CheckImage)),
    ("wake", Step::In(Call::Launch)),
    ("stop", Step::In(Call::Stop)),
    ("sleep", Step::In(Call::Rpc)),
    ("sleep", Step::In(Call::Stop)),
    ("rotate", Step::In(Call::Rpc)),
    ("restart", Step::In(Call::CheckImage)),
    ("restart", Step::In(Call::Launch)),
    ("restart", Step::Booting),
    ("restart", Step::Undoing(Call::Kill)),
    ("destroy", Step::In(Call::Ping)),
    ("destroy", Step::In(Call::Remove)),
];

/// Where a change is cut off.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// In this call.
    In(Call),
    /// In this call, by which a launch that failed is undone.
    Undoing(Call),
    /// While the engine comes up.
    Booting,
}

/// Two comparisons of the registry with what runs, and a little more.
const TWO_PERIODS: Duration = Duration::from_secs(65);

/// Brings the engine of ann to where `change` begins.
async fn prepare(product: &Caller<'_>, change: &str) {
    if change == "provision" {
        return;
    }
    let provisioned = product.provision("ann").await;
    match change {
        "start" => assert_eq!(short(product.stop("ann").await), "200 stopped"),
        "wake" => assert_eq!(product.app.orchestrator.fleet().sleep_all("idle").await.unwrap(), 1),
        "restart" => product.app.backend.crash(super::engine_id(&provisioned)),
        _ => {}
    }
}

/// Asks for `change`. What nobody asks for comes with time.
async fn ask(product: &Caller<'_>, change: &str) -> (u16, Value) {
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

/// Makes `change` and kills the orchestrator in it: in a call that has not acted yet, or has.
async fn cut(app: TestApp, key: &str, change: &str, step: Step, acted: bool) -> TestApp {
    let product = Caller { app: &app, key: key.to_owned() };
    prepare(&product, change).await;
    let call = match step {
        Step::In(call) => call,
        Step::Undoing(call) => {
            app.backend.script(Call::Launch, Fault::Error(BackendError::Failed("broken".into())));
            call
        }
        Step::Booting => {
            app.backend.set_health(Health::Silent);
            Call::Launch
        }
    };
    let before = app.backend.count(call);
    if !matches!(step, Step::Booting) {
        app.backend.script(call, if acted { Fault::Late(Duration::from_hours(1)) } else { Fault::Hang });
    }
    let begun = app.step_until(STEP, async || app.backend.count(call) > before);
    tokio::select! {
        biased;
        answer = ask(&product, change) => panic!("{change} {step:?}: {answer:?}"),
        () = begun => {}
    }
    let app = app.killed().await;
    app.backend.mend();
    app.backend.set_health(Health::Well);
    app.begin().await;
    app
}

#[tokio::test]
async fn lesson_o01_killed_in_any_step_of_any_change_nothing_is_left_over() {
    let mut app = TestApp::new().await;
    let key = app.product("demo", json!({"idle_sleep_threshold_s": 0})).await.key;
    let dozing = app.product("dozing", json!({"idle_sleep_threshold_s": 60})).await.key;
    for (change, step) in CUTS {
        for acted in [false, true] {
            let key = if change == "sleep" { &dozing } else { &key };
            app = cut(app, key, change, step, acted).await;
            app.while_time_passes(SECOND * 5, app.sleep(TWO_PERIODS)).await;
            app.unclaimed().await;
            app.assert_in_order().await;
            for row in
                app.rows("SELECT engine_id, CAST(port AS TEXT) FROM engines WHERE status = 'running'").await
            {
                assert_eq!(app.backend.ports()[&row[0].parse().unwrap()].to_string(), row[1]);
            }
            let product = Caller { app: &app, key: key.clone() };
            let deleted = app.while_time_passes(STEP, product.delete("ann")).await;
            assert!(matches!(deleted.0, 200 | 404), "{change} {step:?}: {deleted:?}");
            assert!(app.backend.folders().is_empty(), "{change} {step:?}: a folder is left");
            assert!(app.backend.running().is_empty(), "{change} {step:?}: a process is left");
            assert!(
                app.rows("SELECT engine_id FROM engines").await.is_empty(),
                "{change} {step:?}: a row is left"
            );
        }
    }
    app.assert_chained().await;
}
