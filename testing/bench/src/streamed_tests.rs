use api::event::{Delta, Failure, FailureCode, StopReason};
use api::{MessageId, TaskId, TurnId};
use http_body_util::Full;
use hyper::Method;
use mock_llm::{Fault, Reply};

use super::*;
use crate::client::parse_address;
use crate::front::Front;
use crate::provider::FixedReplyProvider;

fn started() -> Event {
    Event::ThreadLifecycle(Lifecycle::Started { message_id: MessageId::new() })
}

fn delta(text: &str) -> Event {
    Event::TextDelta(Delta { text: text.into() })
}

fn completed(text: &str) -> Event {
    let (message_id, answer_message_id) = (MessageId::new(), MessageId::new());
    let (text, stop_reason) = (text.to_owned(), StopReason::EndTurn);
    Event::ThreadLifecycle(Lifecycle::Completed { message_id, answer_message_id, text, stop_reason })
}

/// A response with these events (`ts` and event), which arrive at the client 1 ms apart.
fn response(events: Vec<(i64, Event)>) -> StreamedResponse {
    let sent = Instant::now();
    let (task_id, turn_id) = (TaskId::new("t").unwrap(), TurnId::new());
    let mut at = sent;
    let sse = events.into_iter().map(|(ts, event)| {
        at += Duration::from_millis(1);
        let sent = SentEvent { task_id: task_id.clone(), turn_id, ts, event };
        let text = sent.to_sse().unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(|line| line.trim_start_matches(": ").to_owned())
        };
        (at, Sse { event: field("event"), data: field("data"), id: field("id"), retry: None })
    });
    StreamedResponse { sent, events: sse.collect() }
}

#[test]
fn a_turn_is_timed_and_put_together() {
    let events = vec![(5, started()), (6, delta("one ")), (9, delta("two")), (10, completed("one two"))];
    let text = response(events).turn_text().unwrap();
    assert_eq!(text.text, "one two");
    assert_eq!(text.first, Duration::from_millis(2));
    assert_eq!(text.last, Duration::from_millis(3));
}

#[test]
fn a_wrong_turn_is_an_error() {
    let failure = Failure { code: FailureCode::InternalError, message: "no".into(), retryable: false };
    for (events, named) in [
        (vec![(5, started()), (6, delta("a"))], "did not complete"),
        (vec![(5, started()), (6, delta("a")), (7, completed("ab"))], "final text"),
        (vec![(5, started()), (7, delta("a")), (6, delta("b")), (8, completed("ab"))], "the time 6"),
        (vec![(5, started()), (6, delta("a")), (6, delta("b")), (8, completed("ab"))], "the time 6"),
        (vec![(5, started()), (6, delta("a")), (7, completed("a")), (8, delta("b"))], "after the turn's end"),
        (vec![(5, delta("a")), (6, started()), (7, completed("a"))], "event 0"),
        (vec![(5, started()), (6, delta("a")), (7, Event::Error(failure))], "went wrong"),
        (vec![(5, started()), (6, completed(""))], "no text"),
        (vec![], "did not complete"),
    ] {
        let error = response(events).turn_text().unwrap_err().to_string();
        assert!(error.contains(named), "{error} ({named})");
    }
}

/// A handwritten request that the provider accepts.
fn request(client: &Client, wire: Wire) -> HttpRequest {
    let message = serde_json::json!({"role": "user", "content": "count"});
    let (name, value, body) = match wire {
        Wire::Anthropic => {
            let body =
                serde_json::json!({"model": "m", "max_tokens": 9, "stream": true, "messages": [message]});
            ("x-api-key", "k", body)
        }
        Wire::OpenAi => {
            let body = serde_json::json!({"model": "m", "stream": true, "messages": [message]});
            ("authorization", "Bearer k", body)
        }
        Wire::Responses => {
            let body = serde_json::json!({"model": "m", "stream": true, "store": false, "input": [message]});
            ("authorization", "Bearer k", body)
        }
        Wire::Gemini => {
            let content = serde_json::json!({"role": "user", "parts": [{"text": "count"}]});
            ("x-goog-api-key", "k", serde_json::json!({"contents": [content]}))
        }
        Wire::Ollama => {
            ("authorization", "Bearer k", serde_json::json!({"model": "m", "messages": [message]}))
        }
    };
    let request = client.request(Method::POST, wire.path()).header(name, value);
    request.header("anthropic-version", "2023-06-01").body(Full::from(body.to_string())).unwrap()
}

#[tokio::test]
async fn a_providers_answer_is_read_on_every_wire() {
    for wire in Wire::ALL {
        let provider = FixedReplyProvider::start(Reply::from_text("some text in deltas")).await.unwrap();
        let mut client = Client::connect(parse_address(&provider.base_url()).unwrap()).await.unwrap();
        let request = request(&client, wire);
        let response = send_to_provider(&mut client, request, wire).await;
        let text = response.unwrap().provider_text(wire).unwrap();
        assert_eq!(text.text, "some text in deltas");
        assert!(text.first <= text.last);
        assert!(provider.last_request().is_ok());
        provider.check_and_clear().unwrap();
    }
}

#[tokio::test]
async fn a_providers_answer_that_is_cut_off_or_refused_is_an_error() {
    for fault in [Fault::NoEndMark, Fault::cut_after(2), Fault::refuse(mock_llm::Refusal::Overloaded)] {
        let provider =
            FixedReplyProvider::start(Reply::from_text("some text in deltas").fault(fault)).await.unwrap();
        let mut client = Client::connect(parse_address(&provider.base_url()).unwrap()).await.unwrap();
        let request = request(&client, Wire::OpenAi);
        let response = send_sse(&mut client, request).await;
        assert!(response.and_then(|response| response.provider_text(Wire::OpenAi)).is_err());
    }
}

#[tokio::test]
async fn a_request_that_breaks_the_protocol_is_an_error_later_at_the_latest() {
    let provider = FixedReplyProvider::start(Reply::from_text("text")).await.unwrap();
    let mut client = Client::connect(parse_address(&provider.base_url()).unwrap()).await.unwrap();
    let execute = serde_json::to_string(&serde_json::json!({"no": "model"})).unwrap();
    let request = client.request(Method::POST, Wire::OpenAi.path()).body(Full::from(execute)).unwrap();
    assert!(send_sse(&mut client, request).await.is_err());
    assert!(provider.check_and_clear().is_err());
}

#[test]
fn a_stream_of_another_protocol_needs_its_end() {
    let messages = |all: &[&str]| {
        let at = Instant::now();
        let sse = |data: &&str| (at, Sse { data: Some((*data).to_owned()), ..Sse::default() });
        StreamedResponse { sent: at, events: all.iter().map(sse).collect() }
    };
    let delta = r#"{"type": "TEXT_MESSAGE_CONTENT", "delta": "one"}"#;
    let end = r#"{"type": "RUN_FINISHED"}"#;
    let read = |all: &[&str]| Front::AgUi.text(&messages(all)).map(|text| text.text);
    assert_eq!(read(&[delta, end]).unwrap(), "one");
    for wrong in [vec![delta], vec![end], vec![delta, end, delta], vec![delta, r#"{"type": "RUN_ERROR"}"#]] {
        assert!(read(&wrong).is_err(), "{wrong:?}");
    }
    let text = r#"{"result": {"artifactUpdate": {"artifact": {"parts": [{"text": "one"}]}}}}"#;
    let state =
        |name: &str| format!(r#"{{"result": {{"statusUpdate": {{"status": {{"state": "{name}"}}}}}}}}"#);
    let (completed, failed) = (state("TASK_STATE_COMPLETED"), state("TASK_STATE_FAILED"));
    assert_eq!(Front::AgentToAgent.text(&messages(&[text, &completed])).unwrap().text, "one");
    Front::AgentToAgent.text(&messages(&[text, &failed])).unwrap_err();
}
