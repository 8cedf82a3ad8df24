//! Approvals that are lost, stuck, or answered twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use contract::HitlId;
use contract::engine::HitlRespond;
use contract::event::FailureCode;
use serde_json::json;
use strict_provider::{Reply, Wire};

use crate::agent::AgentError;
use crate::agent::rig::{Gated, OUTCOME_UNKNOWN, Rig, check_turn, failure, final_text};
use crate::testing::{Seen, next_events, read_all, read_until, task_id, within};
use crate::tools::Permission;

/// A rig with a tool that wants leave and is let go by the test.
async fn with_guarded() -> (Rig, Arc<Gated>) {
    let gated = Gated::with(false, Permission::Ask);
    let rig = Rig::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    (rig, gated)
}

/// Begins a turn in which the tool wants leave, and reads up to the request.
async fn ask(rig: &Rig) -> Vec<Seen> {
    rig.provider.enqueue(Reply::new().text("May I?").tool_use("gated", json!({})));
    let mut reader = rig.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    read_until(&mut reader, |event| event.kind == "hitl_request").await
}

fn yes() -> HitlRespond {
    serde_json::from_value(json!({"task_id": "t", "answer": "yes"})).unwrap()
}

/// The requests that are listed.
async fn pending(rig: &Rig) -> Vec<HitlId> {
    rig.agent.pending().await.unwrap().iter().map(|request| request.request_id).collect()
}

fn request_id(seen: &[Seen]) -> HitlId {
    let asked = seen.iter().find(|event| event.kind == "hitl_request").unwrap();
    asked.data["request_id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn lesson_e03_what_waits_for_a_person_outlives_the_engine() {
    let (mut rig, gated) = with_guarded().await;
    let before = ask(&rig).await;
    for killed in [true, false, true] {
        if killed {
            rig.kill().await;
        } else {
            rig.restart().await;
        }
        rig.agent.resume().unwrap();
        assert_eq!(pending(&rig).await, [request_id(&before)]);
        // A client that comes now sees it as the first one did, and follows.
        let mut reader = rig.agent.replay(Some(task_id("t")), 0).unwrap();
        assert_eq!(read_until(&mut reader, |event| event.kind == "hitl_request").await, before);
    }
    let reader = rig.agent.replay(Some(task_id("t")), before.last().unwrap().ts()).unwrap();
    assert_eq!(within(rig.agent.respond(yes())).await.unwrap(), request_id(&before));
    gated.may_end.add_permits(1);
    let after = read_all(reader).await;
    assert_eq!(after[0].kind, "hitl_resolved");
    assert_eq!(check_turn(&[before, after].concat()), Ok(()));
    assert_eq!(pending(&rig).await, []);
    assert_eq!(gated.runs.load(Ordering::Acquire), 1);
    rig.provider.assert_no_refusals();
}

#[tokio::test]
async fn lesson_e03_of_two_answers_at_once_one_is_taken() {
    for restarted in [false, true] {
        let (mut rig, gated) = with_guarded().await;
        let asked = ask(&rig).await;
        if restarted {
            rig.restart().await;
            rig.agent.resume().unwrap();
        }
        // The tool is not let go before both are answered, so the turn is there for both.
        let (one, two) =
            within(async { tokio::join!(rig.agent.respond(yes()), rig.agent.respond(yes())) }).await;
        let mut outcomes = [one, two];
        outcomes.sort_by_key(Result::is_err);
        let [Ok(taken), Err(AgentError::NotPending)] = outcomes else { panic!("{outcomes:?}") };
        assert_eq!(taken, request_id(&asked));
        let late = within(rig.agent.respond(yes())).await;
        assert!(matches!(late, Err(AgentError::NotPending)), "{late:?}");
        gated.may_end.add_permits(1);
        let events = rig.replay(0).await;
        assert_eq!(check_turn(&events), Ok(()));
        assert_eq!(events.iter().filter(|event| event.kind == "hitl_resolved").count(), 1);
        assert_eq!(gated.runs.load(Ordering::Acquire), 1);
    }
}

#[tokio::test]
async fn lesson_e03_an_answer_outlives_a_kill_right_after_it() {
    let (mut rig, gated) = with_guarded().await;
    ask(&rig).await;
    within(rig.agent.respond(yes())).await.unwrap();
    rig.kill().await;
    // Whether the tool had begun is chance; the person is not asked again in either case.
    gated.may_end.add_permits(1);
    rig.agent.resume().unwrap();
    let events = rig.replay(0).await;
    assert_eq!(check_turn(&events), Ok(()));
    final_text(&events);
    assert_eq!(events.iter().filter(|event| event.kind == "hitl_request").count(), 1);
    assert_eq!(events.iter().filter(|event| event.kind == "hitl_resolved").count(), 1);
    let result = events.iter().find(|event| event.kind == "tool_result").unwrap();
    let runs = gated.runs.load(Ordering::Acquire);
    assert!(runs == 1 || runs == 0 && result.data["error"] == OUTCOME_UNKNOWN, "{runs} runs: {result:?}");
    let late = within(rig.agent.respond(yes())).await;
    assert!(matches!(late, Err(AgentError::NotPending)), "{late:?}");
    rig.provider.assert_no_refusals();
}

#[tokio::test]
async fn lesson_e03_a_cancelled_request_is_resolved() {
    let (rig, gated) = with_guarded().await;
    let asked = ask(&rig).await;
    assert_eq!(pending(&rig).await, [request_id(&asked)]);
    within(rig.agent.cancel(&task_id("t"))).await.unwrap();
    let events = rig.replay(0).await;
    assert_eq!(events.last().unwrap().phase(), Some("cancelled"));
    resolved(&rig, &gated).await;
}

#[tokio::test]
async fn lesson_e03_a_request_that_nobody_answers_is_resolved() {
    let (mut rig, gated) = with_guarded().await;
    ask(&rig).await;
    // One that expired while no engine ran.
    rig.clock.pass(Duration::from_hours(71));
    rig.restart().await;
    rig.agent.resume().unwrap();
    assert_eq!(pending(&rig).await.len(), 1);
    rig.clock.pass(Duration::from_hours(1));
    rig.restart().await;
    rig.agent.resume().unwrap();
    assert_eq!(failure(&rig.replay(0).await).code, FailureCode::HitlExpired);
    resolved(&rig, &gated).await;
    // One that expires while the engine runs. Its time passes at once on the rig's clock.
    rig.hitl_ttl = Duration::from_secs(9);
    rig.restart().await;
    rig.provider.enqueue(Reply::new().tool_use("gated", json!({})));
    let mut reader = rig.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    let mut events = Vec::new();
    while let Some(more) = next_events(&mut reader).await {
        events.extend(more);
    }
    assert_eq!(failure(&events).code, FailureCode::HitlExpired);
    resolved(&rig, &gated).await;
}

/// Asserts that nothing waits for a person, nothing was run, and the task goes on.
async fn resolved(rig: &Rig, gated: &Gated) {
    assert_eq!(pending(rig).await, []);
    let late = within(rig.agent.respond(yes())).await;
    assert!(matches!(late, Err(AgentError::NotPending)), "{late:?}");
    assert_eq!(final_text(&rig.say("and now?").await), "and now?");
    assert_eq!(gated.runs.load(Ordering::Acquire), 0);
    rig.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_wall_clock_that_is_set_ahead_lets_no_request_lapse() {
    let (rig, gated) = with_guarded().await;
    ask(&rig).await;
    let (most, year) = (rig.hitl_ttl, Duration::from_hours(365 * 24));
    let almost_all = most.saturating_sub(Duration::from_hours(1))..=most;
    rig.clock.asleep_times(1, almost_all.clone()).await;
    // While the engine runs it is not looked at.
    rig.clock.set_ahead(year);
    within(rig.agent.steer(&task_id("t"), "soon".into())).await.unwrap();
    rig.clock.asleep_times(2, almost_all).await;
    rig.provider.enqueue(Reply::of_text("done"));
    within(rig.agent.respond(yes())).await.unwrap();
    gated.may_end.add_permits(1);
    assert_eq!(final_text(&rig.replay(0).await), "done");
}
