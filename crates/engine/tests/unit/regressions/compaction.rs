//! Compaction that loops. A conversation that is too long is compacted a bounded number of times, each time with
//! an effect, and then the turn ends one way or the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::event::{Compaction, CompactionReason, Event, FailureCode};
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use mock_llm::{CapturedRequest, Fault, Refusal, Reply, Usage, Wire};
use serde_json::json;
use testkit::SseEvent;
use tools::{Invocation, Tool, ToolError, ToolOutput, ToolStep};

use crate::agent::harness::{AgentHarness, WIRES, failure, final_text, gateway_config};

/// A tool whose result has the requested length.
struct DumpTool {
    runs: AtomicUsize,
}

impl Tool for DumpTool {
    fn spec(&self) -> ToolSpec {
        let input_schema = json!({"type": "object", "properties": {"bytes": {"type": "integer"}}});
        ToolSpec { name: "dump".into(), description: "Dumps.".into(), input_schema }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(&self, Invocation { input, .. }: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        self.runs.fetch_add(1, Ordering::AcqRel);
        let bytes = usize::try_from(input["bytes"].as_u64().unwrap()).unwrap();
        let text = format!("HEAD{}TAIL", "x".repeat(bytes));
        Box::pin(async { Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() })) })
    }
}

fn tools() -> Vec<Arc<dyn Tool>> {
    vec![Arc::new(DumpTool { runs: AtomicUsize::new(0) })]
}

fn compactions(events: &[SseEvent]) -> Vec<Compaction> {
    let compaction = |event: &SseEvent| match event.event() {
        Event::CompactionEvent(compaction) => Some(compaction),
        _ => None,
    };
    events.iter().filter_map(compaction).collect()
}

fn is_summary(request: &CapturedRequest) -> bool {
    String::from_utf8_lossy(&request.raw).contains("Write a summary of them")
}

fn too_long() -> Reply {
    Reply::from_fault(Fault::refuse(Refusal::PromptTooLong))
}

/// Creates a conversation of several turns, with tool results and a working memory.
async fn long_task(wire: Wire) -> AgentHarness {
    let harness = AgentHarness::with_tools(wire, tools()).await;
    for turn in 0..6 {
        harness.provider.enqueue_all([
            Reply::new()
                .text("I look.")
                .tool_use("dump", json!({"bytes": 20_000}))
                .tool_use("working_memory_set", json!({"key": "turn", "value": turn})),
            Reply::from_text(format!("answer {turn}")),
        ]);
        harness.send(&format!("question {turn}")).await;
    }
    harness.provider.clear_requests();
    harness
}

#[tokio::test]
async fn regression_e06_a_provider_that_says_too_long_for_ever_ends_the_turn() {
    for wire in WIRES {
        let harness = long_task(wire).await;
        harness.provider.set_default_reply(too_long());
        let events = harness.send("and now?").await;
        assert_eq!(failure(&events).code, FailureCode::ProviderRefused);
        let compactions = compactions(&events);
        assert!(compactions.iter().all(|each| each.reason == CompactionReason::Reactive));
        // Each has an effect, except for the reset at the end.
        assert!((2..=3).contains(&compactions.len()), "{compactions:?}");
        for each in &compactions[..compactions.len() - 1] {
            assert!(each.tokens_after * 10 <= each.tokens_before * 8, "{each:?}");
            assert!(each.messages_collapsed > 0);
        }
        let requests = harness.provider.requests();
        assert!(requests.len() <= 6, "{} requests", requests.len());
        let last = String::from_utf8_lossy(&requests.last().unwrap().raw).into_owned();
        assert!(last.contains("and now?") && last.contains("- turn: 5"), "what cannot be left out is kept");
        assert!(!last.contains("question 3"));

        // The task is not broken: another message is answered.
        harness.provider.set_default_reply(Reply::from_text("Here I am."));
        assert_eq!(final_text(&harness.send("are you there?").await), "Here I am.");
        harness.provider.take_refusals();
    }
}

#[tokio::test]
async fn regression_e06_a_conversation_that_is_too_long_is_summarised_and_goes_on() {
    for wire in WIRES {
        let mut harness = long_task(wire).await;
        harness.provider.enqueue_all([
            too_long(),
            Reply::from_text("The user asked six questions."),
            Reply::from_text("I go on."),
        ]);
        let events = harness.send("and now?").await;
        assert_eq!(final_text(&events), "I go on.");
        assert_eq!(compactions(&events).len(), 1);
        let requests = harness.provider.requests();
        assert_eq!(requests.iter().map(is_summary).collect::<Vec<_>>(), [false, true, false]);
        let sent = String::from_utf8_lossy(&requests[2].raw).into_owned();
        assert!(sent.contains("The user asked six questions.") && sent.contains("- turn: 5"));
        assert!(!sent.contains("question 1"));

        // That remains so after a restart, and each request extends the one before.
        harness.provider.clear_requests();
        harness.provider.set_default_reply(Reply::from_text("Well."));
        harness.send("thanks").await;
        harness.restart().await;
        harness.send("bye").await;
        let [first, second] = harness.provider.requests().try_into().unwrap();
        crate::regressions::prompt_caches::assert_prefix(&first, &second);
        assert!(!String::from_utf8_lossy(&second.raw).contains("question 1"));
        harness.provider.take_refusals();
    }
}

#[tokio::test]
async fn regression_e06_one_huge_result_is_shortened_before_it_is_sent() {
    for wire in WIRES {
        let mut harness = AgentHarness::with_tools(wire, tools()).await;
        harness.provider.enqueue_all([
            Reply::new().tool_use("dump", json!({"bytes": 5_000_000})),
            Reply::from_text("That was too much."),
        ]);
        let events = harness.run(json!({"task_id": "file", "message": "dump it"})).await;
        assert_eq!(final_text(&events), "That was too much.");
        let last = harness.last_request();
        let sent = String::from_utf8_lossy(&last.raw);
        assert!(last.raw.len() < 50_000, "{} bytes", last.raw.len());
        assert!(sent.contains("HEADxxx") && sent.contains("xxxTAIL") && sent.contains("is in the file"));

        // The longest result that is not spilled is more than this model accepts.
        let mut gateway = gateway_config(&harness.provider, &[(wire, "test-1")]);
        for model in gateway["models"].as_object_mut().unwrap().values_mut() {
            model["context_window"] = 20_000.into();
        }
        harness.configure_gateway(&gateway).await;
        harness.provider.enqueue_all([
            Reply::new().thinking("How much is it?").tool_use("dump", json!({"bytes": 65_000})),
            Reply::from_text("That was much."),
        ]);
        let message = json!({"task_id": "t", "message": "dump it", "super_thinking": true});
        let events = harness.run(message).await;
        assert_eq!(final_text(&events), "That was much.");
        let [compaction] = compactions(&events).try_into().unwrap();
        assert_eq!(compaction.reason, CompactionReason::Threshold);
        let last = harness.last_request();
        let sent = String::from_utf8_lossy(&last.raw);
        assert!(last.raw.len() < 50_000, "{} bytes", last.raw.len());
        assert!(sent.contains("HEADxxx") && sent.contains("xxxTAIL") && sent.contains("characters left out"));
        assert!(sent.contains("dump it"));
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn regression_e06_a_skill_that_was_loaded_survives() {
    let harness = AgentHarness::with_tools(Wire::AnthropicMessages, tools()).await;
    let skill = json!({"name": "baking", "prompt": "Knead for ten minutes."});
    harness.agent.create_skill(serde_json::from_value(skill).unwrap()).await.unwrap();
    harness.provider.enqueue_all([
        Reply::new().tool_use("load_skill", json!({"skill": "baking"})),
        Reply::new().tool_use("dump", json!({"bytes": 50_000})),
        Reply::from_text("Loaded."),
        Reply::from_text("Well."),
        too_long(),
        Reply::from_text("A skill was loaded."),
        Reply::from_text("I bake."),
        Reply::new().tool_use("dump", json!({"bytes": 50_000})),
        Reply::from_text("Dumped."),
        too_long(),
        Reply::from_text("A cake was baked."),
        Reply::from_text("I bake again."),
    ]);
    for message in ["load it", "well?", "bake"] {
        harness.send(message).await;
    }
    assert!(String::from_utf8_lossy(&harness.last_request().raw).contains("Knead for ten minutes."));
    harness.send("dump").await;
    harness.send("again").await;
    assert!(String::from_utf8_lossy(&harness.last_request().raw).contains("Knead for ten minutes."));
    harness.provider.take_refusals();
}

#[tokio::test]
async fn a_summary_counts_for_the_budget_of_its_turn() {
    let mut harness = long_task(Wire::AnthropicMessages).await;
    let mut gateway = gateway_config(&harness.provider, &[(Wire::AnthropicMessages, "first")]);
    gateway["budgets"] = json!({"tokens_per_turn": 120_000});
    harness.configure_gateway(&gateway).await;
    let tokens = Usage { input: Some(119_000), output: Some(900), ..Usage::default() };
    harness
        .provider
        .enqueue_all([too_long(), Reply::from_text("The user asked six questions.").usage(tokens)]);
    let events = harness.send("and now?").await;
    assert_eq!(compactions(&events).len(), 1);
    assert_eq!(events.last().unwrap().data["stop_reason"], "budget");
    assert_eq!(harness.provider.requests().len(), 2, "nothing is left for an answer");
    let usage = events.iter().find(|event| event.kind == "usage").unwrap();
    assert_eq!((&usage.data["input_tokens"], &usage.data["output_tokens"]), (&json!(119_000), &json!(900)));
}
