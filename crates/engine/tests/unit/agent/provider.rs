//! Providers that refuse, fail, break off and stall.

use std::collections::BTreeMap;

use api::event::Failure;
use api::event::FailureCode::{
    self, ProviderAuth, ProviderNotConfigured, ProviderRefused, ProviderUnavailable,
};
use mock_llm::{Fault, MockProvider, Refusal, Reply, Usage, Wire};
use pretty_assertions::assert_eq;
use serde_json::json;
use store::testing::read_until;
use testkit::{SseEvent, parse_sse, rendered_text};

use super::harness::{AgentHarness, WIRES, check_turn, failure, final_text, transcript};

/// The `retrying` phases of a turn, each with the event that its `void_after` names.
fn void_targets(events: &[SseEvent]) -> Vec<&SseEvent> {
    let retrying = events.iter().filter(|event| event.phase() == Some("retrying"));
    let target = |event: &SseEvent| {
        let void_after = event.data["void_after"].as_i64().unwrap();
        events.iter().find(|event| event.ts() == void_after).unwrap()
    };
    retrying.map(target).collect()
}

#[tokio::test]
async fn a_busy_provider_is_asked_again_after_the_time_it_wishes() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        let rate_limited = Fault::refuse(Refusal::RateLimited { retry_after_s: Some(3) });
        harness.provider.enqueue_all([
            Reply::from_fault(rate_limited),
            Reply::from_fault(Fault::refuse(Refusal::Overloaded)),
            Reply::from_fault(Fault::refuse(Refusal::ServerError)),
            Reply::from_text("at last"),
        ]);
        let events = harness.send("go").await;
        assert_eq!(final_text(&events), "at last");
        assert!(void_targets(&events).is_empty(), "nothing was streamed that could be void");
        let ms =
            harness.clock.skipped_sleeps().into_iter().map(|sleep| sleep.as_millis()).filter(|ms| *ms > 100);
        let [first, second, third] = ms.collect::<Vec<_>>()[..] else {
            panic!("{:?}", harness.clock.skipped_sleeps())
        };
        assert!(first == 3_000 && (800..=1_200).contains(&second) && (1_600..=2_400).contains(&third));
        harness.provider.assert_no_refusals();
    }
}

const ANSWER: &str = "The quick brown fox jumps over the lazy dog.";

/// The ways in which an answer of ten deltas can break.
fn stream_faults() -> [Fault; 5] {
    let all = Fault::cut_after(usize::MAX);
    [Fault::cut_after(1), Fault::cut_after(5), all, Fault::error_event_after(4), Fault::NoEndMark]
}

#[tokio::test]
async fn an_answer_that_breaks_off_and_is_repeated_shows_no_seam() {
    for (wire, fault) in WIRES.into_iter().flat_map(|wire| stream_faults().map(|fault| (wire, fault))) {
        let harness = AgentHarness::new(wire).await;
        let broken = Reply::from_text(ANSWER).deltas(10).fault(fault.clone());
        harness.provider.enqueue_all([broken.clone(), broken, Reply::from_text(ANSWER).deltas(7)]);
        let events = harness.send("go").await;
        assert_eq!(final_text(&events), ANSWER, "{fault:?}");
        assert_eq!(rendered_text(&events, false), ANSWER, "{fault:?}");
        assert!(void_targets(&events).is_empty(), "{fault:?}");
        assert_eq!(harness.replay(0).await, events);
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_and_departs_is_void() {
    const OTHER: &str = "A slow dog looks on.";
    for (wire, fault) in WIRES.into_iter().flat_map(|wire| stream_faults().map(|fault| (wire, fault))) {
        let harness = AgentHarness::new(wire).await;
        let broken = Reply::from_text(ANSWER).deltas(10).fault(fault.clone());
        harness.provider.enqueue_all([broken.clone(), broken, Reply::from_text(OTHER)]);
        let events = harness.send("go").await;
        assert_eq!(final_text(&events), OTHER, "{fault:?}");
        assert_eq!(rendered_text(&events, true), OTHER, "{fault:?}");
        // Only the opening precedes the step, so everything after it is void.
        assert_eq!(void_targets(&events), [&events[0]], "{fault:?}");
        let attempts = events.iter().filter_map(|event| event.data["attempt"].as_u64());
        assert_eq!(attempts.collect::<Vec<_>>(), [3]);
        assert_eq!(harness.replay(0).await, events);
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn an_empty_answer_is_asked_for_again() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        harness.provider.enqueue_all([Reply::from_text(""), Reply::from_text("at last")]);
        let events = harness.send("go").await;
        assert_eq!(
            (final_text(&events).as_str(), harness.provider.requests().len()),
            ("at last", 2),
            "{wire:?}"
        );
        assert_eq!(rendered_text(&events, true), "at last", "{wire:?}");
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn a_model_whose_answers_stay_empty_ends_the_turn() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        let usage = Usage { input: Some(100), output: Some(1), ..Usage::default() };
        harness.provider.set_default_reply(Reply::from_text(" ").usage(usage));
        let events = harness.send("one").await;
        let failure = failure(&events);
        assert_eq!((failure.code, failure.retryable), (ProviderUnavailable, true), "{wire:?}");
        assert!(failure.message.contains("the model's answer was empty"), "{wire:?} {}", failure.message);
        assert_eq!(harness.provider.requests().len(), 2, "{wire:?}");
        // Both calls are billed, and neither counts against the provider's health.
        let billed = events.iter().filter_map(|event| event.data["input_tokens"].as_u64()).next_back();
        assert_eq!(billed, Some(200), "{wire:?}");
    }
}

#[tokio::test]
async fn only_the_step_that_broke_is_void() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.provider.enqueue_all([
        Reply::new().thinking("Where?").text("I look.").tool_use("list_files", json!({"path": "."})),
        Reply::new().thinking("Hm.").text("Noth").fault(Fault::cut_after(usize::MAX)),
        Reply::from_fault(Fault::refuse(Refusal::Overloaded)),
        Reply::new().thinking("Hm.").text("Nothing."),
    ]);
    let events = harness.run(json!({"task_id": "t", "message": "go", "super_thinking": true})).await;
    assert_eq!(rendered_text(&events, true), "I look.Nothing.");
    assert_eq!(
        void_targets(&events).iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(),
        ["tool_result"]
    );
    // The attempt that broke off is billed all the same.
    let usages: Vec<u64> = events.iter().filter_map(|event| event.data["output_tokens"].as_u64()).collect();
    assert!(usages.len() == 2 && usages[1] > usages[0], "{usages:?}");
    let shape = events.iter().map(|event| event.phase().unwrap_or(&event.kind));
    let shape: Vec<&str> = shape.filter(|name| *name != "usage").collect();
    let retrying = shape.iter().position(|name| *name == "retrying").unwrap();
    assert_eq!(&shape[retrying - 1..retrying + 2], ["content_block_stop", "retrying", "content_block_start"]);
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_provider_that_never_recovers_ends_the_turn_and_the_next_one_is_taken() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        harness.provider.set_default_reply(Reply::from_text("half an ans").fault(Fault::cut_after(2)));
        let events = harness.send("one").await;
        let failure = failure(&events);
        assert_eq!((failure.code, failure.retryable), (ProviderUnavailable, true));
        assert_eq!(harness.provider.requests().len(), 5);
        assert!(void_targets(&events).is_empty(), "each attempt repeated the one before");
        assert_eq!(harness.replay(0).await, events);
        harness.provider.set_default_reply(Reply::echo());
        assert!(final_text(&harness.send("two").await).ends_with("two"));
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn what_asking_again_cannot_mend_ends_the_turn_at_once() {
    let long_wait = Refusal::RateLimited { retry_after_s: Some(31) };
    let no_retry = Refusal::Other {
        status: 529,
        error_type: "overloaded_error".into(),
        message: "go away".into(),
        headers: BTreeMap::from([("x-should-retry".into(), "false".into())]),
    };
    for wire in WIRES {
        for (refusal, code, retryable) in [
            (Refusal::Unauthorized, ProviderAuth, false),
            (Refusal::Forbidden, ProviderAuth, false),
            (Refusal::UnknownModel, ProviderRefused, false),
            (Refusal::PromptTooLong, ProviderRefused, false),
            (no_retry.clone(), ProviderUnavailable, true),
            (long_wait.clone(), ProviderUnavailable, true),
        ] {
            let harness = AgentHarness::new(wire).await;
            harness.provider.enqueue(Reply::from_fault(Fault::refuse(refusal.clone())));
            let events = harness.send("one").await;
            let failure = failure(&events);
            assert_eq!((failure.code, failure.retryable), (code, retryable), "{refusal:?}");
            assert!(!failure.message.contains("sk-1"));
            assert_eq!(harness.provider.requests().len(), 1, "{refusal:?}");
            // The provider still accepts a history with an unanswered question.
            assert!(final_text(&harness.send("two").await).ends_with("two"));
            harness.provider.assert_no_refusals();
        }
    }
}

#[tokio::test]
async fn an_account_without_credit_is_not_asked_again() {
    let harness = AgentHarness::new(Wire::OpenAiChat).await;
    harness.provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::QuotaExhausted)));
    let failure = failure(&harness.send("one").await);
    assert_eq!((failure.code, failure.retryable), (ProviderUnavailable, false));
    assert_eq!(harness.provider.requests().len(), 1);
}

#[tokio::test]
async fn an_errored_turn_as_a_client_sees_it() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.provider.enqueue_all([
        Reply::new().text("I look.").tool_use("list_files", json!({"path": "."})),
        Reply::from_fault(Fault::refuse(Refusal::Unauthorized)),
    ]);
    let events = harness.send("go").await;
    let without_usage: Vec<SseEvent> = events.into_iter().filter(|event| event.kind != "usage").collect();
    insta::assert_snapshot!(transcript(&without_usage));
}

async fn failure_with(pairs: &[(&str, &str)]) -> Failure {
    let harness = AgentHarness::with_env(pairs, MockProvider::start().await.unwrap(), Vec::new());
    failure(&harness.send("hi").await)
}

#[tokio::test]
async fn without_a_provider_the_error_says_what_to_set() {
    for (pairs, expected) in [
        (&[][..], "LLM_PROVIDER is not set"),
        (&[("LLM_PROVIDER", "anthropic")], "ANTHROPIC_API_KEY is not set"),
        (&[("LLM_PROVIDER", "openai"), ("LLM_API_KEY", "two\nlines")], "key contains characters"),
    ] {
        let failure = failure_with(pairs).await;
        assert_eq!(failure.code, ProviderNotConfigured);
        assert!(failure.message.contains(expected) && !failure.retryable, "{}", failure.message);
    }
}

#[tokio::test]
async fn a_provider_that_is_not_there_is_unavailable() {
    // Nobody listens on a port that was just released.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let pairs = [("LLM_PROVIDER", "anthropic"), ("LLM_API_KEY", "k"), ("LLM_BASE_URL", &base)];
    let failure = failure_with(&pairs).await;
    assert_eq!((failure.code, failure.retryable), (ProviderUnavailable, true));
    assert!(failure.message.contains("could not be reached"), "{}", failure.message);
}

#[tokio::test]
async fn a_provider_that_falls_silent_is_given_up_in_the_end() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.provider.enqueue_all([
        Reply::from_text("and then").deltas(4).fault(Fault::hang_after(2)),
        Reply::from_text("and then all was well"),
    ]);
    let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    let mut events = read_until(&mut reader, |event| event.kind == "text_delta").await;
    // From here on only time passes; it is advanced second by second until the call times out and the retry
    // delay begins.
    tokio::time::pause();
    while !harness.clock.skipped_sleeps().iter().any(|sleep| sleep.as_millis() > 100) {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    tokio::time::resume();
    while let Some(more) = reader.next().await.unwrap() {
        events.extend(parse_sse(&more));
    }
    assert_eq!(check_turn(&events), Ok(()));
    assert_eq!(final_text(&events), "and then all was well");
    assert_eq!(rendered_text(&events, false), "and then all was well");
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn each_failure_code_reaches_health_only_if_it_is_the_providers() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let gateway = &harness.agent.services.gateway;
    for refusal in [Refusal::PromptTooLong, Refusal::Unauthorized, Refusal::Unauthorized] {
        harness.provider.enqueue(Reply::from_fault(Fault::refuse(refusal)));
        let code: FailureCode = failure(&harness.send("go").await).code;
        assert!(matches!(code, ProviderRefused | ProviderAuth));
        assert_eq!(gateway.status(), "ok");
    }
    harness.provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::Unauthorized)));
    harness.send("go").await;
    assert!(gateway.status().starts_with("the last 3 calls failed"), "{}", gateway.status());
    assert_eq!(final_text(&harness.send("well").await), "well");
    assert_eq!(gateway.status(), "ok");
}
