//! The queue of a task outlives the death of its engine at each of its steps: no message is lost, none becomes two
//! turns, and none is left over.

use mock_llm::{Gate, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, roles_and_texts, with_fields};
use crate::support::engine_fixture::{ask_user_reply, wait_gate_reached};
use crate::support::kill_rounds::{is_before, now};
use crate::support::{EngineFixture, KillRounds, eventually};

fn queue_body(text: &str) -> Value {
    with_fields(direct_message("task", text), json!({"on_busy": "queue"}))
}

/// What the user has said in the task, as its conversation shows it.
async fn said(fixture: &EngineFixture) -> Vec<String> {
    let messages = fixture.engine.messages("task").await;
    let texts = roles_and_texts(&messages).into_iter().filter(|(role, _)| *role == "user");
    texts.map(|(_, text)| text.to_owned()).collect()
}

/// Waits until the task is idle and nothing waits in it.
async fn wait_finished(fixture: &EngineFixture) {
    eventually("the task is idle", async || {
        let idle = fixture.engine.task_status("task").await == "idle";
        (idle && fixture.engine.queued("task").await.is_empty()).then_some(())
    })
    .await;
}

/// An engine whose task runs a turn that never ends by itself.
async fn busy_engine() -> (EngineFixture, Gate) {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("The first answer.").hold(1, &gate)]).await;
    fixture.engine.execute_in_background(direct_message("task", "First.")).await;
    wait_gate_reached(&gate).await;
    (fixture, gate)
}

#[tokio::test]
async fn an_accepted_message_outlives_a_kill_and_a_stop() {
    for is_kill in [true, false] {
        let (fixture, _gate) = busy_engine().await;
        let mut turns = Vec::new();
        for text in ["Second.", "Third."] {
            turns.push(fixture.engine.execute_in_background(queue_body(text)).await["turn_id"].clone());
        }
        let held = Gate::new();
        fixture.provider.enqueue(Reply::from_text("The first answer.").hold(1, &held));
        let fixture = if is_kill { fixture.kill_and_start().await } else { fixture.stop_and_start().await };
        wait_gate_reached(&held).await;
        assert_eq!(fixture.engine.queued("task").await, ["Second.", "Third."]);
        assert!(!fixture.engine.quiesce().await);
        fixture.provider.enqueue_all((0..2).map(|_| Reply::from_text("Yes.")));
        held.release();
        wait_finished(&fixture).await;
        assert_eq!(said(&fixture).await, ["First.", "Second.", "Third."]);
        for turn in &turns {
            assert_eq!(fixture.engine.turn("task", turn).await["state"], "completed");
        }
        assert_eq!(fixture.model_calls(), 4);
    }
}

#[tokio::test]
async fn a_message_whose_turn_has_begun_is_resumed_and_does_not_begin_again() {
    let (fixture, gate) = busy_engine().await;
    let second = fixture.engine.execute_in_background(queue_body("Second.")).await;
    let held = Gate::new();
    fixture.provider.enqueue(Reply::from_text("The second answer.").hold(1, &held));
    gate.release();
    wait_gate_reached(&held).await;
    fixture.provider.enqueue(Reply::from_text("The second answer."));
    let fixture = fixture.kill_and_start().await;
    wait_finished(&fixture).await;
    assert_eq!(said(&fixture).await, ["First.", "Second."]);
    let record = fixture.engine.turn("task", &second["turn_id"]).await;
    assert_eq!((&record["state"], &record["text"]), (&json!("completed"), &json!("The second answer.")));
    let turns = fixture.engine.get("/tasks/task/turns").await.assert_ok("turns:array");
    assert_eq!(turns["turns"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_next_message_begins_once_whenever_the_engine_dies_after_the_end_of_a_turn() {
    let mut kills = KillRounds::around("the next turn begins");
    while let Some(delay) = kills.next_delay() {
        let (fixture, gate) = busy_engine().await;
        let second = fixture.engine.execute_in_background(queue_body("Second.")).await;
        fixture.engine.execute_in_background(queue_body("Third.")).await;
        // Enough for each turn to be asked again after the kill.
        fixture.provider.enqueue_all((0..8).map(|_| Reply::from_text("Yes.")));
        gate.release();
        tokio::time::sleep(delay).await;
        let killed_at = now();
        let fixture = fixture.kill_and_start().await;
        wait_finished(&fixture).await;
        let second = fixture.engine.turn("task", &second["turn_id"]).await;
        kills.record(is_before(&second["started_at"], killed_at));
        assert_eq!(said(&fixture).await, ["First.", "Second.", "Third."], "killed after {delay:?}");
        let turns = fixture.engine.get("/tasks/task/turns").await.assert_ok("turns:array");
        let states: Vec<&Value> =
            turns["turns"].as_array().unwrap().iter().map(|turn| &turn["state"]).collect();
        assert_eq!(states, [&json!("completed"); 3], "killed after {delay:?}");
        assert!(fixture.engine.quiesce().await);
    }
}

#[tokio::test]
async fn a_message_that_was_taken_out_stays_out() {
    let (fixture, _gate) = busy_engine().await;
    let second = fixture.engine.execute_in_background(queue_body("Second.")).await;
    let third = fixture.engine.execute_in_background(queue_body("Third.")).await;
    let path = format!("/tasks/task/queue/{}", second["turn_id"].as_str().unwrap());
    fixture.engine.delete(&path).await.assert_ok("status:text turn_id:turn");
    fixture.provider.enqueue_all((0..2).map(|_| Reply::from_text("Yes.")));
    let fixture = fixture.kill_and_start().await;
    wait_finished(&fixture).await;
    assert_eq!(said(&fixture).await, ["First.", "Third."]);
    assert_eq!(fixture.engine.turn("task", &second["turn_id"]).await["state"], "cancelled");
    assert_eq!(fixture.engine.turn("task", &third["turn_id"]).await["state"], "completed");
}

#[tokio::test]
async fn a_client_that_leaves_leaves_its_message_in_the_queue() {
    let (fixture, gate) = busy_engine().await;
    let (stream, _) = fixture.engine.queue_message("task", "Second.").await;
    drop(stream);
    fixture.provider.enqueue(Reply::from_text("Yes."));
    gate.release();
    wait_finished(&fixture).await;
    assert_eq!(said(&fixture).await, ["First.", "Second."]);
}

#[tokio::test]
async fn what_was_accepted_before_a_kill_becomes_one_turn_and_the_rest_at_most_one() {
    let mut kills = KillRounds::around("a message is queued");
    while let Some(delay) = kills.next_delay() {
        let (fixture, _gate) = busy_engine().await;
        let sent: Vec<String> = (0..8).map(|number| format!("Message {number}.")).collect();
        let posts: Vec<_> = sent
            .iter()
            .map(|text| {
                let body = with_fields(queue_body(text), json!({"background": true}));
                let request = fixture.engine.request(Method::POST, "/execute").json(&body);
                tokio::spawn(
                    async move { request.send().await.is_ok_and(|response| response.status() == 202) },
                )
            })
            .collect();
        tokio::time::sleep(delay).await;
        fixture.provider.enqueue_all((0..16).map(|_| Reply::from_text("Yes.")));
        let fixture = fixture.kill_and_start().await;
        wait_finished(&fixture).await;
        let said = said(&fixture).await;
        for (text, post) in sent.iter().zip(posts) {
            let times = said.iter().filter(|said| *said == text).count();
            let accepted = post.await.unwrap();
            assert!(times <= 1 && (times == 1 || !accepted), "{text} {times} times, accepted: {accepted}");
        }
        let queued = said.len() - 1;
        kills.record_many(sent.len() - queued, queued);
    }
}

#[tokio::test]
async fn an_interruption_that_is_sent_again_after_a_kill_becomes_one_turn() {
    let mut kills = KillRounds::around("an interruption is queued");
    while let Some(delay) = kills.next_delay() {
        let (fixture, _gate) = busy_engine().await;
        fixture.provider.enqueue_all((0..6).map(|_| Reply::from_text("Yes.")));
        let fields = json!({"on_busy": "interrupt", "client_request_id": "once", "background": true});
        let body = with_fields(direct_message("task", "Urgent."), fields);
        let request = fixture.engine.request(Method::POST, "/execute").json(&body);
        let (fixture, is_accepted) = fixture.kill_during(request, delay).await;
        let turns = fixture.engine.get("/tasks/task/turns").await.assert_ok("turns:array");
        let is_queued = turns["turns"].as_array().unwrap().len() == 2;
        assert!(is_queued || !is_accepted, "killed after {delay:?}: {turns}");
        kills.record(is_queued);
        fixture.engine.execute_in_background(body).await;
        wait_finished(&fixture).await;
        assert_eq!(said(&fixture).await, ["First.", "Urgent."], "killed after {delay:?}");
    }
}

/// Once an interrupting message is accepted, its turn runs whatever happens to the engine, and the turn whose place it
/// takes does not go on; neither does one that waits for a person.
#[tokio::test]
async fn an_accepted_interruption_outlives_a_kill_and_its_client() {
    let mut kills = KillRounds::around("the last interrupting turn begins");
    while let Some(delay) = kills.next_delay() {
        let (fixture, _gate) = busy_engine().await;
        fixture.engine.execute_in_background(queue_body("Queued.")).await;
        fixture.provider.enqueue_all((0..12).map(|_| Reply::from_text("Yes.")));
        let urgent = ["Urgent.", "More urgent."]
            .map(|text| with_fields(direct_message("task", text), json!({"on_busy": "interrupt"})));
        let mut turns = Vec::new();
        for body in urgent {
            turns.push(fixture.engine.execute_in_background(body).await["turn_id"].clone());
        }
        tokio::time::sleep(delay).await;
        let killed_at = now();
        let fixture = fixture.kill_and_start().await;
        wait_finished(&fixture).await;
        let said = said(&fixture).await;
        assert_eq!(said, ["First.", "Urgent.", "More urgent.", "Queued."], "killed after {delay:?}");
        let more_urgent = fixture.engine.turn("task", &turns[1]).await;
        assert_eq!(more_urgent["state"], "completed", "killed after {delay:?}");
        kills.record(is_before(&more_urgent["started_at"], killed_at));
        let turns = fixture.engine.get("/tasks/task/turns").await.assert_ok("turns:array");
        assert_eq!(turns["turns"][3]["state"], "cancelled", "{turns}");
    }
}

#[tokio::test]
async fn a_queued_interruption_of_a_turn_that_waits_for_a_person_keeps_the_engine_awake() {
    let replies = [ask_user_reply("Which?"), Reply::from_text("Never mind.")];
    let fixture = EngineFixture::new(replies).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "First.")).await;
    drop(stream);
    let body = with_fields(direct_message("task", "Forget it."), json!({"on_busy": "interrupt"}));
    let accepted = fixture.engine.execute_in_background(body).await;
    let fixture = fixture.kill_and_start().await;
    wait_finished(&fixture).await;
    assert_eq!(fixture.engine.turn("task", &accepted["turn_id"]).await["state"], "completed");
    assert_eq!(fixture.engine.pending().await, [Value::Null; 0]);
    assert!(fixture.engine.quiesce().await);
}
