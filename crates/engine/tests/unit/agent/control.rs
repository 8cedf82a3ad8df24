//! Quiescing the engine, and the activity it reports.

use std::sync::Barrier;
use std::thread;

use api::engine::Execute;
use catalog::Permission;
use mock_llm::{Gate, Reply, Wire};
use pretty_assertions::assert_eq;
use serde_json::json;
use store::testing::{read_all, read_until};
use testkit::{task_id, with_deadline};
use tokio::runtime::Handle;

use super::harness::{AgentHarness, GatedTool, final_text};
use super::*;

fn request(message: &str) -> Execute {
    serde_json::from_value(json!({"task_id": "t", "message": message})).unwrap()
}

fn hitl_yes() -> HitlRespond {
    serde_json::from_value(json!({"task_id": "t", "answer": "yes"})).unwrap()
}

/// The number of active turns and of pending requests.
fn activity_counts(harness: &AgentHarness) -> (u64, u64) {
    let activity = harness.agent.activity().unwrap();
    (activity.running_turns, activity.pending_hitl)
}

/// Waits until no turn is active.
async fn wait_idle(harness: &AgentHarness) {
    with_deadline(async {
        while activity_counts(harness).0 > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A harness whose task `t` waits for approval of a tool that the test releases.
async fn awaiting_permission() -> (AgentHarness, Arc<GatedTool>, EventReader) {
    let gated = GatedTool::with(false, Permission::Ask);
    let harness = AgentHarness::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    let reader = run_until_permission_request(&harness).await;
    (harness, gated, reader)
}

async fn run_until_permission_request(harness: &AgentHarness) -> EventReader {
    harness.provider.enqueue_all([Reply::new().tool_use("gated", json!({})), Reply::from_text("done")]);
    let request = json!({"task_id": "t", "message": "go", "client_request_id": TurnId::new().to_string()});
    let mut reader = harness.begin(request).await.unwrap();
    read_until(&mut reader, |event| event.kind == "hitl_request").await;
    wait_idle(harness).await;
    reader
}

/// Runs both closures at the same moment.
fn concurrently<A: Send, B>(first: impl FnOnce() -> A + Send, second: impl FnOnce() -> B) -> (A, B) {
    let barrier = Barrier::new(2);
    tokio::task::block_in_place(|| {
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                barrier.wait();
                first()
            });
            barrier.wait();
            let second = second();
            (first.join().unwrap(), second)
        })
    })
}

#[tokio::test]
async fn an_engine_at_work_is_not_quiesced_and_an_idle_one_begins_nothing_until_that_is_lifted() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let gate = Gate::new();
    harness.provider.enqueue(Reply::from_text("slow").hold(0, &gate));
    let reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    gate.reached().await;
    assert_eq!(activity_counts(&harness), (1, 0));
    assert!(!harness.agent.quiesce());
    // The refused quiesce has changed nothing.
    harness.run(json!({"task_id": "other", "message": "hi"})).await;
    gate.release();
    assert_eq!(final_text(&read_all(reader).await), "slow");

    let message_id = harness.replay(0).await[0].data["message_id"].clone();
    assert!(harness.agent.quiesce());
    for request in [
        json!({"task_id": "t", "message": "hi"}),
        json!({"task_id": "new", "message": "hi"}),
        json!({"task_id": "t", "message": "hi", "edit_message_id": message_id}),
        json!({"task_id": "t", "message": "", "retry_message_id": message_id}),
    ] {
        let refused = harness.begin(request.clone()).await;
        assert!(matches!(refused, Err(AgentError::Quiesced)), "{request}");
    }
    assert_eq!(activity_counts(&harness), (0, 0));
    harness.agent.lift_quiesce();
    harness.send("hi").await;
}

#[tokio::test]
async fn a_tool_that_is_called_without_a_turn_keeps_the_engine_awake() {
    let gated = GatedTool::new(true);
    let harness = AgentHarness::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    // The caller may wait to the end or hang up.
    for (times, hangs_up) in [(1, false), (2, true)] {
        let call = harness.agent.call_tool("gated", json!({}));
        let while_running = async {
            gated.wait_for_runs(times).await;
            assert!(!harness.agent.quiesce());
            assert_eq!(activity_counts(&harness), (0, 0), "a direct call is not a turn");
            if !hangs_up {
                gated.may_end.add_permits(1);
                std::future::pending::<()>().await;
            }
        };
        let answer = with_deadline(async {
            tokio::select! { answer = call => Some(answer), () = while_running => None }
        });
        assert_eq!(answer.await.map(Result::unwrap), (!hangs_up).then(|| "let go".to_owned()));
        assert!(harness.agent.quiesce());
        let refused = with_deadline(harness.agent.call_tool("gated", json!({}))).await;
        assert!(matches!(refused, Err(DirectError::Agent(AgentError::Quiesced))), "{refused:?}");
        harness.agent.lift_quiesce();
    }
}

#[tokio::test]
async fn so_many_tools_are_called_without_a_turn_at_once_and_no_more() {
    let gated = GatedTool::new(true);
    let harness = AgentHarness::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    let calls =
        futures::future::join_all((0..MAX_DIRECT_CALLS).map(|_| harness.agent.call_tool("gated", json!({}))));
    let one_more = async {
        gated.wait_for_runs(MAX_DIRECT_CALLS).await;
        let refused = harness.agent.call_tool("gated", json!({})).await;
        assert!(matches!(refused, Err(DirectError::Agent(AgentError::TooManyCalls))), "{refused:?}");
        gated.may_end.add_permits(MAX_DIRECT_CALLS);
    };
    let (answers, ()) = with_deadline(async { tokio::join!(calls, one_more) }).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[tokio::test]
async fn who_has_seen_a_turns_end_finds_the_engine_idle() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    for _ in 0..50 {
        harness.send("hi").await;
        assert!(harness.agent.quiesce());
        harness.agent.lift_quiesce();
    }
}

#[tokio::test]
async fn a_turn_that_waits_for_a_person_neither_hinders_nor_goes_on_until_it_lapses() {
    let (harness, gated, reader) = awaiting_permission().await;
    assert_eq!(activity_counts(&harness), (0, 1));
    assert!(harness.agent.quiesce());
    assert!(matches!(with_deadline(harness.agent.respond(hitl_yes())).await, Err(AgentError::Quiesced)));
    harness.clock.advance(Duration::from_secs(30));
    assert!(matches!(with_deadline(harness.agent.respond(hitl_yes())).await, Err(AgentError::Quiesced)));
    assert_eq!(activity_counts(&harness), (0, 1));

    harness.clock.advance(Duration::from_secs(30));
    with_deadline(harness.agent.respond(hitl_yes())).await.unwrap();
    gated.wait_for_runs(1).await;
    assert_eq!(activity_counts(&harness), (1, 0));
    assert!(!harness.agent.quiesce());
    gated.may_end.add_permits(1);
    assert_eq!(final_text(&read_all(reader).await), "done");
    assert_eq!(gated.runs.load(std::sync::atomic::Ordering::Acquire), 1);
}

#[tokio::test]
async fn a_quiesced_engine_lets_a_waiting_turn_be_joined_steered_and_cancelled() {
    let (harness, gated, _reader) = awaiting_permission().await;
    let request = &harness.brain.open_turns().unwrap()[0].request.clone().unwrap().id;
    assert!(harness.agent.quiesce());
    let joined = harness.begin(json!({"task_id": "t", "message": "go", "client_request_id": request})).await;
    with_deadline(harness.agent.steer(&task_id("t"), None, "by the way".into())).await.unwrap();
    wait_idle(&harness).await;
    assert_eq!(activity_counts(&harness), (0, 1));
    with_deadline(harness.agent.cancel(&task_id("t"), None)).await.unwrap();
    assert_eq!(read_all(joined.unwrap()).await.last().unwrap().phase(), Some("cancelled"));
    assert_eq!(activity_counts(&harness), (0, 0));
    assert_eq!(gated.runs.load(std::sync::atomic::Ordering::Acquire), 0);
    assert!(matches!(
        harness.begin(json!({"task_id": "t", "message": "hi"})).await,
        Err(AgentError::Quiesced)
    ));
}

#[tokio::test]
async fn turns_that_a_start_takes_up_are_at_work_at_once() {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let (first, second) = (Gate::new(), Gate::new());
    let slow = |gate: &Gate| Reply::from_text("slow").hold(0, gate);
    harness.provider.enqueue_all([slow(&first), slow(&second)]);
    drop(harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap());
    first.reached().await;
    harness.restart().await;
    harness.agent.resume().unwrap();
    assert_eq!(activity_counts(&harness), (1, 0));
    assert!(!harness.agent.quiesce());
    second.release();
    assert_eq!(final_text(&harness.replay(0).await), "slow");
    assert!(harness.agent.quiesce());
}

#[tokio::test]
async fn a_waiting_turn_that_a_start_takes_up_does_not_hinder() {
    let (mut harness, gated, _reader) = awaiting_permission().await;
    harness.restart().await;
    harness.agent.resume().unwrap();
    wait_idle(&harness).await;
    assert_eq!(activity_counts(&harness), (0, 1));
    assert!(harness.agent.quiesce());
    harness.agent.lift_quiesce();
    with_deadline(harness.agent.respond(hitl_yes())).await.unwrap();
    gated.may_end.add_permits(1);
    assert_eq!(final_text(&harness.replay(0).await), "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_whatever_moment_it_is_quiesced_no_turn_slips_in() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let runtime = Handle::current();
    let active_count = || harness.agent.registry.lock().active_count();
    for round in 0..100 {
        let gate = Gate::new();
        harness.provider.enqueue(Reply::from_text("slow").hold(0, &gate));
        let begin = || loop {
            match runtime.block_on(harness.agent.execute(request("go"))) {
                Ok(reader) => return reader,
                Err(error) => assert!(matches!(error, AgentError::Quiesced), "{error}"),
            }
        };
        // Repeats until the turn is active, which it stays until the gate opens.
        let quiesce = || {
            while harness.agent.quiesce() {
                for _ in 0..20 {
                    assert_eq!(active_count(), 0);
                }
                harness.agent.lift_quiesce();
                (0..round * 10).for_each(|_| std::hint::spin_loop());
            }
            assert_eq!(active_count(), 1);
        };
        let (reader, ()) = concurrently(begin, quiesce);
        gate.release();
        assert_eq!(final_text(&read_all(reader).await), "slow");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_answer_and_a_quiesce_in_the_same_moment_one_is_refused() {
    let (harness, gated, mut reader) = awaiting_permission().await;
    let runtime = Handle::current();
    for _ in 0..100 {
        let respond = || runtime.block_on(harness.agent.respond(hitl_yes()));
        let (answered, quiesced) = concurrently(respond, || harness.agent.quiesce());
        match answered {
            Ok(_) => assert!(!quiesced),
            Err(error) => {
                assert!(quiesced && matches!(error, AgentError::Quiesced), "{quiesced}: {error}");
                harness.agent.lift_quiesce();
                with_deadline(harness.agent.respond(hitl_yes())).await.unwrap();
            }
        }
        gated.may_end.add_permits(1);
        assert_eq!(final_text(&read_all(reader).await), "done");
        reader = run_until_permission_request(&harness).await;
    }
}

#[tokio::test]
async fn the_last_activity_is_what_a_turn_did_last_and_outlives_the_engine() {
    let activity = |harness: &AgentHarness| harness.agent.activity().unwrap().last_activity_at;
    let gated = GatedTool::with(false, Permission::Ask);
    let mut harness = AgentHarness::with_tools(Wire::AnthropicMessages, vec![gated.clone()]).await;
    assert_eq!(activity(&harness), None);
    let before = harness.clock.now();
    let reader = run_until_permission_request(&harness).await;
    let asked_at = activity(&harness).unwrap();
    assert!((before..=harness.clock.now()).contains(&asked_at));

    harness.clock.advance(Duration::from_secs(10));
    assert_eq!(activity(&harness), Some(asked_at));
    let before = harness.clock.now();
    with_deadline(harness.agent.respond(hitl_yes())).await.unwrap();
    assert!(activity(&harness).unwrap() >= before);
    gated.may_end.add_permits(1);
    read_all(reader).await;
    let ended_at = activity(&harness).unwrap();

    harness.clock.advance(Duration::from_secs(10));
    harness.restart().await;
    harness.agent.resume().unwrap();
    let restored = activity(&harness).unwrap();
    assert!((before..=ended_at).contains(&restored), "{before} {restored} {ended_at}");
}
