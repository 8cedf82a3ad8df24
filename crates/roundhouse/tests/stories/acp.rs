//! Code editors use an engine through `roundhouse acp`: the official SDKs of the Agent Client Protocol, of npm and
//! `PyPI`, in the same stories.

use mock_llm::{Fault, Gate, MockProvider, Refusal, Reply};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::acp_client::{AcpClient, AcpSdk, initialize_params};
use crate::support::engine_fixture::{PNG_BASE64, ask_user_reply, wait_gate_reached, write_file_reply};
use crate::support::tcp_forwarder::TcpForwarder;
use crate::support::{Fleet, RunningUp, eventually, processes};

/// A fleet whose model answers with `replies`.
async fn start(replies: impl IntoIterator<Item = Reply>) -> (Fleet, RunningUp, MockProvider) {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue_all(replies);
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    (fleet, up, provider)
}

/// The updates about tool calls, as kinds and statuses.
fn call_updates(updates: &[Value]) -> Vec<(&str, &str)> {
    let calls = updates.iter().filter(|update| update.get("toolCallId").is_some());
    calls
        .map(|update| (update["sessionUpdate"].as_str().unwrap(), update["status"].as_str().unwrap()))
        .collect()
}

async fn says_what_it_can_and_streams_an_answer(sdk: AcpSdk) {
    let reply = Reply::new().thinking("Hm, a greeting.").text("Grüß Gott, Ada.").deltas(4);
    let (fleet, _up, _provider) = start([reply]).await;
    let Some(mut client) = AcpClient::start(sdk, &fleet, &[]) else { return };
    let said = client.call("initialize", initialize_params()).await.unwrap();
    let capabilities = &said["agentCapabilities"];
    assert_eq!((&said["protocolVersion"], &said["agentInfo"]["name"]), (&json!(1), &json!("roundhouse")));
    assert_eq!(
        (&capabilities["loadSession"], &capabilities["mcpCapabilities"]["http"]),
        (&json!(true), &json!(false))
    );
    let session = client.new_session().await;
    let effort = json!({"sessionId": session, "configId": "effort", "value": "high"});
    client.call("session/set_config_option", effort).await.unwrap();
    let tag = client.prompt(&session, "Hello").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert_eq!(client.text(&session, "agent_message_chunk"), "Grüß Gott, Ada.");
    assert_eq!(client.text(&session, "agent_thought_chunk"), "Hm, a greeting.");
    let updates = client.updates(&session);
    let messages = updates.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    let mut ids: Vec<&Value> = messages.map(|update| &update["messageId"]).collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "one text is one message: {updates:?}");
    // It is in the list of sessions, with the directory that it was begun in.
    let listed = eventually("the session is listed", async || {
        let listed = client.call("session/list", json!({"cwd": "/home/ada"})).await.unwrap();
        (listed["sessions"].as_array().unwrap().len() == 1).then_some(listed)
    })
    .await;
    assert_eq!(listed["sessions"][0]["sessionId"], session);
    assert_eq!(
        client.call("session/list", json!({"cwd": "/elsewhere"})).await.unwrap()["sessions"],
        json!([])
    );
    assert_eq!(client.close().await, 0);
}

#[tokio::test]
async fn node_sees_an_answer_as_it_comes() {
    says_what_it_can_and_streams_an_answer(AcpSdk::Node).await;
}

#[tokio::test]
async fn python_sees_an_answer_as_it_comes() {
    says_what_it_can_and_streams_an_answer(AcpSdk::Python).await;
}

async fn asks_for_permission(sdk: AcpSdk) {
    let replies = [
        write_file_reply("a.txt"),
        Reply::from_text("Wrote it."),
        write_file_reply("b.txt"),
        Reply::from_text("Left it."),
        write_file_reply("c.txt"),
        Reply::from_text("Wrote again."),
        write_file_reply("d.txt"),
        Reply::from_text("Wrote unasked."),
    ];
    let (fleet, up, _provider) = start(replies).await;
    let Some(mut client) = AcpClient::connect(sdk, &fleet).await else { return };
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Write").await;
    let asked = client.asked("permission", 1).await;
    let call = &asked["toolCall"];
    assert_eq!((&call["kind"], &call["status"]), (&json!("edit"), &json!("pending")), "{asked}");
    assert_eq!(
        (&call["content"][0]["type"], &call["content"][0]["path"]),
        (&json!("diff"), &json!("/a.txt"))
    );
    let options: Vec<_> = asked["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
    assert_eq!(options, ["allow_once", "allow_always", "allow_always", "reject_once"]);
    client.select(1, "allow_once").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    let updates = client.updates(&session);
    let expected = [
        ("tool_call", "in_progress"),
        ("tool_call_update", "pending"),
        ("tool_call_update", "in_progress"),
        ("tool_call_update", "completed"),
    ];
    assert_eq!(call_updates(&updates), expected);
    // The diff stays when the call has ended.
    let last = updates.iter().rfind(|update| update["sessionUpdate"] == "tool_call_update").unwrap();
    assert_eq!(
        (&last["content"][0]["type"], &last["content"][1]["type"]),
        (&json!("diff"), &json!("content"))
    );

    let tag = client.prompt(&session, "Write b").await;
    client.asked("permission", 2).await;
    client.select(2, "deny").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert_eq!(call_updates(&client.updates(&session)).last(), Some(&("tool_call_update", "failed")));

    let tag = client.prompt(&session, "Write c").await;
    client.asked("permission", 3).await;
    client.select(3, "allow_task").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    let tag = client.prompt(&session, "Write d").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert!(client.seen().iter().all(|line| line["key"] != 4), "asked although it was allowed");
    assert_eq!(up.product().engine("ada").await.grants().await.len(), 1);
}

#[tokio::test]
async fn node_asks_for_permission() {
    asks_for_permission(AcpSdk::Node).await;
}

#[tokio::test]
async fn python_asks_for_permission() {
    asks_for_permission(AcpSdk::Python).await;
}

/// The engine is killed in the middle of an answer: the client sees each part of it once.
async fn sees_exactly_the_rest_after_a_kill(sdk: AcpSdk) {
    let gate = Gate::new();
    let text = "Es war einmal ein längerer Text, der in vielen Stücken kam.";
    let (fleet, _up, provider) = start([Reply::from_text(text).deltas(12).hold(6, &gate)]).await;
    let Some(mut client) = AcpClient::connect(sdk, &fleet).await else { return };
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Tell me").await;
    wait_gate_reached(&gate).await;
    client.wait_for_text(&session, "Es war").await;
    provider.enqueue(Reply::from_text(text).deltas(12));
    processes::kill(fleet.engine_process());
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert_eq!(client.text(&session, "agent_message_chunk"), text);
}

#[tokio::test]
async fn node_sees_exactly_the_rest_after_a_kill() {
    sees_exactly_the_rest_after_a_kill(AcpSdk::Node).await;
}

#[tokio::test]
async fn python_sees_exactly_the_rest_after_a_kill() {
    sees_exactly_the_rest_after_a_kill(AcpSdk::Python).await;
}

/// The engine is killed while a person is asked: the answer counts nevertheless.
#[tokio::test]
async fn a_permission_is_given_across_a_kill() {
    let (fleet, up, _provider) = start([write_file_reply("a.txt"), Reply::from_text("Wrote it.")]).await;
    let Some(mut client) = AcpClient::connect(AcpSdk::Node, &fleet).await else { return };
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Write").await;
    client.asked("permission", 1).await;
    let before = fleet.engine_process();
    processes::kill(before);
    client.select(1, "allow_once").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert_ne!(fleet.engine_process(), before);
    assert_eq!(client.text(&session, "agent_message_chunk"), "Wrote it.");
    assert_eq!(up.product().engine("ada").await.grants().await.len(), 0);
}

async fn loads_a_session_after_a_restart(sdk: AcpSdk) {
    let gate = Gate::new();
    let text = "And this comes slowly, in many parts.";
    let replies = [
        write_file_reply("a.txt"),
        Reply::from_text("Wrote it."),
        Reply::from_text(text).deltas(8).hold(4, &gate),
    ];
    let (fleet, up, provider) = start(replies).await;
    let Some(mut client) = AcpClient::connect(sdk, &fleet).await else { return };
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Write").await;
    client.asked("permission", 1).await;
    client.select(1, "allow_once").await;
    client.stop_reason(tag).await;
    client.prompt(&session, "Tell me").await;
    wait_gate_reached(&gate).await;
    // The editor goes away in the middle of an answer, and everything is restarted.
    assert_eq!(client.close().await, 0);
    provider.enqueue(Reply::from_text(text).deltas(8));
    up.signal_and_wait(Signal::TERM).await.assert_success();
    let _up = fleet.start_up().await;

    let mut client = AcpClient::connect(sdk, &fleet).await.unwrap();
    let params = json!({"sessionId": session, "cwd": "/home/ada", "mcpServers": []});
    client.call("session/load", params).await.unwrap();
    client.wait_for_text(&session, text).await;
    assert_eq!(client.text(&session, "user_message_chunk"), "WriteTell me");
    assert_eq!(client.text(&session, "agent_message_chunk"), format!("Wrote it.{text}"));
    let updates = client.updates(&session);
    assert_eq!(call_updates(&updates), [("tool_call", "in_progress"), ("tool_call_update", "completed")]);
    // It goes on.
    provider.enqueue(Reply::from_text(" More."));
    let tag = client.prompt(&session, "And?").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert_eq!(client.text(&session, "agent_message_chunk"), format!("Wrote it.{text} More."));
    let unknown = json!({"sessionId": "none", "cwd": "/home/ada", "mcpServers": []});
    assert_eq!(client.call("session/load", unknown).await.unwrap_err()["code"], -32002);
}

#[tokio::test]
async fn node_loads_a_session_after_a_restart() {
    loads_a_session_after_a_restart(AcpSdk::Node).await;
}

#[tokio::test]
async fn python_loads_a_session_after_a_restart() {
    loads_a_session_after_a_restart(AcpSdk::Python).await;
}

async fn cancels(sdk: AcpSdk) {
    let gate = Gate::new();
    let replies = [
        Reply::from_text("The first half, and the second half.").deltas(4).hold(2, &gate),
        write_file_reply("a.txt"),
        Reply::from_text("Still here."),
    ];
    let (fleet, up, _provider) = start(replies).await;
    let Some(mut client) = AcpClient::connect(sdk, &fleet).await else { return };
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Tell me").await;
    client.wait_for_text(&session, "The first half").await;
    client.order(&json!({"cancel": session})).await;
    assert_eq!(client.stop_reason(tag).await, "cancelled");
    assert_eq!(up.product().engine("ada").await.task_status(&session).await, "idle");
    gate.release();
    // While a person is asked, too.
    let tag = client.prompt(&session, "Write").await;
    client.asked("permission", 1).await;
    client.order(&json!({"cancel": session})).await;
    client.answer(1, json!({"outcome": {"outcome": "cancelled"}})).await;
    assert_eq!(client.stop_reason(tag).await, "cancelled");
    let tag = client.prompt(&session, "Are you there?").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert!(client.text(&session, "agent_message_chunk").ends_with("Still here."));
}

#[tokio::test]
async fn node_cancels() {
    cancels(AcpSdk::Node).await;
}

#[tokio::test]
async fn python_cancels() {
    cancels(AcpSdk::Python).await;
}

async fn has_several_sessions(sdk: AcpSdk) {
    let gate = Gate::new();
    let (fleet, _up, provider) = start([Reply::from_text("Slowly, slowly.").deltas(4).hold(2, &gate)]).await;
    let Some(mut client) = AcpClient::connect(sdk, &fleet).await else { return };
    let (slow, quick) = (client.new_session().await, client.new_session().await);
    let slow_tag = client.prompt(&slow, "Slow").await;
    wait_gate_reached(&gate).await;
    provider.enqueue(Reply::from_text("At once."));
    let quick_tag = client.prompt(&quick, "Quick").await;
    assert_eq!(client.stop_reason(quick_tag).await, "end_turn");
    assert_eq!(client.text(&quick, "agent_message_chunk"), "At once.");
    // A session has one prompt at a time.
    let second = client.prompt(&slow, "Too early").await;
    assert_eq!(client.outcome(second).await.unwrap_err()["code"], -32600);
    gate.release();
    assert_eq!(client.stop_reason(slow_tag).await, "end_turn");
    assert_eq!(client.text(&slow, "agent_message_chunk"), "Slowly, slowly.");
    client.call("session/close", json!({"sessionId": slow})).await.unwrap();
    let closed = client.prompt(&slow, "Anybody?").await;
    assert_eq!(client.outcome(closed).await.unwrap_err()["code"], -32002);
}

#[tokio::test]
async fn node_has_several_sessions() {
    has_several_sessions(AcpSdk::Node).await;
}

#[tokio::test]
async fn python_has_several_sessions() {
    has_several_sessions(AcpSdk::Python).await;
}

#[tokio::test]
async fn a_question_is_a_form_or_the_next_prompt() {
    let replies = [
        ask_user_reply("Which colour?"),
        Reply::from_text("Red, then."),
        ask_user_reply("Which colour?"),
        Reply::from_text("Green, then."),
    ];
    let (fleet, _up, provider) = start(replies).await;
    let Some(mut client) = AcpClient::connect(AcpSdk::Node, &fleet).await else { return };
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Paint").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert!(client.text(&session, "agent_message_chunk").contains("Which colour?"));
    let tag = client.prompt(&session, "red").await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert!(client.text(&session, "agent_message_chunk").ends_with("Red, then."));
    drop(client);

    let mut client = AcpClient::start(AcpSdk::Node, &fleet, &[]).unwrap();
    let params = json!({"protocolVersion": 1, "clientCapabilities": {"elicitation": {"form": {}}}});
    client.call("initialize", params).await.unwrap();
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Paint").await;
    let asked = client.asked("elicitation", 1).await;
    assert_eq!((&asked["mode"], &asked["message"]), (&json!("form"), &json!("Which colour?")));
    client.answer(1, json!({"action": "accept", "content": {"answer": "green"}})).await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert_eq!(client.text(&session, "agent_message_chunk"), "Green, then.");
    assert!(provider.requests().last().unwrap().body.to_string().contains("green"));
}

#[tokio::test]
async fn a_permission_that_was_given_elsewhere_is_withdrawn() {
    let (fleet, up, _provider) = start([write_file_reply("a.txt"), Reply::from_text("Wrote it.")]).await;
    let Some(mut client) = AcpClient::connect(AcpSdk::Node, &fleet).await else { return };
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Write").await;
    client.asked("permission", 1).await;
    assert_eq!(up.product().engine("ada").await.respond(&session, "yes").await.status, 200);
    client.wait_for("the request is withdrawn", |line| (line["withdrawn"] == 1).then_some(())).await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
}

#[tokio::test]
async fn an_engine_elsewhere_is_used_through_its_orchestrator() {
    for sdk in [AcpSdk::Node, AcpSdk::Python] {
        let (_fleet, up, _provider) = start([write_file_reply("a.txt"), Reply::from_text("Wrote it.")]).await;
        // Only the orchestrator can be reached at this address.
        let address = up.base.replace("http://", "").parse().unwrap();
        let forwarder = TcpForwarder::bind_any("127.0.0.1", address);
        let orchestrator = format!("http://{}", forwarder.address);
        let key = up.product().key;
        let Some(mut client) = AcpClient::start_elsewhere(sdk, &orchestrator, &key) else { return };
        client.call("initialize", initialize_params()).await.unwrap();
        let session = client.new_session().await;
        let tag = client.prompt(&session, "Write").await;
        client.asked("permission", 1).await;
        client.select(1, "allow_once").await;
        assert_eq!(client.stop_reason(tag).await, "end_turn");
        assert_eq!(client.text(&session, "agent_message_chunk"), "Wrote it.");
        assert_eq!(client.close().await, 0);
    }
}

#[tokio::test]
async fn a_client_that_cannot_ask_denies() {
    let (fleet, _up, _provider) = start([write_file_reply("a.txt"), Reply::from_text("Then not.")]).await;
    let Some(mut client) = AcpClient::connect(AcpSdk::Node, &fleet).await else { return };
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Write").await;
    client.asked("permission", 1).await;
    client.order(&json!({"answer": 1, "refuse": true})).await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    assert_eq!(call_updates(&client.updates(&session)).last(), Some(&("tool_call_update", "failed")));
}

#[tokio::test]
async fn pictures_and_files_reach_the_turn_and_options_are_chosen() {
    let (fleet, _up, provider) = start([Reply::from_text("A dot.")]).await;
    let Some(mut client) = AcpClient::connect(AcpSdk::Node, &fleet).await else { return };
    let session = client.new_session().await;
    let set = |value| json!({"sessionId": session, "configId": "effort", "value": value});
    assert_eq!(client.call("session/set_config_option", set("enormous")).await.unwrap_err()["code"], -32602);
    let options = client.call("session/set_config_option", set("high")).await.unwrap();
    assert_eq!(options["configOptions"][1]["currentValue"], "high");
    let prompt = json!([
        {"type": "text", "text": "What is "},
        {"type": "resource_link", "uri": "file:///home/ada/dot.rs", "name": "dot.rs"},
        {"type": "resource", "resource": {"uri": "file:///home/ada/notes.md", "text": "# Notes about dots"}},
        {"type": "image", "data": PNG_BASE64, "mimeType": "image/png"},
    ]);
    let tag = client.begin("session/prompt", json!({"sessionId": session, "prompt": prompt})).await;
    assert_eq!(client.stop_reason(tag).await, "end_turn");
    let body = provider.requests().last().unwrap().body.to_string();
    for words in ["What is [dot.rs](file:///home/ada/dot.rs)", "# Notes about dots", PNG_BASE64] {
        assert!(body.contains(words), "no {words:?} in {body}");
    }
    let broken = json!([{"type": "image", "data": "!", "mimeType": "image/png"}]);
    let refused = client.call("session/prompt", json!({"sessionId": session, "prompt": broken})).await;
    assert_eq!(refused.unwrap_err()["code"], -32602);
    client.call("session/delete", json!({"sessionId": session})).await.unwrap();
    assert_eq!(client.call("session/list", json!({})).await.unwrap()["sessions"], json!([]));
}

#[tokio::test]
async fn what_an_engine_elsewhere_cannot_do_is_refused() {
    let (fleet, _up, _provider) = start([]).await;
    let Some(mut client) = AcpClient::connect(AcpSdk::Node, &fleet).await else { return };
    let server = json!([{"name": "files", "command": "/bin/files", "args": [], "env": []}]);
    for params in [
        json!({"cwd": "/home/ada", "mcpServers": server}),
        json!({"cwd": "relative", "mcpServers": []}),
        json!({"cwd": "/home/ada", "mcpServers": [], "additionalDirectories": ["/tmp"]}),
    ] {
        let error = client.call("session/new", params.clone()).await.unwrap_err();
        assert_eq!(error["code"], -32602, "{params}: {error}");
    }
    for method in ["session/set_mode", "session/fork", "logout", "nonsense"] {
        let error = client.call(method, json!({"sessionId": "x", "modeId": "y"})).await.unwrap_err();
        assert_eq!(error["code"], -32601, "{method}: {error}");
    }
    let mut lenient = AcpClient::start(AcpSdk::Node, &fleet, &["--ignore-mcp-servers"]).unwrap();
    lenient.call("initialize", initialize_params()).await.unwrap();
    lenient.call("session/new", json!({"cwd": "/home/ada", "mcpServers": server})).await.unwrap();
}

#[tokio::test]
async fn a_turn_that_fails_is_an_error_with_its_code() {
    let (fleet, _up, _provider) = start([Reply::from_fault(Fault::refuse(Refusal::Unauthorized))]).await;
    let Some(mut client) = AcpClient::connect(AcpSdk::Node, &fleet).await else { return };
    let session = client.new_session().await;
    let tag = client.prompt(&session, "Hello").await;
    let error = client.outcome(tag).await.unwrap_err();
    assert_eq!(
        (&error["code"], &error["data"]["code"]),
        (&json!(-32603), &json!("PROVIDER_AUTH")),
        "{error}"
    );
}
