//! Servers that are their own authorization servers, as the official SDKs make them: most that exist are.

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

async fn connect_use_and_disconnect(authority: &AuthorizationServer) {
    let entry = json!({"type": "http", "url": format!("{}/mcp", authority.url()), "auth": "oauth"});
    let rig = EngineFixture::with_servers(json!({"peer": entry})).await;
    let answer = rig.engine.connect(&json!({"server": "peer"})).await;
    let asked = answer.assert_ok("status:text authorization_url:text state:text");
    let returned = authority.authorize_in_browser(asked["authorization_url"].as_str().unwrap()).await;
    let answer = rig.engine.post("/assets/callback", &returned.body()).await;
    let connected = answer.assert_ok("status:text connection:connection");
    assert_eq!(connected["status"], "connected");
    assert_eq!(tool_names(&only_connection(&rig.engine).await), ["add"]);
    assert_eq!(
        call_tool_in_turn(&rig, "task", "peer__add", json!({"a": 2, "b": 3})).await.unwrap().trim(),
        "5"
    );
    let given = authority.tokens().await;
    assert!(given.len() == 2 && given.iter().all(|(_, active)| *active), "{given:?}");

    // Its tokens are revoked with the connection.
    let id = connected["connection"].as_str().unwrap();
    rig.engine.delete(&format!("/assets/connections/{id}")).await.assert_ok("status:text");
    assert!(authority.tokens().await.iter().all(|(_, active)| !active));
}
