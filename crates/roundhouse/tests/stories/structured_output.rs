//! A request sets a JSON Schema for the final answer of its turn: the answer that the turn completes with matches it, on
//! the wire of each vendor, or the turn ends with a code that says so.

use mock_llm::{Gate, Reply, Wire};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, wait_gate_reached};
use crate::support::http::send;
use crate::support::turn::{assert_completed, assert_errored, of_kind};
use crate::support::{EngineFixture, Event};

/// The names of the models: one for each wire, and two that set the schema in another way.
const MODELS: [&str; Wire::COUNT + 2] =
    ["anthropic", "openai", "responses", "gemini", "ollama", "gemini-2", "compatible"];
const GOOD: &str = r#"{"city":"Bonn","days":[1]}"#;
const BAD: &str = r#"{"city":7}"#;

/// An engine with a model for each wire; the first one is the default.
async fn new_fixture(replies: impl IntoIterator<Item = Reply>) -> EngineFixture {
    EngineFixture::with_models(&MODELS, replies, |setup| setup).await
}

fn schema() -> Value {
    let days = json!({"type": "array", "items": {"type": "integer"}});
    json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": days},
        "required": ["city", "days"],
        "additionalProperties": false,
    })
}

fn format(strict: bool) -> Value {
    json!({"type": "json_schema", "name": "place", "schema": schema(), "strict": strict})
}

fn request(model: &str, strict: bool) -> Value {
    let fields = json!({"model": model, "response_format": format(strict)});
    with_fields(direct_message("task", "Where?"), fields)
}

async fn run_turn(fixture: &EngineFixture, body: &Value) -> Vec<Event> {
    fixture.engine.run_turn_with(body).await
}

/// Where a request to a vendor has the schema natively, and the name of its last tool.
fn sent_form(body: &Value) -> (Value, Value) {
    let native = [
        &body["response_format"]["json_schema"]["schema"],
        &body["text"]["format"]["schema"],
        &body["generationConfig"]["responseJsonSchema"],
        &body["format"],
        &body["output_config"]["format"]["schema"],
    ];
    let native = native.into_iter().find(|schema| !schema.is_null()).cloned().unwrap_or_default();
    let tools = &body["tools"];
    let tools =
        if tools[0]["functionDeclarations"].is_array() { &tools[0]["functionDeclarations"] } else { tools };
    let last = tools.as_array().and_then(|tools| tools.last()).cloned().unwrap_or_default();
    let name = if last["function"].is_object() { &last["function"]["name"] } else { &last["name"] };
    (native, name.clone())
}

#[tokio::test]
async fn each_wire_has_the_schema_in_its_own_form() {
    let fixture = new_fixture([]).await;
    for model in MODELS {
        for strict in [false, true] {
            let is_native =
                matches!(model, "openai" | "responses" | "gemini") || (model == "anthropic" && strict);
            let reply = if is_native {
                Reply::from_text(GOOD)
            } else {
                Reply::new().tool_use("final_answer", serde_json::from_str(GOOD).unwrap())
            };
            fixture.provider.enqueue_all([reply]);
            let events = run_turn(&fixture, &request(model, strict)).await;
            assert_eq!(assert_completed(&events), GOOD, "{model} {strict}");
            assert!(of_kind(&events, "tool_call").is_empty());
            let (native, tool) = sent_form(&fixture.provider.requests().pop().unwrap().body);
            let expected = if is_native { schema() } else { Value::Null };
            assert_eq!((native, tool == "final_answer"), (expected, !is_native), "{model} {strict}");
        }
    }
    fixture.provider.assert_no_refusals();
    // The next turn has no form, and the earlier answers are texts.
    fixture.provider.enqueue_all([Reply::from_text("Hello.")]);
    assert_eq!(assert_completed(&run_turn(&fixture, &direct_message("task", "Hi")).await), "Hello.");
    let (native, tool) = sent_form(&fixture.provider.requests().pop().unwrap().body);
    assert_eq!((native, tool == "final_answer"), (Value::Null, false));
}

#[tokio::test]
async fn an_answer_that_does_not_match_is_corrected_on_each_wire() {
    let fixture = new_fixture([]).await;
    for model in MODELS {
        // In the correction, only a protocol without a field for the schema needs the tool.
        let is_forced = matches!(model, "anthropic" | "compatible");
        let corrected = if is_forced {
            Reply::new().tool_use("final_answer", serde_json::from_str(GOOD).unwrap())
        } else {
            Reply::from_text(GOOD)
        };
        fixture.provider.enqueue_all([Reply::from_text(BAD), corrected]);
        let before = fixture.model_calls();
        let events = run_turn(&fixture, &request(model, false)).await;
        assert_eq!(assert_completed(&events), GOOD, "{model}");
        assert_eq!(fixture.model_calls() - before, 2);
        let body = fixture.provider.requests().pop().unwrap().body;
        let sent = body.to_string();
        assert!(sent.contains("does not match the JSON Schema") && sent.contains("at `/city`"), "{sent}");
        let (native, tool) = sent_form(&body);
        assert_eq!((native.is_null(), tool == "final_answer"), (is_forced, is_forced), "{model}: {body}");
    }
    fixture.provider.assert_no_refusals();
    // Nobody said the notes.
    let listed = Value::from(fixture.engine.messages("task").await).to_string();
    assert!(!listed.contains("JSON Schema"), "{listed}");
}

#[tokio::test]
async fn an_answer_that_still_does_not_match_ends_the_turn_with_a_code() {
    let fixture = new_fixture([Reply::from_text("Bonn."), Reply::from_text(BAD)]).await;
    let events = fixture.engine.execute_with(&request("openai", false)).await.collect().await;
    let error = assert_errored(&events);
    assert_eq!((&error["code"], &error["retryable"]), (&json!("OUTPUT_INVALID"), &json!(true)));
    assert!(error["message"].as_str().unwrap().contains("at `/city`"), "{error}");
    // The task goes on.
    fixture.provider.enqueue_all([Reply::from_text(GOOD)]);
    assert_eq!(assert_completed(&run_turn(&fixture, &request("openai", false)).await), GOOD);
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn the_correction_is_made_even_if_the_turn_may_call_no_model_any_more() {
    let fixture = new_fixture([Reply::from_text(BAD), Reply::from_text(GOOD)]).await;
    let body = with_fields(request("openai", false), json!({"max_turns": 1}));
    assert_eq!(assert_completed(&run_turn(&fixture, &body).await), GOOD);
}

#[tokio::test]
async fn tools_run_before_the_answer() {
    let fixture = new_fixture([]).await;
    for model in MODELS {
        let call = Reply::new().text("A moment.").memory_set("city", model);
        fixture.provider.enqueue_all([call, Reply::from_text(GOOD)]);
        let events = run_turn(&fixture, &request(model, false)).await;
        assert_eq!(assert_completed(&events), GOOD, "{model}");
        assert_eq!(of_kind(&events, "tool_result")[0].data.get("error"), None, "{model}");
    }
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_turn_that_is_killed_in_its_correction_goes_on_with_it() {
    for (fixed, is_completed) in [(GOOD, true), (BAD, false)] {
        let gate = Gate::new();
        let held = Reply::from_text(GOOD).hold(1, &gate);
        let fixture = new_fixture([Reply::from_text(BAD), held]).await;
        let stream = fixture.engine.execute_with(&request("openai", true)).await;
        wait_gate_reached(&gate).await;
        fixture.provider.enqueue_all([Reply::from_text(fixed)]);
        let fixture = fixture.kill_and_start().await;
        drop(stream);
        let events = fixture.engine.replay("task", 0).await.collect().await;
        if is_completed {
            assert_eq!(assert_completed(&events), GOOD);
        } else {
            assert_eq!(assert_errored(&events)["code"], "OUTPUT_INVALID");
        }
        let requests = fixture.provider.requests();
        assert_eq!(requests.len(), 3);
        assert_eq!(requests[1].body["messages"], requests[2].body["messages"]);
        assert_eq!(requests[2].body["response_format"]["json_schema"]["schema"], schema());
    }
}

#[tokio::test]
async fn a_turn_that_a_person_answers_after_a_kill_keeps_its_form() {
    let fixture = new_fixture([Reply::new().ask_user("Which city?")]).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&request("openai", false)).await;
    let fixture = fixture.kill_and_start().await;
    drop(stream);
    fixture.provider.enqueue_all([Reply::from_text("Bonn."), Reply::from_text(GOOD)]);
    fixture.engine.respond("task", "Bonn.").await.assert_ok("status:text request_id:hitl");
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), GOOD);
}

#[tokio::test]
async fn a_corrected_turn_moves_with_an_export() {
    let fixture = new_fixture([Reply::from_text(BAD), Reply::from_text(GOOD)]).await;
    run_turn(&fixture, &request("openai", false)).await;
    let before = fixture.engine.messages("task").await;
    let export = || fixture.engine.request(Method::GET, "/memory/export").send();
    let document = export().await.unwrap().text().await.unwrap();
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    let importing = fixture.engine.request(Method::POST, "/memory/import?mode=replace").body(document);
    assert_eq!(send(importing).await.status, 200);
    assert_eq!(fixture.engine.messages("task").await, before);
    run_turn(&fixture, &direct_message("task", "And now?")).await;
    fixture.last_messages().assert_contains(&["Where?", "at `/city`", "And now?"]);
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_bad_form_is_refused_and_located() {
    let fixture = new_fixture([]).await;
    let nested = (0..40).fold(json!({}), |inner, _| json!({"not": inner}));
    for (member, value, expected) in [
        ("type", json!("json_object"), "`response_format"),
        ("name", json!("two words"), "`response_format"),
        ("strict", json!("yes"), "`response_format"),
        ("schema", json!({"type": "string"}), "`type` `object`"),
        ("schema", json!({"type": "object", "description": "x".repeat(17_000)}), "16384 bytes"),
        ("schema", json!({"type": "object", "not": nested}), "32 deep"),
        ("schema", json!({"type": "object", "properties": {"a": {"type": "text"}}}), "`/properties/a/type`"),
        ("schema", json!({"type": "object", "$ref": "https://example.com/"}), "`response_format.schema`"),
    ] {
        let mut body = request("openai", false);
        body["response_format"][member] = value;
        let answer = fixture.engine.post_execute(&body).await;
        let message = answer.assert_error(400, "INVALID_REQUEST");
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let steering = with_fields(request("openai", false), json!({"on_busy": "steer"}));
    let answer = fixture.engine.post_execute(&steering).await;
    assert!(answer.assert_error(400, "INVALID_REQUEST").contains("`on_busy`"));
    assert_eq!((fixture.model_calls(), fixture.engine.tasks("").await.1), (0, 0));
}

#[tokio::test]
async fn a_skill_answers_in_a_form() {
    let fixture = new_fixture([Reply::from_text("Bonn."), Reply::from_text(GOOD)]).await;
    let skill = json!({"name": "place", "prompt": "You name places."});
    assert_eq!(fixture.engine.post("/skills/create", &skill).await.status, 200);
    let call = json!({
        "method": "skill.place", "params": {"input": "Where?"}, "model": "openai", "response_format": format(true),
    });
    let answer = fixture.engine.post("/rpc", &call).await.assert_ok("result:object");
    assert_eq!(answer["result"]["output"], GOOD);
    assert_eq!(fixture.model_calls(), 2);
    fixture.provider.enqueue_all([Reply::from_text(BAD), Reply::from_text(BAD)]);
    let answer = fixture.engine.post("/rpc", &call).await;
    assert!(answer.assert_flat_error(502, "OUTPUT_INVALID").contains("at `/city`"));
    fixture.provider.assert_no_refusals();
}
