//! MCP servers that are their own authorization server: how the official SDKs build them, and thus the usual case.

use serde_json::json;

use super::{call_tool_in_turn, only_connection, tool_names};
use crate::support::peers::AuthorizationServer;
use crate::support::{EngineFixture, Peers};

#[tokio::test]
async fn a_server_of_the_official_sdk_is_connected_used_and_left() {
    let Some(peers) = Peers::installed() else { return };
    connect_use_and_disconnect(&peers.start_combined_server().await).await;
}

#[tokio::test]
async fn a_server_of_the_official_typescript_sdk_is_connected_used_and_left() {
    let Some(peers) = Peers::installed() else { return };
    connect_use_and_disconnect(&peers.start_typescript_combined_server().await).await;
}

async fn connect_use_and_disconnect(authorization_server: &AuthorizationServer) {
    let entry =
        json!({"type": "http", "url": format!("{}/mcp", authorization_server.url()), "auth": "oauth"});
    let fixture = EngineFixture::with_servers(json!({"peer": entry})).await;
    let answer = fixture.engine.connect(&json!({"server": "peer"})).await;
    let request = answer.assert_ok("status:text authorization_url:text state:text");
    let returned =
        authorization_server.authorize_in_browser(request["authorization_url"].as_str().unwrap()).await;
    let answer = fixture.engine.post("/assets/callback", &returned.body()).await;
    let connected = answer.assert_ok("status:text connection:connection");
    assert_eq!(connected["status"], "connected");
    assert_eq!(tool_names(&only_connection(&fixture.engine).await), ["add"]);
    assert_eq!(
        call_tool_in_turn(&fixture, "task", "peer__add", json!({"a": 2, "b": 3})).await.unwrap().trim(),
        "5"
    );
    let tokens = authorization_server.tokens().await;
    assert!(tokens.len() == 2 && tokens.iter().all(|(_, active)| *active), "{tokens:?}");

    // Disconnecting revokes the tokens.
    let id = connected["connection"].as_str().unwrap();
    fixture.engine.delete(&format!("/assets/connections/{id}")).await.assert_ok("status:text");
    assert!(authorization_server.tokens().await.iter().all(|(_, active)| !active));
}
