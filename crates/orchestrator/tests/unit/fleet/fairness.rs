//! Problems of one product do not affect the others: their calls and restarts take as long as on an idle host.

use std::time::Duration;

use serde_json::json;

use crate::testing::{BackendCall, Fault, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

/// The boots of many engines of one product hang, restarts and provisions alike.
#[tokio::test]
async fn regression_o23_boots_that_hang_hold_up_no_other_product() {
    let app = TestApp::new().await;
    let (noisy, quiet) =
        (app.register_product("noisy", json!({})).await, app.register_product("quiet", json!({})).await);
    for user in 0..12 {
        noisy.provision(&format!("u{user}")).await;
    }
    let broken = app.backend.running();
    quiet.provision("ann").await;
    let ann = *app.backend.running().difference(&broken).next().unwrap();
    for user in ["sleeps"] {
        quiet.provision(user).await;
        quiet.stop(user).await;
    }
    // All of them fail, and their next launches hang for the rest of the test.
    let (limiter, launches) =
        (&app.orchestrator.fleet().executor.boot_limiter, app.backend.count(BackendCall::Launch));
    for _ in 0..100 {
        app.backend.inject(BackendCall::Launch, Fault::Hang);
    }
    for engine_id in &broken {
        app.backend.crash(*engine_id);
    }
    // Every boot either holds a permit and hangs, or waits for a permit.
    let all_hang = |wanted: usize| {
        let (held, waiting) = limiter.counts();
        held + waiting == wanted && app.backend.count(BackendCall::Launch) == launches + held
    };
    app.advance_until(SECOND / 4, async || all_hang(12)).await;
    let hanging = async {
        let more = (0..50).map(|user| format!("more{user}")).collect::<Vec<_>>();
        futures::future::join_all(more.iter().map(|user| noisy.provision(user))).await
    };
    let meanwhile = async {
        app.wait_until(|| all_hang(62)).await;
        app.backend.clear_faults();
        let before = app.elapsed();
        assert_eq!(summarize(quiet.start("sleeps").await), "200 running");
        assert_eq!(summarize(quiet.provision("bob").await), "200 running");
        assert!(app.since(before) < SECOND, "{:?}", app.since(before));
        app.backend.crash(ann);
        app.advance_until(SECOND / 4, async || summarize(quiet.get("ann").await) == "200 failed").await;
        let admitted = app.while_time_passes(SECOND / 4, quiet.admit("ann", json!({}))).await;
        assert_eq!(summarize(admitted), "200 running");
        // It waits for its back-off, and for no boot of another product.
        assert!(app.since(before) < SECOND * 10, "{:?}", app.since(before));
    };
    tokio::select! {
        _ = hanging => panic!("a hanging boot has ended"),
        () = meanwhile => {}
    }
}

/// Unknown keys cost no query of the registry.
#[tokio::test]
async fn keys_that_are_nobodys_are_refused_without_a_query() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    assert_eq!(product.get_path("/status").await.0, 200);
    app.orchestrator.fleet().registry().close_all_but_hot_reads().await;
    for key in ["pk-svc-nobody", "", "x"] {
        let (status, _, answer) = app.send("GET", "/status", &[("X-Platform-Key", key)], "").await;
        assert_eq!((status, &answer["error"]["code"]), (401, &json!("INVALID_PLATFORM_KEY")), "{answer}");
    }
}

/// The keys of products that an earlier orchestrator registered need no query either.
#[tokio::test]
async fn products_are_known_by_their_keys_from_the_start() {
    let app = TestApp::new().await;
    let keys =
        [app.register_product("one", json!({})).await.key, app.register_product("two", json!({})).await.key];
    let app = app.kill_and_replace().await;
    app.start().await;
    app.execute("UPDATE products SET display_name = '' WHERE slug = 'two'").await;
    for key in &keys {
        let (status, _, _) = app.send("GET", "/status", &[("X-Platform-Key", key)], "").await;
        assert_eq!(status, 200);
    }
    // A product whose row cannot be read does not affect the others.
    let app = app.kill_and_replace().await;
    app.start().await;
    let (status, _, _) = app.send("GET", "/status", &[("X-Platform-Key", &keys[0])], "").await;
    assert_eq!(status, 200);
    let (status, _, _) = app.send("GET", "/status", &[("X-Platform-Key", &keys[1])], "").await;
    assert_eq!(status, 500);
}

/// The last log lines are recorded before the restart begins another log.
#[tokio::test]
async fn the_ledger_keeps_the_last_lines_of_an_engine_that_ended() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.crash(*app.backend.running().iter().next().unwrap());
    app.advance_until(SECOND / 4, async || summarize(product.get("ann").await) == "200 failed").await;
    let (_, audit) = product.get_path("/audit?event=crash").await;
    assert_eq!(audit["rows"][0]["detail"]["log"], json!(["engine began", "the last words"]), "{audit}");
}
