//! Turns interrupted by a stop of the engine are resumed at its next start, whatever they were doing.

use std::sync::atomic::Ordering;

use api::event::{Event, Lifecycle, StopReason};
use llm::{Answer, Block, TokenUsage};
use mock_llm::{Fault, Gate, Reply, Wire};
use pretty_assertions::assert_eq;
use serde_json::json;
use store::Rewind;
use store::event_log::Commit;
use store::steps::Step;
use store::testing::read_until;
use testkit::{SseEvent, rendered_text, with_deadline};

use super::harness::{AgentHarness, GatedTool, WIRES, check_turn, final_text};
use super::thread::OUTCOME_UNKNOWN;
use super::*;

fn phases(events: &[SseEvent]) -> Vec<&str> {
    events.iter().filter_map(SseEvent::phase).collect()
}

#[tokio::test]
async fn stopped_in_the_middle_of_an_answer() {
    for wire in WIRES {
        let mut harness = AgentHarness::new(wire).await;
        let gate = Gate::new();
        harness.provider.enqueue_all([
            Reply::from_text("the answer of before").deltas(5).hold(2, &gate),
            Reply::from_text("the answer of after"),
        ]);
        let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
        let before = read_until(&mut reader, |event| event.kind == "text_delta").await;
        harness.restart().await;
        // The reader of the stopped engine has ended.
        let rest = store::testing::read_all(reader).await;
        assert!(rest.iter().all(|event| !event.event().ends_turn()));

        harness.agent.resume().unwrap();
        let busy = harness.begin(json!({"task_id": "t", "message": "not now"})).await;
        assert!(matches!(busy, Err(AgentError::TaskBusy)));
        let events = harness.replay(0).await;
        assert!(events.starts_with(&before));
        assert_eq!(check_turn(&events), Ok(()));
        assert_eq!(phases(&events), ["started", "resumed", "completed"]);
        assert_eq!(rendered_text(&events, false), "the answer of after");
        assert_eq!(final_text(&events), "the answer of after");
        // A client that saw only the earlier events continues from there.
        let after = before.last().unwrap().ts();
        let both: Vec<SseEvent> = before.into_iter().chain(harness.replay(after).await).collect();
        assert_eq!(both, events);
        assert!(harness.brain.open_turns().unwrap().is_empty());
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn stopped_in_the_middle_of_an_answer_from_which_the_next_one_departs() {
    for wire in WIRES {
        let mut harness = AgentHarness::new(wire).await;
        let gate = Gate::new();
        harness.provider.enqueue_all([
            Reply::from_text("the answer of before").deltas(5).hold(2, &gate),
            Reply::from_text("another answer"),
        ]);
        let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
        read_until(&mut reader, |event| event.kind == "text_delta").await;
        drop(reader);
        harness.restart().await;
        harness.agent.resume().unwrap();
        let events = harness.replay(0).await;
        assert_eq!(check_turn(&events), Ok(()));
        assert_eq!(phases(&events), ["started", "resumed", "retrying", "completed"]);
        assert_eq!(rendered_text(&events, true), "another answer");
        let attempt = events.iter().find_map(|event| event.data["attempt"].as_u64());
        assert_eq!(attempt, Some(2));
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn stopped_before_anything_was_streamed_nothing_is_void() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let late = Reply::from_text("never").fault(Fault::SlowHeaders { delay_ms: 60_000 });
    harness.provider.enqueue_all([late.clone(), late, Reply::from_text("now")]);
    drop(harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap());
    for requests in 1..=2 {
        harness.provider.wait_for_requests(requests).await;
        harness.restart().await;
        harness.agent.resume().unwrap();
    }
    let events = harness.replay(0).await;
    assert_eq!(check_turn(&events), Ok(()));
    assert_eq!(phases(&events), ["started", "resumed", "resumed", "completed"]);
    assert_eq!(final_text(&events), "now");
}

#[tokio::test]
async fn stopped_in_the_middle_of_an_idempotent_tool_it_is_run_again() {
    let gated = GatedTool::new(true);
    let mut harness = AgentHarness::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    harness
        .provider
        .enqueue_all([Reply::new().text("I try.").tool_use("gated", json!({})), Reply::from_text("done")]);
    drop(harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap());
    gated.wait_for_runs(1).await;
    harness.restart().await;
    harness.agent.resume().unwrap();
    gated.wait_for_runs(2).await;
    gated.may_end.add_permits(1);
    let events = harness.replay(0).await;
    assert_eq!(check_turn(&events), Ok(()));
    assert_eq!(phases(&events), ["started", "resumed", "completed"]);
    assert_eq!(final_text(&events), "done");
    let results: Vec<_> = events.iter().filter(|event| event.kind == "tool_result").collect();
    assert_eq!((results.len(), results[0].data["output"].as_str()), (1, Some("let go")));
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn stopped_in_the_middle_of_any_other_tool_it_is_not_run_again_and_the_model_is_told() {
    for wire in WIRES {
        let gated = GatedTool::new(false);
        let mut harness = AgentHarness::with_tools(wire, vec![gated.clone()]).await;
        harness.provider.enqueue_all([
            Reply::new().tool_use("gated", json!({})).tool_use("list_files", json!({"path": "."})),
            Reply::from_text("I shall check."),
        ]);
        let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
        gated.wait_for_runs(1).await;
        // The other call's result is recorded and kept.
        read_until(&mut reader, |event| event.kind == "tool_result").await;
        harness.restart().await;
        harness.agent.resume().unwrap();
        let events = harness.replay(0).await;
        assert_eq!(check_turn(&events), Ok(()));
        assert_eq!(final_text(&events), "I shall check.");
        assert_eq!(gated.runs.load(Ordering::Acquire), 1);
        let request = String::from_utf8(harness.last_request().raw.to_vec()).unwrap();
        assert!(request.contains(OUTCOME_UNKNOWN) && request.contains("(empty)"), "{request}");
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn a_tool_that_is_gone_after_the_restart_may_still_have_run() {
    let gated = GatedTool::new(true);
    let mut harness = AgentHarness::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    harness.provider.enqueue_all([Reply::new().tool_use("gated", json!({})), Reply::from_text("I see.")]);
    drop(harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap());
    gated.wait_for_runs(1).await;
    harness.tools.clear();
    harness.restart().await;
    harness.agent.resume().unwrap();
    let events = harness.replay(0).await;
    assert_eq!(final_text(&events), "I see.");
    let result = events.iter().find(|event| event.kind == "tool_result").unwrap();
    assert_eq!(result.data["error"], OUTCOME_UNKNOWN);
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_turn_that_is_being_opened_while_the_engine_stops_is_either_begun_or_refused() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    // Another program holds the write lock, so that the opening lasts until after the stop has begun.
    let connection = rusqlite::Connection::open(harness.brain.file()).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let request = serde_json::from_value(json!({"task_id": "t", "message": "go"})).unwrap();
    {
        let mut execute = std::pin::pin!(harness.agent.execute(request));
        assert!(futures::poll!(execute.as_mut()).is_pending());
        let mut stop = std::pin::pin!(harness.agent.stop(Duration::from_secs(20)));
        assert!(futures::poll!(stop.as_mut()).is_pending());
        connection.execute_batch("ROLLBACK").unwrap();
        with_deadline(stop).await;
        assert!(with_deadline(execute).await.is_ok());
    }
    harness.restart().await;
    harness.agent.resume().unwrap();
    assert_eq!(final_text(&harness.replay(0).await), "go");
}

/// Commits that a turn was opened and answered, as if the engine had been killed right then.
async fn commit_answered_turn(harness: &AgentHarness) -> MessageId {
    let event_log = harness.agent.event_logs.open(&testkit::task_id("t")).unwrap();
    let recorder = event_log.begin_turn(TurnId::new()).unwrap();
    let opened = store::testing::opened("go");
    recorder.commit(turn_open::opening_commit(&recorder, None, &opened, Rewind::default())).await.unwrap();
    let blocks = vec![Block::Text { text: "the last word".into(), signature: None }];
    let answer = Answer { blocks, usage: TokenUsage::default(), stop: llm::FinishReason::Done };
    let answer_id = MessageId::new();
    let answered = Step::Answered {
        message_id: answer_id,
        model: "test-1".into(),
        answer,
        cost_usd: None,
        capped: false,
    };
    recorder.commit(Commit::new().step(answered)).await.unwrap();
    answer_id
}

#[tokio::test]
async fn stopped_after_the_last_answer_the_model_is_not_asked_again() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let answer_id = commit_answered_turn(&harness).await;
    harness.restart().await;
    harness.agent.resume().unwrap();
    let events = harness.replay(0).await;
    assert_eq!(phases(&events), ["started", "resumed", "completed"]);
    assert_eq!(final_text(&events), "the last word");
    let Event::ThreadLifecycle(Lifecycle::Completed { answer_message_id, stop_reason, .. }) =
        events.last().unwrap().event()
    else {
        panic!("{events:#?}")
    };
    assert_eq!((answer_message_id, stop_reason), (answer_id, StopReason::EndTurn));
    assert!(harness.provider.requests().is_empty());
}

#[tokio::test]
async fn a_turn_that_gets_on_between_starts_may_be_stopped_for_ever() {
    let gated = GatedTool::new(true);
    let mut harness = AgentHarness::with_tools(Wire::OpenAiChat, vec![gated.clone()]).await;
    // A different call each time, so that the turn makes progress and is no loop.
    let call = |number: usize| Reply::new().tool_use("gated", json!({"number": number}));
    harness.provider.set_default_reply(call(0));
    drop(harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap());
    let mut runs = 0;
    for number in 1..=10 {
        harness.provider.set_default_reply(call(number));
        runs += 1;
        gated.wait_for_runs(runs).await;
        harness.restart().await;
        harness.agent.resume().unwrap();
        // The interrupted call is run again and released: one step of progress.
        runs += 1;
        gated.wait_for_runs(runs).await;
        gated.may_end.add_permits(1);
    }
    runs += 1;
    gated.wait_for_runs(runs).await;
    harness.provider.set_default_reply(Reply::from_text("enough"));
    gated.may_end.add_permits(1);
    let events = harness.replay(0).await;
    assert_eq!(check_turn(&events), Ok(()));
    assert_eq!(final_text(&events), "enough");
    harness.provider.assert_no_refusals();
}

/// An answer with `count` calls of the gated tool.
fn gated_calls(count: usize) -> Reply {
    (0..count).fold(Reply::new(), |reply, number| reply.tool_use("gated", json!({"number": number})))
}

/// The results of the calls of task `t`.
async fn outcomes(harness: &AgentHarness) -> Vec<String> {
    let events = harness.replay(0).await;
    assert_eq!(final_text(&events), "done");
    let results = events.iter().filter(|event| event.kind == "tool_result");
    results.map(|event| event.data["output"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn once_the_engine_stops_no_call_begins_and_it_is_run_after_the_restart() {
    let gated = GatedTool::new(false);
    let mut harness = AgentHarness::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    harness.provider.enqueue_all([gated_calls(10), Reply::from_text("done")]);
    drop(harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap());
    gated.wait_for_runs(8).await;
    harness.agent.stopping.cancel();
    harness.agent.tracker.close();
    gated.may_end.add_permits(8);
    with_deadline(harness.agent.tracker.wait()).await;
    assert_eq!(gated.runs.load(Ordering::Acquire), 8);
    harness.restart().await;
    harness.agent.resume().unwrap();
    gated.may_end.add_permits(2);
    assert_eq!(outcomes(&harness).await, vec!["let go"; 10]);
    assert_eq!(gated.runs.load(Ordering::Acquire), 10);
}

#[tokio::test]
async fn a_call_that_waits_for_its_place_has_not_begun() {
    let gated = GatedTool::new(false);
    let mut harness = AgentHarness::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    harness.provider.enqueue_all([gated_calls(2), Reply::from_text("done")]);
    let permits = Arc::clone(&harness.agent.services.tool_permits);
    let other_count = u32::try_from(permits.available_permits() - 1).unwrap();
    let held = permits.acquire_many(other_count).await.unwrap();
    drop(harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap());
    gated.wait_for_runs(1).await;
    harness.kill().await;
    drop(held);
    harness.agent.resume().unwrap();
    gated.wait_for_runs(2).await;
    gated.may_end.add_permits(1);
    // The outcome of the call that had begun is unknown.
    let mut outcomes = outcomes(&harness).await;
    outcomes.sort();
    assert_eq!(outcomes, ["", "let go"]);
}
