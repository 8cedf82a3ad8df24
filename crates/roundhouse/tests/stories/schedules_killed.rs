//! Each due time begins one turn, whenever the engine is killed around it.

use std::time::Duration;

use mock_llm::Reply;
use serde_json::{Value, json};

use crate::schedules::{create, in_seconds, read, schedule, wait_completed};
use crate::support::engine_calls::roles_and_texts;
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::kill_rounds::{is_before, now};
use crate::support::{EngineFixture, KillRounds, eventually};

/// The number of times that the schedule's message is in the task.
async fn count_messages(fixture: &EngineFixture) -> usize {
    let messages = fixture.engine.messages("task").await;
    roles_and_texts(&messages).into_iter().filter(|said| *said == ("user", "Report.")).count()
}

#[tokio::test]
async fn a_due_time_runs_once_whenever_the_engine_dies_around_it() {
    // The delays begin this long before the due time.
    let lead = Duration::from_millis(200);
    let mut kills = KillRounds::from_delay("a due time becomes a turn", lead);
    while let Some(delay) = kills.next_delay() {
        let fixture = EngineFixture::new((0..4).map(|_| Reply::from_text("Done."))).await;
        let at = in_seconds(2);
        create(&fixture.engine, &schedule("once", &json!({"at": at}), json!({"task_id": "task"}))).await;
        let until_due = Duration::from_millis((at.unix_ms() - now().unix_ms()).max(0).unsigned_abs());
        tokio::time::sleep(until_due.saturating_sub(lead) + delay).await;
        let killed_at = now();
        let fixture = fixture.kill_and_start().await;
        let done = wait_completed(&fixture.engine, "once").await;
        let [run] = done["runs"].as_array().unwrap().as_slice() else { panic!("{delay:?}: {done}") };
        assert_eq!((&run["outcome"], &run["due_at"]), (&json!("run"), &json!(at)), "{delay:?}");
        kills.record(is_before(&run["at"], killed_at));
        assert_eq!(count_messages(&fixture).await, 1, "{delay:?}");
        let turns = fixture.engine.get("/tasks/task/turns").await.assert_ok("turns:array");
        assert_eq!(turns["turns"].as_array().unwrap().len(), 1, "{delay:?}");
        assert_eq!(fixture.engine.queued("task").await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_run_that_waits_for_its_turn_outlives_a_kill() {
    let gate = mock_llm::Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("First.").hold(1, &gate)]).await;
    let first = crate::support::engine_calls::direct_message("task", "First.");
    fixture.engine.execute_in_background(first).await;
    wait_gate_reached(&gate).await;
    create(&fixture.engine, &schedule("once", &json!({"at": in_seconds(1)}), json!({"task_id": "task"})))
        .await;
    let queued: Value = eventually("it is queued", async || {
        let run = read(&fixture.engine, "once").await["runs"][0].clone();
        (run["turn_state"] == "queued").then_some(run)
    })
    .await;
    fixture.provider.enqueue_all([Reply::from_text("First."), Reply::from_text("Done.")]);
    let fixture = fixture.kill_and_start().await;
    let done = wait_completed(&fixture.engine, "once").await;
    assert_eq!(done["runs"][0]["turn_id"], queued["turn_id"]);
    assert_eq!((done["runs"].as_array().unwrap().len(), count_messages(&fixture).await), (1, 1));
}
