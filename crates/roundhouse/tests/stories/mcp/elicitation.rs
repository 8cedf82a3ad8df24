//! A server that asks the user in the middle of a call.

use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::peers::{PeerServer, SdkVersion};
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, EventStream, Peers, StandaloneEngine, eventually};

/// The servers that can ask: of the newest revision, of the one before, and over both transports.
const ELICITING_SERVERS: [&str; 4] = ["new_far", "new_near", "old_far", "old_near"];

async fn fixture(peers: &Peers) -> ([PeerServer; 2], EngineFixture) {
    let far = [peers.start_http(&[]).await, peers.start_old_http(SdkVersion::V1_30, "http").await];
    let servers = |place: &StandaloneEngine| {
        json!({
            "new_far": far[0].mcp_entry("none"),
            "new_near": peers.stdio_entry(place, SdkVersion::Newest, &["server.py"]),
            "old_far": far[1].mcp_entry("none"),
            "old_near": peers.stdio_entry(place, SdkVersion::V1_30, &["old_server.py"]),
        })
    };
    let allow =
        |place: StandaloneEngine| place.with_catalog_file("permissions.json", r#"{"default": "allow"}"#);
    let rig = EngineFixture::with_servers_and_setup(servers, allow).await;
    for server in ELICITING_SERVERS {
        rig.engine.connect_server(server).await;
    }
    (far, rig)
}

/// A turn in which a server asks; gives what it asks.
async fn run_until_elicitation(rig: &EngineFixture, task: &str, tool: &str) -> (EventStream, String) {
    rig.provider.enqueue_all([tool_reply(tool, json!({"name": "Ada"})), done_reply()]);
    let (stream, request) = rig.engine.run_until_hitl_request(&direct_message(task, "Book it.")).await;
    assert_eq!(request.data["kind"], "question", "{request:?}");
    (stream, request.data["question"].as_str().unwrap().to_owned())
}

/// Answers what is asked; gives what the tool makes of it.
async fn answer_elicitation(rig: &EngineFixture, task: &str, stream: EventStream, answer: &str) -> String {
    rig.engine.respond(task, answer).await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_completed(&events);
    tool_results(&events).pop().unwrap().expect("the call comes to its end").to_owned()
}

#[tokio::test]
async fn the_user_is_asked_and_the_call_goes_on_with_the_answer() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, rig) = fixture(&peers).await;
    for server in ELICITING_SERVERS {
        let (stream, question) = run_until_elicitation(&rig, server, &format!("{server}__book")).await;
        assert!(question.contains("How many seats for Ada?"), "{question}");
        assert!(question.contains(server), "it says who asks: {question}");
        let pending = rig.engine.pending().await;
        assert_eq!((pending.len(), &pending[0]["kind"]), (1, &json!("question")));
        assert_eq!(answer_elicitation(&rig, server, stream, "3").await, "3 seats for Ada", "{server}");
    }
}

#[tokio::test]
async fn a_form_of_several_fields_is_filled_in() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, rig) = fixture(&peers).await;
    for server in ["new_far", "new_near"] {
        let (stream, question) = run_until_elicitation(&rig, server, &format!("{server}__reserve")).await;
        assert!(question.contains("seats") && question.contains("place"), "it names the fields: {question}");
        let answer = r#"{"seats": 4, "place": "by the window"}"#;
        assert_eq!(answer_elicitation(&rig, server, stream, answer).await, "4 seats by the window for Ada");
    }
}

#[tokio::test]
async fn a_user_who_declines_is_heard() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, rig) = fixture(&peers).await;
    for server in ELICITING_SERVERS {
        let (stream, _) = run_until_elicitation(&rig, server, &format!("{server}__book")).await;
        assert_eq!(
            answer_elicitation(&rig, server, stream, "decline").await,
            "nothing is booked: decline",
            "{server}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_again() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, rig) = fixture(&peers).await;
    for server in ELICITING_SERVERS {
        let (mut stream, _) = run_until_elicitation(&rig, server, &format!("{server}__book")).await;
        rig.engine.respond(server, "many").await.assert_ok("status:text request_id:hitl");
        let question = stream.next_hitl_request().await.data["question"].as_str().unwrap().to_owned();
        assert!(question.contains("How many seats for Ada?"), "{question}");
        assert_eq!(answer_elicitation(&rig, server, stream, "3").await, "3 seats for Ada", "{server}");
    }
}

#[tokio::test]
async fn a_call_without_a_turn_asks_nobody() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, rig) = fixture(&peers).await;
    for server in ELICITING_SERVERS {
        let said = rig.engine.tool_output(&format!("{server}__book"), json!({"name": "Ada"})).await;
        assert_eq!(said, "nothing is booked: decline", "{server}");
    }
    assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
}

#[tokio::test]
async fn an_answer_that_comes_after_a_restart_does_not_call_again() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, rig) = fixture(&peers).await;
    let (stream, _) = run_until_elicitation(&rig, "task", "new_far__book").await;
    drop(stream);
    let rig = rig.kill_and_start().await;
    eventually("the question is still there", async || (rig.engine.pending().await.len() == 1).then_some(()))
        .await;
    rig.provider.enqueue(done_reply());
    rig.engine.respond("task", "3").await.assert_ok("status:text request_id:hitl");
    let events = rig.engine.replay("task", 0).await.collect().await;
    assert_eq!(events.last().unwrap().phase(), Some("completed"), "{events:#?}");
    let tally = rig.engine.tool_output("new_far__tally", json!({})).await;
    assert!(tally.contains("\"booked\": 0") || tally.contains("\"booked\": 1"), "{tally}");
    let error = tool_results(&events).pop().unwrap();
    if tally.contains("\"booked\": 0") {
        assert!(error.is_err(), "the outcome is unknown: {error:?}");
    }
}
