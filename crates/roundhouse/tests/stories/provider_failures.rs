//! Story 9: failures of a provider, on both wires, and what the client sees of them.

use std::time::{Duration, Instant};

use mock_llm::{Fault, MockProvider, Refusal, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::schema::assert_event;
use crate::support::turn::{assert_complete_turn, assert_completed, assert_errored, phases, visible_text};
use crate::support::{Event, StandaloneEngine};

const WIRES: [&str; 2] = ["anthropic", "openai"];
const TEXT: &str = "One two three four five six seven eight nine ten.";

/// The events of a turn whose model calls are answered with `replies`, and the number of calls.
async fn turn(wire: &str, replies: impl IntoIterator<Item = Reply>) -> (Vec<Event>, usize) {
    let provider = MockProvider::builder().api_key("provider-key").start().await.unwrap();
    provider.enqueue_all(replies);
    let setup = StandaloneEngine::new().with_provider(wire, &provider);
    let (_program, engine) = setup.start().await;
    let body = json!({"task_id": "task", "message": "Count.", "direct": true, "super_thinking": true});
    let events = engine.execute_with(&body).await.collect().await;
    assert_complete_turn(&events);
    assert_eq!(engine.replay("task", 0).await.collect().await, events);
    (events, provider.requests().len())
}

fn refusal(refusal: Refusal) -> Reply {
    Reply::from_fault(Fault::refuse(refusal))
}

fn text() -> Reply {
    Reply::from_text(TEXT).chars_per_delta(4)
}

#[tokio::test]
async fn thinking_tools_and_text_arrive_from_both_wires() {
    let note = json!({"key": "colour", "value": "green"});
    for wire in WIRES {
        let step = Reply::new()
            .thinking("Let me note this.")
            .text("A moment.")
            .tool_use("working_memory_set", note.clone());
        let (events, calls) = turn(wire, [step, text()]).await;
        assert_eq!((assert_completed(&events), calls), (TEXT, 2), "{wire}");
        assert_eq!(visible_text(&events, "text_delta"), format!("A moment.{TEXT}"), "{wire}");
        if wire == "anthropic" {
            assert_eq!(visible_text(&events, "thinking_delta"), "Let me note this.");
        }
        let call = events.iter().find(|event| event.kind == "tool_call").unwrap();
        assert_eq!((&call.data["tool"], &call.data["input"]), (&json!("working_memory_set"), &note));
        let usage = &events.iter().rfind(|event| event.kind == "usage").unwrap().data;
        assert!(
            usage["input_tokens"].as_u64() > Some(0) && usage["output_tokens"].as_u64() > Some(0),
            "{usage}"
        );
    }
}

#[tokio::test]
async fn a_rate_limit_is_waited_out() {
    for wire in WIRES {
        let start = Instant::now();
        let limit = refusal(Refusal::RateLimited { retry_after_s: Some(1) });
        let (events, calls) = turn(wire, [limit, text()]).await;
        assert!(start.elapsed() >= Duration::from_secs(1), "{wire}: Retry-After is honoured");
        assert_eq!((assert_completed(&events), calls), (TEXT, 2), "{wire}");
        assert_eq!(visible_text(&events, "text_delta"), TEXT, "{wire}");
    }
}

#[tokio::test]
async fn an_overloaded_provider_is_asked_again() {
    for wire in WIRES {
        let (events, calls) = turn(wire, [refusal(Refusal::Overloaded), text()]).await;
        assert_eq!((assert_completed(&events), calls), (TEXT, 2), "{wire}");
        assert_eq!(visible_text(&events, "text_delta"), TEXT, "{wire}");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_before_its_first_word_is_asked_for_again() {
    for wire in WIRES {
        for fault in [Fault::cut_after(0), Fault::error_event_after(0)] {
            let what = format!("{wire}, {fault:?}");
            let (events, calls) = turn(wire, [text().fault(fault), text()]).await;
            assert_eq!((assert_completed(&events), calls), (TEXT, 2), "{what}");
            assert_eq!(visible_text(&events, "text_delta"), TEXT, "{what}");
        }
    }
}

#[tokio::test]
async fn a_broken_stream_whose_text_is_repeated_shows_no_seam() {
    for wire in WIRES {
        for fault in [Fault::cut_after(5), Fault::error_event_after(5), Fault::NoEndMark] {
            let what = format!("{wire}, {fault:?}");
            let (events, calls) = turn(wire, [text().fault(fault), text()]).await;
            assert_eq!((assert_completed(&events), calls), (TEXT, 2), "{what}");
            assert_eq!(phases(&events), ["started", "completed"], "{what}: {events:#?}");
            let all: String =
                events.iter().filter(|event| event.kind == "text_delta").map(Event::text).collect();
            assert_eq!(all, TEXT, "{what}: also for a client that ignores void_after");
        }
    }
}

#[tokio::test]
async fn a_broken_stream_whose_text_departs_voids_what_was_said() {
    let other = "One two buckle my shoe.";
    for wire in WIRES {
        for fault in [Fault::cut_after(5), Fault::error_event_after(5)] {
            let what = format!("{wire}, {fault:?}");
            let (events, calls) = turn(wire, [text().fault(fault), Reply::from_text(other)]).await;
            assert_eq!((assert_completed(&events), calls), (other, 2), "{what}");
            assert_eq!(phases(&events), ["started", "retrying", "completed"], "{what}");
            assert_eq!(visible_text(&events, "text_delta"), other, "{what}");
            let retrying = events.iter().find(|event| event.phase() == Some("retrying")).unwrap();
            assert_eq!(retrying.data["attempt"], 2, "{what}");
            let step = events.iter().position(|event| event.kind == "content_block_start").unwrap();
            assert_eq!(retrying.data["void_after"], events[step - 1].ts(), "{what}");
        }
    }
}

/// Asserts that a turn fails at its only model call, and returns the error.
async fn assert_fails_at_once(wire: &str, reply: Reply) -> Value {
    let what = format!("{wire}, {:?}", reply.fault);
    let (events, calls) = turn(wire, [reply]).await;
    assert_eq!(calls, 1, "{what}: the model is not called again");
    assert_eq!(phases(&events), ["started", "errored"], "{what}");
    let error = assert_errored(&events);
    assert_event("error", error);
    assert!(!error.to_string().contains("provider-key"), "{what}: the error shows the key: {error}");
    error.clone()
}

#[tokio::test]
async fn a_refused_key_ends_the_turn_at_once() {
    for wire in WIRES {
        for reason in [Refusal::Unauthorized, Refusal::Forbidden] {
            let error = assert_fails_at_once(wire, refusal(reason)).await;
            assert_eq!(
                (&error["code"], &error["retryable"]),
                (&json!("PROVIDER_AUTH"), &json!(false)),
                "{wire}"
            );
        }
    }
}

#[tokio::test]
async fn a_refused_request_ends_the_turn_at_once() {
    for wire in WIRES {
        let bad = Refusal::Other {
            status: 400,
            error_type: "invalid_request_error".to_owned(),
            message: "this will not do".to_owned(),
            headers: std::collections::BTreeMap::new(),
        };
        let error = assert_fails_at_once(wire, refusal(bad)).await;
        assert_eq!(
            (&error["code"], &error["retryable"]),
            (&json!("PROVIDER_REFUSED"), &json!(false)),
            "{wire}"
        );
        assert!(error["message"].as_str().unwrap().contains("this will not do"), "{error}");
        assert_fails_at_once(wire, refusal(Refusal::UnknownModel)).await;
    }
}

#[tokio::test]
async fn an_exhausted_account_ends_the_turn_at_once() {
    for wire in WIRES {
        let error = assert_fails_at_once(wire, refusal(Refusal::QuotaExhausted)).await;
        assert_eq!(error["code"], "PROVIDER_UNAVAILABLE", "{wire}: {error}");
    }
}

#[tokio::test]
async fn a_long_wait_ends_the_turn_at_once() {
    for wire in WIRES {
        let later = Refusal::RateLimited { retry_after_s: Some(3_600) };
        let error = assert_fails_at_once(wire, refusal(later)).await;
        assert_eq!(
            (&error["code"], &error["retryable"]),
            (&json!("PROVIDER_UNAVAILABLE"), &json!(true)),
            "{wire}"
        );
    }
}

#[tokio::test]
async fn a_provider_that_is_down_is_asked_five_times() {
    let replies = || std::iter::repeat_with(|| refusal(Refusal::ServerError)).take(9);
    let [anthropic, openai] = WIRES.map(|wire| turn(wire, replies()));
    let (anthropic, openai) = futures::join!(anthropic, openai);
    for (events, calls) in [anthropic, openai] {
        let error = assert_errored(&events);
        assert_eq!((&error["code"], &error["retryable"]), (&json!("PROVIDER_UNAVAILABLE"), &json!(true)));
        assert_eq!(calls, 5);
    }
}

#[tokio::test]
async fn a_task_whose_turn_failed_can_go_on() {
    for wire in WIRES {
        let provider = MockProvider::start().await.unwrap();
        let call = Reply::new().tool_use("working_memory_set", json!({"key": "a", "value": "b"}));
        provider.enqueue_all([call, refusal(Refusal::Unauthorized), text()]);
        let setup = StandaloneEngine::new().with_provider(wire, &provider);
        let (_program, engine) = setup.start().await;
        let body = json!({"task_id": "task", "message": "Count.", "direct": true});
        assert_errored(&engine.execute_with(&body).await.collect().await);
        // The mock provider refuses a history that contains a call without its result.
        assert_eq!(assert_completed(&engine.execute_with(&body).await.collect().await), TEXT, "{wire}");
    }
}

#[tokio::test]
async fn three_failures_in_a_row_show_in_health_and_one_success_mends_it() {
    let provider = MockProvider::start().await.unwrap();
    let setup = StandaloneEngine::new().with_provider("anthropic", &provider);
    let (_program, engine) = setup.start().await;
    let body = json!({"task_id": "task", "message": "Count.", "direct": true});
    for failures in 1..=3 {
        provider.enqueue(refusal(Refusal::Unauthorized));
        assert_errored(&engine.execute_with(&body).await.collect().await);
        let status = if failures < 3 { "ok" } else { "degraded" };
        assert_eq!(engine.health().await["status"], status, "after {failures} failures");
    }
    provider.enqueue(text());
    assert_completed(&engine.execute_with(&body).await.collect().await);
    assert_eq!(engine.health().await["status"], "ok");
    assert_eq!(provider.requests().len(), 4, "a health check calls no model");
    let without_key = engine.request(Method::GET, "/health").send().await.unwrap();
    assert_eq!(without_key.status(), 200);
}

#[tokio::test]
async fn a_providers_own_key_goes_before_the_general_one() {
    for (wire, variable) in [("anthropic", "ANTHROPIC_API_KEY"), ("openai", "OPENAI_API_KEY")] {
        let provider = MockProvider::start().await.unwrap();
        let setup = StandaloneEngine::new().with_provider(wire, &provider).with_env(variable, "its-own-key");
        let (_program, engine) = setup.start().await;
        assert_completed(&engine.execute("task", "Hello!").await.collect().await);
        assert_eq!(provider.requests()[0].api_key(), Some("its-own-key"), "{wire}");
    }
}
