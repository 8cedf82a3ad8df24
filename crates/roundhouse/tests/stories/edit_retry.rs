//! Story 12: a message is edited, and an answer is retried.

use api::MessageId;
use mock_llm::{Gate, Reply};
use serde_json::{Value, json};

use crate::support::engine_calls::{answer_id, direct_message, message_id, roles_and_texts, with_fields};
use crate::support::engine_fixture::{
    ReplyExt as _, WIRES, ask_user_reply, memory_set_reply, wait_gate_reached,
};
use crate::support::turn::{assert_completed, phases};
use crate::support::{Engine, EngineFixture, Event};

/// The body of a request that replaces the message `id` by `text`.
fn edit_body(id: &str, text: &str) -> Value {
    with_fields(direct_message("task", text), json!({"edit_message_id": id}))
}

/// The body of a request that retries from the message `id`, without a message of its own.
fn retry_body(id: &str) -> Value {
    json!({"task_id": "task", "retry_message_id": id})
}

/// Runs three turns of question and answer.
async fn three_turns(fixture: &EngineFixture) -> [Vec<Event>; 3] {
    fixture.provider.enqueue_all(["Answer one.", "Answer two.", "Answer three."].map(Reply::from_text));
    let engine = &fixture.engine;
    [
        engine.run_turn("task", "Question one?").await,
        engine.run_turn("task", "Question two?").await,
        engine.run_turn("task", "Question three?").await,
    ]
}

/// The contents of the messages that a retry has replaced.
fn superseded(messages: &[Value]) -> Vec<&str> {
    let replaced = messages.iter().filter(|message| message["superseded"] == true);
    replaced.map(|message| message["content"].as_str().unwrap()).collect()
}

async fn all_events(engine: &Engine) -> Vec<Event> {
    engine.replay("task", 0).await.collect().await
}

#[tokio::test]
async fn an_edited_message_takes_the_place_of_the_old_one_and_of_all_that_followed() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        let [first, second, third] = three_turns(&fixture).await;
        fixture.provider.enqueue(Reply::from_text("Answer two, anew."));
        let edited =
            fixture.engine.run_turn_with(&edit_body(message_id(&second), "Question two, better?")).await;

        let old = ["Question two?", "Answer two.", "Question three?", "Answer three."];
        fixture
            .last_messages()
            .assert_contains(&["Question one?", "Answer one.", "Question two, better?"])
            .assert_lacks(&old);
        let messages = fixture.engine.messages("task").await;
        assert_eq!(
            roles_and_texts(&messages),
            [
                ("user", "Question one?"),
                ("assistant", "Answer one."),
                ("user", "Question two, better?"),
                ("assistant", "Answer two, anew."),
            ]
        );
        assert_eq!(superseded(&messages), [""; 0], "edited messages are gone, not superseded");
        assert_eq!(
            (messages[2]["message_id"].as_str(), messages[3]["message_id"].as_str()),
            (Some(message_id(&edited)), Some(answer_id(&edited)))
        );
        assert_eq!(fixture.engine.tasks("").await.0[0]["message_count"], 4);
        assert_eq!(all_events(&fixture.engine).await, [first, edited.clone()].concat(), "{wire}");
        assert!(third.last().unwrap().ts() < edited[0].ts(), "the timestamps of a task never go back");
        let gone = fixture.engine.post_execute(&edit_body(message_id(&third), "Again?")).await;
        gone.assert_error(404, "MESSAGE_NOT_FOUND");
    }
}

#[tokio::test]
async fn the_first_message_can_be_edited() {
    let fixture = EngineFixture::new([]).await;
    let [first, ..] = three_turns(&fixture).await;
    let edited = fixture.engine.run_turn_with(&edit_body(message_id(&first), "Something else?")).await;
    fixture.last_messages().assert_contains(&["Something else?"]).assert_lacks(&[
        "Question one?",
        "Answer one.",
        "Question two?",
        "Answer three.",
    ]);
    assert_eq!(fixture.engine.messages("task").await.len(), 2);
    assert_eq!(all_events(&fixture.engine).await, edited);
}

#[tokio::test]
async fn what_was_noted_after_an_edited_message_is_forgotten() {
    let noted = Reply::from_text("I see.");
    let fixture = EngineFixture::new([
        memory_set_reply("colour", "green"),
        noted.clone(),
        memory_set_reply("fruit", "papaya"),
        noted,
    ])
    .await;
    fixture.engine.run_turn("task", "Note my colour.").await;
    let second = fixture.engine.run_turn("task", "Note my fruit.").await;
    fixture.engine.run_turn_with(&edit_body(message_id(&second), "What do you know?")).await;
    fixture.last_messages().assert_contains(&["green", "What do you know?"]).assert_lacks(&["papaya"]);

    let fixture = fixture.kill_and_start().await;
    fixture.engine.run_turn("task", "And now?").await;
    fixture
        .last_messages()
        .assert_contains(&["green", "What do you know?", "And now?"])
        .assert_lacks(&["papaya"]);
}

#[tokio::test]
async fn an_edit_takes_out_a_turn_that_was_told_of_a_correction_from_its_first_event_on() {
    let fixture = EngineFixture::new([]).await;
    let first = fixture.engine.run_turn("other", "Hello!").await;
    let correction = json!({"task_id": "other", "feedback_type": "correction", "correction_text": "Say hi."});
    fixture.engine.post("/feedback", &correction).await.assert_ok("status:text feedback_id:text");

    // The note about the correction is between the turn's first event and the model's answer.
    let named = with_fields(direct_message("task", "Question?"), json!({"client_request_id": "once"}));
    let replaced = fixture.engine.run_turn_with(&named).await;
    assert_eq!(replaced[1].kind, "working_memory_update", "{replaced:#?}");
    let edited = fixture.engine.run_turn_with(&edit_body(message_id(&replaced), "Question, better?")).await;
    assert_eq!(all_events(&fixture.engine).await, edited);
    fixture.engine.post_execute(&named).await.assert_error(404, "MESSAGE_NOT_FOUND");

    let fixture = fixture.kill_and_start().await;
    assert_eq!(all_events(&fixture.engine).await, edited);
    fixture.engine.post_execute(&named).await.assert_error(404, "MESSAGE_NOT_FOUND");
    assert_eq!(fixture.engine.replay("other", 0).await.collect().await, first);
}

#[tokio::test]
async fn an_edit_outlives_the_death_of_the_engine() {
    let fixture = EngineFixture::new([]).await;
    let [_, second, _] = three_turns(&fixture).await;
    let gate = Gate::new();
    fixture.provider.enqueue(Reply::from_text("Answer two, anew.").hold(2, &gate));
    let stream = fixture.engine.execute_with(&edit_body(message_id(&second), "Question two, better?")).await;
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue(Reply::from_text("Answer two, anew."));
    let fixture = fixture.kill_and_start().await;
    drop(stream);

    let events = all_events(&fixture.engine).await;
    let last: Vec<Event> = events
        .iter()
        .filter(|event| event.data["turn_id"] == events.last().unwrap().data["turn_id"])
        .cloned()
        .collect();
    assert_eq!(assert_completed(&last), "Answer two, anew.");
    fixture
        .last_messages()
        .assert_contains(&["Answer one.", "Question two, better?"])
        .assert_lacks(&["Question two?", "Question three?"]);
    assert_eq!(fixture.engine.messages("task").await.len(), 4);
}

#[tokio::test]
async fn a_retry_answers_a_message_again_and_later_turns_see_that_answer_alone() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        let [first, second, third] = three_turns(&fixture).await;
        fixture.provider.enqueue(Reply::from_text("Better answer."));
        let retried = fixture.engine.run_turn_with(&retry_body(message_id(&second))).await;

        assert_eq!(message_id(&retried), message_id(&second), "the retry belongs to that message");
        let old = ["Answer two.", "Question three?", "Answer three."];
        fixture
            .last_messages()
            .assert_contains(&["Question one?", "Answer one.", "Question two?"])
            .assert_lacks(&old);
        let messages = fixture.engine.messages("task").await;
        assert_eq!(
            roles_and_texts(&messages),
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
        assert_eq!(fixture.engine.tasks("").await.0[0]["message_count"], 7);
        assert_eq!(all_events(&fixture.engine).await, [first, second, third, retried].concat(), "{wire}");

        let fixture = fixture.kill_and_start().await;
        fixture.engine.run_turn("task", "Question four?").await;
        fixture.last_messages().assert_contains(&[
            "Question one?",
            "Answer one.",
            "Question two?",
            "Better answer.",
            "Question four?",
        ]);
        fixture.last_messages().assert_lacks(&old);
        assert_eq!(superseded(&fixture.engine.messages("task").await), old);
    }
}

#[tokio::test]
async fn a_retry_of_an_answer_asks_again_for_it() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        let [_, second, _] = three_turns(&fixture).await;
        fixture.provider.enqueue(Reply::from_text("Better answer."));
        let retried = fixture.engine.run_turn_with(&retry_body(answer_id(&second))).await;
        assert_eq!(message_id(&retried), message_id(&second));
        assert_ne!(answer_id(&retried), answer_id(&second));
        fixture
            .last_messages()
            .assert_contains(&["Question one?", "Answer one.", "Question two?"])
            .assert_lacks(&["Answer two.", "three"]);
        let messages = fixture.engine.messages("task").await;
        assert_eq!(superseded(&messages), ["Answer two.", "Question three?", "Answer three."]);
    }
}

#[tokio::test]
async fn a_retry_can_be_retried_and_its_message_is_not_added() {
    let fixture = EngineFixture::new([]).await;
    let [first, ..] = three_turns(&fixture).await;
    fixture.provider.enqueue_all(["Better answer.", "Best answer."].map(Reply::from_text));
    fixture.engine.run_turn_with(&retry_body(message_id(&first))).await;
    let body = with_fields(
        direct_message("task", "Leave this out."),
        json!({"retry_message_id": message_id(&first)}),
    );
    fixture.engine.run_turn_with(&body).await;
    fixture.last_messages().assert_contains(&["Question one?"]).assert_lacks(&[
        "Answer one.",
        "Better answer.",
        "Question two?",
        "Leave this out.",
    ]);
    fixture.engine.run_turn("task", "Go on.").await;
    fixture
        .last_messages()
        .assert_contains(&["Question one?", "Best answer.", "Go on."])
        .assert_lacks(&["Better", "Leave this out."]);
    let messages = fixture.engine.messages("task").await;
    assert!(superseded(&messages).contains(&"Better answer."), "{messages:?}");
    assert!(!Value::from(messages).to_string().contains("Leave this out."));
}

#[tokio::test]
async fn a_retry_of_a_turn_with_thinking_and_tools_is_taken_by_the_provider() {
    let noted = Reply::new().thinking("I note it.").memory_set("colour", "green");
    let done = Reply::new().thinking("It is noted.").text("Noted.");
    let script = [noted.clone(), done.clone(), noted.clone(), done.clone(), noted, done];
    let fixture = EngineFixture::new(script).await;
    let thinking = json!({"super_thinking": true});
    let first = fixture
        .engine
        .run_turn_with(&with_fields(direct_message("task", "Note it."), thinking.clone()))
        .await;
    fixture.engine.run_turn_with(&with_fields(retry_body(message_id(&first)), thinking.clone())).await;
    fixture
        .engine
        .run_turn_with(&with_fields(edit_body(message_id(&first), "Note this."), thinking.clone()))
        .await;
    fixture.engine.run_turn_with(&with_fields(direct_message("task", "Well done."), thinking)).await;
    fixture
        .last_messages()
        .assert_contains(&["Note this.", "Noted.", "Well done."])
        .assert_lacks(&["Note it."]);
}

#[tokio::test]
async fn a_message_that_there_is_not_can_be_neither_edited_nor_retried() {
    let fixture = EngineFixture::new([]).await;
    let events = fixture.engine.run_turn("task", "Hello!").await;
    let other_events = fixture.engine.run_turn("other", "Hello!").await;
    let unknown = MessageId::new().to_string();
    for id in
        [unknown.as_str(), "nonsense", "msg_", "🦀", message_id(&other_events), answer_id(&other_events)]
    {
        for body in [edit_body(id, "Again?"), retry_body(id)] {
            fixture.engine.post_execute(&body).await.assert_error(404, "MESSAGE_NOT_FOUND");
        }
    }
    for mut body in [edit_body(message_id(&events), "Again?"), retry_body(message_id(&events))] {
        body["task_id"] = json!("never-begun");
        fixture.engine.post_execute(&body).await.assert_error(404, "TASK_NOT_FOUND");
    }
    assert_eq!(fixture.engine.tasks("").await.1, 2, "a refusal creates no task");
    assert_eq!(all_events(&fixture.engine).await, events, "a refusal removes nothing");
}

#[tokio::test]
async fn an_edit_needs_a_message_and_is_no_retry() {
    let fixture = EngineFixture::new([]).await;
    let events = fixture.engine.run_turn("task", "Hello!").await;
    let id = message_id(&events);
    for text in ["", " \n"] {
        let answer = fixture.engine.post_execute(&edit_body(id, text)).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("message"));
    }
    let both = with_fields(edit_body(id, "Again?"), json!({"retry_message_id": id}));
    fixture.engine.post_execute(&both).await.assert_error(400, "INVALID_REQUEST");
    for field in ["edit_message_id", "retry_message_id"] {
        let answer = fixture
            .engine
            .post_execute(&with_fields(direct_message("task", "Again?"), json!({field: 7})))
            .await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains(field));
    }
    assert_eq!(fixture.model_calls(), 1);
    assert_eq!(phases(&all_events(&fixture.engine).await), ["started", "completed"]);
}

#[tokio::test]
async fn a_task_that_runs_or_waits_takes_neither_edit_nor_retry() {
    let gate = Gate::new();
    let fixture =
        EngineFixture::new([Reply::from_text("Hello."), ask_user_reply("Which?").hold(1, &gate)]).await;
    let first = fixture.engine.run_turn("task", "Hello!").await;
    let id = message_id(&first);
    let mut stream = fixture.engine.execute_with(&direct_message("task", "Go on.")).await;
    wait_gate_reached(&gate).await;
    for body in [edit_body(id, "Again?"), retry_body(id), retry_body(answer_id(&first))] {
        fixture.engine.post_execute(&body).await.assert_error(409, "TASK_BUSY");
    }
    gate.release();
    stream.next_hitl_request().await;
    for body in [edit_body(id, "Again?"), retry_body(id)] {
        fixture.engine.post_execute(&body).await.assert_error(409, "TASK_BUSY");
    }
    fixture.engine.respond("task", "This one.").await.assert_ok("status:text request_id:hitl");
    assert_completed(&stream.collect().await);
    fixture.engine.run_turn_with(&edit_body(id, "Now it goes?")).await;
}
