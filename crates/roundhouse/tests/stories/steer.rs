//! Story 14: a person says something while the agent is at work.

use futures::future::join;
use serde_json::{Value, json};
use strict_provider::{Gate, Reply};

use crate::support::calls::{answer_id, message, said, with};
use crate::support::model::{Act as _, WIRES, note, question, reached};
use crate::support::turn::{completed, of_kind, phases, shown};
use crate::support::{Answer, Rig};

fn thinking_message(text: &str) -> Value {
    with(message("task", text), json!({"super_thinking": true}))
}

/// The id of the message with which a running turn was steered.
#[track_caller]
fn accepted(answer: Answer) -> String {
    let answer = answer.ok("status:text message_id:message");
    assert_eq!(answer["status"], "accepted");
    answer["message_id"].as_str().unwrap().to_owned()
}

/// The listed message with this id: who says what.
async fn listed(rig: &Rig, id: &str) -> (String, String) {
    let messages = rig.engine.messages("task").await;
    let found = messages.iter().find(|message| message["message_id"] == id);
    let found = found.unwrap_or_else(|| panic!("{id} is not in {messages:?}"));
    (found["role"].as_str().unwrap().to_owned(), found["content"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn what_is_said_while_the_model_calls_tools_reaches_it_after_their_results() {
    for (wire, result) in WIRES.into_iter().zip(["\"tool_result\"", "\"role\":\"tool\""]) {
        let gate = Gate::new();
        let calls = Reply::new().thinking("I note it.").notes("colour", "green").notes("fruit", "papaya");
        let answer = Reply::new().thinking("All is noted.").text("Noted, in French.");
        let rig = Rig::on(wire, [calls.hold(3, &gate), answer]).await;
        let stream = rig.engine.execute_with(&thinking_message("Note it.")).await;
        reached(&gate).await;
        let id = accepted(rig.engine.steer("task", "Say it in French.").await);
        gate.release();
        let events = stream.rest().await;
        assert_eq!(completed(&events), "Noted, in French.");
        assert_eq!(phases(&events), ["started", "completed"]);
        assert_eq!(of_kind(&events, "tool_result").len(), 2);

        let told = rig.told_each();
        assert_eq!(told.len(), 2, "{wire}: no step more than without it");
        told[0].lacks(&["Say it in French."]);
        told[1].has(&["Note it.", result, result, "Say it in French."]);
        assert_eq!(told[1].0.matches("Say it in French.").count(), 1);
        assert_eq!(listed(&rig, &id).await, ("user".to_owned(), "Say it in French.".to_owned()));
        let messages = rig.engine.messages("task").await;
        assert_eq!(messages.last().unwrap()["message_id"], answer_id(&events));
        // A later turn still sees it, and the provider still takes the history.
        rig.engine.tell_with(&thinking_message("Thank you.")).await;
        rig.told().has(&["Note it.", "Say it in French.", "Noted, in French.", "Thank you."]);
    }
}

#[tokio::test]
async fn what_is_said_during_the_last_answer_gets_one_more() {
    for wire in WIRES {
        let gate = Gate::new();
        let rig =
            Rig::on(wire, [Reply::of_text("It is green.").hold(1, &gate), Reply::of_text("C'est vert.")])
                .await;
        let stream = rig.engine.execute_with(&message("task", "Which colour?")).await;
        reached(&gate).await;
        let id = accepted(rig.engine.steer("task", "Say it in French.").await);
        gate.release();
        let events = stream.rest().await;
        assert_eq!(completed(&events), "C'est vert.");
        assert_eq!(events.last().unwrap().data["stop_reason"], "end_turn");
        assert_eq!(shown(&events, "text_delta"), "It is green.C'est vert.", "{wire}: both were said");
        assert_eq!(rig.calls(), 2);
        rig.told().has(&["Which colour?", "It is green.", "Say it in French."]);

        let messages = rig.engine.messages("task").await;
        assert_eq!(
            said(&messages),
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
    let rig = Rig::new([note("colour", "green").hold(1, &gate), Reply::of_text("I will.")]).await;
    let stream = rig.engine.execute_with(&message("task", "Note it.")).await;
    reached(&gate).await;
    let words = ["First, hurry.", "Second, be brief.", "Third, be kind."];
    let mut ids = Vec::new();
    for word in words {
        ids.push(accepted(rig.engine.steer("task", word).await));
    }
    gate.release();
    assert_eq!(completed(&stream.rest().await), "I will.");
    rig.told().has(&["Note it.", "tool_result", words[0], words[1], words[2]]);
    for (id, word) in ids.iter().zip(words) {
        assert_eq!(listed(&rig, id).await.1, word);
    }
}

#[tokio::test]
async fn what_was_accepted_outlives_the_death_of_the_engine() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text("It is green.").hold(1, &gate)]).await;
    let stream = rig.engine.execute_with(&message("task", "Which colour?")).await;
    reached(&gate).await;
    let id = accepted(rig.engine.steer("task", "Say it in French.").await);
    rig.provider.enqueue_all(["It is green.", "C'est vert."].map(Reply::of_text));
    let rig = rig.kill_and_start().await;
    drop(stream);
    completed(&rig.engine.replay("task", 0).await.rest().await);
    rig.told().has(&["Which colour?", "Say it in French."]);
    assert_eq!(rig.told().0.matches("Say it in French.").count(), 1);
    assert_eq!(listed(&rig, &id).await, ("user".to_owned(), "Say it in French.".to_owned()));
}

#[tokio::test]
async fn what_is_said_while_a_person_is_asked_reaches_the_model_after_the_answer() {
    for wire in WIRES {
        let asks = Reply::new().thinking("I ask.").asks("Which colour?");
        let rig = Rig::on(wire, [asks, Reply::of_text("Green, in French.")]).await;
        let (stream, request) = rig.engine.until_asked(&thinking_message("Paint it.")).await;
        let id = accepted(rig.engine.steer("task", "Say it in French.").await);
        assert_eq!(rig.engine.pending().await[0]["request_id"], request.data["request_id"], "{wire}");
        assert_eq!(rig.engine.task_status("task").await, "paused", "it is no answer");
        assert_eq!(rig.calls(), 1);
        rig.engine.respond("task", "The green one.").await.ok("status:text request_id:hitl");
        assert_eq!(completed(&stream.rest().await), "Green, in French.");
        rig.told().has(&["Paint it.", "The green one.", "Say it in French."]);
        assert_eq!((rig.calls(), listed(&rig, &id).await.0.as_str()), (2, "user"));
    }
}

#[tokio::test]
async fn what_was_said_to_a_paused_turn_outlives_the_death_of_the_engine() {
    let rig = Rig::new([question("Which colour?"), Reply::of_text("Green, in French.")]).await;
    let (stream, _) = rig.engine.until_asked(&message("task", "Paint it.")).await;
    accepted(rig.engine.steer("task", "Say it in French.").await);
    let rig = rig.kill_and_start().await;
    drop(stream);
    rig.engine.respond("task", "The green one.").await.ok("status:text request_id:hitl");
    let events = rig.engine.replay("task", 0).await.rest().await;
    assert_eq!(completed(&events), "Green, in French.");
    rig.told().has(&["Paint it.", "The green one.", "Say it in French."]);
}

#[tokio::test]
async fn a_message_in_the_last_moment_is_either_heard_or_refused() {
    let rig = Rig::new([]).await;
    for round in 0..10 {
        let (task, word) = (format!("task-{round}"), format!("Wait, round {round}."));
        let stream = rig.engine.execute_with(&message(&task, "Hello!")).await;
        let (answer, events) = join(rig.engine.steer(&task, &word), stream.rest()).await;
        completed(&events);
        let messages = Value::from(rig.engine.messages(&task).await).to_string();
        if answer.status == 200 {
            accepted(answer);
            rig.told().has(&[&word]);
            assert!(messages.contains(&word), "{messages}");
        } else {
            answer.refused(404, "TASK_NOT_RUNNING");
            assert!(!messages.contains(&word), "{messages}");
        }
    }
}

#[tokio::test]
async fn where_nothing_runs_there_is_nothing_to_steer() {
    let rig = Rig::new([]).await;
    rig.engine.steer("task", "Hurry.").await.refused(404, "TASK_NOT_FOUND");
    assert_eq!(rig.engine.tasks("").await.1, 0);
    rig.engine.tell("task", "Hello!").await;
    rig.engine.steer("task", "Hurry.").await.refused(404, "TASK_NOT_RUNNING");
    assert_eq!(rig.engine.messages("task").await.len(), 2, "what was refused is not listed");
}

#[tokio::test]
async fn a_running_turn_is_not_steered_with_nothing() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text("Hello.").hold(1, &gate)]).await;
    let stream = rig.engine.execute_with(&message("task", "Hello!")).await;
    reached(&gate).await;
    for text in ["", " ", "\n\t"] {
        let answer = rig.engine.steer("task", text).await;
        assert!(answer.refused(400, "INVALID_REQUEST").contains("message"), "{text:?}");
    }
    for body in
        [json!({"task_id": "task"}), json!({"message": "Hurry."}), json!({"task_id": "task", "message": 7})]
    {
        rig.engine.post("/execute/steer", &body).await.refused(400, "INVALID_REQUEST");
    }
    gate.release();
    assert_eq!(completed(&stream.rest().await), "Hello.");
    assert_eq!(rig.calls(), 1);
}
