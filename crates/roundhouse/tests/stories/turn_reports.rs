//! A caller that reads no stream gets the outcome of a turn in one piece, also what the turn waits for.

use mock_llm::{Gate, Reply};
use serde_json::{Value, json};

use crate::support::EngineFixture;
use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, wait_gate_reached, write_file_reply};
use crate::support::http::{HttpResponse, client, send};

fn unstreamed(text: &str, fields: Value) -> Value {
    with_fields(with_fields(direct_message("täsk", text), json!({"stream": false})), fields)
}

/// The report of a turn, after at most `wait_s` seconds.
async fn result(fixture: &EngineFixture, turn: &Value, wait_s: u32) -> HttpResponse {
    let turn = turn.as_str().unwrap();
    fixture.engine.get(&format!("/tasks/t%C3%A4sk/turns/{turn}/result?wait={wait_s}")).await
}

async fn post_execute(fixture: &EngineFixture, accept: &str, body: &Value) -> HttpResponse {
    let request = client()
        .post(format!("{}/execute", fixture.engine.url))
        .header("X-Engine-Key", &fixture.engine.key)
        .header("Accept", accept);
    send(request.json(body)).await
}

#[tokio::test]
async fn the_whole_turn_is_one_answer() {
    let call = Reply::new().text("Einen Moment.").memory_set("ort", "Köln");
    let fixture = EngineFixture::new([call, Reply::from_text("Köln, grüß Gott.")]).await;
    let response = fixture.engine.post("/execute", &unstreamed("Wohin?", json!({}))).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let report = response.body;
    assert_eq!((&report["status"], &report["text"]), (&json!("completed"), &json!("Köln, grüß Gott.")));
    assert_eq!((&report["task_id"], &report["stop_reason"]), (&json!("täsk"), &json!("end_turn")));
    assert_eq!(report["tool_call_count"], 1);
    assert_eq!((&report["tool_calls"][0]["finished"], &report["pending"]), (&json!(true), &json!([])));
    assert!(report["usage"]["output_tokens"].as_u64().unwrap() > 0, "{report}");
    // The same is looked up later, also by another engine process.
    let fixture = fixture.kill_and_start().await;
    assert_eq!(result(&fixture, &report["turn_id"], 0).await.body, report);
    // Its last event is the last one of the task.
    let last = &report["last_ts"];
    assert!(fixture.engine.replay("täsk", last.as_i64().unwrap()).await.collect().await.is_empty());
}

#[tokio::test]
async fn accept_chooses_the_form_only_if_it_names_nothing_else() {
    let fixture = EngineFixture::new((0..4).map(|_| Reply::from_text("Hello."))).await;
    let body = direct_message("task", "Hi");
    for (accept, is_json) in [
        ("application/json", true),
        ("application/json;q=0.9", true),
        ("application/json, text/plain, */*", false),
    ] {
        let response = post_execute(&fixture, accept, &body).await;
        let content_type = response.header("content-type").unwrap().to_owned();
        assert_eq!(content_type.starts_with("application/json"), is_json, "{accept}: {content_type}");
    }
    let body = with_fields(body, json!({"stream": true}));
    let response = post_execute(&fixture, "application/json", &body).await;
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
}

#[tokio::test]
async fn a_turn_that_waits_for_a_person_answers_at_once_and_goes_on_when_answered() {
    let fixture = EngineFixture::new([write_file_reply("notes.txt"), Reply::from_text("Done.")]).await;
    let response = fixture.engine.post("/execute", &unstreamed("Write.", json!({}))).await;
    assert_eq!((response.status, &response.body["status"]), (200, &json!("waiting_for_person")));
    let turn = response.body["turn_id"].clone();
    let request = response.body["pending"][0].clone();
    assert_eq!(request["kind"], "permission");
    assert_eq!(response.body["approvals"][0]["tool"], "write_file");
    let fixture = fixture.kill_and_start().await;
    let again = result(&fixture, &turn, 60).await;
    assert_eq!((again.status, &again.body["pending"]), (200, &json!([request])));
    assert_eq!(fixture.engine.respond("täsk", "yes").await.status, 200);
    let report = result(&fixture, &turn, 60).await;
    assert_eq!((report.status, &report.body["text"]), (200, &json!("Done.")));
    assert_eq!((&report.body["pending"], &report.body["approvals"]), (&json!([]), &json!([])));
}

#[tokio::test]
async fn a_wait_ends_and_the_turn_does_not() {
    let gate = Gate::new();
    let held = Reply::from_text("At last.").hold(1, &gate);
    let fixture = EngineFixture::new([held, Reply::from_text("And again.")]).await;
    let response = fixture.engine.post("/execute?wait=0", &unstreamed("Think.", json!({}))).await;
    assert_eq!((response.status, &response.body["status"]), (202, &json!("running")));
    wait_gate_reached(&gate).await;
    let queued = unstreamed("Then this.", json!({"on_busy": "queue"}));
    let queued = fixture.engine.post("/execute?wait=0", &queued).await;
    assert_eq!((queued.status, &queued.body["status"]), (202, &json!("queued")));
    assert_eq!(queued.body["position"], 1);
    let first = response.body["turn_id"].clone();
    let (waited, later) = tokio::join!(result(&fixture, &first, 60), async {
        gate.release();
        result(&fixture, &queued.body["turn_id"], 60).await
    });
    assert_eq!((waited.status, &waited.body["text"]), (200, &json!("At last.")));
    assert_eq!((later.status, &later.body["text"]), (200, &json!("And again.")));
    for (query, field) in [("wait=91", "wait"), ("wait=soon", "wait")] {
        let refused = fixture.engine.post(&format!("/execute?{query}"), &unstreamed("No.", json!({}))).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(field));
    }
    result(&fixture, &json!("turn_x"), 0).await.assert_error(404, "TURN_NOT_FOUND");
}

#[tokio::test]
async fn the_end_of_the_engine_ends_the_wait_but_not_the_turn() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("Half an answer.").hold(1, &gate)]).await;
    let sent = fixture.engine.execute_in_background(direct_message("täsk", "Think.")).await;
    wait_gate_reached(&gate).await;
    let (engine, turn) = (fixture.engine.clone(), sent["turn_id"].clone());
    let path = format!("/tasks/t%C3%A4sk/turns/{}/result", turn.as_str().unwrap());
    let waiting = tokio::spawn(async move { engine.get(&path).await });
    fixture.provider.enqueue(Reply::from_text("Half an answer."));
    let fixture = fixture.stop_and_start().await;
    let response = waiting.await.unwrap();
    assert_eq!((response.status, &response.body["status"]), (202, &json!("running")), "{}", response.body);
    let report = result(&fixture, &turn, 60).await;
    assert_eq!((report.status, &report.body["text"]), (200, &json!("Half an answer.")));
}

#[tokio::test]
async fn a_failure_and_a_cancellation_are_outcomes() {
    let (gate, refusal) = (Gate::new(), Reply::from_text("not JSON"));
    let format = json!({"type": "json_schema", "name": "a", "schema": {"type": "object"}});
    let replies = [
        refusal.clone(),
        refusal,
        Reply::from_text("{\"a\": \"ü\"}"),
        Reply::from_text("x y").hold(1, &gate),
    ];
    let fixture = EngineFixture::for_wire("openai", replies).await;
    let structured = unstreamed("As JSON.", json!({"response_format": format}));
    let failed = fixture.engine.post("/execute", &structured).await;
    assert_eq!((failed.status, &failed.body["status"]), (200, &json!("failed")));
    assert_eq!(failed.body["error"]["code"], "OUTPUT_INVALID");
    let good = fixture.engine.post("/execute", &structured).await;
    assert_eq!(good.body["output"], json!({"a": "ü"}), "{}", good.body);
    let started = fixture.engine.post("/execute?wait=0", &unstreamed("Think.", json!({}))).await;
    wait_gate_reached(&gate).await;
    let turn = &started.body["turn_id"];
    let (cancelled, _) = tokio::join!(result(&fixture, turn, 60), fixture.engine.cancel("täsk"));
    assert_eq!((cancelled.status, &cancelled.body["status"]), (200, &json!("cancelled")));
}

#[tokio::test]
async fn unknown_fields_are_named_in_a_header() {
    let fixture = EngineFixture::new((0..3).map(|_| Reply::from_text("Hello."))).await;
    let body = unstreamed("Hi", json!({"massage": 1, "grüße": {"a": 1}}));
    let response = fixture.engine.post("/execute", &body).await;
    assert_eq!(response.header("roundhouse-warning"), Some("unknown fields: gr??e, massage"));
    let streamed =
        post_execute(&fixture, "text/event-stream", &with_fields(body, json!({"stream": true}))).await;
    assert!(streamed.header("roundhouse-warning").unwrap().contains("massage"));
    let plain = fixture.engine.post("/execute", &unstreamed("Hi", json!({}))).await;
    assert_eq!((plain.status, plain.header("roundhouse-warning")), (200, None));
}
