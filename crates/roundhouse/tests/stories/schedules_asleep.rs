//! A sleeping engine is woken for its schedules, also by another orchestrator than the one that put it to sleep.

use mock_llm::{Gate, MockProvider, Reply};
use rustix::process::Signal;
use serde_json::json;

use crate::schedules::{create, in_seconds, read, schedule, wait_completed};
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::{Deployment, Fleet, eventually};

fn deployment(provider: &MockProvider) -> Deployment {
    Deployment::new()
        .with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", "1")
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "1")
        .with_provider(provider)
}

#[tokio::test]
async fn a_sleeping_engine_is_woken_when_a_schedule_is_due() {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue(Reply::from_text("Done."));
    let deployment = deployment(&provider);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let at = in_seconds(18);
    create(&engine, &schedule("once", &json!({"at": at}), json!({}))).await;
    product.wait_for_status("ada", "sleeping").await;
    assert!(in_seconds(0) < at, "it sleeps before it is due");
    eventually("it is woken", async || (!product.audit_rows("wake").await.is_empty()).then_some(())).await;
    let wakes = product.audit_rows("wake").await;
    assert_eq!(wakes[0].1["reason"], "schedule");
    // An admit finds it as it is.
    let engine = product.engine("ada").await;
    let done = wait_completed(&engine, "once").await;
    assert_eq!((done["runs"].as_array().unwrap().len(), &done["runs"][0]["due_at"]), (1, &json!(at)));
    product.wait_for_status("ada", "sleeping").await;
    assert_eq!(product.audit_rows("wake").await.len(), 1);
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test]
async fn a_killed_orchestrator_leaves_the_due_time_to_the_next_one() {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue(Reply::from_text("Done."));
    let deployment = deployment(&provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    create(&engine, &schedule("once", &json!({"at": in_seconds(18)}), json!({}))).await;
    product.wait_for_status("ada", "sleeping").await;
    let _orchestrator = deployment.kill_and_start(orchestrator).await;
    product.wait_for_status("ada", "running").await;
    let engine = product.engine("ada").await;
    wait_completed(&engine, "once").await;
    assert_eq!(read(&engine, "once").await["runs"].as_array().unwrap().len(), 1);
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test]
async fn a_run_that_a_shutdown_interrupts_is_finished_after_the_next_start() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue(Reply::from_text("Done.").hold(1, &gate));
    let fleet = Fleet::new().with_provider_and_shipped_catalog(&provider);
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    create(&engine, &schedule("once", &json!({"at": in_seconds(2)}), json!({}))).await;
    wait_gate_reached(&gate).await;
    up.signal_and_wait(Signal::TERM).await.assert_success();
    assert_eq!(fleet.audit_rows("sleep").len(), 1);

    provider.enqueue(Reply::from_text("Done."));
    let up = fleet.start_up().await;
    eventually("it is woken", async || (!fleet.audit_rows("wake").is_empty()).then_some(())).await;
    assert_eq!(fleet.audit_rows("wake")[0].1["reason"], "schedule");
    let done = wait_completed(&up.product().engine("ada").await, "once").await;
    assert_eq!((done["runs"].as_array().unwrap().len(), &done["state"]), (1, &json!("finished")));
    // With nothing to do, it is not woken.
    up.signal_and_wait(Signal::TERM).await.assert_success();
    let up = fleet.start_up().await;
    let status = up.product().get("ada").await.body["status"].clone();
    assert_eq!((status, fleet.audit_rows("wake").len()), (json!("sleeping"), 1));
}
