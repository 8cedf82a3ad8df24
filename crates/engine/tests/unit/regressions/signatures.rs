//! Thinking signatures. A provider that checks them accepts every turn of a long task.

use mock_llm::{Reply, Wire};
use serde_json::json;

use crate::agent::harness::{AgentHarness, final_text};

/// The protocols whose providers sign the thinking that has to be sent back.
const SIGNING: [Wire; 3] = [Wire::AnthropicMessages, Wire::OpenAiResponses, Wire::Gemini];

/// Returns the model's answers in a turn: each of these forms recurs, next to all others.
fn replies(turn: usize) -> Vec<Reply> {
    let list = |reply: Reply| reply.tool_use("list_files", json!({"path": "."}));
    let thought = || Reply::new().thinking(format!("Thought of turn {turn}."));
    match turn % 7 {
        0 => vec![thought()],
        1 => vec![list(thought()), thought()],
        2 => vec![list(thought().redacted_thinking().text("I look.")), list(Reply::new()), Reply::new()],
        3 => vec![Reply::new()],
        4 => vec![list(list(Reply::new().redacted_thinking())), thought().text(" \n").thinking("And more.")],
        5 => vec![list(Reply::new().text("Without a thought.")), Reply::new()],
        _ => vec![thought().redacted_thinking().thinking("")],
    }
}

#[tokio::test]
async fn regression_e05_a_provider_that_checks_signatures_takes_a_hundred_mixed_turns() {
    for wire in SIGNING {
        hundred_turns(wire).await;
    }
}

async fn hundred_turns(wire: Wire) {
    let mut harness = AgentHarness::new(wire).await;
    for turn in 0..100 {
        if turn % 9 == 8 {
            harness.switch_model(wire, ["test-1", "test-2"][turn / 9 % 2]).await;
        }
        let mut replies = replies(turn);
        let last = replies.pop().unwrap().text(format!("Answer {turn}."));
        harness.provider.enqueue_all(replies.into_iter().chain([last]));
        let task = format!("t{}", turn / 34);
        let request = json!({"task_id": task, "message": "go", "super_thinking": turn % 3 > 0});
        let events = harness.run(request).await;
        harness.provider.assert_no_refusals();
        assert!(final_text(&events).ends_with(&format!("Answer {turn}.")), "{wire:?}: turn {turn}");
    }
}
