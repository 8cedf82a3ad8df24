//! Story 12: a message is put differently, and an answer is asked for again.

use contract::MessageId;
use serde_json::{Value, json};
use strict_provider::{Gate, Reply};

use crate::support::calls::{answer_id, message, message_id, said, with};
use crate::support::model::{Act as _, WIRES, note, question, reached};
use crate::support::turn::{completed, phases};
use crate::support::{Engine, Event, Rig};

/// The body that puts `text` in the place of the message `id`.
fn edit(id: &str, text: &str) -> Value {
    with(message("task", text), json!({"edit_message_id": id}))
}

/// The body that asks again from the message `id`, and has no message of its own.
fn retry(id: &str) -> Value {
    json!({"task_id": "task", "retry_message_id": id})
}

/// Three turns of question and answer.
async fn three_turns(rig: &Rig) -> [Vec<Event>; 3] {
    rig.provider.enqueue_all(["Answer one.", "Answer two.", "Answer three."].map(Reply::of_text));
    let engine = &rig.engine;
    [
        engine.tell("task", "Question one?").await,
        engine.tell("task", "Question two?").await,
        engine.tell("task", "Question three?").await,
    ]
}

/// The contents of the messages that a retry has replaced.
fn superseded(messages: &[Value]) -> Vec<&str> {
    let replaced = messages.iter().filter(|message| message["superseded"] == true);
    replaced.map(|message| message["content"].as_str().unwrap()).collect()
}

async fn all_events(engine: &Engine) -> Vec<Event> {
    engine.replay("task", 0).await.rest().await
}

#[tokio::test]
async fn an_edited_message_takes_the_place_of_the_old_one_and_of_all_that_followed() {
    for wire in WIRES {
        let rig = Rig::on(wire, []).await;
        let [first, second, third] = three_turns(&rig).await;
        rig.provider.enqueue(Reply::of_text("Answer two, anew."));
        let edited = rig.engine.tell_with(&edit(message_id(&second), "Question two, better?")).await;

        let old = ["Question two?", "Answer two.", "Question three?", "Answer three."];
        rig.told().has(&["Question one?", "Answer one.", "Question two, better?"]).lacks(&old);
        let messages = rig.engine.messages("task").await;
        assert_eq!(
            said(&messages),
            [
                ("user", "Question one?"),
                ("assistant", "Answer one."),
                ("user", "Question two, better?"),
                ("assistant", "Answer two, anew."),
            ]
        );
        assert_eq!(superseded(&messages), [""; 0], "what an edit replaces is gone, not superseded");
        assert_eq!(
            (messages[2]["message_id"].as_str(), messages[3]["message_id"].as_str()),
            (Some(message_id(&edited)), Some(answer_id(&edited)))
        );
        assert_eq!(rig.engine.tasks("").await.0[0]["message_count"], 4);
        assert_eq!(all_events(&rig.engine).await, [first, edited.clone()].concat(), "{wire}");
        assert!(third.last().unwrap().ts() < edited[0].ts(), "the clock of a task never goes back");
        let gone = rig.engine.execute_refused(&edit(message_id(&third), "Again?")).await;
        gone.refused(404, "MESSAGE_NOT_FOUND");
    }
}

#[tokio::test]
async fn the_first_message_can_be_edited() {
    let rig = Rig::new([]).await;
    let [first, ..] = three_turns(&rig).await;
    let edited = rig.engine.tell_with(&edit(message_id(&first), "Something else?")).await;
    rig.told().has(&["Something else?"]).lacks(&[
        "Question one?",
        "Answer one.",
        "Question two?",
        "Answer three.",
    ]);
    assert_eq!(rig.engine.messages("task").await.len(), 2);
    assert_eq!(all_events(&rig.engine).await, edited);
}

#[tokio::test]
async fn what_was_noted_after_an_edited_message_is_forgotten() {
    let noted = Reply::of_text("I see.");
    let rig = Rig::new([note("colour", "green"), noted.clone(), note("fruit", "papaya"), noted]).await;
    rig.engine.tell("task", "Note my colour.").await;
    let second = rig.engine.tell("task", "Note my fruit.").await;
    rig.engine.tell_with(&edit(message_id(&second), "What do you know?")).await;
    rig.told().has(&["green", "What do you know?"]).lacks(&["papaya"]);

    let rig = rig.kill_and_start().await;
    rig.engine.tell("task", "And now?").await;
    rig.told().has(&["green", "What do you know?", "And now?"]).lacks(&["papaya"]);
}

#[tokio::test]
async fn an_edit_takes_out_a_turn_that_was_told_of_a_correction_from_its_first_event_on() {
    let rig = Rig::new([]).await;
    let first = rig.engine.tell("other", "Hello!").await;
    let correction = json!({"task_id": "other", "feedback_type": "correction", "correction_text": "Say hi."});
    rig.engine.post("/feedback", &correction).await.ok("status:text feedback_id:text");

    // What is told of the correction stands between the turn's first event and the model's answer.
    let named = with(message("task", "Question?"), json!({"client_request_id": "once"}));
    let void = rig.engine.tell_with(&named).await;
    assert_eq!(void[1].kind, "working_memory_update", "{void:#?}");
    let edited = rig.engine.tell_with(&edit(message_id(&void), "Question, better?")).await;
    assert_eq!(all_events(&rig.engine).await, edited);
    rig.engine.execute_refused(&named).await.refused(404, "MESSAGE_NOT_FOUND");

    let rig = rig.kill_and_start().await;
    assert_eq!(all_events(&rig.engine).await, edited);
    rig.engine.execute_refused(&named).await.refused(404, "MESSAGE_NOT_FOUND");
    assert_eq!(rig.engine.replay("other", 0).await.rest().await, first);
}

#[tokio::test]
async fn an_edit_outlives_the_death_of_the_engine() {
    let rig = Rig::new([]).await;
    let [_, second, _] = three_turns(&rig).await;
    let gate = Gate::new();
    rig.provider.enqueue(Reply::of_text("Answer two, anew.").hold(2, &gate));
    let stream = rig.engine.execute_with(&edit(message_id(&second), "Question two, better?")).await;
    reached(&gate).await;
    rig.provider.enqueue(Reply::of_text("Answer two, anew."));
    let rig = rig.kill_and_start().await;
    drop(stream);

    let events = all_events(&rig.engine).await;
    let last: Vec<Event> = events
        .iter()
        .filter(|event| event.data["turn_id"] == events.last().unwrap().data["turn_id"])
        .cloned()
        .collect();
    assert_eq!(completed(&last), "Answer two, anew.");
    rig.told().has(&["Answer one.", "Question two, better?"]).lacks(&["Question two?", "Question three?"]);
    assert_eq!(rig.engine.messages("task").await.len(), 4);
}

#[tokio::test]
async fn a_retry_answers_a_message_again_and_later_turns_see_that_answer_alone() {
    for wire in WIRES {
        let rig = Rig::on(wire, []).await;
        let [first, second, third] = three_turns(&rig).await;
        rig.provider.enqueue(Reply::of_text("Better answer."));
        let retried = rig.engine.tell_with(&retry(message_id(&second))).await;

        assert_eq!(message_id(&retried), message_id(&second), "it is the turn of that message");
        let old = ["Answer two.", "Question three?", "Answer three."];
        rig.told().has(&["Question one?", "Answer one.", "Question two?"]).lacks(&old);
        let messages = rig.engine.messages("task").await;
        assert_eq!(
            said(&messages),
            [
                ("user", "Question one?"),
                ("assistant", "Answer one."),
                ("user", "Question two?"),
                ("assistant", "Answer two."),
                ("user", "Question three?"),
                ("assistant", "Answer three."),
                ("assistant", "Better answer."),
            ]
        );
        assert_eq!(superseded(&messages), old);
        assert_eq!(rig.engine.tasks("").await.0[0]["message_count"], 7);
        assert_eq!(all_events(&rig.engine).await, [first, second, third, retried].concat(), "{wire}");

        let rig = rig.kill_and_start().await;
        rig.engine.tell("task", "Question four?").await;
        rig.told().has(&[
            "Question one?",
            "Answer one.",
            "Question two?",
            "Better answer.",
            "Question four?",
        ]);
        rig.told().lacks(&old);
        assert_eq!(superseded(&rig.engine.messages("task").await), old);
    }
}

#[tokio::test]
async fn a_retry_of_an_answer_asks_again_for_it() {
    for wire in WIRES {
        let rig = Rig::on(wire, []).await;
        let [_, second, _] = three_turns(&rig).await;
        rig.provider.enqueue(Reply::of_text("Better answer."));
        let retried = rig.engine.tell_with(&retry(answer_id(&second))).await;
        assert_eq!(message_id(&retried), message_id(&second));
        assert_ne!(answer_id(&retried), answer_id(&second));
        rig.told().has(&["Question one?", "Answer one.", "Question two?"]).lacks(&["Answer two.", "three"]);
        let messages = rig.engine.messages("task").await;
        assert_eq!(superseded(&messages), ["Answer two.", "Question three?", "Answer three."]);
    }
}

#[tokio::test]
async fn a_retry_can_be_retried_and_its_message_is_not_added() {
    let rig = Rig::new([]).await;
    let [first, ..] = three_turns(&rig).await;
    rig.provider.enqueue_all(["Better answer.", "Best answer."].map(Reply::of_text));
    rig.engine.tell_with(&retry(message_id(&first))).await;
    let body = with(message("task", "Leave this out."), json!({"retry_message_id": message_id(&first)}));
    rig.engine.tell_with(&body).await;
    rig.told().has(&["Question one?"]).lacks(&[
        "Answer one.",
        "Better answer.",
        "Question two?",
        "Leave this out.",
    ]);
    rig.engine.tell("task", "Go on.").await;
    rig.told().has(&["Question one?", "Best answer.", "Go on."]).lacks(&["Better", "Leave this out."]);
    let messages = rig.engine.messages("task").await;
    assert!(superseded(&messages).contains(&"Better answer."), "{messages:?}");
    assert!(!Value::from(messages).to_string().contains("Leave this out."));
}

#[tokio::test]
async fn a_retry_of_a_turn_with_thinking_and_tools_is_taken_by_the_provider() {
    let noted = Reply::new().thinking("I note it.").notes("colour", "green");
    let done = Reply::new().thinking("It is noted.").text("Noted.");
    let script = [noted.clone(), done.clone(), noted.clone(), done.clone(), noted, done];
    let rig = Rig::new(script).await;
    let thinking = json!({"super_thinking": true});
    let first = rig.engine.tell_with(&with(message("task", "Note it."), thinking.clone())).await;
    rig.engine.tell_with(&with(retry(message_id(&first)), thinking.clone())).await;
    rig.engine.tell_with(&with(edit(message_id(&first), "Note this."), thinking.clone())).await;
    rig.engine.tell_with(&with(message("task", "Well done."), thinking)).await;
    rig.told().has(&["Note this.", "Noted.", "Well done."]).lacks(&["Note it."]);
}

#[tokio::test]
async fn a_message_that_there_is_not_can_be_neither_edited_nor_retried() {
    let rig = Rig::new([]).await;
    let ours = rig.engine.tell("task", "Hello!").await;
    let theirs = rig.engine.tell("other", "Hello!").await;
    let unknown = MessageId::new().to_string();
    for id in [unknown.as_str(), "nonsense", "msg_", "🦀", message_id(&theirs), answer_id(&theirs)] {
        for body in [edit(id, "Again?"), retry(id)] {
            rig.engine.execute_refused(&body).await.refused(404, "MESSAGE_NOT_FOUND");
        }
    }
    for mut body in [edit(message_id(&ours), "Again?"), retry(message_id(&ours))] {
        body["task_id"] = json!("never-begun");
        rig.engine.execute_refused(&body).await.refused(404, "TASK_NOT_FOUND");
    }
    assert_eq!(rig.engine.tasks("").await.1, 2, "no refusal begins a task");
    assert_eq!(all_events(&rig.engine).await, ours, "no refusal takes anything away");
}

#[tokio::test]
async fn an_edit_needs_a_message_and_is_no_retry() {
    let rig = Rig::new([]).await;
    let events = rig.engine.tell("task", "Hello!").await;
    let id = message_id(&events);
    for text in ["", " \n"] {
        let answer = rig.engine.execute_refused(&edit(id, text)).await;
        assert!(answer.refused(400, "INVALID_REQUEST").contains("message"));
    }
    let both = with(edit(id, "Again?"), json!({"retry_message_id": id}));
    rig.engine.execute_refused(&both).await.refused(400, "INVALID_REQUEST");
    for field in ["edit_message_id", "retry_message_id"] {
        let answer = rig.engine.execute_refused(&with(message("task", "Again?"), json!({field: 7}))).await;
        assert!(answer.refused(400, "INVALID_REQUEST").contains(field));
    }
    assert_eq!(rig.calls(), 1);
    assert_eq!(phases(&all_events(&rig.engine).await), ["started", "completed"]);
}

#[tokio::test]
async fn a_task_that_runs_or_waits_takes_neither_edit_nor_retry() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text("Hello."), question("Which?").hold(1, &gate)]).await;
    let first = rig.engine.tell("task", "Hello!").await;
    let id = message_id(&first);
    let mut stream = rig.engine.execute_with(&message("task", "Go on.")).await;
    reached(&gate).await;
    for body in [edit(id, "Again?"), retry(id), retry(answer_id(&first))] {
        rig.engine.execute_refused(&body).await.refused(409, "TASK_BUSY");
    }
    gate.release();
    stream.asked().await;
    for body in [edit(id, "Again?"), retry(id)] {
        rig.engine.execute_refused(&body).await.refused(409, "TASK_BUSY");
    }
    rig.engine.respond("task", "This one.").await.ok("status:text request_id:hitl");
    completed(&stream.rest().await);
    rig.engine.tell_with(&edit(id, "Now it goes?")).await;
}
