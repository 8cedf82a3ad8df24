//! The orchestrator is killed at the worst moments, and another one starts.

use std::time::Duration;

use api::EngineId;
use backend::LaunchSpec;
use serde_json::json;

use crate::testing::{BackendCall, Fault, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
/// The interval between two polls for a state; the simulated time advances only between them.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The client of a product that was registered with an earlier orchestrator.
macro_rules! again {
    ($app:expr, $key:expr) => {
        crate::testing::ProductClient { app: &$app, key: $key.clone() }
    };
}

#[tokio::test]
async fn regression_o04_running_engines_are_adopted_undisturbed() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    let (_, before) = again!(app, key).provision("ann").await;
    let launches = app.backend.count(BackendCall::Launch);
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = again!(app, key);
    assert_eq!(summarize(product.get("ann").await), "200 running");
    let (_, after) = product.admit("ann", json!({})).await;
    assert_eq!(after["engine"]["api_key"], before["api_key"]);
    assert_eq!(after["engine"]["url"], before["url"]);
    assert_eq!(app.backend.count(BackendCall::Launch), launches);
    // The exit of an adopted engine is noticed.
    app.backend.crash(before["engine_id"].as_str().unwrap().parse().unwrap());
    let failed = async {
        while summarize(product.get("ann").await) != "200 failed" {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    app.while_time_passes(Duration::from_millis(100), failed).await;
}

#[tokio::test]
async fn half_done_changes_are_rolled_back_finished_or_void() {
    for (call, expected, audit_line) in [
        (BackendCall::Launch, "404 ENGINE_NOT_FOUND", "provision_failed none→none interrupted"),
        (BackendCall::Remove, "404 ENGINE_NOT_FOUND", "destroy running→none interrupted"),
        (BackendCall::Stop, "200 stopped", "stop running→stopped interrupted"),
        (BackendCall::Rpc, "200 running", "provision none→running requested"),
    ] {
        let app = TestApp::new().await;
        let key = app.register_product("demo", json!({})).await.key;
        let product = again!(app, key);
        if call != BackendCall::Launch {
            product.provision("ann").await;
        }
        let before = app.backend.count(call);
        app.backend.inject(call, Fault::Hang);
        let change = async {
            match call {
                BackendCall::Launch => product.provision("ann").await,
                BackendCall::Remove => product.delete("ann").await,
                BackendCall::Rpc => product.rotate("ann").await,
                _ => product.stop("ann").await,
            }
        };
        tokio::select! {
            biased;
            answer = change => panic!("{answer:?}"),
            () = app.wait_until(|| app.backend.count(call) > before) => {}
        }
        let app = app.kill_and_replace().await;
        app.start().await;
        app.wait_unclaimed().await;
        assert_eq!(summarize(again!(app, key).get("ann").await), expected);
        assert_eq!(app.audit_lines().await.last().unwrap(), audit_line);
        app.assert_consistent().await;
    }
}

#[tokio::test]
async fn a_process_from_a_half_done_start_does_not_stay() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    let product = again!(app, key);
    product.provision("ann").await;
    product.stop("ann").await;
    // Launched, but the answer never arrives.
    app.backend.inject(BackendCall::Launch, Fault::Delay(SECOND * 1_000));
    tokio::select! {
        biased;
        answer = product.start("ann") => panic!("{answer:?}"),
        () = app.wait_until(|| app.backend.running().len() == 1) => {}
    }
    let app = app.kill_and_replace().await;
    app.start().await;
    app.wait_until(|| app.backend.running().is_empty()).await;
    assert_eq!(summarize(again!(app, key).get("ann").await), "200 stopped");
    assert_eq!(summarize(again!(app, key).start("ann").await), "200 running");
}

#[tokio::test]
async fn engines_that_died_meanwhile_have_failed_and_orphans_are_ended() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    for user in ["ann", "bob", "eve"] {
        again!(app, key).provision(user).await;
    }
    let (_, ann) = again!(app, key).get("ann").await;
    let launch: LaunchSpec = app.backend.launches().remove(0);
    let app = app.kill_and_replace().await;
    app.backend.crash(ann["engine_id"].as_str().unwrap().parse().unwrap());
    app.backend.run_orphan(EngineId::new(), 9_099, launch);
    app.start().await;
    assert_eq!(summarize(again!(app, key).get("ann").await), "200 failed");
    app.wait_until(|| app.backend.running().len() == 2).await;
    app.assert_consistent().await;
    assert_eq!(app.audit_lines().await[3], "crash running→failed the engine exited unexpectedly");
}

#[tokio::test]
async fn regression_o01_remains_go_with_their_engines_and_those_of_failed_ones_stay_for_their_log() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    let mut ids = Vec::new();
    for user in ["stopped", "failed", "running"] {
        let (_, engine) = again!(app, key).provision(user).await;
        ids.push(engine["engine_id"].as_str().unwrap().parse::<EngineId>().unwrap());
    }
    again!(app, key).stop("stopped").await;
    let app = app.kill_and_replace().await;
    for gone in &ids[1..] {
        app.backend.crash(*gone);
    }
    for engine_id in [ids[0], ids[1], EngineId::new()] {
        app.backend.leave_remains(engine_id);
    }
    app.start().await;
    app.wait_until(|| app.backend.remains() == [ids[1]].into()).await;
    assert_eq!(summarize(again!(app, key).get("failed").await), "200 failed");
    assert_eq!(summarize(again!(app, key).get("stopped").await), "200 stopped");
    // The next launch removes the remains.
    assert_eq!(summarize(again!(app, key).start("failed").await), "200 running");
    assert!(app.backend.remains().is_empty());
    app.assert_consistent().await;
}

#[tokio::test]
async fn regression_o05_a_silent_backend_holds_up_no_start_and_moves_no_engine() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    again!(app, key).provision("ann").await;
    let before = app.audit_lines().await;
    let app = app.kill_and_replace().await;
    app.backend.inject(BackendCall::List, Fault::Hang);
    app.while_time_passes(SECOND, app.start()).await;
    assert_eq!(summarize(again!(app, key).get("ann").await), "200 running");
    assert_eq!(summarize(again!(app, key).admit("ann", json!({})).await), "200 running");
    // Not even for a moment: an engine that is taken for dead is soon launched again.
    assert_eq!(app.audit_lines().await, before);
    app.assert_consistent().await;
}

#[tokio::test]
async fn until_it_is_ready_it_says_so_and_nothing_else() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    let app = app.kill_and_replace().await;
    let (status, headers, health) = app.send("GET", "/health", &[], "").await;
    assert_eq!((status, headers["retry-after"].to_str().unwrap()), (503, "1"));
    assert_eq!(health["status"], "starting");
    assert_eq!(health["error"]["code"], "STARTING_UP");
    let (status, headers, answer) = app.send("GET", "/engines", &[("X-Platform-Key", &key)], "").await;
    assert_eq!((status, headers["retry-after"].to_str().unwrap()), (503, "1"));
    assert_eq!(answer["error"]["code"], "STARTING_UP");
    app.start().await;
    assert_eq!(app.send("GET", "/health", &[], "").await.2, json!({"status": "ok"}));
}

#[tokio::test]
async fn sleeping_all_waits_for_what_is_under_way() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for user in ["ann", "bob", "eve"] {
        product.provision(user).await;
    }
    product.stop("eve").await;
    app.backend.inject(BackendCall::Launch, Fault::Delay(SECOND));
    let last = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 4).await;
        app.while_time_passes(SECOND, app.orchestrator.fleet().sleep_all("up_ended")).await
    };
    let (_, asleep) = tokio::join!(product.provision("zoe"), last);
    assert_eq!(asleep.unwrap(), 3);
    assert_eq!(summarize(product.get("zoe").await), "200 sleeping");
    assert_eq!(summarize(product.get("eve").await), "200 stopped");
    assert!(app.audit_lines().await.contains(&"sleep running→sleeping up_ended".to_owned()));
    app.assert_consistent().await;
}

crate::testing::also_with_own_addresses! {
    regression_o04_running_engines_are_adopted_undisturbed,
    half_done_changes_are_rolled_back_finished_or_void,
    a_process_from_a_half_done_start_does_not_stay,
    engines_that_died_meanwhile_have_failed_and_orphans_are_ended,
    regression_o01_remains_go_with_their_engines_and_those_of_failed_ones_stay_for_their_log,
    sleeping_all_waits_for_what_is_under_way,
}
