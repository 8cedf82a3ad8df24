//! Servers that are their own authorization servers, as the official SDKs make them: most that exist are.

use serde_json::json;

use super::{connection, tools_of, turn};
use crate::support::peers::Authority;
use crate::support::{Peers, Rig};

#[tokio::test]
async fn a_server_of_the_official_sdk_is_connected_used_and_left() {
    let Some(peers) = Peers::found() else { return };
    is_connected_used_and_left(&peers.own_authority().await).await;
}

#[tokio::test]
async fn a_server_of_the_official_typescript_sdk_is_connected_used_and_left() {
    let Some(peers) = Peers::found() else { return };
    is_connected_used_and_left(&peers.own_authority_in_typescript().await).await;
}

async fn is_connected_used_and_left(authority: &Authority) {
    let entry = json!({"type": "http", "url": format!("{}/mcp", authority.url()), "auth": "oauth"});
    let rig = Rig::with_servers(json!({"peer": entry})).await;
    let answer = rig.engine.connect(&json!({"server": "peer"})).await;
    let asked = answer.ok("status:text authorization_url:text state:text");
    let returned = authority.visit(asked["authorization_url"].as_str().unwrap()).await;
    let answer = rig.engine.post("/assets/callback", &returned.body()).await;
    let connected = answer.ok("status:text connection:connection");
    assert_eq!(connected["status"], "connected");
    assert_eq!(tools_of(&connection(&rig.engine).await), ["add"]);
    assert_eq!(turn(&rig, "task", "peer__add", json!({"a": 2, "b": 3})).await.unwrap().trim(), "5");
    let given = authority.tokens().await;
    assert!(given.len() == 2 && given.iter().all(|(_, active)| *active), "{given:?}");

    // Its tokens are revoked with the connection.
    let id = connected["connection"].as_str().unwrap();
    rig.engine.delete(&format!("/assets/connections/{id}")).await.ok("status:text");
    assert!(authority.tokens().await.iter().all(|(_, active)| !active));
}
