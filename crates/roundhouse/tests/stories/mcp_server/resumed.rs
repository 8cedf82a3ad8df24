//! Calls whose connection broke are taken up again, by the official SDK and by hand.

use mock_llm::{Gate, Reply};
use reqwest::RequestBuilder;
use serde_json::json;

use super::{ask, assert_refused, begin_session, in_session, message, post, sdk_at};
use crate::support::engine_fixture::{ReplyExt as _, wait_gate_reached, write_file_reply};
use crate::support::http::{client, send};
use crate::support::tcp_forwarder::TcpForwarder;
use crate::support::{EngineFixture, with_deadline};

#[tokio::test]
async fn the_sdk_takes_a_call_up_again_after_a_kill() {
    let gate = Gate::new();
    let text = "Es war einmal ein längerer Text, der in vielen Stücken kam.";
    let fixture = EngineFixture::new([Reply::from_text(text).deltas(12).hold(6, &gate)]).await;
    let forwarder = TcpForwarder::bind_patient(fixture.engine.url.replace("http://", "").parse().unwrap());
    let url = format!("http://{}", forwarder.address);
    let Some(mut client) = sdk_at(&url, &fixture.engine.key, "resumed", "legacy") else { return };
    client.wait_for("The agent writes.").await;
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue(Reply::from_text(text).deltas(12));
    let fixture = fixture.kill_and_start().await;
    let shown = client.finish().await;
    let [.., answer, turns] = &*shown else { panic!("{shown:?}") };
    assert_eq!((&answer["text"], turns), (&json!(text), &json!({"turns": ["completed"]})));
    // Each message came once.
    let progress = answer["progress"].as_array().unwrap();
    let numbers: Vec<f64> = progress.iter().map(|report| report[0].as_f64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|before, after| before < after), "{progress:?}");
    let said =
        |words: &str| progress.iter().filter(|report| report[1].as_str().unwrap().contains(words)).count();
    assert_eq!((said("began"), said("goes on after a restart")), (1, 1), "{progress:?}");
    assert_eq!(fixture.model_calls(), 2);
}

#[tokio::test]
async fn a_question_is_answered_to_a_call_that_is_taken_up_after_a_kill() {
    let fixture = EngineFixture::new([write_file_reply("a.txt"), Reply::from_text("Done.")]).await;
    let forwarder = TcpForwarder::bind_patient(fixture.engine.url.replace("http://", "").parse().unwrap());
    let url = format!("http://{}", forwarder.address);
    let Some(mut client) = sdk_at(&url, &fixture.engine.key, "asked_over_a_kill", "legacy") else { return };
    client.wait_for("\"asked\"").await;
    let fixture = fixture.kill_and_start().await;
    client.press_enter().await;
    assert_eq!(client.finish().await, [json!({"asked": 1}), json!({"text": "Done.", "asked": 1})]);
    assert!(fixture.setup.workspace().join("a.txt").exists());
    assert_eq!(fixture.model_calls(), 2);
}

/// The events of a stream: their ids and data.
async fn stream_with_ids(request: RequestBuilder) -> Vec<(String, String)> {
    let response = with_deadline("the stream begins", request.send()).await.unwrap();
    assert_eq!(response.status(), 200);
    let text = with_deadline("the stream ends", response.text()).await.unwrap();
    let events = text.split_terminator("\n\n").filter(|event| event.starts_with("id: "));
    let field = |event: &str, name: &str| {
        let line = event.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {event}")).trim().to_owned()
    };
    events.map(|event| (field(event, "id: "), field(event, "data:"))).collect()
}

fn take_up(fixture: &EngineFixture, session: &str, id: &str) -> RequestBuilder {
    let request = client().get(format!("{}/mcp", fixture.engine.url)).bearer_auth(&fixture.engine.key);
    in_session(request, session).header("Accept", "text/event-stream").header("Last-Event-ID", id)
}

#[tokio::test]
async fn a_call_is_taken_up_after_each_of_its_events_also_after_a_kill() {
    let replies =
        [Reply::new().thinking("Hm.").text("Moment.").memory_set("a", "b"), Reply::from_text("Done.")];
    let fixture = EngineFixture::new(replies).await;
    let session = begin_session(&fixture, "2025-11-25").await;
    let call = json!({
        "name": "ask", "arguments": {"message": "Do it.", "task_id": "task"}, "_meta": {"progressToken": "p"},
    });
    let call = in_session(post(&fixture, message("c", "tools/call", &call)), &session);
    let all = stream_with_ids(call).await;
    assert!(all.len() >= 5 && all[0].1.is_empty(), "{all:?}");
    assert!(all.last().unwrap().1.contains("Done."), "{all:?}");
    let fixture = fixture.kill_and_start().await;
    for (at, (id, _)) in all.iter().enumerate() {
        assert_eq!(stream_with_ids(take_up(&fixture, &session, id)).await, all[at + 1..], "after {at}");
    }
    // An earlier revision has ids, but no event without a message, which its callers do not expect.
    let earlier = begin_session(&fixture, "2025-06-18").await;
    fixture.provider.enqueue(Reply::from_text("Done."));
    let plain = stream_with_ids(in_session(post(&fixture, ask(1, "other")), &earlier)).await;
    assert_eq!(plain.len(), 1, "{plain:?}");
    // What names no event of a call.
    let refused = async |id: &str, status, code| {
        assert_refused(&send(take_up(&fixture, &session, id)).await, status, code);
    };
    refused("a", 400, -32600).await;
    refused(&session, 400, -32600).await;
    assert_refused(&send(take_up(&fixture, "a", &all[0].0)).await, 404, -32600);
    let other_revision = take_up(&fixture, &session, &all[0].0).header("MCP-Protocol-Version", "2026-07-28");
    assert_refused(&send(other_revision).await, 405, -32600);
    assert_eq!(fixture.engine.delete("/tasks/task").await.status, 200);
    refused(&all[0].0, 404, -32600).await;
}
