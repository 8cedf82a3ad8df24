//! A restart of the control plane harms no engine, and forgets nothing about any.

use futures::future::join_all;
use serde_json::json;

use super::{SECOND, STEP, engine_id, pass, until_it_is};
use crate::testing::{Call, Caller, Fault, TestApp, short};

const USERS: [&str; 8] = ["ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal"];

const RUNNING: &str = "SELECT engine_id, instance FROM engines WHERE status = 'running'";

/// How often the backend was asked for what touches an engine.
fn touched(app: &TestApp) -> [usize; 4] {
    [Call::Launch, Call::Stop, Call::Kill, Call::Remove].map(|call| app.backend.count(call))
}

#[tokio::test]
async fn lesson_o04_a_restart_under_load_touches_no_engine_and_forgets_nothing() {
    let app = TestApp::new().await;
    let key = app.product("demo", json!({"max_engines": 8})).await.key;
    let product = Caller { app: &app, key: key.clone() };
    let mut keys = Vec::new();
    for user in USERS {
        let provisioned = product.provision(user).await;
        keys.push(provisioned.1["api_key"].clone());
        if user == "hal" {
            app.backend.freeze(engine_id(&provisioned));
        }
    }
    // Two of three checks have failed, and the registry knows.
    let failed_twice = async || {
        let failed = app.rows("SELECT engine_id FROM engines WHERE failed_checks = 2").await;
        failed.len() == 1
    };
    app.step_until(STEP, failed_twice).await;
    let (before, instances) = (touched(&app), app.rows(RUNNING).await);
    // All are being asked for when it dies.
    let load = async {
        for _ in 0..20 {
            join_all(USERS.map(|user| product.admit(user, json!({})))).await;
        }
        // One is in the middle of something that does not end.
        app.backend.script(Call::Rpc, Fault::Hang);
        product.rotate("ann").await
    };
    tokio::select! {
        biased;
        answer = load => panic!("{answer:?}"),
        () = app.until(|| app.backend.count(Call::Rpc) == 1) => {}
    }
    let app = app.killed().await;
    app.begin().await;
    assert_eq!(app.rows(RUNNING).await, instances);
    let product = Caller { app: &app, key };
    for (user, key) in USERS.iter().zip(keys) {
        let (_, admitted) = product.admit(user, json!({})).await;
        assert_eq!(admitted["engine"]["api_key"], key, "{user}: {admitted}");
    }
    assert_eq!(short(product.provision("one too many").await), "429 QUOTA_EXCEEDED");
    assert_eq!(touched(&app), before);
    // One more check that fails is the third.
    let begun = app.elapsed();
    until_it_is(&product, "hal", "failed").await;
    let took = app.since(begun);
    assert!(took <= SECOND * 41, "{took:?}");
    pass(&app, SECOND * 3).await;
    assert_eq!(app.backend.running().len(), 7);
}
