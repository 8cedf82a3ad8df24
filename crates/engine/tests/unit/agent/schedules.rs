//! Schedules of an engine whose clock is set.

use api::schedules::{CreateSchedule, RunOutcome, ScheduleTime};
use mock_llm::{Reply, Wire};
use pretty_assertions::assert_eq;
use serde_json::json;
use testkit::with_deadline;

use super::*;
use crate::agent::harness::AgentHarness;

fn daily(fields: serde_json::Value) -> CreateSchedule {
    let mut schedule = json!({
        "id": "daily", "name": "Daily", "message": "Report.", "options": {"direct": true},
        "when": {"cron": "0 9 * * *", "time_zone": "Europe/Berlin"},
    });
    schedule.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(schedule).unwrap()
}

#[tokio::test]
async fn a_clock_that_is_set_forward_runs_once_what_is_due_until_then() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.restart().await;
    harness.agent.create_schedule(daily(json!({}))).await.unwrap();
    assert_eq!(harness.agent.schedule("daily").await.unwrap().runs, Some(Vec::new()));
    harness.provider.enqueue(Reply::from_text("Done."));
    harness.clock.advance_wall_clock(Duration::from_hours(5 * 24));
    harness.agent.schedules_changed.notify_one();
    let schedule = with_deadline(async {
        loop {
            let schedule = harness.agent.schedule("daily").await.unwrap();
            let states = schedule.runs.iter().flatten().filter_map(|run| run.turn_state);
            if states.eq([api::turns::TurnState::Completed]) {
                return schedule;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let runs = schedule.runs.unwrap();
    let outcomes: Vec<RunOutcome> = runs.iter().map(|run| run.outcome).collect();
    assert_eq!(outcomes, [RunOutcome::Run, RunOutcome::Missed]);
    assert_eq!(runs[1].count, Some(4));
    assert!(schedule.next_due_at > schedule.last_due_at);
}

#[tokio::test]
async fn what_is_set_while_the_engine_is_about_to_sleep_is_refused() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.restart().await;
    assert!(harness.agent.quiesce());
    let refused = harness.agent.create_schedule(daily(json!({}))).await;
    assert!(matches!(refused, Err(AgentError::Quiesced)));
    harness.agent.lift_quiesce();
    harness.agent.create_schedule(daily(json!({}))).await.unwrap();
    assert!(harness.agent.quiesce());
    let change = serde_json::from_value(json!({"paused": true})).unwrap();
    assert!(matches!(harness.agent.update_schedule("daily", change).await, Err(AgentError::Quiesced)));
    assert!(harness.agent.next_due_at().unwrap().is_some());
}

#[test]
fn exactly_one_kind_of_time_is_given() {
    let at = Timestamp::from_unix_ms(1_000_000);
    let timing = |when: serde_json::Value| {
        let when: ScheduleTime = serde_json::from_value(when).unwrap();
        definition::timing(&when, at)
    };
    let every = timing(json!({"every_seconds": 60})).unwrap();
    assert_eq!(every.next_after(at), Some(Timestamp::from_unix_ms(1_060_000)));
    for (when, field) in [
        (json!({}), "`when`"),
        (json!({"cron": "* * * * *", "every_seconds": 60}), "`when`"),
        (json!({"cron": "* * * *"}), "`when.cron`"),
        (json!({"cron": "* * * * *", "time_zone": "x"}), "`when.time_zone`"),
        (json!({"every_seconds": 60, "time_zone": "UTC"}), "`when.time_zone`"),
        (json!({"cron": "* * * * *", "start": at}), "`when.start`"),
    ] {
        let error = timing(when.clone()).unwrap_err();
        assert!(error.starts_with(field), "{when}: {error}");
    }
}
