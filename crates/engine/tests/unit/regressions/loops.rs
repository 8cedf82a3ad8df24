//! Runaway loops. A turn that repeats the same call is first warned and then ended; a poll that sees something new
//! each time is not a loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use mock_llm::{CapturedRequest, Reply, Wire};
use serde_json::json;
use store::testing::next_events;
use tools::{Invocation, Tool, ToolError, ToolOutput, ToolStep};

use crate::agent::harness::{AgentHarness, WIRES};

/// A tool that polls a job, which makes progress at each call or does not.
struct PollTool {
    makes_progress: bool,
    poll_count: AtomicU64,
}

impl Tool for PollTool {
    fn spec(&self) -> ToolSpec {
        let input_schema = json!({"type": "object", "properties": {}});
        ToolSpec { name: "poll".into(), description: "Looks at a job.".into(), input_schema }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(&self, _: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        let polls = self.poll_count.fetch_add(1, Ordering::Relaxed);
        let done = if self.makes_progress { polls } else { 0 };
        let text = format!("{done} of 100 done");
        Box::pin(async move { Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() })) })
    }
}

async fn fixture(wire: Wire, makes_progress: bool) -> AgentHarness {
    AgentHarness::with_tools(wire, vec![Arc::new(PollTool { makes_progress, poll_count: AtomicU64::new(0) })])
        .await
}

fn poll_reply() -> Reply {
    Reply::new().text("I look.").tool_use("poll", json!({}))
}

#[tokio::test]
async fn regression_e07_a_turn_that_repeats_itself_is_told_and_then_ended() {
    for wire in WIRES {
        let harness = fixture(wire, false).await;
        harness.provider.enqueue_all((0..5).map(|_| poll_reply()));
        let events = harness.run(json!({"task_id": "t", "message": "Wait for the job."})).await;
        let end = events.iter().find(|event| event.phase() == Some("completed")).unwrap();
        assert_eq!(end.data["stop_reason"], "loop");
        assert_eq!(end.data["text"], "I look.");
        let requests = harness.provider.requests();
        let warning_count = |request: &CapturedRequest| {
            String::from_utf8_lossy(&request.raw).matches("with this same result").count()
        };
        assert_eq!(requests.iter().map(warning_count).collect::<Vec<_>>(), [0, 0, 0, 1, 2], "{wire:?}");

        // The thread continues.
        harness.provider.enqueue(Reply::from_text("It hangs."));
        let events = harness.run(json!({"task_id": "t", "message": "And now?"})).await;
        assert_eq!(events.last().unwrap().data["stop_reason"], "end_turn");
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn regression_e07_a_poll_that_sees_something_new_is_no_loop() {
    let harness = fixture(Wire::AnthropicMessages, true).await;
    harness.provider.enqueue_all((0..30).map(|_| poll_reply()).chain([Reply::from_text("Done.")]));
    let events = harness.run(json!({"task_id": "t", "message": "Wait for the job."})).await;
    assert_eq!(events.last().unwrap().data["stop_reason"], "end_turn");
    assert_eq!(harness.provider.requests().len(), 31);
}

#[tokio::test]
async fn regression_e07_a_loop_is_noticed_across_a_kill() {
    let mut harness = fixture(Wire::AnthropicMessages, false).await;
    // More than five: one may be answered but not yet journaled when the engine is killed.
    harness.provider.enqueue_all((0..9).map(|_| poll_reply()));
    let mut reader = harness.begin(json!({"task_id": "t", "message": "Wait for the job."})).await.unwrap();
    let mut results = 0;
    while results < 3 {
        let events = next_events(&mut reader).await.unwrap();
        results += events.iter().filter(|event| event.kind == "tool_result").count();
    }
    harness.kill().await;
    harness.agent.resume().unwrap();
    let events = harness.replay(0).await;
    assert_eq!(events.last().unwrap().data["stop_reason"], "loop");
    assert_eq!(events.iter().filter(|event| event.kind == "tool_result").count(), 5);
}
