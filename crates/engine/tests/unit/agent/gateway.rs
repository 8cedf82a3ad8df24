//! Turns whose models do not answer, and their cost and budgets.

use api::event::{Event, FailureCode, StopReason, Usage};
use mock_llm::{CapturedRequest, Fault, Refusal, Reply, Wire};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use testkit::{SseEvent, rendered_text};

use super::harness::{AgentHarness, WIRES, failure, final_text, gateway_config};

fn refused(refusal: Refusal) -> Reply {
    Reply::from_fault(Fault::refuse(refusal))
}

fn usages(events: &[SseEvent]) -> Vec<Usage> {
    let usage = |event: &SseEvent| match event.event() {
        Event::Usage(usage) => Some(usage),
        _ => None,
    };
    events.iter().filter_map(usage).collect()
}

fn stop_reason(events: &[SseEvent]) -> StopReason {
    match events.last().unwrap().event() {
        Event::ThreadLifecycle(api::event::Lifecycle::Completed { stop_reason, .. }) => stop_reason,
        other => panic!("{other:?}"),
    }
}

/// The models that were called, in order.
fn models_called(harness: &AgentHarness) -> Vec<String> {
    harness.provider.requests().iter().map(|request: &CapturedRequest| request.model.clone()).collect()
}

/// A harness whose first model speaks `wire` and whose second one speaks another protocol.
async fn harness_with_fallback(wire: Wire) -> AgentHarness {
    let mut harness = AgentHarness::new(wire).await;
    let other = if wire == Wire::OpenAiChat { Wire::AnthropicMessages } else { Wire::OpenAiChat };
    let gateway = gateway_config(&harness.provider, &[(wire, "first"), (other, "second")]);
    harness.configure_gateway(&gateway).await;
    harness
}

#[tokio::test]
async fn another_model_stands_in_for_the_rest_of_the_turn() {
    for wire in WIRES {
        for (refusal, attempts) in [
            (Refusal::Unauthorized, 1),
            (Refusal::UnknownModel, 1),
            (Refusal::QuotaExhausted, 1),
            (Refusal::RateLimited { retry_after_s: Some(31) }, 1),
            (Refusal::Overloaded, 5),
        ] {
            let harness = harness_with_fallback(wire).await;
            harness
                .provider
                .enqueue(Reply::new().thinking("Hm.").tool_use("list_files", json!({"path": "."})));
            harness.provider.enqueue_all(vec![refused(refusal.clone()); attempts]);
            harness.provider.enqueue_all([
                Reply::new().tool_use("list_files", json!({"path": "."})),
                Reply::from_text("I stood in."),
            ]);
            let events = harness.run(json!({"task_id": "t", "message": "go", "super_thinking": true})).await;
            assert_eq!(final_text(&events), "I stood in.", "{wire:?} {refusal:?}");
            assert_eq!(usages(&events).last().unwrap().model, "second", "{wire:?} {refusal:?}");
            let called_second: Vec<bool> =
                models_called(&harness).iter().map(|model| model == "second").collect();
            let expected = [vec![false; 1 + attempts], vec![true; 2]].concat();
            assert_eq!(called_second, expected, "{wire:?} {refusal:?}");
            harness.provider.assert_no_refusals();
        }
    }
}

#[tokio::test]
async fn text_of_a_model_that_broke_off_is_void_where_another_goes_on() {
    let harness = harness_with_fallback(Wire::AnthropicMessages).await;
    harness.provider.enqueue_all(vec![Reply::from_text("half an ans").fault(Fault::cut_after(2)); 5]);
    harness.provider.enqueue(Reply::from_text("a whole answer"));
    let events = harness.send("go").await;
    assert_eq!(final_text(&events), "a whole answer");
    assert_eq!(rendered_text(&events, true), "a whole answer");
    // The first model is skipped for a while: the next turn does not wait for it again.
    harness.provider.enqueue(Reply::from_text("still here"));
    assert_eq!(final_text(&harness.send("and now?").await), "still here");
    assert_eq!(models_called(&harness).iter().filter(|model| *model == "first").count(), 5);
}

#[tokio::test]
async fn where_none_answers_each_says_why() {
    let harness = harness_with_fallback(Wire::AnthropicMessages).await;
    harness.provider.enqueue_all([refused(Refusal::Unauthorized), refused(Refusal::QuotaExhausted)]);
    let failure = failure(&harness.send("go").await);
    assert_eq!(failure.code, FailureCode::ProviderUnavailable);
    assert!(failure.message.contains("first:") && failure.message.contains("second:"), "{}", failure.message);
    // For any other 400 no fallback is tried.
    let harness = harness_with_fallback(Wire::AnthropicMessages).await;
    harness.provider.enqueue(refused(Refusal::Other {
        status: 400,
        error_type: "invalid_request_error".into(),
        message: "temperature: no".into(),
        headers: std::collections::BTreeMap::new(),
    }));
    assert_eq!(self::failure(&harness.send("go").await).code, FailureCode::ProviderRefused);
    assert_eq!(harness.provider.requests().len(), 1);
}

#[tokio::test]
async fn a_history_that_is_refused_goes_without_its_reasoning() {
    let checks_history = |wire: &Wire| match wire {
        Wire::AnthropicMessages | Wire::OpenAiChat | Wire::OpenAiResponses | Wire::Gemini => true,
        Wire::Ollama => false,
    };
    for wire in WIRES.into_iter().filter(checks_history) {
        let harness = AgentHarness::new(wire).await;
        harness.provider.enqueue_all([
            Reply::new().thinking("Secret.").tool_use("list_files", json!({"path": "."})),
            refused(Refusal::BrokenHistory),
            Reply::from_text("Better."),
        ]);
        let events = harness.run(json!({"task_id": "t", "message": "go", "super_thinking": true})).await;
        assert_eq!(final_text(&events), "Better.");
        let sent = String::from_utf8(harness.last_request().raw.to_vec()).unwrap();
        assert!(!sent.contains("Secret."), "{wire:?}");
        // It is omitted from then on, too.
        harness.provider.enqueue(Reply::from_text("Well."));
        harness.send("thanks").await;
        assert!(!String::from_utf8(harness.last_request().raw.to_vec()).unwrap().contains("Secret."));
        harness.provider.assert_no_refusals();

        // The remedy is tried once.
        harness.provider.set_default_reply(refused(Refusal::BrokenHistory));
        harness.provider.clear_requests();
        assert_eq!(failure(&harness.send("again").await).code, FailureCode::ProviderRefused);
        assert_eq!(harness.provider.requests().len(), 2);
    }
}

/// A configuration with one model and these budgets.
fn budgets(harness: &AgentHarness, budgets: &Value) -> Value {
    let mut gateway = gateway_config(&harness.provider, &[(Wire::AnthropicMessages, "first")]);
    gateway["budgets"] = budgets.clone();
    gateway
}

fn tokens(input: u64, output: u64) -> mock_llm::Usage {
    mock_llm::Usage { input: Some(input), output: Some(output), ..mock_llm::Usage::default() }
}

#[tokio::test]
async fn a_budget_ends_a_turn_well_before_the_call_that_would_break_it() {
    for (budget, next_turn_works) in
        [("tokens_per_turn", true), ("tokens_per_hour", false), ("tokens_per_day", false)]
    {
        let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
        let gateway = budgets(&harness, &json!({budget: 10_000}));
        harness.configure_gateway(&gateway).await;
        let list_files = || Reply::new().text("I look.").tool_use("list_files", json!({"path": "."}));
        harness
            .provider
            .enqueue_all([list_files().usage(tokens(3_000, 500)), list_files().usage(tokens(4_000, 2_300))]);
        harness.provider.set_default_reply(Reply::from_text("More.").usage(tokens(10, 1)));
        let events = harness.send("go").await;
        assert_eq!(stop_reason(&events), StopReason::Budget, "{budget}");
        // 9,800 tokens are spent, and another prompt would exceed the limit.
        assert_eq!(harness.provider.requests().len(), 2, "{budget}");
        let [first, second] = harness.provider.requests().try_into().unwrap();
        let max_tokens = |request: &CapturedRequest| request.body["max_tokens"].as_u64().unwrap();
        assert!(max_tokens(&first) < 10_000 && max_tokens(&second) < 10_000 - 3_500, "{budget}");
        assert_eq!(rendered_text(&events, true), "I look.I look.");

        let events = harness.send("again").await;
        let reason = if next_turn_works { StopReason::EndTurn } else { StopReason::Budget };
        assert_eq!(stop_reason(&events), reason, "{budget}");
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn turns_at_once_do_not_break_a_budget_that_none_breaks_alone() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let gateway = budgets(&harness, &json!({"tokens_per_hour": 50_000}));
    harness.configure_gateway(&gateway).await;
    let gate = mock_llm::Gate::new();
    // Each may have 32,000 tokens of answer, so the second one has less, and the third one nothing.
    for _ in 0..3 {
        harness.provider.enqueue(Reply::from_text("Slowly.").hold(1, &gate).usage(tokens(700, 100)));
    }
    let mut readers = Vec::new();
    for task in ["a", "b", "c"] {
        readers.push(harness.begin(json!({"task_id": task, "message": "go"})).await.unwrap());
        if task != "c" {
            harness.provider.wait_for_requests(readers.len()).await;
        }
    }
    let third = store::testing::read_all(readers.pop().unwrap()).await;
    assert_eq!(stop_reason(&third), StopReason::Budget);
    let max_tokens: u64 =
        harness.provider.requests().iter().map(|request| request.body["max_tokens"].as_u64().unwrap()).sum();
    assert!(harness.provider.requests().len() == 2 && max_tokens < 50_000, "{max_tokens}");
    gate.release();
    for reader in readers {
        assert_eq!(stop_reason(&store::testing::read_all(reader).await), StopReason::EndTurn);
    }
    // Reserved tokens that were not spent are available again.
    harness.provider.set_default_reply(Reply::from_text("Again."));
    harness.provider.enqueue(Reply::from_text("Again."));
    let events = harness.run(json!({"task_id": "d", "message": "go"})).await;
    assert_eq!(stop_reason(&events), StopReason::EndTurn);
}

#[tokio::test]
async fn text_of_a_step_that_a_budget_ends_is_void() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let gateway = budgets(&harness, &json!({"tokens_per_turn": 10_000}));
    harness.configure_gateway(&gateway).await;
    // The interrupted answer is billed and leaves no budget for another attempt.
    let broken = Reply::from_text("half an ans").usage(tokens(9_900, 10)).fault(Fault::cut_after(2));
    harness.provider.enqueue(broken);
    let events = harness.send("go").await;
    assert_eq!((stop_reason(&events), final_text(&events).as_str()), (StopReason::Budget, ""));
    assert_eq!(rendered_text(&events, true), "");
    assert_eq!(harness.provider.requests().len(), 1);
}

#[tokio::test]
async fn an_answer_that_a_budget_cuts_ends_the_turn_for_that_reason() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let gateway = budgets(&harness, &json!({"tokens_per_turn": 4_000}));
    harness.configure_gateway(&gateway).await;
    harness.provider.enqueue(Reply::from_text("As much as").stop(mock_llm::Stop::MaxTokens));
    let events = harness.send("go").await;
    assert_eq!((stop_reason(&events), final_text(&events).as_str()), (StopReason::Budget, "As much as"));
}

#[tokio::test]
async fn what_a_turn_costs_is_told_where_all_prices_are_known() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let mut gateway = gateway_config(
        &harness.provider,
        &[(Wire::AnthropicMessages, "first"), (Wire::OpenAiChat, "second")],
    );
    let prices = json!({"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75});
    gateway["models"]["AnthropicMessages first"]["prices"] = prices;
    harness.configure_gateway(&gateway).await;
    let usage = mock_llm::Usage {
        withheld: false,
        input: Some(1_000),
        output: Some(100),
        cache_read: 2_000,
        cache_write: 500,
        reasoning: None,
    };
    harness.provider.enqueue_all([
        Reply::new().tool_use("list_files", json!({"path": "."})).usage(usage),
        Reply::from_text("Done.").usage(usage),
    ]);
    let costs: Vec<f64> =
        usages(&harness.send("go").await).iter().map(|usage| usage.cost_usd.unwrap()).collect();
    let cost_per_call = (1_000.0 * 3.0 + 100.0 * 15.0 + 2_000.0 * 0.3 + 500.0 * 3.75) / 1e6;
    assert!(
        (costs[0] - cost_per_call).abs() < 1e-12 && (costs[1] - 2.0 * cost_per_call).abs() < 1e-12,
        "{costs:?}"
    );

    // The price of the other model is unknown, so no cost is reported.
    harness.provider.enqueue_all([
        Reply::new().tool_use("list_files", json!({"path": "."})).usage(usage),
        refused(Refusal::Unauthorized),
        Reply::from_text("Done."),
    ]);
    let has_cost: Vec<bool> =
        usages(&harness.send("go").await).iter().map(|usage| usage.cost_usd.is_some()).collect();
    assert_eq!(has_cost, [true, false]);
}

/// A task whose conversation fits into the first model's window but not into the second one's.
async fn conversation_too_long_for_fallback() -> AgentHarness {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let mut gateway = gateway_config(
        &harness.provider,
        &[(Wire::AnthropicMessages, "first"), (Wire::OpenAiChat, "second")],
    );
    gateway["models"]["OpenAiChat second"]["context_window"] = 16_000.into();
    harness.configure_gateway(&gateway).await;
    for number in 0..3 {
        harness.provider.enqueue(Reply::from_text(format!("Noted {number}. {}", "A detail. ".repeat(1_000))));
        harness.send(&format!("Note {number}: {}", "this and that ".repeat(1_000))).await;
    }
    harness.provider.clear_requests();
    harness
}

fn is_compacted(events: &[SseEvent]) -> bool {
    events.iter().any(|event| event.kind == "compaction_event")
}

#[tokio::test]
async fn a_short_trouble_of_the_usual_model_costs_a_conversation_nothing() {
    let harness = conversation_too_long_for_fallback().await;
    harness.provider.enqueue_all(vec![refused(Refusal::Overloaded); 5]);
    let events = harness.send("go").await;
    let failure = failure(&events);
    assert_eq!((failure.code, failure.retryable), (FailureCode::ProviderUnavailable, true));
    assert!(
        failure.message.contains("its context window of 16000 tokens is too small"),
        "{}",
        failure.message
    );
    assert!(!is_compacted(&events));
    // The model is in cooldown, but it is called all the same: the fallback is too small.
    harness.provider.enqueue(Reply::from_text("Here I am."));
    let events = harness.send("again").await;
    assert_eq!((final_text(&events).as_str(), is_compacted(&events)), ("Here I am.", false));
    assert_eq!(models_called(&harness), ["first"; 6]);
    let sent = String::from_utf8_lossy(&harness.last_request().raw).into_owned();
    assert!(sent.contains("Note 0") && sent.contains("Noted 0"));
}

#[tokio::test]
async fn a_conversation_is_shortened_for_a_stand_in_where_the_usual_model_cannot_answer() {
    let harness = conversation_too_long_for_fallback().await;
    harness.provider.enqueue_all([
        refused(Refusal::Unauthorized),
        Reply::from_text("They noted things."),
        Reply::from_text("I stood in."),
    ]);
    let events = harness.send("go").await;
    assert_eq!((final_text(&events).as_str(), is_compacted(&events)), ("I stood in.", true));
    assert_eq!(models_called(&harness), ["first", "second", "second"]);
}
