//! Whatever turns do, usage adds up to what their journals and their provider say.

use std::sync::Arc;

use api::usage::{ReadUsage, UsageFigures, UsagePurpose, UsageReport};
use api::usage_days::UsageCounts;
use catalog::AgentSpec;
use mock_llm::{Fault, Refusal, Reply, Usage, Wire};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::harness::AgentHarness;

/// What one turn does before its last answer.
#[derive(Clone, Debug)]
enum Act {
    /// It calls a tool.
    Tool,
    /// It runs a sub-agent, which calls a tool or fails once.
    SubAgent { calls_tool: bool, fails: bool },
    /// A call is refused, which is not billed.
    Refused,
    /// An answer breaks off, which is billed.
    BrokenOff,
    /// The engine is killed between two turns.
    Kill,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        Just(Act::Tool),
        (any::<bool>(), any::<bool>()).prop_map(|(calls_tool, fails)| Act::SubAgent { calls_tool, fails }),
        Just(Act::Refused),
        Just(Act::BrokenOff),
        Just(Act::Kill),
    ];
    prop::collection::vec(act, 0..6)
}

fn used(reply: Reply) -> Reply {
    reply.usage(Usage { input: Some(1_000), output: Some(10), ..Usage::default() })
}

fn tool_call() -> Reply {
    used(Reply::new().tool_use("working_memory_set", json!({"key": "a", "value": "1"})))
}

fn refused() -> Reply {
    Reply::from_fault(Fault::refuse(Refusal::Overloaded))
}

/// The replies of an act.
fn replies(act: &Act) -> Vec<Reply> {
    match act {
        Act::Tool => vec![tool_call()],
        Act::SubAgent { calls_tool, fails } => {
            let call = json!({"agent": "finder", "task": "Find it."});
            let mut replies = vec![used(Reply::new().tool_use("run_agent", call))];
            replies.extend(calls_tool.then(tool_call));
            replies.extend(fails.then(refused));
            replies.push(used(Reply::from_text("Found.")));
            replies
        }
        Act::Refused => vec![refused()],
        Act::BrokenOff => vec![used(Reply::from_text("half an ans")).fault(Fault::cut_after(2))],
        Act::Kill => Vec::new(),
    }
}

/// The sum of the usage in the journals: calls, input and output tokens.
fn journaled(harness: &AgentHarness) -> [u64; 3] {
    let connection = harness.open_connection();
    let mut steps = connection.prepare("SELECT body FROM steps").unwrap();
    let steps = steps.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let mut sums = [0; 3];
    for body in steps {
        let step: Value = serde_json::from_str(&body.unwrap()).unwrap();
        let step = step.get("did").unwrap_or(&step);
        let tokens = match step["step"].as_str().unwrap() {
            "answered" => &step["answer"]["usage"],
            "spent" => &step["tokens"],
            _ => continue,
        };
        let numbers = [1, tokens["input"].as_u64().unwrap(), tokens["output"].as_u64().unwrap()];
        sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
    }
    sums
}

async fn report(harness: &AgentHarness, group_by: &str) -> UsageReport {
    let request = ReadUsage { group_by: Some(group_by.to_owned()), ..ReadUsage::default() };
    harness.agent.usage(request).await.unwrap()
}

async fn check(acts: Vec<Act>) {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.agents = vec![Arc::new(AgentSpec {
        name: "finder".into(),
        description: "Finds things.".into(),
        model: None,
        tools: None,
        max_turns: 5,
        max_tokens: None,
        prompt: "You find things.".into(),
    })];
    harness.restart().await;
    let (mut tools, mut sub_agent_calls) = (0, 0);
    for act in &acts {
        if matches!(act, Act::Kill) {
            harness.kill().await;
        }
        harness.provider.enqueue_all(replies(act));
        harness.provider.enqueue(used(Reply::from_text("Done.")));
        harness.run(json!({"task_id": "t", "message": "Go.", "direct": true})).await;
        match act {
            Act::Tool => tools += 1,
            Act::SubAgent { calls_tool, fails } => {
                tools += u64::from(*calls_tool);
                sub_agent_calls += 1 + u64::from(*calls_tool) + u64::from(*fails);
            }
            _ => {}
        }
    }
    let UsageFigures { calls, failed_calls, input_tokens, output_tokens, tool_calls, .. } =
        report(&harness, "day").await.total;
    let unbilled = acts.iter().filter(|act| matches!(act, Act::Refused | Act::SubAgent { fails: true, .. }));
    let unbilled = u64::try_from(unbilled.count()).unwrap();
    let broken = u64::try_from(acts.iter().filter(|act| matches!(act, Act::BrokenOff)).count()).unwrap();
    assert_eq!([calls - unbilled, input_tokens, output_tokens], journaled(&harness), "{acts:?}");
    assert_eq!(calls, u64::try_from(harness.provider.requests().len()).unwrap(), "{acts:?}");
    assert_eq!((failed_calls, tool_calls), (unbilled + broken, tools), "{acts:?}");
    // What the orchestrator collects is the same, with the turns.
    let days = harness.agent.usage_days(None).await.unwrap().days;
    let own = days.iter().fold(UsageCounts::default(), |sum, day| sum.plus(day.counts));
    let turns = u64::try_from(acts.len()).unwrap();
    assert_eq!(
        [own.turns, own.calls, own.failed_calls, own.input_tokens, own.output_tokens, own.tool_calls],
        [turns, calls, failed_calls, input_tokens, output_tokens, tool_calls],
        "{acts:?}"
    );
    // Every turn has a text of its own, and began in the engine's run in which it was answered.
    assert_eq!(own.first_deltas.turns.iter().sum::<u64>(), turns, "{acts:?}");
    let by_agent = report(&harness, "agent,purpose").await;
    let finder = by_agent.rows.iter().find(|row| row.agent == Some(Some("finder".to_owned())));
    assert_eq!(finder.map_or(0, |row| row.usage.calls), sub_agent_calls, "{acts:?}");
    assert!(by_agent.rows.iter().all(|row| row.purpose.as_deref() == Some(UsagePurpose::Turn.as_str())));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn usage_is_what_the_journals_and_the_provider_say(acts in acts()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(check(acts));
    }
}
