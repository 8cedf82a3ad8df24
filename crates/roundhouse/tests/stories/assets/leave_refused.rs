//! Leave that is not given, or not for this engine, this server or this moment.

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Protected, connection, stands_nowhere, tools_of};
use crate::support::peers::Returned;
use crate::support::{Answer, Peers, Rig};

/// Brings back what the user came with, by either of the two ways.
async fn callback(place: &Protected, returned: &Returned, by_post: bool) -> Answer {
    if by_post {
        place.engine().post("/assets/callback", &returned.body()).await
    } else {
        place.engine().get(&returned.path()).await
    }
}

/// Asserts that nothing came of it: no connection that works, no tool, no token that was asked for.
async fn nothing_came(place: &Protected) {
    let connections = place.engine().connections().await;
    assert!(connections.iter().all(|one| one["status"] != "connected"), "{connections:#?}");
    assert!(connections.iter().all(|one| tools_of(one).is_empty()), "{connections:#?}");
    assert_eq!(place.engine().servers().await[0]["connected"], false);
    assert_eq!(place.authority.tokens().await, [], "no token was given");
    place.engine().tool("peer__add", json!({"a": 2, "b": 3})).await.refused_flat(404, "METHOD_NOT_FOUND");
}

#[tokio::test]
async fn a_state_that_is_not_known_leads_nowhere() {
    let Some(peers) = Peers::found() else { return };
    let place = Protected::new(&peers).await;
    let returned = place.agreed().await;
    for by_post in [true, false] {
        for state in [Some("x"), Some("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")] {
            let answer = callback(&place, &returned.clone().with("state", state), by_post).await;
            answer.refused(400, "INVALID_STATE");
        }
        for none in [None, Some("")] {
            let answer = callback(&place, &returned.clone().with("state", none), by_post).await;
            assert_eq!(answer.status, 400, "{}", answer.body);
        }
    }
    nothing_came(&place).await;
    // The right one is not used up by all of these.
    callback(&place, &returned, true).await.ok("status:text connection:connection");
}

#[tokio::test]
async fn a_state_is_used_once() {
    let Some(peers) = Peers::found() else { return };
    let place = Protected::new(&peers).await;
    let returned = place.agreed().await;
    callback(&place, &returned, true).await.ok("status:text connection:connection");
    let before = connection(place.engine()).await;
    for by_post in [true, false] {
        callback(&place, &returned, by_post).await.refused(400, "INVALID_STATE");
    }
    assert_eq!(connection(place.engine()).await, before, "what was connected stays so");
    let exchanges = place.authority.asked("/token").await;
    assert_eq!(exchanges.len(), 1, "the code is not tried again: {exchanges:?}");
    assert_eq!(place.engine().tool_gives("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
}

#[tokio::test]
async fn a_state_that_is_old_leads_nowhere() {
    let Some(peers) = Peers::found() else { return };
    for (minutes, taken) in [(9, true), (10, false)] {
        let place = Protected::new(&peers).await;
        let returned = place.agreed().await;
        // As if so much time had gone by while the engine slept.
        let Protected { authority, server, rig } = place;
        let Rig { provider, place, program, .. } = rig;
        program.end(Signal::TERM).await.well();
        let aged = "UPDATE authorizations SET created_at = created_at - ?1 * 60 * 1000";
        assert_eq!(Connection::open(place.brain()).unwrap().execute(aged, [minutes]).unwrap(), 1);
        let (program, engine) = place.start().await;
        let place = Protected { authority, server, rig: Rig { provider, place, program, engine } };
        let answer = callback(&place, &returned, true).await;
        if taken {
            answer.ok("status:text connection:connection");
        } else {
            answer.refused(400, "INVALID_STATE");
            nothing_came(&place).await;
        }
    }
}

#[tokio::test]
async fn a_state_of_another_engine_leads_nowhere() {
    let Some(peers) = Peers::found() else { return };
    let mine = Protected::new(&peers).await;
    let servers = json!({"peer": mine.server.entry("oauth")});
    let other = Rig::with_servers(servers).await;
    let returned = mine.agreed().await;
    other.engine.post("/assets/callback", &returned.body()).await.refused(400, "INVALID_STATE");
    assert_eq!(other.engine.connections().await, [Value::Null; 0]);
    callback(&mine, &returned, true).await.ok("status:text connection:connection");
}

#[tokio::test]
async fn an_answer_of_another_authorization_server_leads_nowhere() {
    let Some(peers) = Peers::found() else { return };
    for by_post in [true, false] {
        let place = Protected::new(&peers).await;
        for iss in [Some("https://elsewhere.example"), Some(""), None] {
            let returned = place.agreed().await.with("iss", iss);
            callback(&place, &returned, by_post).await.refused(400, "INVALID_ISSUER");
            nothing_came(&place).await;
        }
        let trailing = format!("{}/", place.authority.url());
        let returned = place.agreed().await.with("iss", Some(&trailing));
        callback(&place, &returned, by_post).await.refused(400, "INVALID_ISSUER");
        nothing_came(&place).await;
    }
}

#[tokio::test]
async fn a_person_who_declines_is_heard() {
    let Some(peers) = Peers::found() else { return };
    for by_post in [true, false] {
        let place = Protected::new(&peers).await;
        place.authority.set(json!({"answer": "deny"})).await;
        let returned = place.agreed().await;
        assert_eq!(returned.0["error"], "access_denied");
        let answer = callback(&place, &returned, by_post).await;
        let message = answer.refused(400, "OAUTH_DENIED");
        assert!(message.contains("access_denied"), "{message}");
        nothing_came(&place).await;
        // It can be asked for again.
        callback(&place, &returned, by_post).await.refused(400, "INVALID_STATE");
        place.authority.set(json!({"answer": "agree"})).await;
        place.connected().await;
    }
}

#[tokio::test]
async fn an_error_with_a_state_that_is_not_known_is_not_believed() {
    let Some(peers) = Peers::found() else { return };
    let place = Protected::new(&peers).await;
    let returned = place.agreed().await;
    let forged =
        returned.clone().with("state", Some("x")).with("code", None).with("error", Some("access_denied"));
    for by_post in [true, false] {
        callback(&place, &forged, by_post).await.refused(400, "INVALID_STATE");
    }
    callback(&place, &returned, true).await.ok("status:text connection:connection");
}

#[tokio::test]
async fn a_code_that_is_wrong_connects_nothing() {
    let Some(peers) = Peers::found() else { return };
    let place = Protected::new(&peers).await;
    let returned = place.agreed().await.with("code", Some("a-forged-code-Uv42"));
    let answer = callback(&place, &returned, true).await;
    assert!(answer.status >= 400, "{}", answer.body);
    assert!(!answer.body.to_string().contains("Uv42"), "{}", answer.body);
    nothing_came(&place).await;
    stands_nowhere(&place.rig, "the forged code", "Uv42", &[]);
}

#[tokio::test]
async fn an_authorization_server_that_is_away_is_named() {
    let Some(peers) = Peers::found() else { return };
    let place = Protected::new(&peers).await;
    place.authority.set(json!({"down": true})).await;
    let answer = place.engine().connect(&json!({"server": "peer"})).await;
    let message = answer.refused(502, "SERVER_FAILED");
    assert!(message.contains("peer"), "{message}");
    nothing_came(&place).await;
    place.authority.set(json!({"down": false})).await;
    place.connected().await;
}
