//! Ends: of an orchestrator that has not begun yet, of a stop that takes too long, of what a deleted engine leaves.

use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::backend::BackendError;
use crate::config::PortRange;
use crate::testing::{Call, Caller, Fault, TestApp, short};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn lesson_o21_an_orchestrator_that_is_not_ready_yet_ends_when_it_is_told_to() {
    let app = TestApp::starting(PortRange::new(9_001, 9_100).unwrap()).await;
    app.backend.script(Call::List, Fault::Hang);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let shutdown = CancellationToken::new();
    let told = async {
        app.until(|| app.backend.count(Call::List) == 1).await;
        shutdown.cancel();
    };
    let ended = async { tokio::join!(app.orchestrator.serve(listener, shutdown.clone()), told) };
    // No time passes on its clock: nothing else could wake it.
    tokio::time::timeout(SECOND * 20, ended).await.expect("it does not end");
}

#[tokio::test]
async fn a_backend_that_does_not_answer_holds_up_readiness_for_less_than_ten_seconds() {
    let app = TestApp::starting(PortRange::new(9_001, 9_100).unwrap()).await;
    app.backend.script(Call::List, Fault::Hang);
    let before = app.elapsed();
    app.while_time_passes(SECOND / 4, app.begin()).await;
    assert!(app.since(before) <= SECOND * 8, "{:?}", app.since(before));
}

/// The backend is slow to say that the engine has ended.
#[tokio::test]
async fn a_stop_that_overruns_is_a_stop() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.script(Call::Stop, Fault::Late(SECOND * 36));
    assert_eq!(short(app.while_time_passes(SECOND / 4, product.stop("ann")).await), "200 stopped");
    app.while_time_passes(SECOND, app.sleep(SECOND * 100)).await;
    assert_eq!(short(product.get("ann").await), "200 stopped");
    assert_eq!(app.ledger().await.last().unwrap(), "stop running→stopped requested");
    app.assert_in_order().await;
}

/// The backend says nothing, and the engine ends a while later, as it was told to.
#[tokio::test]
async fn lesson_o02_an_engine_that_ends_after_its_stop_was_given_up_has_not_crashed() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    let engine_id = *app.backend.running().iter().next().unwrap();
    app.backend.script(Call::Stop, Fault::Hang);
    let answer = app.while_time_passes(SECOND / 4, product.stop("ann")).await;
    assert_eq!(short(answer), "502 BACKEND_ERROR");
    app.backend.crash(engine_id);
    app.step_until(SECOND / 4, async || short(product.get("ann").await) == "200 stopped").await;
    app.while_time_passes(SECOND, app.sleep(SECOND * 100)).await;
    assert_eq!(short(product.get("ann").await), "200 stopped");
    assert!(app.ledger().await.iter().all(|row| !row.starts_with("crash")));
    app.assert_in_order().await;
}

/// It does not end by itself either: the stop is made good.
#[tokio::test]
async fn a_stop_that_was_given_up_is_finished_by_the_next_comparison() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.script(Call::Stop, Fault::Hang);
    app.while_time_passes(SECOND / 4, product.stop("ann")).await;
    app.step_until(SECOND, async || app.backend.running().is_empty()).await;
    app.unclaimed().await;
    assert_eq!(short(product.get("ann").await), "200 stopped");
}

/// Nobody works on the delete any more, and the backend still fails.
#[tokio::test]
async fn an_engine_whose_delete_was_cut_off_is_gone_for_all_who_ask() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    let failed = || Fault::Error(BackendError::Failed("the disk fails".to_owned()));
    app.backend.script(Call::Remove, failed());
    assert_eq!(short(product.delete("ann").await), "502 BACKEND_ERROR");
    let key = product.key.clone();
    let app = app.killed().await;
    for _ in 0..20 {
        app.backend.script(Call::Remove, failed());
    }
    app.begin().await;
    let product = Caller { app: &app, key };
    for answer in [product.start("ann").await, product.stop("ann").await, product.rotate("ann").await] {
        assert_eq!(short(answer), "404 ENGINE_NOT_FOUND");
    }
    assert_eq!(short(product.delete("ann").await), "404 ENGINE_NOT_FOUND");
    assert_eq!(short(product.provision("ann").await), "409 ENGINE_ALREADY_EXISTS");
    app.backend.mend();
    app.step_until(SECOND, async || short(product.get("ann").await) == "404 ENGINE_NOT_FOUND").await;
    app.assert_in_order().await;
}

#[tokio::test]
async fn a_host_without_room_costs_no_attempt_to_restart() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    let engine_id = *app.backend.running().iter().next().unwrap();
    // For longer than all attempts together take.
    for _ in 0..40 {
        app.backend.script(Call::Launch, Fault::Error(BackendError::Full("no memory".to_owned())));
    }
    app.backend.crash(engine_id);
    let launches = app.backend.count(Call::Launch);
    app.step_until(SECOND, async || app.backend.count(Call::Launch) == launches + 40).await;
    app.unclaimed().await;
    let (_, explained) = product.look("/engines/ann/explain").await;
    assert_eq!(explained["restart_attempt"], json!({"n": 0, "max": 8}), "{explained}");
    assert_eq!(explained["next_action"]["action"], "restart");
    app.step_until(SECOND, async || short(product.get("ann").await) == "200 running").await;
    app.assert_in_order().await;
}
