//! MCP servers of every revision of the protocol, each over all of its transports.

use serde_json::json;

use super::{call_tool_in_turn, tool_names};
use crate::support::peers::SdkVersion;
use crate::support::{EngineFixture, Peers, StandaloneEngine};

#[tokio::test]
async fn servers_of_all_revisions_are_spoken_to() {
    let Some(peers) = Peers::installed() else { return };
    let (sse, http) = (
        peers.start_old_http(SdkVersion::V1_6, "sse").await,
        peers.start_old_http(SdkVersion::V1_30, "http").await,
    );
    let (newest, stateless) = (peers.start_http(&[]).await, peers.start_http(&["--stateless"]).await);
    let servers = |setup: &StandaloneEngine| {
        json!({
            "first-near": peers.stdio_entry(setup, SdkVersion::V1_6, &["old_server.py"]),
            "first-far": sse.mcp_entry("none"),
            "second-near": peers.stdio_entry(setup, SdkVersion::V1_30, &["old_server.py"]),
            "second-far": http.mcp_entry("none"),
            "newest-near": peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"]),
            "newest-far": newest.mcp_entry("none"),
            "stateless": stateless.mcp_entry("none"),
        })
    };
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    let revisions = [
        ("first-near", "2024-11-05"),
        ("first-far", "2024-11-05"),
        ("second-near", "2025-11-25"),
        ("second-far", "2025-11-25"),
        ("newest-near", "2026-07-28"),
        ("newest-far", "2026-07-28"),
        ("stateless", "2026-07-28"),
    ];
    let mut faults = Vec::new();
    for (server, revision) in revisions {
        let answer = fixture.engine.connect(&json!({"server": server})).await;
        if answer.status != 200 {
            faults.push(format!("{server} of {revision} was not connected: {}", answer.body));
            continue;
        }
        let tool = |name: &str| format!("{server}__{name}");
        assert_eq!(fixture.engine.tool_output(&tool("protocol"), json!({})).await, revision, "{server}");
        assert_eq!(
            fixture.engine.tool_output(&tool("add"), json!({"a": 2, "b": 3})).await.trim(),
            "5",
            "{server}"
        );
        assert_eq!(
            call_tool_in_turn(&fixture, server, &tool("echo"), json!({"text": "hello"})).await.unwrap(),
            "hello",
            "{server}"
        );
        let error = call_tool_in_turn(&fixture, &tool("fail"), &tool("fail"), json!({"reason": "because"}))
            .await
            .unwrap_err();
        assert!(error.contains("because"), "{server}: {error}");
        let connections = fixture.engine.connections().await;
        let connection = connections.iter().find(|connection| connection["server"] == server).unwrap();
        assert!(tool_names(connection).contains(&"add"), "{connection}");
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test]
async fn the_official_client_finds_the_same_servers_right() {
    let Some(peers) = Peers::installed() else { return };
    let output = peers.run_official_client(&[]).await.assert_success();
    assert!(output.contains("well: legacy") && output.contains("well: auto"), "{output}");
    let authorization_server = peers.start_authorization_server(2, "dynamic").await;
    let output = peers.run_official_client(&[authorization_server.url()]).await.assert_success();
    assert!(output.contains("well: renewed"), "{output}");
}
