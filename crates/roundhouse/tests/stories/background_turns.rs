//! A turn in the background answers at once and can be looked up until its task is deleted.

use mock_llm::{Fault, Gate, Refusal, Reply};
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ask_user_reply, wait_gate_reached};
use crate::support::schema::TURN;
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, assert_fields};

/// A page of the turns of the task: the answer's list.
async fn page(fixture: &EngineFixture, query: &str) -> Vec<Value> {
    let answer = fixture.engine.get(&format!("/tasks/task/turns{query}")).await.assert_ok("turns:array");
    let turns = answer["turns"].as_array().unwrap().clone();
    for turn in &turns {
        assert_fields(turn, TURN);
        assert!(turn.get("text").is_none(), "a list has no texts: {turn}");
    }
    turns
}

#[tokio::test]
async fn a_turn_in_the_background_is_looked_up_in_each_of_its_states() {
    let gate = Gate::new();
    let replies = [Reply::from_text("Done.").hold(1, &gate), ask_user_reply("Which?")];
    let fixture = EngineFixture::new(replies).await;
    let first = fixture.engine.execute_in_background(direct_message("task", "Do it.")).await;
    assert_eq!((&first["status"], &first["task_id"]), (&json!("started"), &json!("task")));
    wait_gate_reached(&gate).await;
    let running = fixture.engine.turn("task", &first["turn_id"]).await;
    assert_eq!(running["state"], "running");
    assert!(running["started_at"].is_string() && running.get("ended_at").is_none(), "{running}");
    assert!(!fixture.engine.quiesce().await, "it keeps the engine awake");
    let queue = with_fields(direct_message("task", "Then ask."), json!({"on_busy": "queue"}));
    let second = fixture.engine.execute_in_background(queue).await;
    let queued = fixture.engine.turn("task", &second["turn_id"]).await;
    assert_eq!((&queued["state"], &queued["position"]), (&json!("queued"), &json!(1)));
    assert_eq!(page(&fixture, "").await.len(), 2);

    gate.release();
    let done = fixture.engine.wait_turn_state("task", &first["turn_id"], "completed").await;
    assert_eq!((&done["text"], &done["stop_reason"]), (&json!("Done."), &json!("end_turn")));
    assert!(done["ended_at"].as_str() >= done["started_at"].as_str(), "{done}");
    let asking = fixture.engine.wait_turn_state("task", &second["turn_id"], "waiting_for_person").await;
    assert!(asking["queued_at"].as_str() <= asking["started_at"].as_str(), "{asking}");
    fixture.engine.cancel("task").await.assert_ok("status:text turn_id:turn");
    let cancelled = fixture.engine.turn("task", &second["turn_id"]).await;
    assert_eq!(cancelled["state"], "cancelled");
    let replayed = fixture.engine.replay("task", 0).await.collect().await;
    assert!(replayed.iter().any(|event| event.data["turn_id"] == first["turn_id"]));

    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.engine.turn("task", &first["turn_id"]).await, done);
    assert_eq!(fixture.engine.turn("task", &second["turn_id"]).await, cancelled);
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    let path = format!("/tasks/task/turns/{}", first["turn_id"].as_str().unwrap());
    fixture.engine.get(&path).await.assert_error(404, "TASK_NOT_FOUND");
}

#[tokio::test]
async fn a_turn_that_failed_says_why() {
    let refusal = Reply::from_fault(Fault::Refuse { refusal: Refusal::Unauthorized });
    let fixture = EngineFixture::new([refusal]).await;
    let sent = fixture.engine.execute_in_background(direct_message("task", "Hello.")).await;
    let failed = fixture.engine.wait_turn_state("task", &sent["turn_id"], "failed").await;
    assert_fields(&failed["error"], "code:text message:text retryable:bool");
    assert_eq!(failed["error"]["code"], "PROVIDER_AUTH");
}

#[tokio::test]
async fn turns_are_listed_page_by_page_the_newest_first() {
    let fixture = EngineFixture::new((0..5).map(|number| Reply::from_text(format!("{number}")))).await;
    let mut ids = Vec::new();
    for number in 0..5 {
        let events = fixture.engine.run_turn("task", &format!("Say {number}.")).await;
        assert_completed(&events);
        ids.insert(0, events[0].data["turn_id"].clone());
    }
    let of = |turns: &[Value]| turns.iter().map(|turn| turn["turn_id"].clone()).collect::<Vec<_>>();
    assert_eq!(of(&page(&fixture, "").await), ids);
    let first = page(&fixture, "?limit=2").await;
    assert_eq!(of(&first), ids[..2]);
    let next = format!("?limit=2&before={}", ids[1].as_str().unwrap());
    assert_eq!(of(&page(&fixture, &next).await), ids[2..4]);
    for query in ["?limit=0", "?limit=1001", "?limit=x"] {
        let refused = fixture.engine.get(&format!("/tasks/task/turns{query}")).await;
        refused.assert_error(400, "INVALID_REQUEST");
    }
    let refused = fixture.engine.get("/tasks/task/turns?before=turn_x").await;
    assert!(refused.assert_error(404, "TURN_NOT_FOUND").contains("before"));
    fixture.engine.get("/tasks/task/turns/turn_x").await.assert_error(404, "TURN_NOT_FOUND");
    for path in ["/tasks/none/turns", "/tasks/none/turns/turn_x", "/tasks/none/queue"] {
        fixture.engine.get(path).await.assert_error(404, "TASK_NOT_FOUND");
    }
}
