//! Cancel that does not stop. Wherever a turn is, it is over at once, and the task goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use service::clock::{Clock as _, SystemClock};
use strict_provider::{Fault, Gate, Refusal, Reply, Wire};

use super::children::alive;
use crate::agent::rig::{Gated, Rig, WIRES, check_turn, final_text};
use crate::catalog::AgentSpec;
use crate::channel::Reader;
use crate::testing::{Seen, can_confine, next_events, read_until, task_id, within};

/// How long a cancelled turn may still go on.
const AT_ONCE: Duration = Duration::from_millis(250);

/// Cancels the turn of task `t` and reads the end of its stream, which comes at once.
async fn cancel(rig: &Rig, mut reader: Reader, mut seen: Vec<Seen>) -> Vec<Seen> {
    let began = Instant::now();
    let end = async {
        rig.agent.cancel(&task_id("t")).await.unwrap();
        while let Some(events) = next_events(&mut reader).await {
            seen.extend(events);
        }
    };
    // Where it does not come at all, nobody waits for it for long.
    assert!(tokio::time::timeout(4 * AT_ONCE, end).await.is_ok(), "the turn goes on");
    assert!(began.elapsed() < AT_ONCE, "cancelled after {:?}", began.elapsed());
    assert_eq!(seen.last().unwrap().phase(), Some("cancelled"), "{seen:#?}");
    assert_eq!(check_turn(&seen), Ok(()));
    seen
}

/// The texts of all roles in the last request, in their order.
fn sent(rig: &Rig) -> String {
    rig.last_request().body.to_string()
}

/// Asserts that the task goes on.
async fn goes_on(rig: &Rig) {
    rig.provider.set_default_reply(Reply::echo());
    assert!(final_text(&rig.say("and now?").await).ends_with("and now?"));
    rig.provider.assert_no_refusals();
}

async fn begin(rig: &Rig) -> Reader {
    rig.begin(json!({"task_id": "t", "message": "go", "super_thinking": true})).await.unwrap()
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_while_the_model_speaks() {
    for wire in WIRES {
        let rig = Rig::new(wire).await;
        let gate = Gate::new();
        let reply = Reply::new().thinking("Let me see.").text("What I meant to say is this.");
        rig.provider.enqueue(reply.chars_per_delta(6).hold(4, &gate));
        let mut reader = begin(&rig).await;
        let seen = read_until(&mut reader, |event| event.kind == "text_delta").await;
        let seen = cancel(&rig, reader, seen).await;
        goes_on(&rig).await;
        // What was shown of the answer is what the model is told that it said.
        let shown = crate::testing::shown_text(&seen, true);
        assert!(!shown.is_empty() && shown.len() < 28, "{shown}");
        assert!(sent(&rig).contains(&Value::from(shown).to_string()), "{}", sent(&rig));
    }
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_before_the_model_speaks() {
    for wire in WIRES {
        let rig = Rig::new(wire).await;
        rig.provider.enqueue(Reply::of_text("never").fault(Fault::SlowHeaders { delay_ms: 60_000 }));
        let reader = begin(&rig).await;
        rig.provider.wait_for_requests(1).await;
        cancel(&rig, reader, Vec::new()).await;
        goes_on(&rig).await;
    }
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_while_a_failing_provider_is_left_alone() {
    for wire in WIRES {
        let rig = Rig::new(wire).await;
        let wish = Refusal::RateLimited { retry_after_s: Some(29) };
        rig.provider.enqueue(Reply::of_fault(Fault::refuse(wish)));
        let reader = begin(&rig).await;
        rig.clock.asleep_for(Duration::from_secs(29)).await;
        cancel(&rig, reader, Vec::new()).await;
        goes_on(&rig).await;
        assert_eq!(rig.provider.requests().len(), 2);
    }
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_while_a_tool_runs() {
    for wire in WIRES {
        let gated = Gated::new(false);
        let rig = Rig::with_tools(wire, vec![gated.clone()]).await;
        let reply = Reply::new().thinking("Both.").text("I try both.");
        rig.provider.enqueue(reply.tool_use("list_files", json!({"path": "."})).tool_use("gated", json!({})));
        let mut reader = begin(&rig).await;
        gated.begun(1).await;
        let seen = read_until(&mut reader, |event| event.kind == "tool_result").await;
        cancel(&rig, reader, seen).await;
        // It is dropped, so what it waits for finds nobody.
        gated.may_end.add_permits(1);
        goes_on(&rig).await;
        assert_eq!(gated.may_end.available_permits(), 1);
        assert!(sent(&rig).contains("I try both."));
    }
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_while_a_person_is_asked() {
    for wire in WIRES {
        let rig = Rig::new(wire).await;
        rig.provider.enqueue(Reply::new().text("Hm.").tool_use("ask_user", json!({"question": "Which?"})));
        let mut reader = begin(&rig).await;
        let seen = read_until(&mut reader, |event| event.kind == "hitl_request").await;
        cancel(&rig, reader, seen).await;
        assert!(within(rig.agent.pending()).await.unwrap().is_empty());
        goes_on(&rig).await;
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
async fn lesson_e15_a_turn_is_cancelled_while_a_program_runs_and_no_child_of_it_is_left() {
    if !can_confine() {
        return;
    }
    for of_agent in [false, true] {
        let mut rig = Rig::new(Wire::AnthropicMessages).await;
        rig.allow_all().await;
        let mark = format!("{}.{}", 99 + u8::from(of_agent), std::process::id());
        let command = format!("trap '' TERM INT; setsid sleep {mark} & sleep {mark} & sleep {mark}");
        let call = Reply::new().tool_use("shell", json!({"command": command}));
        if of_agent {
            rig.agents = vec![Arc::new(sleeper())];
            rig.restart().await;
            rig.provider
                .enqueue(Reply::new().tool_use("run_agent", json!({"agent": "sleeper", "task": "Sleep."})));
        }
        rig.provider.enqueue(call);
        let reader = begin(&rig).await;
        within(async {
            while alive(&mark).len() < 3 {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        cancel(&rig, reader, Vec::new()).await;
        assert_eq!(alive(&mark), [""; 0]);
        goes_on(&rig).await;
    }
}
