//! Shutdown before readiness, stops that take too long, interrupted deletes, and restarts on a full host.

use std::time::Duration;

use backend::BackendError;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::PortRange;
use crate::testing::{BackendCall, Fault, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn regression_o21_an_orchestrator_that_is_not_ready_yet_ends_when_it_is_told_to() {
    let app = TestApp::new_starting(PortRange::new(9_001, 9_100).unwrap()).await;
    app.backend.inject(BackendCall::List, Fault::Hang);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let shutdown = CancellationToken::new();
    let signalled = async {
        app.wait_until(|| app.backend.count(BackendCall::List) == 1).await;
        shutdown.cancel();
    };
    let ended = async { tokio::join!(app.orchestrator.serve(listener, shutdown.clone()), signalled) };
    // Its clock stands still: nothing else could wake it.
    tokio::time::timeout(SECOND * 20, ended).await.expect("it does not end");
}

#[tokio::test]
async fn a_backend_that_does_not_answer_holds_up_readiness_for_less_than_ten_seconds() {
    let app = TestApp::new_starting(PortRange::new(9_001, 9_100).unwrap()).await;
    app.backend.inject(BackendCall::List, Fault::Hang);
    let before = app.elapsed();
    app.while_time_passes(SECOND / 4, app.start()).await;
    assert!(app.since(before) <= SECOND * 8, "{:?}", app.since(before));
}

/// The backend is slow to report that the engine has stopped.
#[tokio::test]
async fn a_stop_that_overruns_is_a_stop() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.inject(BackendCall::Stop, Fault::Delay(SECOND * 36));
    assert_eq!(summarize(app.while_time_passes(SECOND / 4, product.stop("ann")).await), "200 stopped");
    app.while_time_passes(SECOND, app.sleep(SECOND * 100)).await;
    assert_eq!(summarize(product.get("ann").await), "200 stopped");
    assert_eq!(app.audit_lines().await.last().unwrap(), "stop running→stopped requested");
    app.assert_consistent().await;
}

/// The backend does not answer, and the engine exits a while later because of the stop.
#[tokio::test]
async fn regression_o02_an_engine_that_ends_after_its_stop_was_given_up_has_not_crashed() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let engine_id = *app.backend.running().iter().next().unwrap();
    app.backend.inject(BackendCall::Stop, Fault::Hang);
    let answer = app.while_time_passes(SECOND / 4, product.stop("ann")).await;
    assert_eq!(summarize(answer), "502 BACKEND_ERROR");
    app.backend.crash(engine_id);
    app.advance_until(SECOND / 4, async || summarize(product.get("ann").await) == "200 stopped").await;
    app.while_time_passes(SECOND, app.sleep(SECOND * 100)).await;
    assert_eq!(summarize(product.get("ann").await), "200 stopped");
    assert!(app.audit_lines().await.iter().all(|row| !row.starts_with("crash")));
    app.assert_consistent().await;
}

/// The engine does not exit by itself either: reconciliation completes the stop.
#[tokio::test]
async fn a_stop_that_was_given_up_is_finished_by_the_next_comparison() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.inject(BackendCall::Stop, Fault::Hang);
    app.while_time_passes(SECOND / 4, product.stop("ann")).await;
    app.advance_until(SECOND, async || app.backend.running().is_empty()).await;
    app.wait_unclaimed().await;
    assert_eq!(summarize(product.get("ann").await), "200 stopped");
}

/// The delete was abandoned, and the backend still fails.
#[tokio::test]
async fn an_engine_whose_delete_was_cut_off_is_gone_for_all_who_ask() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let failed = || Fault::Error(BackendError::Failed("the disk fails".to_owned()));
    app.backend.inject(BackendCall::Remove, failed());
    assert_eq!(summarize(product.delete("ann").await), "502 BACKEND_ERROR");
    let key = product.key.clone();
    let app = app.kill_and_replace().await;
    for _ in 0..20 {
        app.backend.inject(BackendCall::Remove, failed());
    }
    app.start().await;
    let product = ProductClient { app: &app, key };
    for answer in [product.start("ann").await, product.stop("ann").await, product.rotate("ann").await] {
        assert_eq!(summarize(answer), "404 ENGINE_NOT_FOUND");
    }
    assert_eq!(summarize(product.delete("ann").await), "404 ENGINE_NOT_FOUND");
    assert_eq!(summarize(product.provision("ann").await), "409 ENGINE_ALREADY_EXISTS");
    app.backend.clear_faults();
    app.advance_until(SECOND, async || summarize(product.get("ann").await) == "404 ENGINE_NOT_FOUND").await;
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_host_without_room_costs_no_attempt_to_restart() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let engine_id = *app.backend.running().iter().next().unwrap();
    // For longer than all restart attempts together take.
    for _ in 0..40 {
        app.backend
            .inject(BackendCall::Launch, Fault::Error(BackendError::NoCapacity("no memory".to_owned())));
    }
    app.backend.crash(engine_id);
    let launches = app.backend.count(BackendCall::Launch);
    app.advance_until(SECOND, async || app.backend.count(BackendCall::Launch) == launches + 40).await;
    app.wait_unclaimed().await;
    let (_, explained) = product.get_path("/engines/ann/explain").await;
    assert_eq!(explained["restart_attempt"], json!({"n": 0, "max": 8}), "{explained}");
    assert_eq!(explained["next_action"]["action"], "restart");
    app.advance_until(SECOND, async || summarize(product.get("ann").await) == "200 running").await;
    app.assert_consistent().await;
}
