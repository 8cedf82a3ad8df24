//! Moves of engines to another version, and failures during a move.

use std::time::Duration;

use api::{EngineId, EngineImage};
use backend::BackendError;
use serde_json::{Value, json};

use crate::testing::{ADMIN_KEY, BackendCall, Fault, ProductClient, TestApp, summarize};

const STEP: Duration = Duration::from_secs(1);
const NEXT_IMAGE: &str = "svc-engine:1.0.0";

fn next_image() -> EngineImage {
    NEXT_IMAGE.parse().unwrap()
}

/// An orchestrator whose backend has the next major version, and a product's key.
async fn app_with_next_image() -> (TestApp, String) {
    let app = TestApp::new().await;
    app.backend.add_image(next_image());
    let key = app.register_product("demo", json!({})).await.key;
    (app, key)
}

async fn move_to(product: &ProductClient<'_>, user: &str, version: &str) -> (u16, Value) {
    product.call("PUT", &format!("/engines/{user}/version"), &json!({"engine_version": version})).await
}

fn engine_id(engine: &(u16, Value)) -> EngineId {
    engine.1["engine_id"].as_str().unwrap().parse().unwrap()
}

/// The version in an engine's row, and whether the engine is pinned to it.
async fn stored_version(app: &TestApp) -> (String, String) {
    let rows = app.rows("SELECT engine_version, CAST(pinned AS TEXT) FROM engines").await;
    (rows[0][0].clone(), rows[0][1].clone())
}

#[tokio::test]
async fn a_running_engine_is_moved_across_a_major_version_and_back_to_the_default() {
    let (app, key) = app_with_next_image().await;
    let product = ProductClient { app: &app, key };
    let engine = product.provision("ann").await;
    let (status, moved) = move_to(&product, "ann", NEXT_IMAGE).await;
    assert_eq!(status, 200, "{moved}");
    assert_eq!(
        moved,
        json!({
            "engine_id": engine.1["engine_id"], "status": "running", "url": engine.1["url"],
            "engine_version": NEXT_IMAGE, "pinned": true, "previous_version": app.config_image(),
            "crosses_major": true, "copied_brain_format": 0,
        })
    );
    assert_eq!(app.backend.brain_format(engine_id(&engine)), 1);
    assert_eq!(product.get("ann").await.1["engine_version"], NEXT_IMAGE);
    assert_eq!(product.get("ann").await.1["api_key"], engine.1["api_key"]);
    let (_, audit) = product.get_path("/audit?limit=1").await;
    let row = &audit["rows"][0];
    assert_eq!((&row["event"], &row["detail"]["reason"]), (&json!("start"), &json!("version")));
    let expected = json!({"from": app.config_image(), "to": NEXT_IMAGE, "pinned": true});
    assert_eq!(row["detail"]["version"], expected);
    app.assert_consistent().await;
    app.assert_hash_chain().await;
    // On the way back, the brain has a later format than the version can open: the boot fails, and nothing is
    // lost.
    let (status, answer) = move_to(&product, "ann", "default").await;
    assert_eq!(status, 502, "{answer}");
    assert_eq!(stored_version(&app).await, (NEXT_IMAGE.into(), "1".into()));
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 running");
}

#[tokio::test]
async fn regression_o26_a_move_that_does_not_come_up_is_taken_back_with_the_brain_of_before() {
    for (before, status) in [("", "running"), ("stop", "stopped"), ("sleep", "sleeping")] {
        let (app, key) = app_with_next_image().await;
        let product = ProductClient { app: &app, key };
        let engine = product.provision("ann").await;
        match before {
            "stop" => drop(product.stop("ann").await),
            "sleep" => drop(app.orchestrator.fleet().sleep_all("test").await.unwrap()),
            _ => {}
        }
        app.backend.set_crashing(next_image(), true);
        let (code, answer) = move_to(&product, "ann", NEXT_IMAGE).await;
        assert_eq!(code, 502, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("again, with its brain as it was"), "{message}");
        assert_eq!(summarize(product.get("ann").await), format!("200 {status}"));
        assert_eq!(stored_version(&app).await, (app.config_image(), "0".into()));
        assert_eq!(app.backend.brain_format(engine_id(&engine)), 0);
        let (_, audit) = product.get_path("/audit?limit=1").await;
        assert_eq!(audit["rows"][0]["detail"]["outcome"], "taken_back");
        app.assert_consistent().await;
        if status != "running" {
            assert_eq!(summarize(product.start("ann").await), "200 running");
        }
    }
}

#[tokio::test]
async fn an_engine_at_rest_is_tried_on_the_other_version_and_rests_again() {
    let (app, key) = app_with_next_image().await;
    let product = ProductClient { app: &app, key };
    let engine = product.provision("ann").await;
    product.stop("ann").await;
    let (status, moved) = move_to(&product, "ann", NEXT_IMAGE).await;
    assert_eq!((status, &moved["status"]), (200, &json!("stopped")), "{moved}");
    assert_eq!(app.backend.brain_format(engine_id(&engine)), 1);
    assert!(app.backend.running().is_empty());
    assert_eq!(app.audit_lines().await.last().unwrap(), "stop stopped→stopped version");
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_stopped");
    assert_eq!(summarize(product.start("ann").await), "200 running");
    assert_eq!(app.backend.launches().pop().unwrap().image, next_image());
}

#[tokio::test]
async fn what_cannot_be_done_changes_nothing() {
    let (app, key) = app_with_next_image().await;
    let product = ProductClient { app: &app, key };
    product.provision("ann").await;
    let before = (stored_version(&app).await, app.backend.count(BackendCall::Stop));
    assert_eq!(summarize(move_to(&product, "bob", NEXT_IMAGE).await), "404 ENGINE_NOT_FOUND");
    assert_eq!(summarize(move_to(&product, "ann", "svc-engine:9.0.0").await), "502 BACKEND_ERROR");
    assert_eq!(summarize(move_to(&product, "ann", "svc-engine:latest").await), "400 INVALID_REQUEST");
    product.set_policy(json!({"allowed_engine_versions": ["^0.1"]})).await;
    assert_eq!(summarize(move_to(&product, "ann", NEXT_IMAGE).await), "403 POLICY_DENIED");
    product.set_policy(json!({"suspended": true})).await;
    assert_eq!(summarize(move_to(&product, "ann", NEXT_IMAGE).await), "403 POLICY_DENIED");
    product.set_policy(json!({})).await;
    // The disk has no space for the copy.
    app.backend.inject(BackendCall::KeepCopy, Fault::Error(BackendError::NoCapacity("no space".into())));
    assert_eq!(summarize(move_to(&product, "ann", NEXT_IMAGE).await), "503 CAPACITY_EXHAUSTED");
    assert_eq!(stored_version(&app).await, before.0);
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 running");
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_version_that_it_is_on_is_pinned_and_let_go_without_a_restart() {
    let (app, key) = app_with_next_image().await;
    let product = ProductClient { app: &app, key };
    product.provision("ann").await;
    let own = app.config_image();
    let (status, moved) = move_to(&product, "ann", &own).await;
    assert_eq!((status, &moved["pinned"], &moved["copied_brain_format"]), (200, &json!(true), &json!(null)));
    assert_eq!(stored_version(&app).await, (own.clone(), "1".into()));
    assert_eq!(move_to(&product, "ann", "default").await.1["pinned"], false);
    assert_eq!(stored_version(&app).await, (own, "0".into()));
    assert_eq!((app.backend.launches().len(), app.backend.count(BackendCall::Stop)), (1, 0));
}

/// The orchestrator is killed in every step of a move. The engine runs again, on the version that fits its brain.
#[tokio::test]
async fn regression_o26_a_move_that_was_cut_off_leaves_an_engine_that_comes_back() {
    for call in [BackendCall::Stop, BackendCall::KeepCopy, BackendCall::Launch] {
        for late in [false, true] {
            let (app, key) = app_with_next_image().await;
            let product = ProductClient { app: &app, key: key.clone() };
            let engine = product.provision("ann").await;
            let before = app.backend.count(call);
            app.backend.inject(call, if late { Fault::Delay(Duration::from_hours(1)) } else { Fault::Hang });
            tokio::select! {
                biased;
                answer = move_to(&product, "ann", NEXT_IMAGE) => panic!("{answer:?}"),
                () = app.wait_until(|| app.backend.count(call) > before) => {}
            }
            let app = app.kill_and_replace().await;
            app.start().await;
            app.wait_unclaimed().await;
            // The API does not report it as running while it is not.
            app.assert_consistent().await;
            let product = ProductClient { app: &app, key };
            app.advance_until(STEP, async || summarize(product.get("ann").await) == "200 running").await;
            app.wait_unclaimed().await;
            let (image, _) = stored_version(&app).await;
            let major = image.parse::<EngineImage>().unwrap().major();
            assert_eq!(app.backend.brain_format(engine_id(&engine)), major, "{call:?} {late}: {image}");
            assert_eq!(app.backend.launches().pop().unwrap().image.as_str(), image);
            app.assert_consistent().await;
        }
    }
}

#[tokio::test]
async fn admits_wait_for_a_move_and_a_delete_takes_it_over() {
    let (app, key) = app_with_next_image().await;
    let product = ProductClient { app: &app, key };
    product.provision("ann").await;
    app.backend.inject(BackendCall::Launch, Fault::Delay(Duration::from_secs(10)));
    let both = async {
        let launches = app.backend.count(BackendCall::Launch);
        tokio::join!(move_to(&product, "ann", NEXT_IMAGE), async {
            app.wait_until(|| app.backend.count(BackendCall::Launch) > launches).await;
            (product.stop("ann").await, product.admit("ann", json!({})).await)
        })
    };
    let (moved, (stopped, admitted)) = app.while_time_passes(STEP, both).await;
    assert_eq!(moved.0, 200, "{moved:?}");
    assert_eq!(summarize(stopped), "409 ENGINE_NOT_RUNNING");
    assert_eq!(admitted.1["engine"]["engine_version"], NEXT_IMAGE);

    app.backend.inject(BackendCall::KeepCopy, Fault::Hang);
    let brain_copies = app.backend.count(BackendCall::KeepCopy);
    let (moved, deleted) = tokio::join!(move_to(&product, "ann", "default"), async {
        app.wait_until(|| app.backend.count(BackendCall::KeepCopy) > brain_copies).await;
        product.delete("ann").await
    });
    assert_eq!(
        (summarize(moved), summarize(deleted)),
        ("404 ENGINE_NOT_FOUND".into(), "200 destroyed".into())
    );
    app.assert_consistent().await;
}

/// The binary was replaced by one of another major version, so that the old version is not available any more.
#[tokio::test]
async fn where_there_is_one_image_an_engine_is_taken_along_and_its_brain_is_kept_if_it_fails() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    let product = ProductClient { app: &app, key: key.clone() };
    let pin = json!({"user_id": "ann", "engine_version": app.config_image()});
    let engine = product.call("POST", "/engines/provision", &pin).await;
    product.stop("ann").await;
    app.backend.add_image(next_image());
    app.backend.use_single_image();
    app.backend.remove_image(app.config_image().parse().unwrap());
    let app = app.kill_and_upgrade(NEXT_IMAGE).await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    app.backend.set_crashing(next_image(), true);
    assert_eq!(summarize(product.start("ann").await), "502 BACKEND_ERROR");
    assert_eq!(app.backend.brain_format(engine_id(&engine)), 0);
    app.backend.set_crashing(next_image(), false);
    assert_eq!(summarize(product.start("ann").await), "200 running");
    assert_eq!(
        (app.backend.brain_format(engine_id(&engine)), stored_version(&app).await.0),
        (1, NEXT_IMAGE.into())
    );
}

#[tokio::test]
async fn an_operator_sees_versions_and_moves_engines_some_at_a_time() {
    let (app, key) = app_with_next_image().await;
    let product = ProductClient { app: &app, key };
    for user in ["ann", "bob", "eve"] {
        product.provision(user).await;
    }
    let admin = async |method: &str, path: &str, body: Value| {
        let (status, _, answer) =
            app.send(method, path, &[("X-Admin-Key", ADMIN_KEY)], &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let own = app.config_image();
    let (_, refused) = move_to(&product, "eve", &own).await;
    assert_eq!(refused["pinned"], true);
    let versions = admin("GET", "/admin/versions", json!(null)).await;
    assert_eq!(versions["default"], own);
    let counts: Vec<_> = versions["versions"].as_array().unwrap().iter().collect();
    assert_eq!(counts.len(), 2);
    assert_eq!(
        (&counts[0]["slug"], &counts[0]["engines"], &counts[0]["follows"]),
        (&json!("demo"), &json!(2), &json!(true))
    );
    assert_eq!(
        (&counts[1]["pinned"], &counts[1]["engines"], &counts[1]["follows"]),
        (&json!(true), &json!(1), &json!(false))
    );
    let mut body = json!({"from": own, "engine_version": NEXT_IMAGE, "limit": 2});
    let moved = admin("POST", "/admin/versions/move", body.clone()).await;
    assert_eq!(moved["engines"].as_array().unwrap().len(), 2);
    assert!(moved["engines"].as_array().unwrap().iter().all(|engine| engine["error"].is_null()), "{moved}");
    product.set_policy(json!({"allowed_engine_versions": []})).await;
    body["after"] = moved["next"].clone();
    let moved = admin("POST", "/admin/versions/move", body).await;
    assert_eq!(moved["engines"][0]["error"]["code"], "POLICY_DENIED");
    assert_eq!((&moved["engines"][0]["user_id"], &moved["next"]), (&json!("eve"), &json!(null)));
    let (status, _, _) = app.send("GET", "/admin/versions", &[("X-Admin-Key", "wrong")], "").await;
    assert_eq!(status, 401);
}

crate::testing::also_with_own_addresses! {
    a_running_engine_is_moved_across_a_major_version_and_back_to_the_default,
    regression_o26_a_move_that_does_not_come_up_is_taken_back_with_the_brain_of_before,
    an_engine_at_rest_is_tried_on_the_other_version_and_rests_again,
}
