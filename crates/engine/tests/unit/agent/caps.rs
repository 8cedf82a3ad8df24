//! Caps hold for the day and for the task, and clients are told once.

use api::event::{FailureCode, StopReason};
use mock_llm::{Reply, Wire};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use testkit::{SseEvent, with_deadline};

use super::super::harness::{AgentHarness, failure, gateway_config};
use super::*;

const DAY: std::time::Duration = std::time::Duration::from_hours(24);

fn used(input: u64, output: u64) -> mock_llm::Usage {
    mock_llm::Usage { input: Some(input), output: Some(output), ..mock_llm::Usage::default() }
}

async fn capped(caps: &Value, prices: Option<Value>) -> AgentHarness {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let mut gateway = gateway_config(&harness.provider, &[(Wire::AnthropicMessages, "first")]);
    gateway["caps"] = caps.clone();
    if let Some(prices) = prices {
        gateway["models"]["AnthropicMessages first"]["prices"] = prices;
    }
    harness.configure_gateway(&gateway).await;
    harness
}

/// What clients were told about caps: level, scope and unit.
fn told(events: &[SseEvent]) -> Vec<String> {
    let told = events.iter().filter(|event| event.kind == "usage_cap");
    told.map(|event| ["level", "scope", "unit"].map(|field| event.data[field].as_str().unwrap()).join(" "))
        .collect()
}

fn stop_reason(events: &[SseEvent]) -> StopReason {
    match events.last().unwrap().event() {
        Event::ThreadLifecycle(api::event::Lifecycle::Completed { stop_reason, .. }) => stop_reason,
        other => panic!("{other:?}"),
    }
}

async fn refused(harness: &AgentHarness, task: &str) -> ReachedCap {
    match harness.begin(json!({"task_id": task, "message": "go"})).await.err() {
        Some(AgentError::UsageCapReached(cap)) => cap,
        other => panic!("{other:?}"),
    }
}

fn run(task: &str) -> Value {
    json!({"task_id": task, "message": "go"})
}

#[tokio::test]
async fn clients_are_told_once_at_four_fifths_and_once_at_the_cap_of_a_day() {
    let mut harness = capped(&json!({"tokens_per_day": 20_000}), None).await;
    for (task, tokens, expected) in [
        ("a", 9_000, vec![]),
        ("b", 7_500, vec!["warning day tokens"]),
        ("c", 100, vec![]),
        ("d", 4_000, vec!["reached day tokens"]),
    ] {
        harness.provider.enqueue(Reply::from_text("Yes.").usage(used(tokens, 1)));
        let events = harness.run(run(task)).await;
        assert_eq!((told(&events), stop_reason(&events)), (owned(&expected), StopReason::EndTurn), "{task}");
        // What they were told survives a kill.
        harness.kill().await;
    }
    let cap = refused(&harness, "e").await;
    assert!(cap.to_string().contains("20000 tokens for a day"), "{cap}");
    assert!((1..=86_400).contains(&cap.retry_after_s.unwrap()));
    let caps = harness.agent.usage_caps(&ReadUsageCaps::default()).unwrap().caps;
    assert_eq!((caps[0].used, caps[0].remaining), (Some(20_604.0), Some(0.0)));

    // The next day begins at zero.
    harness.clock.advance_wall_clock(DAY);
    harness.provider.enqueue(Reply::from_text("Again.").usage(used(16_500, 1)));
    assert_eq!(told(&harness.run(run("e")).await), ["warning day tokens"]);
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn a_cap_of_a_task_holds_for_that_task_and_ends_its_turn() {
    let harness = capped(&json!({"tokens_per_task": 10_000}), None).await;
    let look = || Reply::new().text("I look.").tool_use("list_files", json!({"path": "."}));
    harness.provider.enqueue_all([look().usage(used(2_000, 10)), look().usage(used(6_000, 900))]);
    let events = harness.run(run("a")).await;
    assert_eq!(told(&events), ["warning task tokens", "reached task tokens"]);
    // A turn with an answer ends as with any budget.
    assert_eq!((stop_reason(&events), harness.provider.requests().len()), (StopReason::Budget, 2));
    // Of the cap something is left, which pays for nothing: the next turn says so, and tells nobody again.
    let events = harness.run(run("a")).await;
    assert_eq!((failure(&events).code, told(&events)), (FailureCode::UsageCapReached, vec![]));
    harness.provider.enqueue(Reply::from_text("Yes.").usage(used(10, 1)));
    assert_eq!(stop_reason(&harness.run(run("b")).await), StopReason::EndTurn);
}

#[tokio::test]
async fn a_repeated_request_is_answered_although_the_cap_is_reached() {
    let harness = capped(&json!({"tokens_per_task": 1_000_000, "tokens_per_day": 1_000_000}), None).await;
    harness.provider.enqueue(Reply::from_text("Yes.").usage(used(2_000_000, 1)));
    let request = json!({"task_id": "a", "message": "go", "client_request_id": "one"});
    let events = harness.run(request.clone()).await;
    assert_eq!(told(&events).len(), 4);
    assert_eq!(harness.run(request).await, events);
    refused(&harness, "a").await;
}

#[tokio::test]
async fn turns_at_once_do_not_pass_a_cap_in_dollars_that_none_passes_alone() {
    let prices = json!({"input": 10, "output": 100});
    let harness = capped(&json!({"usd_per_day": 5}), Some(prices)).await;
    let gate = mock_llm::Gate::new();
    for _ in 0..3 {
        harness.provider.enqueue(Reply::from_text("Slowly.").hold(1, &gate).usage(used(700, 100)));
    }
    let mut readers = Vec::new();
    for task in ["a", "b", "c"] {
        readers.push(harness.begin(run(task)).await.unwrap());
        if task != "c" {
            harness.provider.wait_for_requests(readers.len()).await;
        }
    }
    let third = with_deadline(store::testing::read_all(readers.pop().unwrap())).await;
    assert_eq!((stop_reason(&third), told(&third)), (StopReason::Budget, vec![]));
    let requests = harness.provider.requests();
    let output: u64 = requests.iter().map(|request| request.body["max_tokens"].as_u64().unwrap()).sum();
    // A dollar pays for 10,000 tokens of output.
    assert!(requests.len() == 2 && output <= 50_000, "{output}");
    gate.release();
    for reader in readers {
        with_deadline(store::testing::read_all(reader)).await;
    }
}

#[tokio::test]
async fn a_model_without_a_price_is_not_called_under_a_cap_in_dollars() {
    let harness = capped(&json!({"usd_per_task": 5}), None).await;
    let failure = failure(&harness.send("go").await);
    assert_eq!(failure.code, FailureCode::ProviderNotConfigured);
    assert!(failure.message.contains(" first`") && failure.message.contains("prices"), "{}", failure.message);
    assert!(harness.provider.requests().is_empty());
}

#[test]
fn the_lower_of_two_caps_counts() {
    let operator = UsageLimits { tokens_per_day: Some(5), usd_per_day: Some(1.0), ..UsageLimits::default() };
    let product = UsageLimits {
        tokens_per_day: Some(7),
        usd_per_day: Some(0.5),
        tokens_per_task: Some(1),
        ..UsageLimits::default()
    };
    let lowest = UsageLimits {
        tokens_per_day: Some(5),
        usd_per_day: Some(0.5),
        tokens_per_task: Some(1),
        usd_per_task: None,
    };
    assert_eq!(operator.lowest(product), lowest);
}
