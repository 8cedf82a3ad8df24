//! Other agents send an engine messages in the Agent2Agent protocol: with the official SDK, and by hand where the SDK is
//! too polite.

use mock_llm::{Gate, MockProvider, Reply};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{PNG_BASE64, ProxiedEngine, wait_gate_reached, write_file_reply};
use crate::support::http::{HttpResponse, client, send};
use crate::support::peers::Peers;
use crate::support::sdk_client::SdkClient;
use crate::support::{EngineFixture, Fleet, with_deadline};

/// Starts the SDK; skips the story and returns `None` if it is not installed.
fn sdk(scenario: &str, fixture: &EngineFixture) -> Option<SdkClient> {
    sdk_at(&fixture.engine.url, &fixture.engine.key, scenario)
}

fn sdk_at(url: &str, key: &str, scenario: &str) -> Option<SdkClient> {
    Some(Peers::installed()?.start_client("python-a2a", "a2a_client.py", &[scenario, url, key]))
}

#[tokio::test]
async fn the_sdk_discovers_sends_and_lists() {
    let soul = "---\nname: Ada's agent\ndescription: Knows Ada's work.\n---\nYou are an assistant.";
    let skill = "---\nname: meeting-notes\ndescription: Writes minutes.\n---\nWrite minutes.";
    let replies = ["Ada.", "Mehr.", "Neu.", "Am Stück, ganz."].map(Reply::from_text);
    let fixture = EngineFixture::with_setup("anthropic", replies, |setup| {
        setup.with_catalog_file("soul.md", soul).with_catalog_file("skills/meeting-notes/SKILL.md", skill)
    })
    .await;
    let Some(client) = sdk("chat", &fixture) else { return };
    let shown = client.finish().await;
    let card = &shown[0]["card"];
    assert_eq!((&card["name"], &card["description"]), (&json!("Ada's agent"), &json!("Knows Ada's work.")));
    assert_eq!(card["skills"][0]["name"], "meeting-notes");
    assert_eq!(card["skills"][0]["description"], "Writes minutes.");
    let interface = &card["supportedInterfaces"][0];
    assert_eq!(interface["url"], json!(format!("{}/a2a", fixture.engine.url)));
    assert_eq!(
        (&interface["protocolBinding"], &interface["protocolVersion"]),
        (&json!("JSONRPC"), &json!("1.0"))
    );

    assert_eq!(
        (&shown[1]["context"], &shown[1]["text"], &shown[1]["states"], &shown[1]["kinds"]),
        (&json!("täsk"), &json!("Ada."), &json!(["working", "completed"]), &json!(["task"]))
    );
    assert!(shown[1]["task"].as_str().unwrap().starts_with("turn_"));
    assert_eq!(shown[2], json!({"same": true, "text": "Ada."}), "a message that is sent again runs once");
    assert_eq!((&shown[3]["context"], &shown[3]["text"]), (&json!("täsk"), &json!("Mehr.")));
    let fresh = shown[4]["context"].as_str().unwrap();
    assert!(fresh.starts_with("a2a-") && shown[4]["text"] == "Neu.", "{}", shown[4]);
    assert_eq!(shown[5], json!({"state": "TASK_STATE_COMPLETED", "text": "Ada.", "timed": true}));
    assert_eq!(
        shown[6],
        json!({
            "newest": [true], "total": 2, "rest": [[true, "Ada."]], "last": true, "all": [fresh, "täsk", "täsk"],
        })
    );
    assert_eq!(
        (&shown[7]["text"], &shown[7]["states"], &shown[7]["kinds"]),
        (&json!("Am Stück, ganz."), &json!(["completed"]), &json!(["task"]))
    );
    fixture.all_messages()[1].assert_contains(&["Wer bist du?", "Ada.", "Und?"]);
    assert_eq!(fixture.model_calls(), 4);
}

#[tokio::test]
async fn a_person_is_asked_in_the_middle_and_answers_in_words_or_by_data() {
    let replies = [write_file_reply("a.txt"), write_file_reply("b.txt"), Reply::from_text("Done.")];
    let fixture = EngineFixture::new(replies).await;
    let Some(client) = sdk("permission", &fixture) else { return };
    let shown = client.finish().await;
    assert_eq!(shown[0]["state"], "input_required");
    let question = &shown[0]["question"];
    assert!(question["parts"][0]["text"].as_str().unwrap().contains("a.txt"), "{question}");
    assert_eq!(question["parts"][1]["data"]["kind"], "permission");
    assert_eq!(shown[1], json!({"waits": "TASK_STATE_INPUT_REQUIRED"}));
    assert_eq!(shown[2]["state"], "input_required");
    assert!(shown[2]["question"]["parts"][0]["text"].as_str().unwrap().contains("b.txt"), "{}", shown[2]);
    // The same words once more do not answer the next question.
    assert_eq!(shown[3], json!({"again": "input_required"}));
    assert_eq!(
        (&shown[4]["text"], shown[4]["states"].as_array().unwrap().last()),
        (&json!("Done."), Some(&json!("completed")))
    );
    assert!(
        fixture.setup.workspace().join("a.txt").exists() && !fixture.setup.workspace().join("b.txt").exists()
    );
    fixture.last_messages().assert_contains(&["Nicht dorthin."]);
    assert_eq!(fixture.model_calls(), 3);
}

#[tokio::test]
async fn a_message_that_answered_a_question_answers_no_other_one_after_a_kill() {
    let gate = Gate::new();
    let replies = [write_file_reply("a.txt"), Reply::from_text("Hm, b.").hold(1, &gate)];
    let fixture = EngineFixture::new(replies).await;
    let Some(mut client) = sdk("retried", &fixture) else { return };
    client.wait_for("\"state\"").await;
    let fixture = fixture.kill_and_start().await;
    client.press_enter().await;
    // The answer is in the journal, and its caller does not know.
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue_all([write_file_reply("b.txt"), Reply::from_text("Done.")]);
    let fixture = fixture.kill_and_start().await;
    client.wait_for("\"broken\"").await;
    client.press_enter().await;
    let shown = client.finish().await;
    assert_eq!(
        shown[..2],
        [json!({"state": "input_required"}), json!({"waits": "TASK_STATE_INPUT_REQUIRED"})]
    );
    assert_ne!(shown[2]["broken"], json!(false));
    assert_eq!(shown[3]["state"], "input_required");
    assert!(shown[3]["question"]["parts"][0]["text"].as_str().unwrap().contains("b.txt"), "{}", shown[3]);
    for shown in &shown[4..] {
        let states = shown["states"].as_array().unwrap();
        assert_eq!((&shown["text"], states.last()), (&json!("Done."), Some(&json!("completed"))), "{shown}");
    }
    assert_eq!(shown.len(), 6);
    let workspace = fixture.setup.workspace();
    assert!(workspace.join("a.txt").exists() && !workspace.join("b.txt").exists());
    assert_eq!(fixture.model_calls(), 4);
}

#[tokio::test]
async fn a_client_gets_exactly_the_rest_after_a_kill() {
    let gate = Gate::new();
    let text = "Es war einmal ein längerer Text, der in vielen Stücken kam.";
    let fixture = EngineFixture::new([Reply::from_text(text).deltas(12).hold(6, &gate)]).await;
    let Some(mut client) = sdk("killed", &fixture) else { return };
    client.wait_for("\"began\"").await;
    wait_gate_reached(&gate).await;
    let rest = Gate::new();
    fixture.provider.enqueue(Reply::from_text(text).deltas(12).hold(9, &rest));
    let fixture = fixture.kill_and_start().await;
    client.wait_for("\"broken\"").await;
    wait_gate_reached(&rest).await;
    client.press_enter().await;
    client.wait_for("\"subscribed\"").await;
    rest.release();
    let shown = client.finish().await;
    assert_ne!(shown[1]["broken"], json!(false));
    let had = shown[1]["had"].as_str().unwrap();
    assert!(!had.is_empty() && had.len() < text.len() && text.starts_with(had), "{had}");
    let states = shown[3]["states"].as_array().unwrap();
    assert_eq!((&shown[3]["text"], states.last()), (&json!(text), Some(&json!("completed"))), "{shown:?}");
    assert_eq!(shown[4], json!({"same": true, "text": text}));
    assert_eq!(fixture.engine.messages("task").await.len(), 2);
}

#[tokio::test]
async fn a_task_is_cancelled_once() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("Never said.").hold(1, &gate)]).await;
    let Some(mut client) = sdk("cancel", &fixture) else { return };
    wait_gate_reached(&gate).await;
    client.press_enter().await;
    let shown = client.finish().await;
    assert_eq!(shown[0], json!({"cancelled": "TASK_STATE_CANCELED", "seen": "canceled"}));
    let errors: Vec<&Value> = shown[1..].iter().map(|shown| &shown["error"]).collect();
    assert_eq!(errors, ["TaskNotCancelableError", "UnsupportedOperationError", "UnsupportedOperationError"]);
}

#[tokio::test]
async fn the_sdk_raises_its_own_errors() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("Wait.").hold(1, &gate)]).await;
    fixture.engine.execute_in_background(direct_message("busy", "Think.")).await;
    wait_gate_reached(&gate).await;
    let Some(client) = sdk("errors", &fixture) else { return };
    let shown = client.finish().await;
    let errors: Vec<&Value> = shown[..7].iter().map(|shown| &shown["error"]).collect();
    let expected = [
        "TaskNotFoundError",
        "UnsupportedOperationError",
        "InvalidParamsError",
        "TaskNotFoundError",
        "ContentTypeNotSupportedError",
        "InvalidParamsError",
        "PushNotificationNotSupportedError",
    ];
    assert_eq!(errors, expected, "{shown:?}");
    assert_eq!(shown[7], json!({"refused": 401}));
}

fn post(fixture: &EngineFixture, body: impl Into<reqwest::Body>) -> RequestBuilder {
    let request = client().post(format!("{}/a2a", fixture.engine.url)).bearer_auth(&fixture.engine.key);
    request.header("A2A-Version", "1.0").body(body)
}

fn request(method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": "r", "method": method, "params": params}).to_string()
}

fn message(fields: &Value) -> Value {
    let mut message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]});
    message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "message": message })
}

#[track_caller]
fn assert_refused(response: &HttpResponse, code: i64) {
    assert_eq!((response.status, &response.body["error"]["code"]), (200, &json!(code)), "{}", response.body);
}

#[tokio::test]
async fn what_is_no_request_of_the_protocol_is_refused() {
    let fixture = EngineFixture::new([]).await;
    let refused = async |body: String| send(post(&fixture, body)).await;
    assert_refused(&refused("{".into()).await, -32700);
    assert_refused(&refused("[]".into()).await, -32600);
    assert_refused(&refused(json!({"jsonrpc": "2.0", "method": "GetTask"}).to_string()).await, -32600);
    assert_refused(&refused(request("message/send", &json!({}))).await, -32601);
    assert_refused(&refused(request("GetExtendedAgentCard", &json!({}))).await, -32007);
    for (method, params, code) in [
        ("SendMessage", json!({}), -32602),
        ("SendMessage", message(&json!({"massage": 1})), -32602),
        ("SendMessage", message(&json!({"role": "ROLE_AGENT"})), -32602),
        ("SendStreamingMessage", message(&json!({"parts": []})), -32602),
        ("SendStreamingMessage", message(&json!({"parts": [{"data": {"a": 1}}]})), -32005),
        ("SendStreamingMessage", message(&json!({"contextId": "x".repeat(1_025)})), -32602),
        ("GetTask", json!({}), -32602),
        ("GetTask", json!({"id": "a"}), -32001),
        ("SubscribeToTask", json!({"id": format!("turn_{}", "0".repeat(32))}), -32001),
        ("ListTasks", json!({"status": "TASK_STATE_WORKING"}), -32602),
        ("ListTasks", json!({"contextId": "unknown"}), -32001),
        ("GetTaskPushNotificationConfig", json!({"taskId": "a", "id": "b"}), -32003),
    ] {
        assert_refused(&refused(request(method, &params)).await, code);
    }
    let unversioned = client().post(format!("{}/a2a", fixture.engine.url)).bearer_auth(&fixture.engine.key);
    let unversioned = send(unversioned.body(request("ListTasks", &json!({})))).await;
    assert_refused(&unversioned, -32009);
    assert_eq!(unversioned.body["error"]["data"][0]["reason"], "VERSION_NOT_SUPPORTED");
    send(client().post(format!("{}/a2a", fixture.engine.url)).body("{}"))
        .await
        .assert_error(401, "INVALID_ENGINE_KEY");
    let card = client().get(format!("{}/.well-known/agent-card.json", fixture.engine.url));
    send(card).await.assert_error(401, "INVALID_ENGINE_KEY");
    let large = request("SendMessage", &message(&json!({"parts": [{"text": "x".repeat(33 * 1024 * 1024)}]})));
    send(post(&fixture, large)).await.assert_error(413, "PAYLOAD_TOO_LARGE");
    assert_eq!(fixture.model_calls(), 0);
}

#[tokio::test]
async fn a_message_with_an_attachment_is_answered_at_once_or_when_it_is_done() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("A cat.").hold(1, &gate)]).await;
    let parts = json!([
        {"text": "What is this?"},
        {"raw": PNG_BASE64, "mediaType": "image/png", "filename": "cat.png"},
    ]);
    let mut params = message(&json!({"parts": parts, "contextId": "task"}));
    params["configuration"] = json!({"returnImmediately": true, "acceptedOutputModes": ["text/plain"]});
    let response = send(post(&fixture, request("SendMessage", &params))).await;
    let task = &response.body["result"]["task"];
    assert_eq!(
        (&task["contextId"], &task["status"]["state"]),
        (&json!("task"), &json!("TASK_STATE_WORKING")),
        "{}",
        response.body
    );
    wait_gate_reached(&gate).await;
    gate.release();
    params["configuration"] = json!({});
    let response = send(post(&fixture, request("SendMessage", &params))).await;
    let again = &response.body["result"]["task"];
    assert_eq!((&again["id"], &again["artifacts"][0]["parts"][0]["text"]), (&task["id"], &json!("A cat.")));
    assert!(fixture.last_messages().0.contains("image"), "the model saw the picture");
    // The same id with other words is another message.
    let other = message(&json!({"contextId": "task", "parts": [{"text": "Other."}]}));
    assert_refused(&send(post(&fixture, request("SendMessage", &other))).await, -32602);
    assert_eq!(fixture.model_calls(), 1);
}

#[tokio::test]
async fn the_sdk_discovers_and_answers_through_the_proxy() {
    let replies = [write_file_reply("a.txt"), write_file_reply("b.txt"), Reply::from_text("Done.")];
    let proxied = ProxiedEngine::start(replies).await;
    let Some(client) = sdk_at(&proxied.url, &proxied.key, "permission") else { return };
    let shown = client.finish().await;
    let states: Vec<&Value> = shown.iter().filter_map(|shown| shown.get("state")).collect();
    assert_eq!(states, ["input_required", "input_required"]);
    assert_eq!(shown.last().unwrap()["text"], "Done.");
    assert_eq!(proxied.provider.requests().len(), 3);
}

#[tokio::test]
async fn a_product_reaches_it_through_the_proxy() {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue(Reply::from_text("Hello from afar."));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    product.admit("ada").await;
    let base = format!("{}/engines/ada/proxy", product.base);
    let card = client().get(format!("{base}/.well-known/agent-card.json")).bearer_auth(&product.key);
    let card = send(card).await;
    // The card names the address under which the caller sees the engine.
    assert_eq!(card.body["supportedInterfaces"][0]["url"], json!(format!("{base}/a2a")), "{}", card.body);
    let sending = client().post(format!("{base}/a2a")).bearer_auth(&product.key).header("A2A-Version", "1.0");
    let sending = sending.body(request("SendStreamingMessage", &message(&json!({"contextId": "task"}))));
    let response = with_deadline("the stream begins", sending.send()).await.unwrap();
    let text = with_deadline("the stream ends", response.text()).await.unwrap();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|data| serde_json::from_str(data).unwrap()).collect();
    let last = events.last().unwrap();
    assert_eq!(last["result"]["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED");
    // How many pieces the text comes in depends on the time.
    let piece = |event: &Value| {
        let part = event.pointer("/result/artifactUpdate/artifact/parts/0/text")?;
        part.as_str().map(str::to_owned)
    };
    assert_eq!(events.iter().filter_map(piece).collect::<String>(), "Hello from afar.");
}
