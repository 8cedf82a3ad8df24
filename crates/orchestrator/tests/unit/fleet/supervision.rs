//! The supervisor: engines that fail, hang or are idle.

use std::time::Duration;

use api::EngineId;
use backend::BackendError;
use serde_json::{Value, json};

use crate::config::SupervisionRules;
use crate::testing::{BackendCall, Fault, ProductClient, SimulatedHealth, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
/// The step by which the clock advances.
const STEP: Duration = Duration::from_millis(250);

fn engine_id(answer: &(u16, Value)) -> EngineId {
    answer.1["engine_id"].as_str().unwrap().parse().unwrap()
}

/// Lets time pass until ann's engine is in the state `status`.
async fn wait_for_status(product: &ProductClient<'_>, status: &str) {
    let is = async || summarize(product.get("ann").await) == format!("200 {status}");
    product.app.advance_until(STEP, is).await;
}

/// Lets `time` pass.
async fn advance(app: &TestApp, time: Duration) {
    // In steps that are shorter than any wait in the meantime.
    let step = (time / 400).clamp(STEP, SECOND * 4);
    app.while_time_passes(step, app.sleep(time)).await;
}

fn unreachable() -> Fault {
    Fault::Error(BackendError::Unreachable("no route".into()))
}

#[tokio::test]
async fn what_ends_by_itself_is_brought_back_after_a_back_off() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    app.backend.crash(engine_id);
    wait_for_status(&product, "failed").await;
    let failed_at = app.elapsed();
    wait_for_status(&product, "running").await;
    let waited = app.since(failed_at);
    assert!(waited >= SECOND * 4 && waited <= SECOND * 8, "{waited:?}");
    let audit_log = app.audit_lines().await;
    assert_eq!(
        audit_log[1..],
        [
            "crash running→failed the engine exited unexpectedly (signal: 9 (SIGKILL))",
            "restart failed→running crash",
        ]
    );
    app.assert_consistent().await;
}

#[tokio::test]
async fn an_admit_waits_for_the_restart_that_is_due() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    app.backend.crash(engine_id);
    wait_for_status(&product, "failed").await;
    let started = app.elapsed();
    assert_eq!(summarize(app.while_time_passes(STEP, product.admit("ann", json!({}))).await), "200 running");
    assert!(app.since(started) >= SECOND * 3, "an admit shortens no back-off");
    // A failed restart is reported as unhealthy, and the next attempt is made anyway.
    app.backend.crash(engine_id);
    wait_for_status(&product, "failed").await;
    // Enough of them that an admit that missed the first failure meets another one.
    for _ in 0..5 {
        app.backend.inject(BackendCall::Launch, Fault::Exit);
    }
    assert_eq!(
        summarize(app.while_time_passes(STEP, product.admit("ann", json!({}))).await),
        "200 engine_unhealthy"
    );
    app.backend.clear_faults();
    wait_for_status(&product, "running").await;
    app.assert_consistent().await;
}

#[tokio::test]
async fn after_the_last_attempt_it_stays_failed_until_it_is_started() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    for _ in 0..8 {
        app.backend.inject(BackendCall::Launch, Fault::Exit);
    }
    app.backend.crash(engine_id);
    wait_for_status(&product, "failed").await;
    advance(&app, Duration::from_mins(30)).await;
    let audit_log = app.audit_lines().await;
    assert_eq!(
        audit_log.iter().filter(|row| row.starts_with("restart failed→failed")).count(),
        8,
        "{audit_log:?}"
    );
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_unhealthy");
    assert_eq!(summarize(product.start("ann").await), "200 running");
    // From then on it has all its attempts again.
    app.backend.crash(engine_id);
    wait_for_status(&product, "failed").await;
    wait_for_status(&product, "running").await;
    app.assert_consistent().await;
}

#[tokio::test]
async fn restarts_are_forgotten_when_it_has_been_well_for_long() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    for _ in 0..3 {
        app.backend.crash(engine_id);
        wait_for_status(&product, "failed").await;
        wait_for_status(&product, "running").await;
    }
    let restarts = async || app.rows("SELECT CAST(restarts AS TEXT) FROM engines").await[0][0].clone();
    assert_eq!(restarts().await, "3");
    advance(&app, Duration::from_mins(4)).await;
    assert_eq!(restarts().await, "3");
    advance(&app, Duration::from_mins(2)).await;
    assert_eq!(restarts().await, "0");
}

#[tokio::test]
async fn a_hung_engine_fails_after_three_checks_and_is_ended() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    let before = app.elapsed();
    app.backend.freeze(engine_id);
    wait_for_status(&product, "failed").await;
    let took = app.since(before);
    assert!(took >= SECOND * 70 && took <= SECOND * 110, "{took:?}");
    wait_for_status(&product, "running").await;
    assert!(app.audit_lines().await[1].starts_with("crash running→failed it did not answer within 10 s"));
    assert_eq!(app.backend.running().len(), 1);
}

#[tokio::test]
async fn a_hung_engine_whose_end_takes_long_was_ended_for_its_health() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    // The exit is reported long before the kill returns.
    app.backend.inject(BackendCall::Kill, Fault::Delay(SECOND * 5));
    app.backend.freeze(engine_id);
    wait_for_status(&product, "failed").await;
    wait_for_status(&product, "running").await;
    let audit_log = app.audit_lines().await;
    assert!(audit_log[1].starts_with("crash running→failed it did not answer within 10 s"), "{audit_log:?}");
    assert_eq!(audit_log[2], "restart failed→running crash");
}

/// An app that checks engines so often that three checks fail before the exit of an engine is recorded.
async fn app_with_frequent_checks() -> TestApp {
    let interval = Duration::from_millis(250);
    TestApp::with_rules(SupervisionRules {
        check_interval: interval,
        check_timeout: interval,
        ..SupervisionRules::default()
    })
    .await
}

#[tokio::test]
async fn what_ends_by_itself_has_ended_also_where_its_checks_fail_first() {
    let app = app_with_frequent_checks().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    app.backend.crash(engine_id);
    wait_for_status(&product, "failed").await;
    assert_eq!(
        app.audit_lines().await[1..],
        ["crash running→failed the engine exited unexpectedly (signal: 9 (SIGKILL))"]
    );
    assert_eq!(app.backend.count(BackendCall::Kill), 0);
    wait_for_status(&product, "running").await;
    app.assert_consistent().await;
}

#[tokio::test]
async fn an_end_that_nobody_tells_is_found_by_the_checks_and_called_an_end() {
    let app = app_with_frequent_checks().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    app.backend.crash_silently(engine_id);
    wait_for_status(&product, "failed").await;
    assert_eq!(app.audit_lines().await[1..], ["crash running→failed the engine exited unexpectedly"]);
    wait_for_status(&product, "running").await;
    app.assert_consistent().await;
}

#[tokio::test]
async fn what_has_ended_and_runs_again_a_second_later_has_not_failed() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    app.backend.send_stale_exit(engine_id);
    advance(&app, SECOND * 40).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    assert_eq!(app.audit_lines().await.len(), 1);
    // Its next exit counts.
    app.backend.crash(engine_id);
    wait_for_status(&product, "failed").await;
}

#[tokio::test]
async fn a_silent_backend_says_nothing_about_an_engine() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    app.backend.freeze(engine_id);
    for _ in 0..8 {
        app.backend.inject(BackendCall::Ping, unreachable());
        app.backend.inject(BackendCall::List, unreachable());
    }
    advance(&app, Duration::from_mins(4)).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    assert_eq!(app.audit_lines().await.len(), 1);
    wait_for_status(&product, "failed").await;
}

#[tokio::test]
async fn a_backend_that_comes_back_right_after_a_failed_check_has_not_made_the_engine_fail() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    for _ in 0..8 {
        app.backend.inject(BackendCall::Ping, unreachable());
        app.backend.inject(BackendCall::List, unreachable());
    }
    app.backend.freeze(engine_id);
    // It comes back while the decisive check still waits for a response, like a daemon that was restarted together
    // with its port forwarding.
    let before = app.backend.probe_count(engine_id);
    app.advance_until(STEP, async || app.backend.probe_count(engine_id) == before + 3).await;
    app.backend.clear_faults();
    advance(&app, SECOND * 15).await;
    app.backend.thaw();
    advance(&app, Duration::from_mins(4)).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    assert_eq!(app.audit_lines().await.len(), 1);
}

#[tokio::test]
async fn a_providers_outage_is_no_failure_and_a_sick_brain_is() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.set_health(SimulatedHealth::Provider("down"));
    advance(&app, Duration::from_mins(4)).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    app.backend.set_health(SimulatedHealth::Database("disk full"));
    wait_for_status(&product, "failed").await;
    assert_eq!(app.audit_lines().await[1], "crash running→failed database: disk full");
}

#[tokio::test]
async fn a_permanent_fault_is_not_tried_again() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    let image: api::EngineImage = "svc-engine:0.1.0".parse().unwrap();
    app.backend.inject(BackendCall::CheckImage, Fault::Error(BackendError::NoImage(image)));
    app.backend.crash(engine_id);
    wait_for_status(&product, "failed").await;
    advance(&app, Duration::from_mins(10)).await;
    let audit_log = app.audit_lines().await;
    assert_eq!(audit_log[2..], ["restart failed→failed the backend has no image svc-engine:0.1.0"]);
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_unhealthy");
}

#[tokio::test]
async fn what_nobody_needs_sleeps_and_is_woken() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    advance(&app, Duration::from_mins(50)).await;
    product.admit("ann", json!({})).await;
    advance(&app, Duration::from_mins(50)).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    // Reading is no activity.
    product.call("GET", "/engines", &Value::Null).await;
    advance(&app, Duration::from_mins(11)).await;
    assert_eq!(summarize(product.get("ann").await), "200 sleeping");
    assert_eq!(app.audit_lines().await[1], "sleep running→sleeping idle");
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_sleeping");
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "200 running");
    // A busy engine does not sleep.
    app.backend.set_busy(engine_id, true);
    advance(&app, Duration::from_hours(2)).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    app.backend.set_busy(engine_id, false);
    wait_for_status(&product, "sleeping").await;
    app.assert_consistent().await;
}

#[tokio::test]
async fn who_waited_for_a_restart_was_admitted() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"idle_sleep_threshold_s": 100})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    advance(&app, SECOND * 97).await;
    app.backend.crash(engine_id);
    wait_for_status(&product, "failed").await;
    assert_eq!(summarize(app.while_time_passes(STEP, product.admit("ann", json!({}))).await), "200 running");
    let admitted = app.elapsed();
    wait_for_status(&product, "sleeping").await;
    let slept = app.since(admitted);
    assert!(slept >= SECOND * 90, "asleep {slept:?} after an admit");
}

#[tokio::test]
async fn an_idle_engine_that_does_not_answer_is_not_put_to_sleep() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    for _ in 0..2 {
        app.backend.inject(BackendCall::Rpc, unreachable());
    }
    advance(&app, Duration::from_secs(3_620)).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    wait_for_status(&product, "sleeping").await;
}

#[tokio::test]
async fn regression_o04_idle_times_counters_and_back_offs_outlive_the_orchestrator() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    let product = ProductClient { app: &app, key: key.clone() };
    let ann = engine_id(&product.provision("ann").await);
    let bob = engine_id(&product.provision("bob").await);
    advance(&app, Duration::from_mins(50)).await;
    product.admit("bob", json!({})).await;
    app.backend.crash(ann);
    wait_for_status(&product, "failed").await;
    advance(&app, SECOND * 2).await;
    let due = app.rows("SELECT CAST(restart_at AS TEXT) FROM engines WHERE restart_at IS NOT NULL").await;
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    assert_eq!(
        app.rows("SELECT CAST(restart_at AS TEXT) FROM engines WHERE restart_at IS NOT NULL").await,
        due
    );
    let started = app.elapsed();
    wait_for_status(&product, "running").await;
    assert!(app.since(started) <= SECOND * 6, "the back-off did not begin anew");
    advance(&app, Duration::from_mins(15)).await;
    let status = async |user| summarize(product.get(user).await);
    assert_eq!((status("ann").await, status("bob").await), ("200 sleeping".into(), "200 running".into()));
    assert!(app.backend.running().contains(&bob));
}

#[tokio::test]
async fn regression_o17_a_wall_clock_that_jumps_fires_nothing_and_stalls_nothing() {
    for hours in [1, -1] {
        let app = TestApp::new().await;
        let product = app.register_product("demo", json!({})).await;
        let ann = engine_id(&product.provision("ann").await);
        let bob = product.provision("bob").await;
        app.backend.crash(ann);
        wait_for_status(&product, "failed").await;
        app.shift_wall(hours * 3_600_000);
        let started = app.elapsed();
        wait_for_status(&product, "running").await;
        let waited = app.since(started);
        assert!(waited >= SECOND * 3 && waited <= SECOND * 8, "{hours} h: {waited:?}");
        advance(&app, Duration::from_mins(50)).await;
        assert_eq!(summarize(product.get("bob").await), "200 running", "{hours} h");
        advance(&app, Duration::from_mins(15)).await;
        assert_eq!(summarize(product.get("bob").await), "200 sleeping", "{hours} h");
        assert_eq!(bob.0, 200);
    }
}

#[tokio::test]
async fn checks_are_spread_over_the_interval() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let mut engines = Vec::new();
    for user in 0..24 {
        engines.push(engine_id(&product.provision(&format!("user-{user}")).await));
    }
    let probes = |app: &TestApp| engines.iter().map(|id| app.backend.probe_count(*id)).sum::<usize>();
    // Each boot has probed at least once.
    let before = probes(&app);
    let mut busiest = 0;
    for _ in 0..30 {
        let started = probes(&app);
        advance(&app, SECOND).await;
        busiest = busiest.max(probes(&app) - started);
    }
    let all = probes(&app) - before;
    assert!((22..=26).contains(&all), "{all} checks in an interval");
    assert!(busiest <= 8, "{busiest} checks in one second");
}

#[tokio::test]
async fn a_policy_sets_when_its_engines_sleep_and_from_when_on() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"idle_sleep_threshold_s": 0})).await;
    product.provision("ann").await;
    advance(&app, Duration::from_hours(2)).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    let listed = app.send("GET", "/products", &[("X-Admin-Key", crate::testing::ADMIN_KEY)], "").await.2;
    let path = format!("/products/{}/policy", listed["products"][0]["product_id"].as_str().unwrap());
    let body = json!({"policy": {"idle_sleep_threshold_s": 7_201}}).to_string();
    let key = [("X-Admin-Key", crate::testing::ADMIN_KEY)];
    assert_eq!(app.send("PUT", &path, &key, &body).await.0, 200);
    assert_eq!(summarize(product.get("ann").await), "200 running");
    wait_for_status(&product, "sleeping").await;
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "200 running");
    let explained = product.call("GET", "/engines/ann/explain", &Value::Null).await.1;
    assert_eq!(explained["caps"], Value::Null);
}

#[tokio::test]
async fn a_hung_engine_that_is_idle_fails_all_the_same() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"idle_sleep_threshold_s": 0.001})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    app.backend.freeze(engine_id);
    let started = app.elapsed();
    wait_for_status(&product, "failed").await;
    assert!(app.since(started) <= SECOND * 130, "{:?}", app.since(started));
}

crate::testing::also_with_own_addresses! {
    what_ends_by_itself_is_brought_back_after_a_back_off,
    an_admit_waits_for_the_restart_that_is_due,
    a_hung_engine_fails_after_three_checks_and_is_ended,
    what_nobody_needs_sleeps_and_is_woken,
    regression_o04_idle_times_counters_and_back_offs_outlive_the_orchestrator,
}
