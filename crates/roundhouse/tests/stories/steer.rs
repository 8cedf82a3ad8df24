//! Story 14: the user steers a running turn with further messages.

use futures::future::join;
use mock_llm::{Gate, Reply};
use serde_json::{Value, json};

use crate::support::engine_calls::{answer_id, direct_message, roles_and_texts, with_fields};
use crate::support::engine_fixture::{
    ReplyExt as _, WIRES, ask_user_reply, memory_set_reply, wait_gate_reached,
};
use crate::support::turn::{assert_completed, of_kind, phases, visible_text};
use crate::support::{EngineFixture, HttpResponse};

fn thinking_message(text: &str) -> Value {
    with_fields(direct_message("task", text), json!({"super_thinking": true}))
}

/// The id of a steering message, from the response to the call.
#[track_caller]
fn steer_message_id(answer: HttpResponse) -> String {
    let answer = answer.assert_ok("status:text message_id:message");
    assert_eq!(answer["status"], "accepted");
    answer["message_id"].as_str().unwrap().to_owned()
}

/// The role and content of the listed message with this id.
async fn listed_message(fixture: &EngineFixture, id: &str) -> (String, String) {
    let messages = fixture.engine.messages("task").await;
    let found = messages.iter().find(|message| message["message_id"] == id);
    let found = found.unwrap_or_else(|| panic!("{id} is not in {messages:?}"));
    (found["role"].as_str().unwrap().to_owned(), found["content"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn what_is_said_while_the_model_calls_tools_reaches_it_after_their_results() {
    for (wire, result) in WIRES.into_iter().zip(["\"tool_result\"", "\"role\":\"tool\""]) {
        let gate = Gate::new();
        let calls =
            Reply::new().thinking("I note it.").memory_set("colour", "green").memory_set("fruit", "papaya");
        let answer = Reply::new().thinking("All is noted.").text("Noted, in French.");
        let fixture = EngineFixture::for_wire(wire, [calls.hold(3, &gate), answer]).await;
        let stream = fixture.engine.execute_with(&thinking_message("Note it.")).await;
        wait_gate_reached(&gate).await;
        let id = steer_message_id(fixture.engine.steer("task", "Say it in French.").await);
        gate.release();
        let events = stream.collect().await;
        assert_eq!(assert_completed(&events), "Noted, in French.");
        assert_eq!(phases(&events), ["started", "completed"]);
        assert_eq!(of_kind(&events, "tool_result").len(), 2);

        let requests = fixture.all_messages();
        assert_eq!(requests.len(), 2, "{wire}: steering adds no model call");
        requests[0].assert_lacks(&["Say it in French."]);
        requests[1].assert_contains(&["Note it.", result, result, "Say it in French."]);
        assert_eq!(requests[1].0.matches("Say it in French.").count(), 1);
        assert_eq!(listed_message(&fixture, &id).await, ("user".to_owned(), "Say it in French.".to_owned()));
        let messages = fixture.engine.messages("task").await;
        assert_eq!(messages.last().unwrap()["message_id"], answer_id(&events));
        // A later turn still includes it, and the provider accepts the history.
        fixture.engine.run_turn_with(&thinking_message("Thank you.")).await;
        fixture.last_messages().assert_contains(&[
            "Note it.",
            "Say it in French.",
            "Noted, in French.",
            "Thank you.",
        ]);
    }
}

#[tokio::test]
async fn what_is_said_during_the_last_answer_gets_one_more() {
    for wire in WIRES {
        let gate = Gate::new();
        let fixture = EngineFixture::for_wire(
            wire,
            [Reply::from_text("It is green.").hold(1, &gate), Reply::from_text("C'est vert.")],
        )
        .await;
        let stream = fixture.engine.execute_with(&direct_message("task", "Which colour?")).await;
        wait_gate_reached(&gate).await;
        let id = steer_message_id(fixture.engine.steer("task", "Say it in French.").await);
        gate.release();
        let events = stream.collect().await;
        assert_eq!(assert_completed(&events), "C'est vert.");
        assert_eq!(events.last().unwrap().data["stop_reason"], "end_turn");
        assert_eq!(
            visible_text(&events, "text_delta"),
            "It is green.C'est vert.",
            "{wire}: both answers are sent"
        );
        assert_eq!(fixture.model_calls(), 2);
        fixture.last_messages().assert_contains(&["Which colour?", "It is green.", "Say it in French."]);

        let messages = fixture.engine.messages("task").await;
        assert_eq!(
            roles_and_texts(&messages),
            [
                ("user", "Which colour?"),
                ("assistant", "It is green."),
                ("user", "Say it in French."),
                ("assistant", "C'est vert."),
            ]
        );
        assert_eq!(
            (messages[2]["message_id"].as_str(), messages[3]["message_id"].as_str()),
            (Some(id.as_str()), Some(answer_id(&events)))
        );
    }
}

#[tokio::test]
async fn several_messages_reach_the_model_in_their_order() {
    let gate = Gate::new();
    let fixture =
        EngineFixture::new([memory_set_reply("colour", "green").hold(1, &gate), Reply::from_text("I will.")])
            .await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Note it.")).await;
    wait_gate_reached(&gate).await;
    let words = ["First, hurry.", "Second, be brief.", "Third, be kind."];
    let mut ids = Vec::new();
    for word in words {
        ids.push(steer_message_id(fixture.engine.steer("task", word).await));
    }
    gate.release();
    assert_eq!(assert_completed(&stream.collect().await), "I will.");
    fixture.last_messages().assert_contains(&["Note it.", "tool_result", words[0], words[1], words[2]]);
    for (id, word) in ids.iter().zip(words) {
        assert_eq!(listed_message(&fixture, id).await.1, word);
    }
}

#[tokio::test]
async fn what_was_accepted_outlives_the_death_of_the_engine() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("It is green.").hold(1, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Which colour?")).await;
    wait_gate_reached(&gate).await;
    let id = steer_message_id(fixture.engine.steer("task", "Say it in French.").await);
    fixture.provider.enqueue_all(["It is green.", "C'est vert."].map(Reply::from_text));
    let fixture = fixture.kill_and_start().await;
    drop(stream);
    assert_completed(&fixture.engine.replay("task", 0).await.collect().await);
    fixture.last_messages().assert_contains(&["Which colour?", "Say it in French."]);
    assert_eq!(fixture.last_messages().0.matches("Say it in French.").count(), 1);
    assert_eq!(listed_message(&fixture, &id).await, ("user".to_owned(), "Say it in French.".to_owned()));
}

#[tokio::test]
async fn what_is_said_while_a_person_is_asked_reaches_the_model_after_the_answer() {
    for wire in WIRES {
        let asking_reply = Reply::new().thinking("I ask.").ask_user("Which colour?");
        let fixture =
            EngineFixture::for_wire(wire, [asking_reply, Reply::from_text("Green, in French.")]).await;
        let (stream, request) = fixture.engine.run_until_hitl_request(&thinking_message("Paint it.")).await;
        let id = steer_message_id(fixture.engine.steer("task", "Say it in French.").await);
        assert_eq!(fixture.engine.pending().await[0]["request_id"], request.data["request_id"], "{wire}");
        assert_eq!(fixture.engine.task_status("task").await, "paused", "steering answers no question");
        assert_eq!(fixture.model_calls(), 1);
        fixture.engine.respond("task", "The green one.").await.assert_ok("status:text request_id:hitl");
        assert_eq!(assert_completed(&stream.collect().await), "Green, in French.");
        fixture.last_messages().assert_contains(&["Paint it.", "The green one.", "Say it in French."]);
        assert_eq!((fixture.model_calls(), listed_message(&fixture, &id).await.0.as_str()), (2, "user"));
    }
}

#[tokio::test]
async fn what_was_said_to_a_paused_turn_outlives_the_death_of_the_engine() {
    let fixture =
        EngineFixture::new([ask_user_reply("Which colour?"), Reply::from_text("Green, in French.")]).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Paint it.")).await;
    steer_message_id(fixture.engine.steer("task", "Say it in French.").await);
    let fixture = fixture.kill_and_start().await;
    drop(stream);
    fixture.engine.respond("task", "The green one.").await.assert_ok("status:text request_id:hitl");
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "Green, in French.");
    fixture.last_messages().assert_contains(&["Paint it.", "The green one.", "Say it in French."]);
}

#[tokio::test]
async fn a_message_in_the_last_moment_is_either_heard_or_refused() {
    let fixture = EngineFixture::new([]).await;
    for round in 0..10 {
        let (task, word) = (format!("task-{round}"), format!("Wait, round {round}."));
        let stream = fixture.engine.execute_with(&direct_message(&task, "Hello!")).await;
        let (answer, events) = join(fixture.engine.steer(&task, &word), stream.collect()).await;
        assert_completed(&events);
        let messages = Value::from(fixture.engine.messages(&task).await).to_string();
        if answer.status == 200 {
            steer_message_id(answer);
            fixture.last_messages().assert_contains(&[&word]);
            assert!(messages.contains(&word), "{messages}");
        } else {
            answer.assert_error(404, "TASK_NOT_RUNNING");
            assert!(!messages.contains(&word), "{messages}");
        }
    }
}

#[tokio::test]
async fn where_nothing_runs_there_is_nothing_to_steer() {
    let fixture = EngineFixture::new([]).await;
    fixture.engine.steer("task", "Hurry.").await.assert_error(404, "TASK_NOT_FOUND");
    assert_eq!(fixture.engine.tasks("").await.1, 0);
    fixture.engine.run_turn("task", "Hello!").await;
    fixture.engine.steer("task", "Hurry.").await.assert_error(404, "TASK_NOT_RUNNING");
    assert_eq!(fixture.engine.messages("task").await.len(), 2, "a refused message is not listed");
}

#[tokio::test]
async fn a_running_turn_is_not_steered_with_nothing() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("Hello.").hold(1, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Hello!")).await;
    wait_gate_reached(&gate).await;
    for text in ["", " ", "\n\t"] {
        let answer = fixture.engine.steer("task", text).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("message"), "{text:?}");
    }
    for body in
        [json!({"task_id": "task"}), json!({"message": "Hurry."}), json!({"task_id": "task", "message": 7})]
    {
        fixture.engine.post("/execute/steer", &body).await.assert_error(400, "INVALID_REQUEST");
    }
    gate.release();
    assert_eq!(assert_completed(&stream.collect().await), "Hello.");
    assert_eq!(fixture.model_calls(), 1);
}
