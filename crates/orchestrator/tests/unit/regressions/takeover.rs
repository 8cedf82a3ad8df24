//! A restart of the orchestrator affects no engine and loses no state about any.

use futures::future::join_all;
use serde_json::json;

use super::{SECOND, STEP, advance, engine_id, wait_for_status};
use crate::testing::{BackendCall, Fault, ProductClient, TestApp, summarize};

const USERS: [&str; 8] = ["ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal"];

const RUNNING_QUERY: &str = "SELECT engine_id, instance FROM engines WHERE status = 'running'";

/// Returns the numbers of backend calls that affect engines.
fn engine_call_counts(app: &TestApp) -> [usize; 4] {
    [BackendCall::Launch, BackendCall::Stop, BackendCall::Kill, BackendCall::Remove]
        .map(|call| app.backend.count(call))
}

#[tokio::test]
async fn regression_o04_a_restart_under_load_touches_no_engine_and_forgets_nothing() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({"max_engines": 8})).await.key;
    let product = ProductClient { app: &app, key: key.clone() };
    let mut keys = Vec::new();
    for user in USERS {
        let provisioned = product.provision(user).await;
        keys.push(provisioned.1["api_key"].clone());
        if user == "hal" {
            app.backend.freeze(engine_id(&provisioned));
        }
    }
    // Two of three health checks have failed, and the registry has recorded it.
    let failed_twice = async || {
        let failed = app.rows("SELECT engine_id FROM engines WHERE failed_checks = 2").await;
        failed.len() == 1
    };
    app.advance_until(STEP, failed_twice).await;
    let (before, instances) = (engine_call_counts(&app), app.rows(RUNNING_QUERY).await);
    // The orchestrator dies under load: every user is being admitted.
    let load = async {
        for _ in 0..20 {
            join_all(USERS.map(|user| product.admit(user, json!({})))).await;
        }
        // One engine has a key rotation in progress that hangs.
        app.backend.inject(BackendCall::Rpc, Fault::Hang);
        product.rotate("ann").await
    };
    tokio::select! {
        biased;
        answer = load => panic!("{answer:?}"),
        () = app.wait_until(|| app.backend.count(BackendCall::Rpc) == 1) => {}
    }
    let app = app.kill_and_replace().await;
    app.start().await;
    assert_eq!(app.rows(RUNNING_QUERY).await, instances);
    let product = ProductClient { app: &app, key };
    for (user, key) in USERS.iter().zip(keys) {
        let (_, admitted) = product.admit(user, json!({})).await;
        assert_eq!(admitted["engine"]["api_key"], key, "{user}: {admitted}");
    }
    assert_eq!(summarize(product.provision("one too many").await), "429 QUOTA_EXCEEDED");
    assert_eq!(engine_call_counts(&app), before);
    // The next failed check is the third.
    let start = app.elapsed();
    wait_for_status(&product, "hal", "failed").await;
    let took = app.since(start);
    assert!(took <= SECOND * 41, "{took:?}");
    advance(&app, SECOND * 3).await;
    assert_eq!(app.backend.running().len(), 7);
}
