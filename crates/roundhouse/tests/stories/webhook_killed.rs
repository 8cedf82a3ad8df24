//! No kill loses an event or invents one, and a sleeping engine is woken to report.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use mock_llm::{MockProvider, Reply};

use crate::support::Deployment;
use crate::support::engine_calls::direct_message;
use crate::support::tool_programs::done_reply;
use crate::support::webhook_receiver::{SECRETS, WebhookReceiver};
use crate::support::{assert_fields, eventually};
use crate::webhook::{begin, deliveries, fixture, wait_state};

#[tokio::test]
async fn a_kill_during_a_request_repeats_it() {
    let receiver = WebhookReceiver::start().await;
    let fixture = fixture(&receiver, [done_reply()]).await;
    receiver.state().holds = true;
    begin(&fixture, "Go.").await;
    receiver.wait_requests(1).await;
    let fixture = fixture.kill_and_start().await;
    receiver.wait_requests(2).await;
    receiver.state().holds = false;
    let fixture = fixture.kill_and_start().await;
    receiver.wait_accepted(1).await;
    wait_state(&fixture, "delivered").await;
    let ids: BTreeSet<String> = receiver.state().ids.iter().cloned().collect();
    assert_eq!((ids.len(), receiver.state().ids.len()), (1, 3));
}

/// The turns are killed at all moments of their lives, with a receiver that is away, slow or full at times.
#[tokio::test]
async fn whatever_is_killed_each_turn_is_reported() {
    let receiver = WebhookReceiver::start().await;
    let mut fixture = fixture(&receiver, []).await;
    let (mut turns, mut killed_before_accepted) = (Vec::new(), 0);
    for round in 0..12_u64 {
        fixture.provider.enqueue_all([done_reply(), done_reply()]);
        if round % 3 == 1 {
            receiver.state().failures.push_back((503, None));
        }
        let begun = direct_message(&format!("task-{round}"), "Go.");
        let begun = fixture.engine.execute_in_background(begun).await;
        turns.push(format!("{}_ended", begun["turn_id"].as_str().unwrap()));
        // Not a wait for something: the kills come at different moments.
        tokio::time::sleep(Duration::from_millis(round * round * 2)).await;
        let accepted = receiver.state().accepted.len();
        fixture = fixture.kill_and_start().await;
        killed_before_accepted += usize::from(accepted < turns.len());
    }
    let ids =
        async || -> BTreeSet<String> { receiver.state().accepted.iter().map(|(id, _)| id.clone()).collect() };
    eventually("all are reported", async || (ids().await.len() >= turns.len()).then_some(())).await;
    assert_eq!(ids().await, turns.iter().cloned().collect());
    eventually("all are delivered", async || {
        deliveries(&fixture).await.iter().all(|delivery| delivery["state"] == "delivered").then_some(())
    })
    .await;
    assert!(killed_before_accepted >= 4, "{killed_before_accepted} kills came before the report");
}

#[tokio::test]
async fn a_sleeping_engine_is_woken_to_report() {
    let receiver = WebhookReceiver::start().await;
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue(Reply::from_text("Done."));
    let deployment = Deployment::new()
        .with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", "1")
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "1")
        .with_provider(&provider);
    let catalog = deployment.fleet.folder().join("catalog");
    fs::write(catalog.join("webhook.json"), receiver.file(&SECRETS)).unwrap();
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    receiver.state().failures.push_back((503, Some(18)));
    engine.execute_in_background(direct_message("task", "Go.")).await;
    product.wait_for_status("ada", "sleeping").await;
    let body = receiver.wait_accepted(1).await.remove(0);
    assert_fields(&body["data"], "engine_id:engine task_id:text turn:object");
    assert_eq!(body["data"]["engine_id"], engine.id.as_str());
    assert_eq!(product.audit_rows("wake").await[0].1["reason"], "schedule");
    product.wait_for_status("ada", "sleeping").await;
    assert_eq!(receiver.state().ids.len(), 2);
}
