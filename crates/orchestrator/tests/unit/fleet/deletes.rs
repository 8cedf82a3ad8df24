//! Deletes that run concurrently with other operations, or without a backend.

use std::time::Duration;

use backend::BackendError;
use serde_json::json;

use crate::testing::{BackendCall, Fault, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
/// The interval between two polls for a state; the simulated time advances only between them.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

fn unreachable_backend() -> Fault {
    Fault::Error(BackendError::Unreachable("connection refused".into()))
}

#[tokio::test]
async fn a_delete_cancels_a_provision_and_a_waiting_admit_goes_on_as_for_no_engine() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, Fault::Hang);
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 1).await;
        let admit = product.admit("ann", json!({"auto_provision": true}));
        let delete = async {
            // The callers of the provision and of the admit.
            app.wait_until(|| app.orchestrator.fleet().executor.operations.waiter_count() == 2).await;
            product.delete("ann").await
        };
        tokio::join!(admit, delete)
    };
    let (provisioned, (admitted, deleted)) = tokio::join!(product.provision("ann"), meanwhile);
    assert_eq!(summarize(provisioned), "404 ENGINE_NOT_FOUND");
    assert_eq!(summarize(deleted), "200 destroyed");
    assert_eq!(summarize(admitted), "200 running");
    let audit_log = app.audit_lines().await;
    assert_eq!(audit_log, ["destroy none→none requested", "provision none→running auto_provision"]);
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_start_or_stop_that_a_delete_overtakes_is_404() {
    for (call, count) in [(BackendCall::Launch, 2), (BackendCall::Stop, 1)] {
        let app = TestApp::new().await;
        let product = app.register_product("demo", json!({})).await;
        product.provision("ann").await;
        if call == BackendCall::Launch {
            product.stop("ann").await;
        }
        app.backend.inject(call, Fault::Hang);
        let meanwhile = async {
            app.wait_until(|| app.backend.count(call) == count).await;
            product.delete("ann").await
        };
        let change = async {
            if call == BackendCall::Launch { product.start("ann").await } else { product.stop("ann").await }
        };
        let (changed, deleted) = tokio::join!(change, meanwhile);
        assert_eq!(summarize(changed), "404 ENGINE_NOT_FOUND");
        assert_eq!(summarize(deleted), "200 destroyed");
        app.assert_consistent().await;
    }
}

#[tokio::test]
async fn while_an_engine_is_destroyed() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.inject(BackendCall::Remove, Fault::Delay(SECOND * 5));
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Remove) == 1).await;
        assert_eq!(summarize(product.get("ann").await), "200 destroying");
        assert_eq!(summarize(product.delete("ann").await), "404 ENGINE_NOT_FOUND");
        assert_eq!(summarize(product.start("ann").await), "404 ENGINE_NOT_FOUND");
        assert_eq!(summarize(product.stop("ann").await), "404 ENGINE_NOT_FOUND");
        assert_eq!(summarize(product.provision("ann").await), "409 ENGINE_ALREADY_EXISTS");
        app.while_time_passes(SECOND, product.admit("ann", json!({}))).await
    };
    let (deleted, admitted) = tokio::join!(product.delete("ann"), meanwhile);
    assert_eq!(
        (summarize(deleted), summarize(admitted)),
        ("200 destroyed".into(), "200 engine_not_found".into())
    );
}

#[tokio::test]
async fn two_deletes_at_once_destroy_once() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let (one, other) = tokio::join!(product.delete("ann"), product.delete("ann"));
    let mut answers = [summarize(one), summarize(other)];
    answers.sort();
    assert_eq!(answers, ["200 destroyed", "404 ENGINE_NOT_FOUND"]);
    assert_eq!(app.audit_lines().await.len(), 2);
}

#[tokio::test]
async fn a_delete_without_a_backend_changes_nothing() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.inject(BackendCall::Ping, unreachable_backend());
    assert_eq!(summarize(product.delete("ann").await), "502 BACKEND_ERROR");
    assert_eq!(summarize(product.get("ann").await), "200 running");
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_delete_that_loses_the_backend_is_finished_later() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.inject(BackendCall::Remove, unreachable_backend());
    assert_eq!(summarize(product.delete("ann").await), "502 BACKEND_ERROR");
    assert_eq!(summarize(product.get("ann").await), "200 destroying");
    // Either by the next reconciliation,
    let gone = async {
        while summarize(product.get("ann").await) != "404 ENGINE_NOT_FOUND" {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    app.while_time_passes(SECOND, gone).await;
    assert_eq!(app.audit_lines().await[1], "destroy running→none interrupted");
    // or by the next admit.
    product.provision("ann").await;
    app.backend.inject(BackendCall::Remove, unreachable_backend());
    assert_eq!(summarize(product.delete("ann").await), "502 BACKEND_ERROR");
    assert_eq!(summarize(product.admit("ann", json!({"auto_provision": true})).await), "200 running");
    app.assert_consistent().await;
}

crate::testing::also_with_own_addresses! {
    a_delete_cancels_a_provision_and_a_waiting_admit_goes_on_as_for_no_engine,
    two_deletes_at_once_destroy_once,
    a_delete_that_loses_the_backend_is_finished_later,
}
