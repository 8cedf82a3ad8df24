//! Calls of the tools of connected MCP servers, in turns and over `/rpc`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{call_tool_in_turn, only_connection, tool_names, turn_events};
use crate::support::engine_calls::direct_message;
use crate::support::peers::SdkVersion;
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::{assert_cancelled, assert_completed, of_kind};
use crate::support::{EngineFixture, Event, Peers, StandaloneEngine, eventually};

/// An engine that is connected to the server over HTTP (`far`) and over stdio (`near`).
async fn connected_fixture(
    peers: &Peers,
    configure: impl FnOnce(StandaloneEngine) -> StandaloneEngine,
) -> (crate::support::peers::PeerServer, EngineFixture) {
    let server = peers.start_http(&[]).await;
    let servers = |setup: &StandaloneEngine| json!({"far": server.mcp_entry("none"), "near": peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"])});
    let fixture = EngineFixture::with_servers_and_setup(servers, configure).await;
    fixture.engine.connect_server("far").await;
    fixture.engine.connect_server("near").await;
    (server, fixture)
}

#[tokio::test]
async fn a_call_is_shown_and_made_with_leave() {
    let Some(peers) = Peers::installed() else { return };
    let (_server, fixture) = connected_fixture(&peers, |setup| setup).await;
    for server in ["far", "near"] {
        let tool = format!("{server}__echo");
        fixture.provider.enqueue_all([tool_reply(&tool, json!({"text": "by the window"})), done_reply()]);
        let (stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message(server, "Say it.")).await;
        assert_eq!(request.data["kind"], "permission");
        let question = request.data["question"].as_str().unwrap();
        for part in ["echo", server, "by the window"] {
            assert!(question.contains(part), "no {part:?} in: {question}");
        }
        fixture.engine.respond(server, "yes").await.assert_ok("status:text request_id:hitl");
        let events = stream.collect().await;
        assert_completed(&events);
        let called = of_kind(&events, "tool_call");
        assert_eq!((&called[0].data["tool"], called.len()), (&json!(tool), 1));
        assert_eq!(called[0].data["input"], json!({"text": "by the window"}));
        assert_eq!(tool_results(&events), [Ok("by the window")]);
        fixture.last_messages().assert_contains(&["by the window"]);
        assert!(fixture.offered_tools().contains(&tool), "{:?}", fixture.offered_tools());
    }
    let tools = fixture.provider.requests()[0].body["tools"].to_string();
    assert!(tools.contains("Gives back what it is given."), "{tools}");
}

#[tokio::test]
async fn what_is_refused_is_not_called() {
    let Some(peers) = Peers::installed() else { return };
    let (_server, fixture) = connected_fixture(&peers, |setup| setup).await;
    fixture.provider.enqueue_all([tool_reply("far__wait", json!({"seconds": 0})), done_reply()]);
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Wait.")).await;
    fixture.engine.respond("task", "no").await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_completed(&events);
    tool_results(&events)[0].expect_err("it is refused");
    let tally = fixture.engine.tool_output("far__tally", json!({})).await;
    assert!(tally.contains("\"finished\": 0"), "{tally}");
}

#[tokio::test]
async fn only_what_the_catalog_trusts_is_called_without_leave() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&[]).await;
    let mut trusted = server.mcp_entry("none");
    trusted["trust_annotations"] = json!(true);
    let servers = json!({"trusted": trusted, "other": server.mcp_entry("none")});
    let permissions = r#"{"tools": {"other__echo": "allow", "other__add": "deny"}}"#;
    let configure = |setup: StandaloneEngine| setup.with_catalog_file("permissions.json", permissions);
    let fixture = EngineFixture::with_servers_and_setup(|_| servers, configure).await;
    fixture.engine.connect_server("trusted").await;
    fixture.engine.connect_server("other").await;
    let word = json!({"word": "lamp"});
    for (tool, input, asks) in [
        ("trusted__look_up", &word, false),
        ("other__look_up", &word, true),
        ("trusted__echo", &json!({"text": "x"}), true),
        ("other__echo", &json!({"text": "x"}), false),
    ] {
        let events = turn_events(&fixture, tool, tool, input.clone()).await;
        assert_eq!(of_kind(&events, "hitl_request").len(), usize::from(asks), "{tool}");
        tool_results(&events)[0].unwrap();
    }
    assert!(
        !fixture.offered_tools().contains(&"other__add".to_owned()),
        "a denied tool is not offered to the model"
    );
    fixture
        .engine
        .call_tool("other__add", json!({"a": 1, "b": 1}))
        .await
        .assert_flat_error(400, "TOOL_DENIED");
}

#[tokio::test]
async fn a_call_without_a_turn_gives_the_same() {
    let Some(peers) = Peers::installed() else { return };
    let (_server, fixture) = connected_fixture(&peers, |setup| setup).await;
    for server in ["far", "near"] {
        let tool = |name: &str| format!("{server}__{name}");
        assert_eq!(fixture.engine.tool_output(&tool("add"), json!({"a": 20, "b": 3})).await.trim(), "23");
        let answer = fixture.engine.call_tool(&tool("fail"), json!({"reason": "no such customer"})).await;
        let message = answer.assert_flat_error(400, "TOOL_FAILED");
        assert!(message.contains("no such customer"), "{message}");
        let answer = fixture.engine.call_tool(&tool("add"), json!({"a": "two", "b": 3})).await;
        assert!(answer.assert_flat_error(400, "TOOL_FAILED").contains('a'));
        fixture
            .engine
            .call_tool(&tool("nothing"), json!({}))
            .await
            .assert_flat_error(404, "METHOD_NOT_FOUND");
    }
    let methods = fixture.engine.post("/rpc", &json!({"method": "rpc.methods", "params": {}})).await;
    assert!(methods.body.to_string().contains("tool.far__add"), "{}", methods.body);
}

#[tokio::test]
async fn a_tool_that_fails_says_why_and_the_turn_goes_on() {
    let Some(peers) = Peers::installed() else { return };
    let (_server, fixture) = connected_fixture(&peers, |setup| setup).await;
    for server in ["far", "near"] {
        let fail = format!("{server}__fail");
        let error = call_tool_in_turn(&fixture, server, &fail, json!({"reason": "no such customer"}))
            .await
            .unwrap_err();
        assert!(error.contains("no such customer"), "{error}");
        fixture.last_messages().assert_contains(&["no such customer"]);
    }
}

#[tokio::test]
async fn a_picture_and_structured_content_reach_the_model() {
    let Some(peers) = Peers::installed() else { return };
    let (_server, fixture) = connected_fixture(&peers, |setup| setup).await;
    for server in ["far", "near"] {
        let output =
            call_tool_in_turn(&fixture, server, &format!("{server}__picture"), json!({})).await.unwrap();
        assert!(output.contains("One pixel.") && output.contains("picture 1"), "{output}");
        // The picture itself follows the text of the result.
        fixture.last_messages().assert_contains(&["One pixel.", "image/png"]);
        let figures = format!("{server}__figures");
        let output = call_tool_in_turn(&fixture, &figures, &figures, json!({})).await.unwrap();
        assert!(output.contains("apples") && output.contains("12"), "{output}");
    }
}

#[tokio::test]
async fn what_is_long_is_cut_for_the_model_and_kept_in_the_workspace() {
    let Some(peers) = Peers::installed() else { return };
    let (_server, fixture) = connected_fixture(&peers, |setup| setup).await;
    for server in ["far", "near"] {
        let output = call_tool_in_turn(&fixture, server, &format!("{server}__pages"), json!({"kib": 300}))
            .await
            .unwrap();
        assert!(output.len() < 80 * 1024, "it is {} bytes long", output.len());
        assert!(output.contains("first") && output.contains("last"), "{output}");
    }
}

#[tokio::test]
async fn a_cancelled_turn_cancels_the_call() {
    let Some(peers) = Peers::installed() else { return };
    let allow =
        |setup: StandaloneEngine| setup.with_catalog_file("permissions.json", r#"{"default": "allow"}"#);
    let (_server, fixture) = connected_fixture(&peers, allow).await;
    for server in ["far", "near"] {
        fixture.provider.enqueue(tool_reply(&format!("{server}__wait"), json!({"seconds": 60})));
        let mut stream = fixture.engine.execute_with(&direct_message(server, "Wait.")).await;
        stream.read_until("the call", |event: &Event| event.kind == "tool_call").await;
        // Gives the server time to receive the call.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let start = Instant::now();
        fixture.engine.cancel(server).await.assert_ok("status:text turn_id:turn");
        assert_cancelled(&stream.collect().await);
        assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
        eventually("the server is notified of the cancellation", async || {
            let tally = fixture.engine.tool_output(&format!("{server}__tally"), json!({})).await;
            tally.contains("\"cancelled\": 1").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn calls_of_one_answer_run_at_once() {
    let Some(peers) = Peers::installed() else { return };
    let allow =
        |setup: StandaloneEngine| setup.with_catalog_file("permissions.json", r#"{"default": "allow"}"#);
    let (_server, fixture) = connected_fixture(&peers, allow).await;
    for server in ["far", "near"] {
        let wait = format!("{server}__wait");
        // The inputs differ, so that none of the calls counts as a repetition.
        let calls = [2.0, 2.1, 2.2, 2.3].map(|seconds| json!({"seconds": seconds}));
        let reply =
            calls.into_iter().fold(mock_llm::Reply::new(), |reply, input| reply.tool_use(&wait, input));
        fixture.provider.enqueue_all([reply, done_reply()]);
        let start = Instant::now();
        let events = fixture.engine.run_turn(server, "Wait.").await;
        assert_eq!(tool_results(&events).iter().filter(|result| result.is_ok()).count(), 4, "{events:#?}");
        assert!(start.elapsed() < Duration::from_secs(7), "it took {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn tools_that_come_and_go_are_told_from_the_next_turn_on() {
    let Some(peers) = Peers::installed() else { return };
    let (new, old) = (peers.start_http(&[]).await, peers.start_old_http(SdkVersion::V1_30, "http").await);
    let servers = |setup: &StandaloneEngine| {
        json!({
            "new_far": new.mcp_entry("none"),
            "new_near": peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"]),
            "old_far": old.mcp_entry("none"),
            "old_near": peers.stdio_entry(setup, SdkVersion::V1_30, &["old_server.py"]),
        })
    };
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    let mut unnoticed = Vec::new();
    for server in ["new_far", "new_near", "old_far", "old_near"] {
        fixture.engine.connect_server(server).await;
        let tool = |name: &str| format!("{server}__{name}");
        let events = turn_events(&fixture, &tool("1"), &tool("grow"), json!({})).await;
        assert_eq!(tool_results(&events), [Ok("grown")]);
        let start = Instant::now();
        let noticed = loop {
            if fixture.engine.call_tool(&tool("grown"), json!({})).await.status == 200 {
                break true;
            }
            if start.elapsed() > Duration::from_secs(10) {
                break false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        if !noticed {
            unnoticed.push(server);
            continue;
        }
        assert_eq!(
            call_tool_in_turn(&fixture, &tool("2"), &tool("grown"), json!({})).await.unwrap(),
            "I have grown."
        );
        let offered = fixture.offered_tools();
        assert!(offered.contains(&tool("renamed")) && !offered.contains(&tool("fading")), "{offered:?}");
        fixture.engine.call_tool(&tool("fading"), json!({})).await.assert_flat_error(404, "METHOD_NOT_FOUND");
        assert_eq!(fixture.engine.tool_output(&tool("renamed"), json!({})).await, "still here");
        let connections = fixture.engine.connections().await;
        let connection = connections.iter().find(|connection| connection["server"] == server).unwrap();
        assert!(tool_names(connection).contains(&"grown"), "{connection}");
    }
    assert!(unnoticed.is_empty(), "a change of the tool list is not noticed from {unnoticed:?}");
}

#[tokio::test]
async fn a_reload_takes_servers_and_gives_them_back() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&[]).await;
    let full_catalog = json!({"mcpServers": {"peer": server.mcp_entry("none")}}).to_string();
    let fixture = EngineFixture::with_servers(json!({"peer": server.mcp_entry("none")})).await;
    fixture.engine.connect_server("peer").await;
    let write = |text: &str| {
        let catalog = std::path::Path::new(&fixture.setup.variables["CATALOG_DIR"]);
        crate::support::tool_programs::write_catalog_file(catalog, "mcp.json", text);
    };
    let reload = async || fixture.engine.post("/admin/reload-catalog", &Value::Null).await;
    write(r#"{"mcpServers": {}}"#);
    assert_eq!(reload().await.status, 200);
    assert_eq!(fixture.engine.servers().await, [Value::Null; 0]);
    fixture
        .engine
        .call_tool("peer__add", json!({"a": 1, "b": 1}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");
    write("no JSON");
    let answer = reload().await;
    assert!(answer.body["warnings"].to_string().contains("mcp.json"), "{}", answer.body);
    write(&full_catalog);
    assert_eq!(reload().await.status, 200);
    assert_eq!(fixture.engine.servers().await.len(), 1);
    if only_connection(&fixture.engine).await["status"] != "connected" {
        fixture.engine.connect_server("peer").await;
    }
    assert_eq!(fixture.engine.tool_output("peer__add", json!({"a": 1, "b": 1})).await.trim(), "2");
}
