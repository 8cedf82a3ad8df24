//! Schedules as callers set them.

use api::schedules::{CreateSchedule, ScheduleTime};
use mock_llm::Wire;
use pretty_assertions::assert_eq;
use serde_json::json;

use super::*;
use crate::agent::harness::AgentHarness;

/// A schedule that is due in ten years: the test's clock skips the pauses until then.
fn far_schedule() -> CreateSchedule {
    let schedule = json!({
        "id": "far", "name": "Far", "message": "Report.", "when": {"every_seconds": 315_360_000},
    });
    serde_json::from_value(schedule).unwrap()
}

#[tokio::test]
async fn what_is_set_while_the_engine_is_about_to_sleep_is_refused() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.restart().await;
    assert!(harness.agent.quiesce());
    let refused = harness.agent.create_schedule(far_schedule()).await;
    assert!(matches!(refused, Err(AgentError::Quiesced)));
    harness.agent.lift_quiesce();
    harness.agent.create_schedule(far_schedule()).await.unwrap();
    assert!(harness.agent.quiesce());
    let change = serde_json::from_value(json!({"paused": true})).unwrap();
    assert!(matches!(harness.agent.update_schedule("far", change).await, Err(AgentError::Quiesced)));
    assert!(harness.agent.next_due_at().unwrap().is_some());
}

#[tokio::test]
async fn before_a_stop_nothing_changes_any_more_and_what_is_changing_is_waited_for_by_a_wake() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.restart().await;
    let now = harness.agent.services.clock.now();
    // A change that has begun may be committed after the answer.
    let change =
        harness.agent.registry.lock().begin_transfer(harness.agent.services.clock.monotonic()).unwrap();
    harness.agent.force_quiesce();
    assert!(harness.agent.next_due_at().unwrap().is_some_and(|due| due <= now));
    drop(change);
    assert_eq!(harness.agent.next_due_at().unwrap(), None);
    let refused = harness.agent.create_schedule(far_schedule()).await;
    assert!(matches!(refused, Err(AgentError::Quiesced)));
    harness.agent.lift_quiesce();
    harness.agent.create_schedule(far_schedule()).await.unwrap();
    assert!(harness.agent.next_due_at().unwrap().is_some_and(|due| due > now));
}

#[test]
fn exactly_one_kind_of_time_is_given() {
    let at = Timestamp::from_unix_ms(1_000_000);
    let timing = |when: serde_json::Value| {
        let when: ScheduleTime = serde_json::from_value(when).unwrap();
        schedule::definition::timing(&when, at)
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
