//! A cancel that does not stop. Whatever state a turn is in, it is over at once, and the task continues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use catalog::AgentSpec;
use http_service::clock::{Clock as _, SystemClock};
use mock_llm::{Fault, Gate, Refusal, Reply, Wire};
use serde_json::{Value, json};
use store::event_log::EventReader;
use store::testing::{next_events, read_until};
use testkit::{SseEvent, can_confine, task_id, with_deadline};

use super::child_processes::live_processes;
use crate::agent::harness::{AgentHarness, GatedTool, WIRES, check_turn, final_text};

/// How long a cancelled turn may continue.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(250);

/// Cancels the turn of task `t` and reads the end of its stream, which must come at once.
async fn cancel_turn(
    harness: &AgentHarness,
    mut reader: EventReader,
    mut seen: Vec<SseEvent>,
) -> Vec<SseEvent> {
    let began = Instant::now();
    let end = async {
        harness.agent.cancel(&task_id("t"), None).await.unwrap();
        while let Some(events) = next_events(&mut reader).await {
            seen.extend(events);
        }
    };
    // If it does not come at all, the test does not wait long.
    assert!(tokio::time::timeout(4 * CANCEL_TIMEOUT, end).await.is_ok(), "the turn goes on");
    assert!(began.elapsed() < CANCEL_TIMEOUT, "cancelled after {:?}", began.elapsed());
    assert_eq!(seen.last().unwrap().phase(), Some("cancelled"), "{seen:#?}");
    assert_eq!(check_turn(&seen), Ok(()));
    seen
}

/// Returns the texts of all roles in the last request, in order.
fn last_request_text(harness: &AgentHarness) -> String {
    harness.last_request().body.to_string()
}

/// Asserts that the task continues.
async fn assert_task_continues(harness: &AgentHarness) {
    harness.provider.set_default_reply(Reply::echo());
    assert!(final_text(&harness.send("and now?").await).ends_with("and now?"));
    harness.provider.assert_no_refusals();
}

async fn begin_turn(harness: &AgentHarness) -> EventReader {
    harness.begin(json!({"task_id": "t", "message": "go", "super_thinking": true})).await.unwrap()
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_the_model_speaks() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        let gate = Gate::new();
        let reply = Reply::new().thinking("Let me see.").text("What I meant to say is this.");
        harness.provider.enqueue(reply.chars_per_delta(6).hold(4, &gate));
        let mut reader = begin_turn(&harness).await;
        let seen = read_until(&mut reader, |event| event.kind == "text_delta").await;
        let seen = cancel_turn(&harness, reader, seen).await;
        assert_task_continues(&harness).await;
        // The model sees as its own words the part of the answer that was shown.
        let shown = testkit::rendered_text(&seen, true);
        assert!(!shown.is_empty() && shown.len() < 28, "{shown}");
        assert!(
            last_request_text(&harness).contains(&Value::from(shown).to_string()),
            "{}",
            last_request_text(&harness)
        );
    }
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_before_the_model_speaks() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        harness.provider.enqueue(Reply::from_text("never").fault(Fault::SlowHeaders { delay_ms: 60_000 }));
        let reader = begin_turn(&harness).await;
        harness.provider.wait_for_requests(1).await;
        cancel_turn(&harness, reader, Vec::new()).await;
        assert_task_continues(&harness).await;
    }
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_a_failing_provider_is_left_alone() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        let refusal = Refusal::RateLimited { retry_after_s: Some(29) };
        harness.provider.enqueue(Reply::from_fault(Fault::refuse(refusal)));
        let reader = begin_turn(&harness).await;
        harness.clock.wait_for_sleep(Duration::from_secs(29)).await;
        cancel_turn(&harness, reader, Vec::new()).await;
        assert_task_continues(&harness).await;
        assert_eq!(harness.provider.requests().len(), 2);
    }
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_a_tool_runs() {
    for wire in WIRES {
        let gated = GatedTool::new(false);
        let harness = AgentHarness::with_tools(wire, vec![gated.clone()]).await;
        let reply = Reply::new().thinking("Both.").text("I try both.");
        harness
            .provider
            .enqueue(reply.tool_use("list_files", json!({"path": "."})).tool_use("gated", json!({})));
        let mut reader = begin_turn(&harness).await;
        gated.wait_for_runs(1).await;
        let seen = read_until(&mut reader, |event| event.kind == "tool_result").await;
        cancel_turn(&harness, reader, seen).await;
        // The call was dropped, so this permit reaches nobody.
        gated.may_end.add_permits(1);
        assert_task_continues(&harness).await;
        assert_eq!(gated.may_end.available_permits(), 1);
        assert!(last_request_text(&harness).contains("I try both."));
    }
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_a_person_is_asked() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        harness
            .provider
            .enqueue(Reply::new().text("Hm.").tool_use("ask_user", json!({"question": "Which?"})));
        let mut reader = begin_turn(&harness).await;
        let seen = read_until(&mut reader, |event| event.kind == "hitl_request").await;
        cancel_turn(&harness, reader, seen).await;
        assert!(with_deadline(harness.agent.pending_requests()).await.unwrap().is_empty());
        assert_task_continues(&harness).await;
    }
}

fn sleeper() -> AgentSpec {
    AgentSpec {
        name: "sleeper".into(),
        description: "Sleeps.".into(),
        model: None,
        tools: None,
        max_turns: 5,
        max_tokens: None,
        prompt: "You sleep.".into(),
    }
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_a_program_runs_and_no_child_of_it_is_left() {
    if !can_confine() {
        return;
    }
    for by_sub_agent in [false, true] {
        let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
        harness.allow_all().await;
        let mark = format!("{}.{}", 99 + u8::from(by_sub_agent), std::process::id());
        let command = format!("trap '' TERM INT; setsid sleep {mark} & sleep {mark} & sleep {mark}");
        let call = Reply::new().tool_use("shell", json!({"command": command}));
        if by_sub_agent {
            harness.agents = vec![Arc::new(sleeper())];
            harness.restart().await;
            harness
                .provider
                .enqueue(Reply::new().tool_use("run_agent", json!({"agent": "sleeper", "task": "Sleep."})));
        }
        harness.provider.enqueue(call);
        let reader = begin_turn(&harness).await;
        with_deadline(async {
            while live_processes(&mark).len() < 3 {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        cancel_turn(&harness, reader, Vec::new()).await;
        assert_eq!(live_processes(&mark), [""; 0]);
        assert_task_continues(&harness).await;
    }
}
