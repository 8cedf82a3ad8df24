//! Drains that do not end at once: engines that cannot be put to sleep, a lift in the middle, a killed orchestrator.

use std::time::Duration;

use backend::BackendError;
use serde_json::{Value, json};

use crate::testing::{ADMIN_KEY, BackendCall, Fault, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(250);

async fn call(app: &TestApp, method: &str) -> Value {
    let (status, _, answer) = app.send(method, "/fleet/drain", &[("X-Admin-Key", ADMIN_KEY)], "").await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Reads the progress until `condition` holds, while the clock stands still.
async fn wait_for(app: &TestApp, condition: impl Fn(&Value) -> bool) -> Value {
    let held = async {
        loop {
            let progress = call(app, "GET").await;
            if condition(&progress) {
                return progress;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), held).await.expect("the drain does not get there")
}

/// Lets time pass until the progress fulfils `condition`.
async fn advance_to(app: &TestApp, condition: impl Fn(&Value) -> bool) -> Value {
    app.advance_until(STEP, async || condition(&call(app, "GET").await)).await;
    call(app, "GET").await
}

fn unreachable() -> Fault {
    Fault::Error(BackendError::Unreachable("no route to the host".to_owned()))
}

/// A product with two engines that run.
async fn two_engines(app: &TestApp) -> ProductClient<'_> {
    let product = app.register_product("demo", json!({})).await;
    for user in ["ann", "bob"] {
        assert_eq!(summarize(product.provision(user).await), "200 running");
    }
    product
}

#[tokio::test]
async fn an_engine_that_cannot_be_put_to_sleep_is_named_until_it_sleeps() {
    let app = TestApp::new().await;
    let product = two_engines(&app).await;
    let nothing = json!({"drained_since": null, "left": 2, "asleep": 0, "failing": 0, "failures": []});
    assert_eq!(call(&app, "GET").await, nothing);
    app.backend.inject(BackendCall::Stop, unreachable());
    let begun = call(&app, "POST").await;
    let failing = wait_for(&app, |progress| progress["failing"] == 1 && progress["left"] == 1).await;
    let engine_id = app.backend.running().into_iter().next().unwrap();
    let (_, list) = product.get_path("/engines?status=running").await;
    assert_eq!(failing["drained_since"], begun["drained_since"]);
    let first = &failing["failures"][0];
    assert_eq!(
        (first["engine_id"].as_str(), &first["user_id"], first["product_id"].as_str()),
        (
            Some(engine_id.to_string().as_str()),
            &list["engines"][0]["user_id"],
            Some(product.product_id().await.as_str())
        ),
        "{failing}"
    );
    assert_eq!((&first["attempts"], &first["since"]), (&json!(1), &begun["drained_since"]), "{failing}");
    assert_eq!(first["error"]["code"], "BACKEND_ERROR", "{failing}");
    assert!(first["error"]["message"].as_str().unwrap().contains("no route to the host"), "{failing}");
    assert_eq!((&failing["asleep"], failing["failures"].as_array().unwrap().len()), (&json!(1), 1));

    // The next attempt hangs. It has the same engine's entry.
    app.backend.inject(BackendCall::Stop, Fault::Hang);
    let again = advance_to(&app, |progress| progress["failures"][0]["attempts"] == 2).await;
    assert_eq!((&again["failing"], &again["failures"][0]["since"]), (&json!(1), &first["since"]), "{again}");
    let message = again["failures"][0]["error"]["message"].as_str().unwrap();
    assert!(!message.contains("no route to the host"), "{again}");

    let done = advance_to(&app, |progress| progress["left"] == 0 && progress["failing"] == 0).await;
    let all_asleep = json!({
        "drained_since": begun["drained_since"], "left": 0, "asleep": 2, "failing": 0, "failures": [],
    });
    assert_eq!(done, all_asleep);
    let lines = app.audit_lines().await;
    assert_eq!(lines[2..], ["sleep running→sleeping drain", "sleep running→sleeping drain"]);
    app.assert_consistent().await;
}

#[tokio::test]
async fn an_engine_that_ends_otherwise_fails_no_more() {
    let app = TestApp::new().await;
    let product = two_engines(&app).await;
    app.backend.inject(BackendCall::Stop, unreachable());
    call(&app, "POST").await;
    let failing = wait_for(&app, |progress| progress["failing"] == 1 && progress["left"] == 1).await;
    let user = failing["failures"][0]["user_id"].as_str().unwrap();
    assert_eq!(summarize(product.delete(user).await), "200 destroyed");
    let done = advance_to(&app, |progress| progress["failing"] == 0).await;
    assert_eq!((&done["left"], &done["asleep"]), (&json!(0), &json!(1)), "{done}");
}

#[tokio::test]
async fn a_drain_that_is_lifted_in_the_middle_leaves_the_others_running_and_no_failure() {
    let app = TestApp::new().await;
    let product = two_engines(&app).await;
    let lifted = json!({"drained_since": null, "left": 2, "asleep": 0, "failing": 0, "failures": []});
    // Both have failed.
    app.backend.inject(BackendCall::Stop, unreachable());
    app.backend.inject(BackendCall::Stop, unreachable());
    call(&app, "POST").await;
    wait_for(&app, |progress| progress["failing"] == 2).await;
    assert_eq!(call(&app, "DELETE").await, json!({"drained_since": null, "left": 2}));
    assert_eq!(call(&app, "GET").await, lifted);
    // Attempts of the drain are under way, and fail after its end.
    app.backend.inject(BackendCall::Stop, Fault::Hang);
    app.backend.inject(BackendCall::Stop, Fault::Hang);
    call(&app, "POST").await;
    app.advance_until(STEP, async || app.backend.count(BackendCall::Stop) == 4).await;
    call(&app, "DELETE").await;
    app.while_time_passes(SECOND, app.sleep(SECOND * 60)).await;
    app.wait_unclaimed().await;
    assert_eq!(call(&app, "GET").await, lifted);
    assert_eq!(app.backend.count(BackendCall::Stop), 4, "nobody tries again");
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 running");
    app.assert_consistent().await;
}

#[tokio::test]
async fn the_next_orchestrator_goes_on_with_a_drain_that_was_killed_in_the_middle() {
    let app = TestApp::new().await;
    let key = two_engines(&app).await.key;
    app.backend.inject(BackendCall::Stop, Fault::Hang);
    app.backend.inject(BackendCall::Stop, Fault::Hang);
    let begun = call(&app, "POST").await;
    app.wait_until(|| app.backend.count(BackendCall::Stop) == 2).await;
    let app = app.kill_and_replace().await;
    // What the killed one left is completed, and one of the engines fails once more.
    app.backend.inject(BackendCall::Stop, unreachable());
    app.start().await;
    let restarted = call(&app, "GET").await;
    assert_eq!(restarted["drained_since"], begun["drained_since"]);
    let done = advance_to(&app, |progress| progress["left"] == 0 && progress["failing"] == 0).await;
    assert_eq!((&done["asleep"], &done["failing"]), (&json!(2), &json!(0)), "{done}");
    let product = ProductClient { app: &app, key };
    let refused = product.admit("ann", json!({"auto_wake": true})).await;
    assert_eq!(summarize(refused), "503 CAPACITY_EXHAUSTED");
    let sleeps = app.audit_lines().await;
    let sleeps = sleeps.iter().filter(|line| line.starts_with("sleep running→sleeping"));
    assert_eq!(sleeps.count(), 2);
    app.assert_consistent().await;
    call(&app, "DELETE").await;
    let woken = product.admit("ann", json!({"auto_wake": true})).await;
    assert_eq!(summarize(woken), "200 running");
}

crate::testing::also_with_own_addresses! {
    an_engine_that_cannot_be_put_to_sleep_is_named_until_it_sleeps,
    the_next_orchestrator_goes_on_with_a_drain_that_was_killed_in_the_middle,
}
