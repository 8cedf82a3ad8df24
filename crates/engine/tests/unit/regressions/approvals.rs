//! Approvals that are lost, stuck, or answered twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::HitlId;
use api::engine::HitlRespond;
use api::event::FailureCode;
use catalog::Permission;
use mock_llm::{Reply, Wire};
use serde_json::json;
use store::testing::{next_events, read_all, read_until};
use testkit::{SseEvent, task_id, with_deadline};

use crate::agent::AgentError;
use crate::agent::harness::{AgentHarness, GatedTool, OUTCOME_UNKNOWN, check_turn, failure, final_text};

/// Returns a harness with a tool that needs approval and is released by the test.
async fn fixture_with_gated_tool() -> (AgentHarness, Arc<GatedTool>) {
    let gated = GatedTool::with(false, Permission::Ask);
    let harness = AgentHarness::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    (harness, gated)
}

/// Begins a turn in which the tool needs approval, and reads up to the request.
async fn run_until_hitl_request(harness: &AgentHarness) -> Vec<SseEvent> {
    harness.provider.enqueue(Reply::new().text("May I?").tool_use("gated", json!({})));
    let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    read_until(&mut reader, |event| event.kind == "hitl_request").await
}

fn yes_response() -> HitlRespond {
    serde_json::from_value(json!({"task_id": "t", "answer": "yes"})).unwrap()
}

/// Returns the ids of the pending requests.
async fn pending_ids(harness: &AgentHarness) -> Vec<HitlId> {
    harness.agent.pending_requests().await.unwrap().iter().map(|request| request.request_id).collect()
}

fn request_id(seen: &[SseEvent]) -> HitlId {
    let request = seen.iter().find(|event| event.kind == "hitl_request").unwrap();
    request.data["request_id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn regression_e03_what_waits_for_a_person_outlives_the_engine() {
    let (mut harness, gated) = fixture_with_gated_tool().await;
    let before = run_until_hitl_request(&harness).await;
    for killed in [true, false, true] {
        if killed {
            harness.kill().await;
        } else {
            harness.restart().await;
        }
        harness.agent.resume().unwrap();
        assert_eq!(pending_ids(&harness).await, [request_id(&before)]);
        // A client that connects now sees the request as the first one did, and follows.
        let mut reader = harness.agent.replay(Some(task_id("t")), 0).unwrap();
        assert_eq!(read_until(&mut reader, |event| event.kind == "hitl_request").await, before);
    }
    let reader = harness.agent.replay(Some(task_id("t")), before.last().unwrap().ts()).unwrap();
    assert_eq!(with_deadline(harness.agent.respond(yes_response())).await.unwrap(), request_id(&before));
    gated.may_end.add_permits(1);
    let after = read_all(reader).await;
    assert_eq!(after[0].kind, "hitl_resolved");
    assert_eq!(check_turn(&[before, after].concat()), Ok(()));
    assert_eq!(pending_ids(&harness).await, []);
    assert_eq!(gated.runs.load(Ordering::Acquire), 1);
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn regression_e03_of_two_answers_at_once_one_is_taken() {
    for restarted in [false, true] {
        let (mut harness, gated) = fixture_with_gated_tool().await;
        let seen = run_until_hitl_request(&harness).await;
        if restarted {
            harness.restart().await;
            harness.agent.resume().unwrap();
        }
        // The tool is not released before both are answered, so the turn is still running for both.
        let (one, two) = with_deadline(async {
            tokio::join!(harness.agent.respond(yes_response()), harness.agent.respond(yes_response()))
        })
        .await;
        let mut outcomes = [one, two];
        outcomes.sort_by_key(Result::is_err);
        let [Ok(accepted), Err(AgentError::NotPending)] = outcomes else { panic!("{outcomes:?}") };
        assert_eq!(accepted, request_id(&seen));
        let late = with_deadline(harness.agent.respond(yes_response())).await;
        assert!(matches!(late, Err(AgentError::NotPending)), "{late:?}");
        gated.may_end.add_permits(1);
        let events = harness.replay(0).await;
        assert_eq!(check_turn(&events), Ok(()));
        assert_eq!(events.iter().filter(|event| event.kind == "hitl_resolved").count(), 1);
        assert_eq!(gated.runs.load(Ordering::Acquire), 1);
    }
}

#[tokio::test]
async fn regression_e03_an_answer_outlives_a_kill_right_after_it() {
    let (mut harness, gated) = fixture_with_gated_tool().await;
    run_until_hitl_request(&harness).await;
    with_deadline(harness.agent.respond(yes_response())).await.unwrap();
    harness.kill().await;
    // Whether the tool had begun is chance; the person is not asked again in either case.
    gated.may_end.add_permits(1);
    harness.agent.resume().unwrap();
    let events = harness.replay(0).await;
    assert_eq!(check_turn(&events), Ok(()));
    final_text(&events);
    assert_eq!(events.iter().filter(|event| event.kind == "hitl_request").count(), 1);
    assert_eq!(events.iter().filter(|event| event.kind == "hitl_resolved").count(), 1);
    let result = events.iter().find(|event| event.kind == "tool_result").unwrap();
    let runs = gated.runs.load(Ordering::Acquire);
    assert!(runs == 1 || runs == 0 && result.data["error"] == OUTCOME_UNKNOWN, "{runs} runs: {result:?}");
    let late = with_deadline(harness.agent.respond(yes_response())).await;
    assert!(matches!(late, Err(AgentError::NotPending)), "{late:?}");
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn regression_e03_a_cancelled_request_is_resolved() {
    let (harness, gated) = fixture_with_gated_tool().await;
    let seen = run_until_hitl_request(&harness).await;
    assert_eq!(pending_ids(&harness).await, [request_id(&seen)]);
    with_deadline(harness.agent.cancel(&task_id("t"), None)).await.unwrap();
    let events = harness.replay(0).await;
    assert_eq!(events.last().unwrap().phase(), Some("cancelled"));
    assert_resolved(&harness, &gated).await;
}

#[tokio::test]
async fn regression_e03_a_request_that_nobody_answers_is_resolved() {
    let (mut harness, gated) = fixture_with_gated_tool().await;
    run_until_hitl_request(&harness).await;
    // A request that expired while no engine was running.
    harness.clock.advance(Duration::from_hours(71));
    harness.restart().await;
    harness.agent.resume().unwrap();
    assert_eq!(pending_ids(&harness).await.len(), 1);
    harness.clock.advance(Duration::from_hours(1));
    harness.restart().await;
    harness.agent.resume().unwrap();
    assert_eq!(failure(&harness.replay(0).await).code, FailureCode::HitlExpired);
    assert_resolved(&harness, &gated).await;
    // A request that expires while the engine is running. Its time passes at once on the harness's clock.
    harness.hitl_ttl = Duration::from_secs(9);
    harness.restart().await;
    harness.provider.enqueue(Reply::new().tool_use("gated", json!({})));
    let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    let mut events = Vec::new();
    while let Some(more) = next_events(&mut reader).await {
        events.extend(more);
    }
    assert_eq!(failure(&events).code, FailureCode::HitlExpired);
    assert_resolved(&harness, &gated).await;
}

/// Asserts that nothing waits for a person, nothing was run, and the task continues.
async fn assert_resolved(harness: &AgentHarness, gated: &GatedTool) {
    assert_eq!(pending_ids(harness).await, []);
    let late = with_deadline(harness.agent.respond(yes_response())).await;
    assert!(matches!(late, Err(AgentError::NotPending)), "{late:?}");
    assert_eq!(final_text(&harness.send("and now?").await), "and now?");
    assert_eq!(gated.runs.load(Ordering::Acquire), 0);
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_wall_clock_that_is_set_ahead_lets_no_request_lapse() {
    let (harness, gated) = fixture_with_gated_tool().await;
    run_until_hitl_request(&harness).await;
    let (ttl, year) = (harness.hitl_ttl, Duration::from_hours(365 * 24));
    let expected_sleep = ttl.saturating_sub(Duration::from_hours(1))..=ttl;
    harness.clock.wait_for_sleeps(1, expected_sleep.clone()).await;
    // The wall clock is not used while the engine is running.
    harness.clock.advance_wall_clock(year);
    with_deadline(harness.agent.steer(&task_id("t"), None, "soon".into())).await.unwrap();
    harness.clock.wait_for_sleeps(2, expected_sleep).await;
    harness.provider.enqueue(Reply::from_text("done"));
    with_deadline(harness.agent.respond(yes_response())).await.unwrap();
    gated.may_end.add_permits(1);
    assert_eq!(final_text(&harness.replay(0).await), "done");
}
