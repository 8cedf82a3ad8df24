//! Provision, wake and start: their effects when they succeed and when they fail.

use std::time::Duration;

use backend::BackendError;
use secrecy::ExposeSecret as _;
use serde_json::json;

use crate::testing::{BackendCall, Fault, SimulatedHealth, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
/// The interval between two polls for a state; the simulated time advances only between them.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[tokio::test]
async fn an_engines_life_is_in_the_ledger() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    assert_eq!(summarize(product.provision("ann").await), "200 running");
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 running");
    assert_eq!(summarize(product.stop("ann").await), "200 stopped");
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "200 engine_stopped");
    assert_eq!(summarize(product.start("ann").await), "200 running");
    assert_eq!(app.orchestrator.fleet().sleep_all("up_ended").await.unwrap(), 1);
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_sleeping");
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "200 running");
    assert_eq!(summarize(product.delete("ann").await), "200 destroyed");
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_not_found");
    assert_eq!(summarize(product.admit("bob", json!({"auto_provision": true})).await), "200 running");
    assert_eq!(
        app.audit_lines().await,
        [
            "provision none→running requested",
            "stop running→stopped requested",
            "start stopped→running requested",
            "sleep running→sleeping up_ended",
            "wake sleeping→running admit",
            "destroy running→none requested",
            "provision none→running auto_provision",
        ]
    );
    app.assert_consistent().await;
}

#[tokio::test]
async fn an_admit_of_a_running_engine_asks_the_backend_nothing_and_writes_nothing() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (_, provisioned) = product.provision("ann").await;
    let calls = [BackendCall::Ping, BackendCall::CheckImage, BackendCall::Launch, BackendCall::List]
        .map(|call| app.backend.count(call));
    let before = app.rows("SELECT audit_hash, CAST(audit_seq AS TEXT) FROM products").await;
    for _ in 0..10 {
        let (status, admitted) = product.admit("ann", json!({"auto_provision": true})).await;
        assert_eq!(status, 200);
        assert_eq!(admitted["engine"]["api_key"], provisioned["api_key"]);
    }
    let after = [BackendCall::Ping, BackendCall::CheckImage, BackendCall::Launch, BackendCall::List]
        .map(|call| app.backend.count(call));
    assert_eq!(after, calls);
    assert_eq!(app.rows("SELECT audit_hash, CAST(audit_seq AS TEXT) FROM products").await, before);
}

#[tokio::test]
async fn an_engine_gets_the_hash_of_its_key_and_its_own_secrets_key() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (_, ann) = product.provision("ann").await;
    product.provision("bob").await;
    let launches = app.backend.launches();
    assert!(launches[0].key_hash.matches(ann["api_key"].as_str().unwrap()));
    let secrets: Vec<String> = launches
        .iter()
        .map(|launch| {
            let names: Vec<_> = launch.env.iter().map(|(name, _)| name.as_str()).collect();
            let expected = [
                "LLM_API_KEY",
                "AD_ENCRYPTION_KEY",
                "ENGINE_ID",
                "ENGINE_TOKEN_SECRET",
                "ENGINE_BROWSER_ACCESS",
            ];
            assert_eq!(names, expected);
            launch.env[1].1.expose_secret().to_owned()
        })
        .collect();
    assert!(secrets[0].len() == 43 && secrets[0] != secrets[1]);
    for launch in &launches {
        assert_eq!(launch.env[2].1.expose_secret(), launch.engine_id.to_string());
        // It derives from the key before it, so it is the engine's own too.
        let secret = api::browser::TokenSecret::derive(launch.env[1].1.expose_secret(), launch.engine_id);
        assert_eq!(launch.env[3].1.expose_secret(), secret.expose());
    }
    // Another launch of the same engine gets the same key.
    product.stop("ann").await;
    product.start("ann").await;
    let again = app.backend.launches().pop().unwrap();
    assert_eq!(again.env[1].1.expose_secret(), secrets[0]);
    assert_eq!(again.key_hash, launches[0].key_hash);
}

#[tokio::test]
async fn regression_o13_a_port_that_turns_out_to_be_taken_is_changed_for_another() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let taken = |port| Fault::Error(BackendError::PortTaken(port));
    app.backend.inject(BackendCall::Launch, taken(9_001));
    app.backend.inject(BackendCall::Launch, taken(9_002));
    let (status, ann) = product.provision("ann").await;
    assert_eq!((status, ann["url"].as_str()), (200, Some("http://127.0.0.1:9003")));
    assert_eq!(product.get("ann").await.1["url"], ann["url"]);
    // The ports that were skipped stay available to other engines.
    product.stop("ann").await;
    app.backend.inject(BackendCall::Launch, taken(9_003));
    assert_eq!(product.start("ann").await.1["url"], "http://127.0.0.1:9004");
    app.assert_consistent().await;
    // On this host every port is in use.
    for user in ["bob", "eve"] {
        let tries = app.backend.count(BackendCall::Launch);
        (0..16).for_each(|_| app.backend.inject(BackendCall::Launch, taken(9_005)));
        assert_eq!(summarize(product.provision(user).await), "503 PORT_EXHAUSTION");
        assert_eq!(app.backend.count(BackendCall::Launch) - tries, 16);
        assert_eq!(summarize(product.get(user).await), "404 ENGINE_NOT_FOUND");
    }
    product.stop("ann").await;
    (0..16).for_each(|_| app.backend.inject(BackendCall::Launch, taken(9_005)));
    assert_eq!(summarize(product.start("ann").await), "503 PORT_EXHAUSTION");
    assert_eq!(summarize(product.get("ann").await), "200 stopped");
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_provision_that_fails_leaves_only_its_row_in_the_ledger() {
    let refused = BackendError::Failed("no space on the device".into());
    for (fault, health, expected, cause) in [
        (Some(Fault::Error(refused)), SimulatedHealth::Healthy, "502 BACKEND_ERROR", "backend"),
        (Some(Fault::Hang), SimulatedHealth::Healthy, "502 BACKEND_ERROR", "backend"),
        (Some(Fault::Exit), SimulatedHealth::Unreachable, "502 BACKEND_ERROR", "exit"),
        (None, SimulatedHealth::Provider("no API key"), "504 BOOT_TIMEOUT", "boot_timeout"),
        (None, SimulatedHealth::Unreachable, "504 BOOT_TIMEOUT", "boot_timeout"),
        (None, SimulatedHealth::WrongEngine, "504 BOOT_TIMEOUT", "boot_timeout"),
    ] {
        let app = TestApp::new().await;
        let product = app.register_product("demo", json!({"max_engines": 1})).await;
        if let Some(fault) = fault {
            app.backend.inject(BackendCall::Launch, fault);
        }
        app.backend.set_health(health);
        let answer = app.while_time_passes(SECOND, product.provision("ann")).await;
        let message = answer.1["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(summarize(answer), expected, "{message}");
        app.assert_consistent().await;
        assert_eq!(summarize(product.get("ann").await), "404 ENGINE_NOT_FOUND");
        assert_eq!(app.audit_lines().await, [format!("provision_failed none→none {cause}")]);
        let detail = app.rows("SELECT detail FROM audit_log WHERE event = 'provision_failed'").await;
        assert!(detail[0][0].contains("the last words"), "{detail:?}");
        // Its share of the quota and its port are free again.
        app.backend.set_health(SimulatedHealth::Healthy);
        assert_eq!(summarize(product.provision("bob").await), "200 running");
    }
}

#[tokio::test]
async fn a_provisions_timeout_names_the_subsystem_and_its_reason() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.set_health(SimulatedHealth::Provider("LLM_API_KEY is not set"));
    let (_, answer) = app.while_time_passes(SECOND, product.provision("ann")).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("llm_provider: LLM_API_KEY is not set"), "{message}");
}

#[tokio::test]
async fn an_engine_that_ends_while_it_boots_is_not_waited_for() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, Fault::Exit);
    // The clock stands still: only the exit can end this.
    let (status, answer) = product.provision("ann").await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(status, 502);
    assert!(message.contains("exit status: 1") && message.contains("the last words"), "{message}");
}

#[tokio::test]
async fn an_engine_whose_port_was_taken_is_not_mistaken_for_what_took_it() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.set_health(SimulatedHealth::WrongEngine);
    app.backend.inject(BackendCall::Launch, Fault::Exit);
    // The clock stands still: a healthy response on the port must not hide that the engine has exited.
    let (status, answer) = product.provision("ann").await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(status, 502, "{message}");
    assert!(message.contains("exit status: 1"), "{message}");
    // The same holds for an engine that is started again.
    app.backend.set_health(SimulatedHealth::Healthy);
    product.provision("ann").await;
    product.stop("ann").await;
    app.backend.set_health(SimulatedHealth::WrongEngine);
    let (status, answer) = app.while_time_passes(SECOND, product.start("ann")).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(status, 504, "{message}");
    assert!(message.contains("does not accept this engine's key"), "{message}");
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_wake_waits_for_the_brain_and_not_for_the_provider() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    product.stop("ann").await;
    app.backend.set_health(SimulatedHealth::Provider("down"));
    assert_eq!(summarize(product.start("ann").await), "200 running");
}

#[tokio::test]
async fn a_start_that_fails_makes_the_engine_failed_once() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    product.stop("ann").await;
    app.backend.set_health(SimulatedHealth::Database("disk full"));
    let answer = app.while_time_passes(SECOND, product.start("ann")).await;
    assert_eq!(summarize(answer), "504 BOOT_TIMEOUT");
    assert_eq!(summarize(product.get("ann").await), "200 failed");
    let admitted = app.while_time_passes(SECOND, product.admit("ann", json!({"auto_wake": true}))).await;
    assert_eq!(summarize(admitted), "200 engine_unhealthy");
    assert_eq!(summarize(product.stop("ann").await), "409 ENGINE_NOT_RUNNING");
    // A start that fails from the state `failed` is no further crash.
    app.while_time_passes(SECOND, product.start("ann")).await;
    app.assert_consistent().await;
    app.backend.set_health(SimulatedHealth::Healthy);
    assert_eq!(summarize(product.start("ann").await), "200 running");
    let audit_log = app.audit_lines().await;
    assert_eq!(audit_log[2], "crash stopped→failed database: disk full");
    assert_eq!(audit_log.iter().filter(|row| row.starts_with("crash")).count(), 1, "{audit_log:?}");
    assert_eq!(audit_log.last().unwrap(), "start failed→running requested");
}

#[tokio::test]
async fn a_launch_that_the_backend_never_answered_says_nothing_about_the_engine() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    product.stop("ann").await;
    app.backend.inject(BackendCall::Launch, Fault::Hang);
    let answer = app.while_time_passes(SECOND, product.start("ann")).await;
    assert_eq!(summarize(answer), "502 BACKEND_ERROR");
    assert_eq!(summarize(product.get("ann").await), "200 stopped");
    assert_eq!(app.audit_lines().await.len(), 2);
    app.assert_consistent().await;
}

#[tokio::test]
async fn an_image_that_the_backend_does_not_have_is_refused_before_anything_is_claimed() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let body = json!({"user_id": "ann", "engine_version": "svc-engine:99.0.0"});
    assert_eq!(summarize(product.call("POST", "/engines/provision", &body).await), "502 BACKEND_ERROR");
    assert_eq!(app.backend.count(BackendCall::Launch), 0);
    assert!(app.audit_lines().await.is_empty());
}

#[tokio::test]
async fn an_exit_is_a_crash_once_it_has_lasted_a_second() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let engine_id = app.backend.running().into_iter().next().unwrap();
    let mut noticed = app.orchestrator.fleet().supervisor.exits.subscribe();
    let crashed = app.elapsed();
    app.backend.crash(engine_id);
    noticed.recv().await.unwrap();
    assert_eq!(summarize(product.get("ann").await), "200 running");
    let failed = async {
        while summarize(product.get("ann").await) != "200 failed" {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    app.while_time_passes(Duration::from_millis(100), failed).await;
    assert!(app.elapsed() >= crashed + SECOND, "failed at {:?}", app.elapsed());
    assert_eq!(
        app.audit_lines().await[1],
        "crash running→failed the engine exited unexpectedly (signal: 9 (SIGKILL))"
    );
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_port_is_kept_at_rest_until_no_other_is_free() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for user in 0..100 {
        assert_eq!(summarize(product.provision(&format!("u{user}")).await), "200 running");
    }
    let (status, _, answer) = app
        .send("POST", "/engines/provision", &[("X-Platform-Key", &product.key)], r#"{"user_id": "one more"}"#)
        .await;
    assert_eq!((status, answer["error"]["code"].as_str().unwrap()), (503, "PORT_EXHAUSTION"));
    let (_, before) = product.get("u7").await;
    product.stop("u7").await;
    assert_eq!(product.get("u7").await.1["url"], before["url"]);
    let (_, taker) = product.provision("one more").await;
    assert_eq!(taker["url"], before["url"]);
    assert_eq!(product.get("u7").await.1["url"], json!(null));
    assert_eq!(summarize(product.start("u7").await), "503 PORT_EXHAUSTION");
    assert_eq!(summarize(product.get("u7").await), "200 stopped");
    product.delete("one%20more").await;
    let (_, started) = product.start("u7").await;
    assert_eq!(started["url"], before["url"]);
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_port_that_something_else_holds_is_skipped() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.occupy_port(9_001);
    let (_, ann) = product.provision("ann").await;
    assert_eq!(ann["url"], "http://127.0.0.1:9002");
    product.stop("ann").await;
    app.backend.occupy_port(9_002);
    assert_eq!(product.start("ann").await.1["url"], "http://127.0.0.1:9003");
}

crate::testing::also_with_own_addresses! {
    an_engines_life_is_in_the_ledger,
    an_admit_of_a_running_engine_asks_the_backend_nothing_and_writes_nothing,
    a_provision_that_fails_leaves_only_its_row_in_the_ledger,
    an_engine_that_ends_while_it_boots_is_not_waited_for,
    an_engine_whose_port_was_taken_is_not_mistaken_for_what_took_it,
    a_wake_waits_for_the_brain_and_not_for_the_provider,
    a_start_that_fails_makes_the_engine_failed_once,
    an_exit_is_a_crash_once_it_has_lasted_a_second,
}
