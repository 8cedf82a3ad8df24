//! A poison turn, which kills its engine at every start. It is ended, and the engine survives.

use api::event::FailureCode;
use mock_llm::{Gate, Reply, Wire};
use serde_json::json;

use crate::agent::harness::{AgentHarness, check_turn, failure, final_text};

#[tokio::test]
async fn regression_e17_a_turn_that_eight_starts_did_not_get_on_with_is_ended_and_the_engine_lives() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let gate = Gate::new();
    harness.provider.set_default_reply(Reply::from_text("never whole").deltas(3).hold(1, &gate));
    drop(harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap());
    for start in 1..=8 {
        harness.provider.wait_for_requests(start).await;
        harness.restart().await;
        assert_eq!(harness.brain.open_turns().unwrap()[0].starts, u32::try_from(start).unwrap() - 1);
        harness.agent.resume().unwrap();
    }
    harness.provider.wait_for_requests(9).await;
    harness.restart().await;
    harness.agent.resume().unwrap();
    let events = harness.replay(0).await;
    assert_eq!(check_turn(&events), Ok(()));
    let failure = failure(&events);
    assert_eq!((failure.code, failure.retryable), (FailureCode::ResumeLimit, false));
    assert_eq!(harness.provider.requests().len(), 9);
    harness.provider.set_default_reply(Reply::echo());
    assert_eq!(final_text(&harness.send("still there?").await), "still there?");
    harness.provider.assert_no_refusals();
}
