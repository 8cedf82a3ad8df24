//! OAuth callbacks that must connect nothing: denied, expired, replayed, forged or meant for another engine.

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{ProtectedServer, assert_stored_nowhere, only_connection, tool_names};
use crate::support::peers::CallbackParams;
use crate::support::{EngineFixture, HttpResponse, Peers};

/// Sends the callback's parameters to the engine, by POST or as the browser's GET.
async fn callback(protected: &ProtectedServer, returned: &CallbackParams, by_post: bool) -> HttpResponse {
    if by_post {
        protected.engine().post("/assets/callback", &returned.body()).await
    } else {
        protected.engine().get(&returned.path()).await
    }
}

/// Asserts that nothing was connected: there is no connected connection, no tool and no token.
async fn assert_not_connected(protected: &ProtectedServer) {
    let connections = protected.engine().connections().await;
    assert!(connections.iter().all(|connection| connection["status"] != "connected"), "{connections:#?}");
    assert!(connections.iter().all(|connection| tool_names(connection).is_empty()), "{connections:#?}");
    assert_eq!(protected.engine().servers().await[0]["connected"], false);
    assert_eq!(protected.authorization_server.tokens().await, [], "no token was given");
    protected
        .engine()
        .call_tool("peer__add", json!({"a": 2, "b": 3}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");
}

#[tokio::test]
async fn a_state_that_is_not_known_leads_nowhere() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let returned = protected.authorize().await;
    for by_post in [true, false] {
        for state in [Some("x"), Some("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")] {
            let answer = callback(&protected, &returned.clone().with_param("state", state), by_post).await;
            answer.assert_error(400, "INVALID_STATE");
        }
        for none in [None, Some("")] {
            let answer = callback(&protected, &returned.clone().with_param("state", none), by_post).await;
            assert_eq!(answer.status, 400, "{}", answer.body);
        }
    }
    assert_not_connected(&protected).await;
    // None of these consumed the valid state.
    callback(&protected, &returned, true).await.assert_ok("status:text connection:connection");
}

#[tokio::test]
async fn a_state_is_used_once() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let returned = protected.authorize().await;
    callback(&protected, &returned, true).await.assert_ok("status:text connection:connection");
    let before = only_connection(protected.engine()).await;
    for by_post in [true, false] {
        callback(&protected, &returned, by_post).await.assert_error(400, "INVALID_STATE");
    }
    assert_eq!(only_connection(protected.engine()).await, before, "the connection is unchanged");
    let exchanges = protected.authorization_server.requests_to("/token").await;
    assert_eq!(exchanges.len(), 1, "the code is not exchanged again: {exchanges:?}");
    assert_eq!(protected.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
}

#[tokio::test]
async fn a_state_that_is_old_leads_nowhere() {
    let Some(peers) = Peers::installed() else { return };
    for (minutes, accepted) in [(9, true), (10, false)] {
        let protected = ProtectedServer::new(&peers).await;
        let returned = protected.authorize().await;
        // Ages the state in the database, as if the engine had slept for these minutes.
        let ProtectedServer { authorization_server, server, fixture } = protected;
        let EngineFixture { provider, setup, program, .. } = fixture;
        program.signal_and_wait(Signal::TERM).await.assert_success();
        let aged = "UPDATE authorizations SET created_at = created_at - ?1 * 60 * 1000";
        assert_eq!(Connection::open(setup.brain()).unwrap().execute(aged, [minutes]).unwrap(), 1);
        let (program, engine) = setup.start().await;
        let protected = ProtectedServer {
            authorization_server,
            server,
            fixture: EngineFixture { provider, setup, program, engine },
        };
        let answer = callback(&protected, &returned, true).await;
        if accepted {
            answer.assert_ok("status:text connection:connection");
        } else {
            answer.assert_error(400, "INVALID_STATE");
            assert_not_connected(&protected).await;
        }
    }
}

#[tokio::test]
async fn a_state_of_another_engine_leads_nowhere() {
    let Some(peers) = Peers::installed() else { return };
    let mine = ProtectedServer::new(&peers).await;
    let servers = json!({"peer": mine.server.mcp_entry("oauth")});
    let other = EngineFixture::with_servers(servers).await;
    let returned = mine.authorize().await;
    other.engine.post("/assets/callback", &returned.body()).await.assert_error(400, "INVALID_STATE");
    assert_eq!(other.engine.connections().await, [Value::Null; 0]);
    callback(&mine, &returned, true).await.assert_ok("status:text connection:connection");
}

#[tokio::test]
async fn an_answer_of_another_authorization_server_leads_nowhere() {
    let Some(peers) = Peers::installed() else { return };
    for by_post in [true, false] {
        let protected = ProtectedServer::new(&peers).await;
        for iss in [Some("https://elsewhere.example"), Some(""), None] {
            let returned = protected.authorize().await.with_param("iss", iss);
            callback(&protected, &returned, by_post).await.assert_error(400, "INVALID_ISSUER");
            assert_not_connected(&protected).await;
        }
        let trailing = format!("{}/", protected.authorization_server.url());
        let returned = protected.authorize().await.with_param("iss", Some(&trailing));
        callback(&protected, &returned, by_post).await.assert_error(400, "INVALID_ISSUER");
        assert_not_connected(&protected).await;
    }
}

#[tokio::test]
async fn a_person_who_declines_is_heard() {
    let Some(peers) = Peers::installed() else { return };
    for by_post in [true, false] {
        let protected = ProtectedServer::new(&peers).await;
        protected.authorization_server.configure(json!({"answer": "deny"})).await;
        let returned = protected.authorize().await;
        assert_eq!(returned.0["error"], "access_denied");
        let answer = callback(&protected, &returned, by_post).await;
        let message = answer.assert_error(400, "OAUTH_DENIED");
        assert!(message.contains("access_denied"), "{message}");
        assert_not_connected(&protected).await;
        // Access can be requested again.
        callback(&protected, &returned, by_post).await.assert_error(400, "INVALID_STATE");
        protected.authorization_server.configure(json!({"answer": "agree"})).await;
        protected.connect().await;
    }
}

#[tokio::test]
async fn an_error_with_a_state_that_is_not_known_is_not_believed() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let returned = protected.authorize().await;
    let forged = returned
        .clone()
        .with_param("state", Some("x"))
        .with_param("code", None)
        .with_param("error", Some("access_denied"));
    for by_post in [true, false] {
        callback(&protected, &forged, by_post).await.assert_error(400, "INVALID_STATE");
    }
    callback(&protected, &returned, true).await.assert_ok("status:text connection:connection");
}

#[tokio::test]
async fn a_code_that_is_wrong_connects_nothing() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let returned = protected.authorize().await.with_param("code", Some("a-forged-code-Uv42"));
    let answer = callback(&protected, &returned, true).await;
    assert!(answer.status >= 400, "{}", answer.body);
    assert!(!answer.body.to_string().contains("Uv42"), "{}", answer.body);
    assert_not_connected(&protected).await;
    assert_stored_nowhere(&protected.fixture, "the forged code", "Uv42", &[]);
}

#[tokio::test]
async fn an_authorization_server_that_is_away_is_named() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    protected.authorization_server.configure(json!({"down": true})).await;
    let answer = protected.engine().connect(&json!({"server": "peer"})).await;
    let message = answer.assert_error(502, "SERVER_FAILED");
    assert!(message.contains("peer"), "{message}");
    assert_not_connected(&protected).await;
    protected.authorization_server.configure(json!({"down": false})).await;
    protected.connect().await;
}
