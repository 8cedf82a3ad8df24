//! A server that asks the user in the middle of a call.

use serde_json::{Value, json};

use crate::support::calls::message;
use crate::support::peers::{Peer, Sdk};
use crate::support::programs::{call, done, results};
use crate::support::turn::completed;
use crate::support::{EventStream, LoneEngine, Peers, Rig, eventually};

/// The servers that can ask: of the newest revision, of the one before, and over both transports.
const ASKING: [&str; 4] = ["new_far", "new_near", "old_far", "old_near"];

async fn rig(peers: &Peers) -> ([Peer; 2], Rig) {
    let far = [peers.http(&[]).await, peers.old_http(Sdk::V1_30, "http").await];
    let servers = |place: &LoneEngine| {
        json!({
            "new_far": far[0].entry("none"),
            "new_near": peers.stdio(place, Sdk::Newest, &["server.py"]),
            "old_far": far[1].entry("none"),
            "old_near": peers.stdio(place, Sdk::V1_30, &["old_server.py"]),
        })
    };
    let allow = |place: LoneEngine| place.with_file("permissions.json", r#"{"default": "allow"}"#);
    let rig = Rig::with_servers_of(servers, allow).await;
    for server in ASKING {
        rig.engine.connected(server).await;
    }
    (far, rig)
}

/// A turn in which a server asks; gives what it asks.
async fn asked(rig: &Rig, task: &str, tool: &str) -> (EventStream, String) {
    rig.provider.enqueue_all([call(tool, json!({"name": "Ada"})), done()]);
    let (stream, request) = rig.engine.until_asked(&message(task, "Book it.")).await;
    assert_eq!(request.data["kind"], "question", "{request:?}");
    (stream, request.data["question"].as_str().unwrap().to_owned())
}

/// Answers what is asked; gives what the tool makes of it.
async fn answered(rig: &Rig, task: &str, stream: EventStream, answer: &str) -> String {
    rig.engine.respond(task, answer).await.ok("status:text request_id:hitl");
    let events = stream.rest().await;
    completed(&events);
    results(&events).pop().unwrap().expect("the call comes to its end").to_owned()
}

#[tokio::test]
async fn the_user_is_asked_and_the_call_goes_on_with_the_answer() {
    let Some(peers) = Peers::found() else { return };
    let (_far, rig) = rig(&peers).await;
    for server in ASKING {
        let (stream, question) = asked(&rig, server, &format!("{server}__book")).await;
        assert!(question.contains("How many seats for Ada?"), "{question}");
        assert!(question.contains(server), "it says who asks: {question}");
        let pending = rig.engine.pending().await;
        assert_eq!((pending.len(), &pending[0]["kind"]), (1, &json!("question")));
        assert_eq!(answered(&rig, server, stream, "3").await, "3 seats for Ada", "{server}");
    }
}

#[tokio::test]
async fn a_form_of_several_fields_is_filled_in() {
    let Some(peers) = Peers::found() else { return };
    let (_far, rig) = rig(&peers).await;
    for server in ["new_far", "new_near"] {
        let (stream, question) = asked(&rig, server, &format!("{server}__reserve")).await;
        assert!(question.contains("seats") && question.contains("place"), "it names the fields: {question}");
        let answer = r#"{"seats": 4, "place": "by the window"}"#;
        assert_eq!(answered(&rig, server, stream, answer).await, "4 seats by the window for Ada");
    }
}

#[tokio::test]
async fn a_user_who_declines_is_heard() {
    let Some(peers) = Peers::found() else { return };
    let (_far, rig) = rig(&peers).await;
    for server in ASKING {
        let (stream, _) = asked(&rig, server, &format!("{server}__book")).await;
        assert_eq!(answered(&rig, server, stream, "decline").await, "nothing is booked: decline", "{server}");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_again() {
    let Some(peers) = Peers::found() else { return };
    let (_far, rig) = rig(&peers).await;
    for server in ASKING {
        let (mut stream, _) = asked(&rig, server, &format!("{server}__book")).await;
        rig.engine.respond(server, "many").await.ok("status:text request_id:hitl");
        let question = stream.asked().await.data["question"].as_str().unwrap().to_owned();
        assert!(question.contains("How many seats for Ada?"), "{question}");
        assert_eq!(answered(&rig, server, stream, "3").await, "3 seats for Ada", "{server}");
    }
}

#[tokio::test]
async fn a_call_without_a_turn_asks_nobody() {
    let Some(peers) = Peers::found() else { return };
    let (_far, rig) = rig(&peers).await;
    for server in ASKING {
        let said = rig.engine.tool_gives(&format!("{server}__book"), json!({"name": "Ada"})).await;
        assert_eq!(said, "nothing is booked: decline", "{server}");
    }
    assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
}

#[tokio::test]
async fn an_answer_that_comes_after_a_restart_does_not_call_again() {
    let Some(peers) = Peers::found() else { return };
    let (_far, rig) = rig(&peers).await;
    let (stream, _) = asked(&rig, "task", "new_far__book").await;
    drop(stream);
    let rig = rig.kill_and_start().await;
    eventually("the question is still there", async || (rig.engine.pending().await.len() == 1).then_some(()))
        .await;
    rig.provider.enqueue(done());
    rig.engine.respond("task", "3").await.ok("status:text request_id:hitl");
    let events = rig.engine.replay("task", 0).await.rest().await;
    assert_eq!(events.last().unwrap().phase(), Some("completed"), "{events:#?}");
    let tally = rig.engine.tool_gives("new_far__tally", json!({})).await;
    assert!(tally.contains("\"booked\": 0") || tally.contains("\"booked\": 1"), "{tally}");
    let error = results(&events).pop().unwrap();
    if tally.contains("\"booked\": 0") {
        assert!(error.is_err(), "the outcome is unknown: {error:?}");
    }
}
