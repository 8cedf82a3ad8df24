//! OpenAI's official SDKs, of `PyPI` and npm, use an engine as they would use their vendor.
//!
//! `ROUNDHOUSE_TEST_PYTHON` names an interpreter that has the one; `.ci/peers` installs the other.

use std::collections::BTreeMap;
use std::{env, fs};

use mock_llm::{Gate, Reply, Usage};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{ProxiedEngine, wait_gate_reached, write_file_reply};
use crate::support::peers::Peers;
use crate::support::sdk_client::{self, SdkClient};
use crate::support::tcp_forwarder::TcpForwarder;
use crate::support::{EngineFixture, TestEnv, skip};

/// Starts the Python SDK; skips the story and returns `None` if it is not installed.
fn python_client(scenario: &str, fixture: &EngineFixture) -> Option<SdkClient> {
    python_sdk(&[scenario, &format!("{}/v1", fixture.engine.url), &fixture.engine.key])
}

fn python_sdk(arguments: &[&str]) -> Option<SdkClient> {
    let Some(python) = env::var("ROUNDHOUSE_TEST_PYTHON").ok().filter(|python| !python.is_empty()) else {
        skip("OpenAI's Python SDK: ROUNDHOUSE_TEST_PYTHON names no interpreter");
        return None;
    };
    let script = sdk_client::script("openai_client.py");
    let line = [&[&*python, &script], arguments].concat();
    Some(SdkClient::start(TestEnv::new(), &line, BTreeMap::new()))
}

/// Starts the npm SDK; skips the story and returns `None` if it is not installed.
fn node_client(scenario: &str, fixture: &EngineFixture) -> Option<SdkClient> {
    node_sdk(&[scenario, &format!("{}/v1", fixture.engine.url), &fixture.engine.key])
}

fn node_sdk(arguments: &[&str]) -> Option<SdkClient> {
    let peers = Peers::installed()?;
    let home = peers.node_home();
    let program = home.path().join("openai_client.mjs");
    fs::copy(sdk_client::script("openai_client.mjs"), &program).unwrap();
    let node = peers.node();
    let line = [node, program].map(|path| path.to_str().unwrap().to_owned());
    let line = [&line.each_ref().map(String::as_str), arguments].concat();
    Some(SdkClient::start(home, &line, BTreeMap::new()))
}

#[tokio::test]
async fn python_chats() {
    let replies = ["Grüß Gott.", "Nach Köln, über Bonn.", "{\"city\":\"Köln\"}"].map(Reply::from_text);
    let fixture = EngineFixture::for_wire("openai", replies).await;
    let Some(client) = python_client("chat", &fixture) else { return };
    let shown = client.finish().await;
    assert_eq!(shown[0], json!({"models": ["default", "gpt-5"], "one": "default"}));
    assert_eq!((&shown[1]["content"], &shown[1]["finish"]), (&json!("Grüß Gott."), &json!("stop")));
    assert_eq!(
        (&shown[2]["content"], &shown[2]["finish"]),
        (&json!("Nach Köln, über Bonn."), &json!("stop"))
    );
    assert!(shown[1]["tokens"].as_u64() > Some(0) && shown[2]["tokens"].as_u64() > Some(0), "{shown:?}");
    assert_eq!(shown[3], json!({"city": "Köln"}));
    assert_eq!(fixture.engine.messages("reise").await.len(), 2);
}

#[tokio::test]
async fn python_raises_its_own_errors() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("Wait.").hold(1, &gate)]).await;
    fixture.engine.execute_in_background(direct_message("busy", "Think.")).await;
    wait_gate_reached(&gate).await;
    let Some(client) = python_client("errors", &fixture) else { return };
    let shown = client.finish().await;
    let errors: Vec<_> =
        shown.iter().map(|shown| (&shown["error"], &shown["code"], &shown["param"])).collect();
    let expected = [
        ("AuthenticationError", "invalid_api_key", Value::Null),
        ("BadRequestError", "unsupported_parameter", json!("tools")),
        ("BadRequestError", "unsupported_parameter", json!("n")),
        ("NotFoundError", "model_not_found", json!("model")),
        ("ConflictError", "task_busy", Value::Null),
        ("BadRequestError", "unknown_parameter", json!("massage")),
        ("NotFoundError", "response_not_found", json!("previous_response_id")),
        ("NotFoundError", "response_not_found", Value::Null),
        ("NotFoundError", "model_not_found", Value::Null),
    ];
    assert_eq!(errors.len(), expected.len());
    for (error, (kind, code, param)) in errors.iter().zip(&expected) {
        assert_eq!(*error, (&json!(kind), &json!(code), param));
    }
}

#[tokio::test]
async fn python_is_told_when_to_come_back_at_a_cap() {
    let usage = Usage { input: Some(100_000), output: Some(1), ..Usage::default() };
    let reply = Reply::from_text("Hello.").usage(usage);
    let cap = ("ENGINE_USAGE_MAX_TOKENS_PER_DAY", "100000");
    let fixture =
        EngineFixture::with_setup("anthropic", [reply], |setup| setup.with_env(cap.0, cap.1.to_owned()))
            .await;
    let Some(client) = python_client("quota", &fixture) else { return };
    assert_eq!(client.finish().await, [json!({"code": "insufficient_quota", "waits": true})]);
}

async fn streams_on_while_a_person_is_asked(start: impl FnOnce(&str, &EngineFixture) -> Option<SdkClient>) {
    let fixture = EngineFixture::new([write_file_reply("notes.txt"), Reply::from_text("Done.")]).await;
    let Some(mut client) = start("permission", &fixture) else { return };
    client.wait_for("\"asked\"").await;
    assert_eq!(fixture.engine.respond("task", "yes").await.status, 200);
    let shown = client.finish().await;
    assert_eq!(shown, [json!({"asked": "permission"}), json!({"content": "Done."})]);
    assert!(fixture.setup.workspace().join("notes.txt").exists());
}

#[tokio::test]
async fn python_streams_on_while_a_person_is_asked() {
    streams_on_while_a_person_is_asked(python_client).await;
}

#[tokio::test]
async fn node_streams_on_while_a_person_is_asked() {
    streams_on_while_a_person_is_asked(node_client).await;
}

#[tokio::test]
async fn python_uses_responses() {
    let texts = ["Ada.", "Mehr.", "Anders.", "Eine Rede, länger.", "{\"city\":\"Köln\"}", "Spät."];
    let fixture = EngineFixture::for_wire("openai", texts.map(Reply::from_text)).await;
    let Some(client) = python_client("responses", &fixture) else { return };
    let shown = client.finish().await;
    assert_eq!((&shown[0]["text"], &shown[0]["status"]), (&json!("Ada."), &json!("completed")));
    assert_eq!(shown[1], json!({"text": "Mehr.", "same": true}));
    // What follows an earlier response is a fork, whose model does not see the later turn.
    assert_eq!(shown[2], json!({"text": "Anders.", "same": false}));
    fixture.all_messages()[2]
        .assert_contains(&["Wer bist du?", "Ada.", "Oder so?"])
        .assert_lacks(&["Und weiter?"]);
    assert_eq!(shown[3], json!({"text": "Ada.", "metadata": {"ticket": "4711"}}));
    let speech = "Eine Rede, länger.";
    assert_eq!(shown[4], json!({"text": speech, "deltas": speech, "conversation": "täsk"}));
    assert_eq!(shown[5], json!({"city": "Köln"}));
    assert_eq!((&shown[6]["after"], &shown[6]["text"]), (&json!("completed"), &json!("Spät.")));
    assert_eq!(shown[7], json!({"gone": "response_not_found"}));
}

async fn sees_what_a_response_waits_for(start: impl FnOnce(&str, &EngineFixture) -> Option<SdkClient>) {
    let fixture = EngineFixture::new([write_file_reply("notes.txt"), Reply::from_text("Done.")]).await;
    let Some(mut client) = start("asked", &fixture) else { return };
    client.wait_for("\"items\"").await;
    let fixture = fixture.kill_and_start().await;
    client.press_enter().await;
    assert_eq!(fixture.engine.respond("task", "yes").await.status, 200);
    let shown = client.finish().await;
    let items = shown[0]["items"].as_array().unwrap();
    assert_eq!(
        (&shown[0]["status"], items.last()),
        (&json!("in_progress"), Some(&json!("mcp_approval_request")))
    );
    assert_eq!(shown[1], json!({"status": "completed", "text": "Done."}));
}

#[tokio::test]
async fn python_sees_what_a_response_waits_for() {
    sees_what_a_response_waits_for(python_client).await;
}

#[tokio::test]
async fn node_sees_what_a_response_waits_for() {
    sees_what_a_response_waits_for(node_client).await;
}

#[tokio::test]
async fn python_cancels_a_response() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("Never said.").hold(1, &gate)]).await;
    let Some(client) = python_client("cancel", &fixture) else { return };
    assert_eq!(client.finish().await, [json!({"status": "in_progress"}), json!({"status": "cancelled"})]);
}

/// A text that comes in several pieces.
const LONG_TEXT: &str = "Es war einmal ein längerer Text, der in vielen Stücken kam.";

/// Kills the engine while the client, which has said that it has `begun`, reads an answer. Returns the engine that was
/// started then, and all that the client has shown once it has asked it for the rest.
async fn kill_in_mid_answer(
    start: impl FnOnce(&EngineFixture) -> Option<SdkClient>,
    begun: &str,
) -> Option<(EngineFixture, Vec<Value>)> {
    let gate = Gate::new();
    let answer = || Reply::from_text(LONG_TEXT).deltas(12);
    let fixture = EngineFixture::new([answer().hold(6, &gate)]).await;
    let mut client = start(&fixture)?;
    client.wait_for(begun).await;
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue(answer());
    let fixture = fixture.kill_and_start().await;
    client.wait_for("\"broken\"").await;
    client.press_enter().await;
    let shown = client.finish().await;
    assert_ne!(shown[1]["broken"], json!(false), "the stream did not break: {shown:?}");
    Some((fixture, shown))
}

/// After a kill the client asks for the rest: it has each event once.
async fn assert_exactly_the_rest(start: impl FnOnce(&EngineFixture) -> Option<SdkClient>) {
    let Some((fixture, shown)) = kill_in_mid_answer(start, "\"id\"").await else { return };
    let path = format!("/v1/responses/{}?stream=true", shown[0]["id"].as_str().unwrap());
    let whole = fixture.engine.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    let whole: Vec<Value> =
        whole.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let keys = |events: &[Value]| -> Vec<[Value; 3]> {
        let key = |event: &Value| ["type", "sequence_number", "delta"].map(|name| event[name].clone());
        events.iter().map(key).collect()
    };
    assert_eq!(keys(shown[2]["events"].as_array().unwrap()), keys(&whole));
    let deltas: String = whole.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, LONG_TEXT);
}

#[tokio::test]
async fn python_gets_exactly_the_rest_after_a_kill() {
    assert_exactly_the_rest(|fixture| python_client("resume", fixture)).await;
}

#[tokio::test]
async fn node_gets_exactly_the_rest_after_a_kill() {
    assert_exactly_the_rest(|fixture| node_client("resume", fixture)).await;
}

#[tokio::test]
async fn node_chats_and_uses_responses() {
    let fixture = EngineFixture::new(["Grüß Gott.", "Nach Köln.", "Eine Rede."].map(Reply::from_text)).await;
    let Some(client) = node_client("chat", &fixture) else { return };
    let shown = client.finish().await;
    assert_eq!(
        shown[0],
        json!({"models": ["default", "claude-sonnet-4-5"], "once": "Grüß Gott.", "streamed": "Nach Köln."})
    );
    assert_eq!(shown[1], json!({"text": "Eine Rede.", "again": "Eine Rede.", "status": "completed"}));
    let refusals = json!([
        ["AuthenticationError", "invalid_api_key"],
        ["BadRequestError", "unsupported_parameter"],
        ["NotFoundError", "response_not_found"],
    ]);
    assert_eq!(shown[2]["refusals"], refusals);
}

/// A completion has no positions: after a kill, the same request with the same key gives the whole answer of the same
/// turn.
async fn completes_after_a_kill(start: impl FnOnce(&str, &EngineFixture) -> Option<SdkClient>) {
    let Some((fixture, shown)) = kill_in_mid_answer(|fixture| start("again", fixture), "\"began\"").await
    else {
        return;
    };
    let had = shown[1]["text"].as_str().unwrap();
    assert!(!had.is_empty() && had.len() < LONG_TEXT.len() && LONG_TEXT.starts_with(had), "{had}");
    assert_eq!(
        shown[2..],
        [json!({"began": true}), json!({"broken": false, "text": LONG_TEXT, "id": shown[1]["id"]})]
    );
    assert_eq!(fixture.engine.messages("openai-chat-once").await.len(), 2);
    assert_eq!(fixture.model_calls(), 2);
}

#[tokio::test]
async fn python_completes_after_a_kill() {
    completes_after_a_kill(python_client).await;
}

#[tokio::test]
async fn node_completes_after_a_kill() {
    completes_after_a_kill(node_client).await;
}

/// The engine is killed under a call without a stream, which the SDK makes again by itself: with a key it joins its turn,
/// without one it is another turn.
async fn tries_again_by_itself(start: impl Fn(&[&str]) -> Option<SdkClient>) {
    for (key, tasks) in [(&["once"][..], 1), (&[][..], 2)] {
        let gate = Gate::new();
        let fixture = EngineFixture::new([Reply::from_text("Never said.").hold(1, &gate)]).await;
        // The SDKs give up within two seconds if nothing listens.
        let forwarder =
            TcpForwarder::bind_patient(fixture.engine.url.replace("http://", "").parse().unwrap());
        let url = format!("http://{}/v1", forwarder.address);
        let Some(client) = start(&[&["retries", url.as_str(), &fixture.engine.key], key].concat()) else {
            return;
        };
        wait_gate_reached(&gate).await;
        fixture.provider.set_default_reply(Reply::from_text("Done."));
        let fixture = fixture.kill_and_start().await;
        assert_eq!(client.finish().await, [json!({"text": "Done."})]);
        assert_eq!(fixture.engine.tasks("").await.1, tasks, "{key:?}");
    }
}

#[tokio::test]
async fn python_tries_again_by_itself() {
    tries_again_by_itself(python_sdk).await;
}

#[tokio::test]
async fn node_tries_again_by_itself() {
    tries_again_by_itself(node_sdk).await;
}

/// A person is asked in the middle of a completion that is streamed through the orchestrator.
async fn is_served_through_the_proxy(start: impl FnOnce(&[&str]) -> Option<SdkClient>) {
    let proxied = ProxiedEngine::start([write_file_reply("notes.txt"), Reply::from_text("Done.")]).await;
    let url = format!("{}/v1", proxied.url);
    let Some(mut client) = start(&["permission", &url, &proxied.key]) else { return };
    client.wait_for("\"asked\"").await;
    assert_eq!(proxied.engine.respond("task", "yes").await.status, 200);
    assert_eq!(client.finish().await, [json!({"asked": "permission"}), json!({"content": "Done."})]);
}

#[tokio::test]
async fn python_is_served_through_the_proxy() {
    is_served_through_the_proxy(python_sdk).await;
}

#[tokio::test]
async fn node_is_served_through_the_proxy() {
    is_served_through_the_proxy(node_sdk).await;
}
