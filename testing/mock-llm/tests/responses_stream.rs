//! The answers of the Responses wire, streamed and complete.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{events, provider, responses_call, responses_request, send_ok, send_stream, with_members};
use mock_llm::{Fault, Refusal, Reply, Stop, Usage};
use serde_json::{Value, json};

fn rich_reply() -> Reply {
    Reply::new()
        .thinking("Hmm.")
        .text("I look.")
        .tool_use_with_id("call_a", "look", json!({"at": "sky"}))
        .deltas(2)
        .usage(Usage {
            input: Some(10),
            output: Some(20),
            cache_read: 3,
            cache_write: 0,
            reasoning: Some(5),
            withheld: false,
        })
}

#[tokio::test]
async fn a_stream_has_the_documented_events() {
    let provider = provider().await;
    provider.enqueue_all([rich_reply(), rich_reply()]);
    let body = with_members(responses_request(), json!({"stream": true}));
    let (text, ended) = send_stream(responses_call(&provider, &body)).await;
    assert!(ended);
    let events = events(&text);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.trim_start_matches("response.")).collect();
    let expected = "created in_progress \
        output_item.added reasoning_summary_part.added reasoning_summary_text.delta reasoning_summary_text.delta \
        reasoning_summary_text.done reasoning_summary_part.done output_item.done \
        output_item.added content_part.added output_text.delta output_text.delta output_text.done content_part.done \
        output_item.done \
        output_item.added function_call_arguments.delta function_call_arguments.delta function_call_arguments.done \
        output_item.done completed";
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
    }
    let events_named = |wanted: &str| {
        events.iter().filter(|(name, _)| name == wanted).map(|(_, data)| data).collect::<Vec<_>>()
    };
    let joined_deltas = |wanted: &str| {
        events_named(wanted).iter().map(|data| data["delta"].as_str().unwrap()).collect::<String>()
    };
    assert_eq!(joined_deltas("response.reasoning_summary_text.delta"), "Hmm.");
    assert_eq!(joined_deltas("response.output_text.delta"), "I look.");
    assert_eq!(joined_deltas("response.function_call_arguments.delta"), "{\"at\":\"sky\"}");

    // The last event has all items as in the events that end them.
    let ends: Vec<&Value> =
        events_named("response.output_item.done").iter().map(|data| &data["item"]).collect();
    let response = &events_named("response.completed")[0]["response"];
    assert_eq!(response["output"].as_array().unwrap().iter().collect::<Vec<_>>(), ends);
    // The encrypted content at the start of an item is not yet the one that the client must send back.
    let opening = &events_named("response.output_item.added")[0]["item"]["encrypted_content"];
    assert!(opening.is_string() && opening != &ends[0]["encrypted_content"]);

    let answer = send_ok(responses_call(&provider, &responses_request())).await;
    let counts = &answer["usage"];
    assert_eq!((&counts["input_tokens"], &counts["output_tokens"]), (&json!(13), &json!(20)));
    assert_eq!(counts["input_tokens_details"]["cached_tokens"], 3);
    assert_eq!(counts["output_tokens_details"]["reasoning_tokens"], 5);
    assert_eq!((&answer["status"], &answer["object"]), (&json!("completed"), &json!("response")));
    assert_eq!(answer["output"][2]["call_id"], "call_a");
}

#[tokio::test]
async fn reasoning_is_shown_as_far_as_it_was_asked_for() {
    let provider = provider().await;
    provider.set_default_reply(Reply::new().thinking("Hmm.").redacted_thinking().text("Yes."));
    let plain = with_members(responses_request(), json!({"include": null, "reasoning": null}));
    let answer = send_ok(responses_call(&provider, &plain)).await;
    assert_eq!(
        (&answer["output"][0]["summary"], answer["output"][0].get("encrypted_content")),
        (&json!([]), None)
    );
    let detailed = send_ok(responses_call(&provider, &responses_request())).await;
    assert_eq!(detailed["output"][0]["summary"], json!([{"type": "summary_text", "text": "Hmm."}]));
    assert_eq!(detailed["output"][1]["summary"], json!([]));
    assert!(detailed["output"][1]["encrypted_content"].is_string());
}

#[tokio::test]
async fn a_cut_answer_is_incomplete() {
    let provider = provider().await;
    provider.set_default_reply(Reply::from_text("cut").stop(Stop::MaxTokens));
    let answer = send_ok(responses_call(&provider, &responses_request())).await;
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(answer["output"][0]["status"], "incomplete");
    let body = with_members(responses_request(), json!({"stream": true}));
    let (text, _) = send_stream(responses_call(&provider, &body)).await;
    assert_eq!(events(&text).pop().unwrap().0, "response.incomplete");
}

#[tokio::test]
async fn an_error_within_a_stream_fails_the_response() {
    let provider = provider().await;
    let fault = Fault::error_event_with(1, Refusal::QuotaExhausted);
    provider.set_default_reply(Reply::from_text("0123").chars_per_delta(1).fault(fault));
    let body = with_members(responses_request(), json!({"stream": true}));
    let (text, ended) = send_stream(responses_call(&provider, &body)).await;
    assert!(ended);
    let events = events(&text);
    let [.., delta, (first, error), (last, failed)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(delta.1["delta"], "0");
    assert_eq!((first.as_str(), last.as_str()), ("error", "response.failed"));
    assert_eq!(error["error"]["code"], "insufficient_quota");
    assert_eq!(error["sequence_number"], events.len() - 2);
    assert_eq!(failed["sequence_number"], events.len() - 1);
    assert_eq!(
        (&failed["response"]["status"], &failed["response"]["error"]["code"]),
        (&json!("failed"), &json!("insufficient_quota"))
    );
}
