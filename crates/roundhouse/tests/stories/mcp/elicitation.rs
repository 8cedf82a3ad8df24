//! Elicitation: a server asks the user a question in the middle of a tool call.

use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::peers::{PeerServer, SdkVersion};
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, EventStream, Peers, StandaloneEngine, eventually};

/// The servers that can elicit: of the newest protocol revision and the one before it, over both transports.
const ELICITING_SERVERS: [&str; 4] = ["new_far", "new_near", "old_far", "old_near"];

async fn elicitation_fixture(peers: &Peers) -> ([PeerServer; 2], EngineFixture) {
    let far = [peers.start_http(&[]).await, peers.start_old_http(SdkVersion::V1_30, "http").await];
    let servers = |setup: &StandaloneEngine| {
        json!({
            "new_far": far[0].mcp_entry("none"),
            "new_near": peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"]),
            "old_far": far[1].mcp_entry("none"),
            "old_near": peers.stdio_entry(setup, SdkVersion::V1_30, &["old_server.py"]),
        })
    };
    let allow =
        |setup: StandaloneEngine| setup.with_catalog_file("permissions.json", r#"{"default": "allow"}"#);
    let fixture = EngineFixture::with_servers_and_setup(servers, allow).await;
    for server in ELICITING_SERVERS {
        fixture.engine.connect_server(server).await;
    }
    (far, fixture)
}

/// Starts a turn in which a server elicits; returns its stream and the question.
async fn run_until_elicitation(fixture: &EngineFixture, task: &str, tool: &str) -> (EventStream, String) {
    fixture.provider.enqueue_all([tool_reply(tool, json!({"name": "Ada"})), done_reply()]);
    let (stream, request) = fixture.engine.run_until_hitl_request(&direct_message(task, "Book it.")).await;
    assert_eq!(request.data["kind"], "question", "{request:?}");
    (stream, request.data["question"].as_str().unwrap().to_owned())
}

/// Answers the question; returns the tool's output.
async fn answer_elicitation(
    fixture: &EngineFixture,
    task: &str,
    stream: EventStream,
    answer: &str,
) -> String {
    fixture.engine.respond(task, answer).await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_completed(&events);
    tool_results(&events).pop().unwrap().expect("the call succeeds").to_owned()
}

#[tokio::test]
async fn the_user_is_asked_and_the_call_goes_on_with_the_answer() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, fixture) = elicitation_fixture(&peers).await;
    for server in ELICITING_SERVERS {
        let (stream, question) = run_until_elicitation(&fixture, server, &format!("{server}__book")).await;
        assert!(question.contains("How many seats for Ada?"), "{question}");
        assert!(question.contains(server), "the question names the server: {question}");
        let pending = fixture.engine.pending().await;
        assert_eq!((pending.len(), &pending[0]["kind"]), (1, &json!("question")));
        assert_eq!(answer_elicitation(&fixture, server, stream, "3").await, "3 seats for Ada", "{server}");
    }
}

#[tokio::test]
async fn a_form_of_several_fields_is_filled_in() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, fixture) = elicitation_fixture(&peers).await;
    for server in ["new_far", "new_near"] {
        let (stream, question) = run_until_elicitation(&fixture, server, &format!("{server}__reserve")).await;
        assert!(
            question.contains("seats") && question.contains("place"),
            "the question names the fields: {question}"
        );
        let answer = r#"{"seats": 4, "place": "by the window"}"#;
        assert_eq!(
            answer_elicitation(&fixture, server, stream, answer).await,
            "4 seats by the window for Ada"
        );
    }
}

#[tokio::test]
async fn a_user_who_declines_is_heard() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, fixture) = elicitation_fixture(&peers).await;
    for server in ELICITING_SERVERS {
        let (stream, _) = run_until_elicitation(&fixture, server, &format!("{server}__book")).await;
        assert_eq!(
            answer_elicitation(&fixture, server, stream, "decline").await,
            "nothing is booked: decline",
            "{server}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_again() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, fixture) = elicitation_fixture(&peers).await;
    for server in ELICITING_SERVERS {
        let (mut stream, _) = run_until_elicitation(&fixture, server, &format!("{server}__book")).await;
        fixture.engine.respond(server, "many").await.assert_ok("status:text request_id:hitl");
        let question = stream.next_hitl_request().await.data["question"].as_str().unwrap().to_owned();
        assert!(question.contains("How many seats for Ada?"), "{question}");
        assert_eq!(answer_elicitation(&fixture, server, stream, "3").await, "3 seats for Ada", "{server}");
    }
}

#[tokio::test]
async fn a_call_without_a_turn_asks_nobody() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, fixture) = elicitation_fixture(&peers).await;
    for server in ELICITING_SERVERS {
        let output = fixture.engine.tool_output(&format!("{server}__book"), json!({"name": "Ada"})).await;
        assert_eq!(output, "nothing is booked: decline", "{server}");
    }
    assert_eq!(fixture.engine.pending().await, [Value::Null; 0]);
}

#[tokio::test]
async fn an_answer_that_comes_after_a_restart_does_not_call_again() {
    let Some(peers) = Peers::installed() else { return };
    let (_far, fixture) = elicitation_fixture(&peers).await;
    let (stream, _) = run_until_elicitation(&fixture, "task", "new_far__book").await;
    drop(stream);
    let fixture = fixture.kill_and_start().await;
    eventually("the question is still there", async || {
        (fixture.engine.pending().await.len() == 1).then_some(())
    })
    .await;
    fixture.provider.enqueue(done_reply());
    fixture.engine.respond("task", "3").await.assert_ok("status:text request_id:hitl");
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(events.last().unwrap().phase(), Some("completed"), "{events:#?}");
    let tally = fixture.engine.tool_output("new_far__tally", json!({})).await;
    assert!(tally.contains("\"booked\": 0") || tally.contains("\"booked\": 1"), "{tally}");
    let error = tool_results(&events).pop().unwrap();
    if tally.contains("\"booked\": 0") {
        assert!(error.is_err(), "the outcome is unknown: {error:?}");
    }
}
