//! Servers of every revision of the protocol, each over the transports that it has.

use serde_json::json;

use super::{tools_of, turn};
use crate::support::peers::Sdk;
use crate::support::{LoneEngine, Peers, Rig};

#[tokio::test]
async fn servers_of_all_revisions_are_spoken_to() {
    let Some(peers) = Peers::found() else { return };
    let (sse, http) = (peers.old_http(Sdk::V1_6, "sse").await, peers.old_http(Sdk::V1_30, "http").await);
    let (newest, stateless) = (peers.http(&[]).await, peers.http(&["--stateless"]).await);
    let servers = |place: &LoneEngine| {
        json!({
            "first-near": peers.stdio(place, Sdk::V1_6, &["old_server.py"]),
            "first-far": sse.entry("none"),
            "second-near": peers.stdio(place, Sdk::V1_30, &["old_server.py"]),
            "second-far": http.entry("none"),
            "newest-near": peers.stdio(place, Sdk::Newest, &["server.py"]),
            "newest-far": newest.entry("none"),
            "stateless": stateless.entry("none"),
        })
    };
    let rig = Rig::with_servers_of(servers, |place| place).await;
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
        let answer = rig.engine.connect(&json!({"server": server})).await;
        if answer.status != 200 {
            faults.push(format!("{server} of {revision} is not connected: {}", answer.body));
            continue;
        }
        let tool = |name: &str| format!("{server}__{name}");
        assert_eq!(rig.engine.tool_gives(&tool("protocol"), json!({})).await, revision, "{server}");
        assert_eq!(
            rig.engine.tool_gives(&tool("add"), json!({"a": 2, "b": 3})).await.trim(),
            "5",
            "{server}"
        );
        assert_eq!(
            turn(&rig, server, &tool("echo"), json!({"text": "hello"})).await.unwrap(),
            "hello",
            "{server}"
        );
        let error = turn(&rig, &tool("fail"), &tool("fail"), json!({"reason": "because"})).await.unwrap_err();
        assert!(error.contains("because"), "{server}: {error}");
        let connections = rig.engine.connections().await;
        let connection = connections.iter().find(|one| one["server"] == server).unwrap();
        assert!(tools_of(connection).contains(&"add"), "{connection}");
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test]
async fn the_official_client_finds_the_same_servers_right() {
    let Some(peers) = Peers::found() else { return };
    let said = peers.check(&[]).await.well();
    assert!(said.contains("well: legacy") && said.contains("well: auto"), "{said}");
    let authority = peers.authority(2, "dynamic").await;
    let said = peers.check(&[authority.url()]).await.well();
    assert!(said.contains("well: renewed"), "{said}");
}
