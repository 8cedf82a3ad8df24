//! Other agents use an engine as a server of the Model Context Protocol: with the official SDK in the revisions with a
//! handshake and in the one without, and by hand where the SDK is too polite.

mod resumed;

use mock_llm::{Gate, MockProvider, Reply};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{ProxiedEngine, wait_gate_reached, write_file_reply};
use crate::support::http::{HttpResponse, client, send};
use crate::support::peers::Peers;
use crate::support::sdk_client::SdkClient;
use crate::support::{EngineFixture, Fleet, eventually, with_deadline};

/// Both ways of the SDK, with the newest revision of each.
const MODES: [(&str, &str); 2] = [("legacy", "2025-11-25"), ("auto", "2026-07-28")];

/// Starts the SDK; skips the story and returns `None` if it is not installed.
fn sdk(scenario: &str, mode: &str, fixture: &EngineFixture) -> Option<SdkClient> {
    sdk_at(&fixture.engine.url, &fixture.engine.key, scenario, mode)
}

fn sdk_at(url: &str, key: &str, scenario: &str, mode: &str) -> Option<SdkClient> {
    let arguments = [scenario, mode, &format!("{url}/mcp"), key];
    Some(Peers::installed()?.start_client("python", "mcp_client.py", &arguments))
}

#[tokio::test]
async fn the_sdk_asks_and_looks_up() {
    for (mode, revision) in MODES {
        let fixture = EngineFixture::new(["Ada.", "Mehr.", "Neu."].map(Reply::from_text)).await;
        let Some(client) = sdk("ask", mode, &fixture) else { return };
        let shown = client.finish().await;
        assert_eq!(
            shown[0],
            json!({
                "tools": ["ask", "tasks", "memory_search"], "revision": revision, "server": "roundhouse",
                "instructions": true,
            })
        );
        let structured = &shown[1]["structured"];
        assert_eq!((&shown[1]["text"], &shown[1]["error"]), (&json!("Ada."), &json!(false)), "{mode}");
        assert_eq!(
            (&structured["task_id"], &structured["status"], &structured["text"], &structured["stop_reason"]),
            (&json!("täsk"), &json!("completed"), &json!("Ada."), &json!("end_turn"))
        );
        let progress = shown[1]["progress"].as_array().unwrap();
        assert!(progress.len() >= 2, "{progress:?}");
        let began = format!("Turn {} of task täsk began.", structured["turn_id"].as_str().unwrap());
        assert_eq!(progress[0], json!([1.0, began]));
        assert_eq!(shown[2]["text"], "Mehr.");
        assert_eq!(shown[3]["text"], "Neu.");
        let fresh = shown[3]["task"].as_str().unwrap();
        assert!(fresh.starts_with("mcp-"), "{fresh}");
        assert_eq!(shown[4]["tasks"], json!([fresh, "täsk"]));
        assert_eq!(shown[5], json!({"turns": ["completed", "completed"], "text": "Ada."}));
        assert!(shown[6]["found"].as_array().unwrap().contains(&json!("message")), "{}", shown[6]);
        // The task was continued.
        fixture.all_messages()[1].assert_contains(&["Wer bist du?", "Ada.", "Und?"]);
    }
}

#[tokio::test]
async fn a_person_is_asked_in_the_middle() {
    for (mode, _) in MODES {
        let replies = [write_file_reply("a.txt"), write_file_reply("b.txt"), Reply::from_text("Done.")];
        let fixture = EngineFixture::new(replies).await;
        let Some(client) = sdk("permission", mode, &fixture) else { return };
        let shown = client.finish().await;
        let last = shown.last().unwrap();
        assert_eq!((&last["text"], &last["status"]), (&json!("Done."), &json!("completed")), "{mode}");
        let asked = last["asked"].as_array().unwrap();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(asked[0][0].as_str().unwrap().contains("a.txt"), "{asked:?}");
        assert_eq!(asked[0][1], json!(["answer", "feedback"]));
        for name in ["a.txt", "b.txt"] {
            assert!(fixture.setup.workspace().join(name).exists(), "{mode}: {name}");
        }
        fixture.last_messages().assert_contains(&["Gern."]);
        assert_eq!(fixture.model_calls(), 3, "{mode}: no call was run twice");
    }
}

#[tokio::test]
async fn a_person_declines_or_does_not_answer() {
    for (mode, _) in MODES {
        let replies = [write_file_reply("a.txt"), Reply::from_text("Then not."), write_file_reply("b.txt")];
        let fixture = EngineFixture::new(replies).await;
        let Some(client) = sdk("refusal", mode, &fixture) else { return };
        let shown = client.finish().await;
        assert_eq!(
            (&shown[0]["text"], &shown[0]["status"]),
            (&json!("Then not."), &json!("completed")),
            "{mode}"
        );
        assert_eq!(shown[1]["status"], "waiting_for_person", "{mode}");
        assert!(!fixture.setup.workspace().join("a.txt").exists());
        // The turn waits on, and is answered in another way.
        fixture.provider.enqueue(Reply::from_text("Done."));
        let task = shown[1]["task"].as_str().unwrap();
        assert_eq!(fixture.engine.respond(task, "yes").await.status, 200);
        eventually("the turn goes on", async || {
            fixture.setup.workspace().join("b.txt").exists().then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_caller_that_cannot_ask_is_told_what_waits() {
    for (mode, _) in MODES {
        let fixture = EngineFixture::new([write_file_reply("a.txt"), Reply::from_text("Done.")]).await;
        let Some(mut client) = sdk("alone", mode, &fixture) else { return };
        client.wait_for("waiting_for_person").await;
        assert_eq!(fixture.engine.respond("task", "yes").await.status, 200);
        client.press_enter().await;
        let shown = client.finish().await;
        assert!(shown[0]["text"].as_str().unwrap().contains("/hitl/respond"), "{}", shown[0]);
        assert_eq!(shown[0]["pending"][0]["kind"], "permission");
        assert_eq!(shown[1], json!({"text": "Done."}));
    }
}

#[tokio::test]
async fn an_answer_is_fetched_after_a_kill() {
    for (mode, _) in MODES {
        let gate = Gate::new();
        let text = "Es war einmal ein längerer Text, der in vielen Stücken kam.";
        let fixture = EngineFixture::new([Reply::from_text(text).deltas(12).hold(6, &gate)]).await;
        let Some(mut client) = sdk("killed", mode, &fixture) else { return };
        wait_gate_reached(&gate).await;
        fixture.provider.enqueue(Reply::from_text(text).deltas(12));
        let fixture = fixture.kill_and_start().await;
        client.wait_for("\"broken\"").await;
        client.press_enter().await;
        let shown = client.finish().await;
        // With a handshake, the SDK takes the call up again by itself if the engine is back in time.
        assert!(mode == "legacy" || shown[0]["broken"] != json!(false), "{shown:?}");
        assert_eq!((&shown[1]["text"], &shown[1]["structured"]["task_id"]), (&json!(text), &json!("task")));
        assert_eq!(shown[2], json!({"turns": ["completed"]}), "{mode}: it ran once");
        assert_eq!(fixture.engine.messages("task").await.len(), 2);
    }
}

#[tokio::test]
async fn a_call_is_cancelled_as_the_revision_says() {
    for (mode, _) in MODES {
        let gate = Gate::new();
        let fixture = EngineFixture::new([Reply::from_text("Never said.").hold(1, &gate)]).await;
        let Some(mut client) = sdk("cancel", mode, &fixture) else { return };
        wait_gate_reached(&gate).await;
        client.press_enter().await;
        assert_eq!(client.finish().await, [json!({"states": ["cancelled"]})], "{mode}");
    }
}

#[tokio::test]
async fn bad_input_is_refused_where_the_protocol_says() {
    for (mode, _) in MODES {
        let gate = Gate::new();
        let fixture = EngineFixture::new([Reply::from_text("Wait.").hold(1, &gate)]).await;
        fixture.engine.execute_in_background(direct_message("busy", "Think.")).await;
        wait_gate_reached(&gate).await;
        let Some(client) = sdk("errors", mode, &fixture) else { return };
        let shown = client.finish().await;
        assert_eq!(shown[0]["code"], -32602, "{mode}: an unknown tool");
        let words = ["message", "massage", "message", "turn", "task", "task_id", "limit"];
        assert_eq!(shown.len(), 1 + words.len() + 2);
        for (shown, words) in shown[1..].iter().zip(words) {
            let text = shown["text"].as_str().unwrap();
            assert!(shown["error"] == json!(true) && text.contains(words), "{mode}: {words}: {shown}");
        }
        for shown in &shown[shown.len() - 2..] {
            assert_eq!(shown["refused"], json!(true), "{mode}");
        }
    }
}

fn post(fixture: &EngineFixture, body: impl Into<reqwest::Body>) -> RequestBuilder {
    let request = client().post(format!("{}/mcp", fixture.engine.url)).bearer_auth(&fixture.engine.key);
    request.header("Accept", "application/json, text/event-stream").body(body)
}

fn message(id: impl Into<Value>, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}).to_string()
}

/// A request of the revision without a handshake.
fn stateless(fixture: &EngineFixture, method: &str, fields: Value) -> RequestBuilder {
    let mut params = fields;
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let name = params["name"].as_str().unwrap_or_default().to_owned();
    let request = post(fixture, message(1, method, &params)).header("MCP-Protocol-Version", "2026-07-28");
    let request = request.header("Mcp-Method", method);
    if name.is_empty() { request } else { request.header("Mcp-Name", name) }
}

/// Begins a session of `revision` whose caller can ask its user; returns its id.
async fn begin_session(fixture: &EngineFixture, revision: &str) -> String {
    let params = json!({
        "protocolVersion": revision, "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    });
    let response = send(post(fixture, message(0, "initialize", &params))).await;
    assert_eq!((response.status, &response.body["result"]["protocolVersion"]), (200, &json!(revision)));
    response.header("mcp-session-id").unwrap().to_owned()
}

fn in_session(request: RequestBuilder, session: &str) -> RequestBuilder {
    request.header("Mcp-Session-Id", session)
}

fn ask(id: impl Into<Value>, task: &str) -> String {
    message(id, "tools/call", &json!({"name": "ask", "arguments": {"message": "Do it.", "task_id": task}}))
}

/// The messages of a stream to its end.
async fn stream(request: RequestBuilder) -> Vec<Value> {
    let response = with_deadline("the stream begins", request.send()).await.unwrap();
    assert_eq!(response.status(), 200);
    let text = with_deadline("the stream ends", response.text()).await.unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[track_caller]
fn assert_refused(response: &HttpResponse, status: u16, code: i64) {
    assert_eq!(
        (response.status, &response.body["error"]["code"]),
        (status, &json!(code)),
        "{}",
        response.body
    );
    assert_eq!(response.body["jsonrpc"], "2.0");
}

#[tokio::test]
async fn what_is_no_message_of_a_revision_is_refused() {
    let fixture = EngineFixture::new([]).await;
    let refused = async |body: &str| send(post(&fixture, body.to_owned())).await;
    assert_refused(&refused("{").await, 400, -32700);
    assert_refused(&refused("").await, 400, -32700);
    assert_refused(&refused("[]").await, 400, -32600);
    assert_refused(&refused(&format!("[{}]", message(1, "ping", &json!({})))).await, 400, -32600);
    assert_refused(&refused(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#).await, 400, -32600);
    // With a handshake, a request that was understood is answered with 200.
    assert_refused(&refused(&message(1, "resources/list", &json!({}))).await, 200, -32601);
    assert_refused(&refused(&message(1, "tools/call", &json!({"name": 7}))).await, 200, -32602);
    assert_eq!(refused(&message("a", "ping", &json!({}))).await.body["result"], json!({}));

    let versioned = |version: &str| {
        send(
            post(&fixture, message(1, "tools/list", &json!({})))
                .header("MCP-Protocol-Version", version.to_owned()),
        )
    };
    let unknown = versioned("2024-01-01").await;
    assert_refused(&unknown, 400, -32022);
    assert_eq!(
        unknown.body["error"]["data"],
        json!({
            "supported": ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"], "requested": "2024-01-01",
        })
    );
    assert_eq!(versioned("2025-06-18").await.status, 200);
    // Without a handshake each request says who calls, and its headers say the same.
    assert_refused(&versioned("2026-07-28").await, 400, -32602);
    let contradicts = stateless(&fixture, "tools/list", json!({})).header("Mcp-Method", "tools/call");
    assert_refused(&send(contradicts).await, 400, -32020);
    let nameless = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }}});
    let nameless = post(&fixture, nameless.to_string()).header("MCP-Protocol-Version", "2026-07-28");
    assert_refused(&send(nameless.header("Mcp-Method", "tools/call")).await, 400, -32020);
    assert_refused(&send(stateless(&fixture, "initialize", json!({}))).await, 404, -32601);
    assert_refused(&send(stateless(&fixture, "ping", json!({}))).await, 404, -32601);
    let stray = json!({"name": "ask", "requestState": format!("turn_{}", "0".repeat(32))});
    assert_refused(&send(stateless(&fixture, "tools/call", stray)).await, 400, -32602);
    // What names that revision in its body must do so in its header.
    let unversioned = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}});
    assert_refused(&refused(&message(1, "tools/list", &unversioned)).await, 400, -32020);

    let wrong_session = in_session(post(&fixture, message(1, "ping", &json!({}))), "a");
    assert_refused(&send(wrong_session).await, 404, -32600);
    let session = begin_session(&fixture, "2025-06-18").await;
    let other = in_session(post(&fixture, message(1, "ping", &json!({}))), &session);
    assert_refused(&send(other.header("MCP-Protocol-Version", "2025-11-25")).await, 400, -32600);
    assert_eq!(fixture.model_calls(), 0);
}

#[tokio::test]
async fn the_transport_has_its_rules() {
    let fixture = EngineFixture::new([]).await;
    let url = format!("{}/mcp", fixture.engine.url);
    let ping = message(1, "ping", &json!({}));
    for (origin, status) in [
        ("http://localhost:6274", 200),
        ("http://127.0.0.1:1", 200),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
    ] {
        let response = send(post(&fixture, ping.clone()).header("Origin", origin)).await;
        assert_eq!(response.status, status, "{origin}");
    }
    for (accept, status) in [("application/json", 406), ("text/event-stream", 406), ("*/*", 200)] {
        let request = client().post(&url).bearer_auth(&fixture.engine.key).header("Accept", accept);
        assert_eq!(send(request.body(ping.clone())).await.status, status, "{accept}");
    }
    for method in [Method::GET, Method::DELETE, Method::PUT] {
        let response = send(client().request(method.clone(), &url).bearer_auth(&fixture.engine.key)).await;
        assert_eq!(response.status, 405, "{method}");
    }
    send(client().post(&url).body(ping.clone())).await.assert_error(401, "INVALID_ENGINE_KEY");
    let own_header = client().post(&url).header("X-Engine-Key", &*fixture.engine.key).body(ping);
    assert_eq!(send(own_header).await.status, 200);
    let large = message(1, "ping", &json!({"text": "x".repeat(33 * 1024 * 1024)}));
    send(post(&fixture, large)).await.assert_error(413, "PAYLOAD_TOO_LARGE");
    // What wants no answer is accepted.
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    assert_eq!(send(post(&fixture, notification)).await.status, 202);
    let stray = json!({"jsonrpc": "2.0", "id": "hitl-1", "result": {}}).to_string();
    assert_eq!(send(post(&fixture, stray)).await.status, 202);
}

#[tokio::test]
async fn a_repeated_request_of_a_session_runs_once_also_after_a_kill() {
    let replies = [Reply::from_text("Once."), Reply::from_text("Of another session.")];
    let fixture = EngineFixture::new(replies).await;
    let session = begin_session(&fixture, "2025-11-25").await;
    let text = |messages: &[Value]| messages.last().unwrap()["result"]["content"][0]["text"].clone();
    let first = stream(in_session(post(&fixture, ask(7, "task")), &session)).await;
    assert_eq!(text(&first), "Once.");
    let fixture = fixture.kill_and_start().await;
    assert_eq!(stream(in_session(post(&fixture, ask(7, "task")), &session)).await, first);
    assert_eq!(fixture.model_calls(), 1);
    // The same id with another request is refused, and is another request in another session.
    let changed =
        message(7, "tools/call", &json!({"name": "ask", "arguments": {"message": "No.", "task_id": "task"}}));
    let refused = send(in_session(post(&fixture, changed), &session)).await;
    assert_eq!(refused.body["result"]["isError"], json!(true), "{}", refused.body);
    let other = begin_session(&fixture, "2025-06-18").await;
    assert_eq!(
        text(&stream(in_session(post(&fixture, ask(7, "task")), &other)).await),
        "Of another session."
    );
}

#[tokio::test]
async fn a_person_answers_after_a_kill_in_the_middle_of_the_question() {
    let fixture = EngineFixture::new([write_file_reply("a.txt"), Reply::from_text("Done.")]).await;
    let session = begin_session(&fixture, "2025-06-18").await;
    let mut asking = in_session(post(&fixture, ask("q", "task")), &session).send().await.unwrap();
    let mut received = String::new();
    while !received.contains("elicitation/create") {
        let chunk = with_deadline("the person is asked", asking.chunk()).await.unwrap().unwrap();
        received.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    let question = received.lines().find(|line| line.contains("elicitation/create")).unwrap();
    let question: Value = serde_json::from_str(question.strip_prefix("data: ").unwrap()).unwrap();
    let fixture = fixture.kill_and_start().await;
    // An answer that means nothing is refused, and does not end the wait.
    let answer = |content: Value| {
        let result = json!({"action": "accept", "content": content});
        let message = json!({"jsonrpc": "2.0", "id": question["id"], "result": result}).to_string();
        send(in_session(post(&fixture, message), &session))
    };
    assert_refused(&answer(json!({})).await, 400, -32602);
    assert_refused(&answer(json!({"answer": "maybe"})).await, 400, -32602);
    assert_eq!(answer(json!({"answer": "yes"})).await.status, 202);
    assert_eq!(answer(json!({"answer": "no"})).await.status, 202, "a later answer changes nothing");
    let messages = stream(in_session(post(&fixture, ask("q", "task")), &session)).await;
    assert_eq!(messages.last().unwrap()["result"]["content"][0]["text"], "Done.");
    assert!(messages.iter().all(|message| message["method"] != "elicitation/create"), "{messages:?}");
    assert!(fixture.setup.workspace().join("a.txt").exists());
}

#[tokio::test]
async fn a_lost_connection_ends_a_turn_only_in_the_revision_that_says_so() {
    for (is_stateless, state) in [(false, "running"), (true, "cancelled")] {
        let gate = Gate::new();
        let fixture = EngineFixture::new([Reply::from_text("Slowly.").hold(1, &gate)]).await;
        let arguments = json!({"name": "ask", "arguments": {"message": "Do it.", "task_id": "task"}});
        let request = if is_stateless {
            stateless(&fixture, "tools/call", arguments)
        } else {
            post(&fixture, ask(1, "task"))
        };
        let connection = request.send().await.unwrap();
        wait_gate_reached(&gate).await;
        drop(connection);
        let turn_state = async || {
            let turns = fixture.engine.get("/tasks/task/turns").await;
            turns.body["turns"][0]["state"].as_str().unwrap().to_owned()
        };
        if is_stateless {
            eventually("the turn ends", async || (turn_state().await == state).then_some(())).await;
        } else {
            gate.release();
            eventually("the turn completes", async || (turn_state().await == "completed").then_some(()))
                .await;
        }
    }
}

#[tokio::test]
async fn the_stop_of_the_engine_is_said_and_the_turn_goes_on() {
    for is_stateless in [false, true] {
        let gate = Gate::new();
        let fixture = EngineFixture::new([Reply::from_text("Later.").hold(1, &gate)]).await;
        let arguments = json!({"name": "ask", "arguments": {"message": "Do it.", "task_id": "task"}});
        let request = if is_stateless {
            stateless(&fixture, "tools/call", arguments)
        } else {
            post(&fixture, ask(1, "task"))
        };
        let call = tokio::spawn(stream(request));
        wait_gate_reached(&gate).await;
        fixture.provider.enqueue(Reply::from_text("Later."));
        let fixture = fixture.stop_and_start().await;
        let messages = call.await.unwrap();
        let error = &messages.last().unwrap()["error"];
        assert_eq!(
            (&error["code"], &error["data"]["task_id"]),
            (&json!(-32000), &json!("task")),
            "{messages:?}"
        );
        eventually("the turn completes", async || {
            let turns = fixture.engine.get("/tasks/task/turns").await;
            (turns.body["turns"][0]["state"] == "completed").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn the_sdk_asks_a_person_through_the_proxy() {
    for (mode, _) in MODES {
        let replies = [write_file_reply("a.txt"), write_file_reply("b.txt"), Reply::from_text("Done.")];
        let proxied = ProxiedEngine::start(replies).await;
        let Some(client) = sdk_at(&proxied.url, &proxied.key, "permission", mode) else { return };
        let shown = client.finish().await;
        let last = shown.last().unwrap();
        assert_eq!((&last["text"], &last["status"]), (&json!("Done."), &json!("completed")), "{mode}");
        assert_eq!(last["asked"].as_array().unwrap().len(), 2, "{mode}");
        assert_eq!(proxied.provider.requests().len(), 3, "{mode}: no call was run twice");
    }
}

#[tokio::test]
async fn a_product_reaches_it_through_the_proxy_with_its_own_key_as_bearer() {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue(Reply::from_text("Hello from afar."));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    product.admit("ada").await;
    let url = format!("{}/engines/ada/proxy/mcp", product.base);
    let request = |key: &str| {
        let request = client().post(&url).bearer_auth(key);
        request.header("Accept", "application/json, text/event-stream").body(ask(1, "task"))
    };
    let messages = stream(request(&product.key)).await;
    assert_eq!(messages.last().unwrap()["result"]["structuredContent"]["text"], "Hello from afar.");
    send(request("pk-svc-wrong")).await.assert_error(401, "INVALID_PLATFORM_KEY");
}
