//! Learning batches under kills, failing providers, exhausted budgets, sleep, and running turns.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use api::learning::Lesson;
use mock_llm::{Fault, Gate, Refusal, Reply, Wire};
use serde_json::json;
use testkit::with_deadline;

use super::harness::AgentHarness;
use super::learning::BatchStatus;
use super::learning_tests::{
    CORRECTION, ModelBehavior, QUESTION, answer, correct, corrections_in_force, last_user_text,
    learning_harness, lessons, run_batch, run_remaining_stages, script_model, send_to_task, text,
};
use super::*;

#[tokio::test]
async fn a_batch_killed_after_any_of_its_commits_ends_once_with_each_lesson_once() {
    for killed_after in 0.. {
        let mut harness = learning_harness(ModelBehavior::FollowsLesson).await;
        correct(&harness, "t", CORRECTION).await;
        send_to_task(&harness, "nz", "What is the capital of New Zealand?").await;
        correct(&harness, "nz", "It is Wellington.").await;
        let batch = with_deadline(harness.agent.start_batch()).await.unwrap().batch_id;
        let mut status = BatchStatus::Continue;
        for _ in 0..killed_after {
            status = with_deadline(harness.agent.learner.step()).await.unwrap();
        }
        harness.kill().await;
        harness.agent.resume().unwrap();
        wait_for_batch_end(&harness).await;
        let learned = lessons(&harness).await;
        // The second correction is merged with the first.
        let [Lesson { content, evidence, .. }] = &learned[..] else { panic!("{killed_after}: {learned:#?}") };
        assert_eq!(content, "LESSON LESSON  It is Canberra. It is Wellington.", "{killed_after}");
        assert_eq!((evidence.batch_id, evidence.corrections.len()), (batch, 2), "{killed_after}");
        let knowledge = harness.brain.knowledge(10, 0).unwrap();
        assert_eq!(knowledge.len(), 4, "{killed_after}: {knowledge:#?}");
        let batches = "SELECT COUNT(*), COUNT(ended_at) FROM batches";
        let batches: (i64, i64) =
            harness.open_connection().query_row(batches, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(batches, (1, 1), "{killed_after}");
        if status == BatchStatus::Idle {
            // Two corrections with six stages each, and the end.
            assert_eq!(killed_after, 13);
            return;
        }
    }
}

/// Waits until no batch is unfinished.
async fn wait_for_batch_end(harness: &AgentHarness) {
    with_deadline(async {
        while harness.brain.active_batch().unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_batch_killed_inside_any_of_its_calls_makes_that_call_again_and_no_other() {
    for call in 0..5 {
        let mut harness = learning_harness(ModelBehavior::FollowsLesson).await;
        correct(&harness, "t", CORRECTION).await;
        harness.agent.resume().unwrap();
        let gate = Gate::new();
        let before = harness.provider.requests().len();
        let (counter, held_gate) = (AtomicUsize::new(0), gate.clone());
        harness.provider.set_responder(move |request| {
            let number = counter.fetch_add(1, Ordering::SeqCst);
            let reply = answer(ModelBehavior::FollowsLesson, request);
            if number == call { reply.hold(0, &held_gate) } else { reply }
        });
        with_deadline(harness.agent.start_batch()).await.unwrap();
        with_deadline(gate.reached()).await;
        harness.kill().await;
        harness.agent.resume().unwrap();
        wait_for_batch_end(&harness).await;
        assert_eq!(lessons(&harness).await.len(), 1, "{call}");
        assert_eq!(harness.provider.requests().len() - before, 6, "{call}");
    }
}

#[tokio::test]
async fn a_correction_at_which_the_engine_dies_again_and_again_is_left_as_it_is() {
    let mut harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    let gate = Gate::new();
    let held_gate = gate.clone();
    harness
        .provider
        .set_responder(move |request| answer(ModelBehavior::FollowsLesson, request).hold(0, &held_gate));
    with_deadline(harness.agent.start_batch()).await.unwrap();
    let before = harness.provider.requests().len();
    // The first start advances it to its draft, at which five starts die.
    for start in 1..=6 {
        harness.agent.resume().unwrap();
        with_deadline(harness.provider.wait_for_requests(before + start)).await;
        harness.kill().await;
    }
    harness.agent.resume().unwrap();
    wait_for_batch_end(&harness).await;
    assert_eq!(harness.provider.requests().len(), before + 6);
    assert_eq!((lessons(&harness).await.len(), corrections_in_force(&harness)), (0, 1));
}

#[tokio::test]
async fn a_provider_that_is_down_ends_the_batch_in_time_and_the_next_one_learns() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    harness.provider.set_responder(move |request| {
        if is_down.load(Ordering::SeqCst) {
            Reply::from_fault(Fault::refuse(Refusal::Overloaded))
        } else {
            answer(ModelBehavior::FollowsLesson, request)
        }
    });
    with_deadline(harness.agent.start_batch()).await.unwrap();
    let mut waits = Vec::new();
    loop {
        match with_deadline(harness.agent.learner.step()).await.unwrap() {
            BatchStatus::Continue => {}
            BatchStatus::Wait(wait) => waits.push(wait.as_secs()),
            BatchStatus::Idle => break,
        }
    }
    assert_eq!(waits, [60, 240, 960, 3_600, 3_600]);
    assert_eq!((lessons(&harness).await.len(), corrections_in_force(&harness)), (0, 1));
    down.store(false, Ordering::SeqCst);
    assert_eq!(send_to_task(&harness, "new", QUESTION).await, "Canberra.");
    run_batch(&harness).await;
    assert_eq!(lessons(&harness).await.len(), 1);
}

#[tokio::test]
async fn a_used_up_budget_is_not_broken_by_learning() {
    let mut harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    let mut gateway =
        super::harness::gateway_config(&harness.provider, &[(Wire::AnthropicMessages, "test-1")]);
    gateway["budgets"] = json!({"tokens_per_hour": 3_000});
    harness.configure_gateway(&gateway).await;
    let calls = harness.provider.requests().len();
    with_deadline(harness.agent.start_batch()).await.unwrap();
    assert_eq!(with_deadline(harness.agent.learner.step()).await.unwrap(), BatchStatus::Continue);
    assert_eq!(
        with_deadline(harness.agent.learner.step()).await.unwrap(),
        BatchStatus::Wait(Duration::from_mins(1))
    );
    assert_eq!(harness.provider.requests().len(), calls);
    gateway["budgets"] = json!({});
    harness.configure_gateway(&gateway).await;
    run_remaining_stages(&harness).await;
    assert_eq!(lessons(&harness).await.len(), 1);
}

#[tokio::test]
async fn a_batch_that_fell_due_while_the_engine_slept_begins_when_it_wakes() {
    let mut harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    harness.batch_interval = Some(Duration::from_hours(24));
    harness.restart().await;
    harness.agent.resume().unwrap();
    // Nothing is due; the next check is within the hour.
    harness.clock.wait_for_sleep(Duration::from_hours(1)).await;
    assert!(harness.brain.unprocessed_since().unwrap().is_some());
    assert_eq!(lessons(&harness).await, []);
    harness.clock.advance(Duration::from_hours(25));
    harness.restart().await;
    harness.agent.resume().unwrap();
    with_deadline(async {
        while lessons(&harness).await.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    wait_for_batch_end(&harness).await;
    assert_eq!(harness.brain.unprocessed_since().unwrap(), None);
}

#[tokio::test]
async fn an_engine_at_a_batch_is_not_quiesced_and_one_that_waits_for_its_model_is() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    harness.agent.resume().unwrap();
    let gate = Gate::new();
    let held_gate = gate.clone();
    harness
        .provider
        .set_responder(move |_| Reply::from_fault(Fault::refuse(Refusal::Overloaded)).hold(0, &held_gate));
    let first = with_deadline(harness.agent.start_batch()).await.unwrap();
    assert!(!harness.agent.quiesce());
    assert_eq!(
        with_deadline(harness.agent.start_batch()).await.unwrap(),
        first,
        "only one batch runs at a time"
    );
    gate.release();
    with_deadline(async {
        while !harness.agent.quiesce() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(matches!(with_deadline(harness.agent.start_batch()).await, Err(AgentError::Quiesced)));
    harness.agent.lift_quiesce();
    // A request for a batch makes the waiting one retry at once.
    script_model(&harness, ModelBehavior::FollowsLesson);
    assert_eq!(with_deadline(harness.agent.start_batch()).await.unwrap(), first);
    wait_for_batch_end(&harness).await;
    assert_eq!(lessons(&harness).await.len(), 1);
}

#[tokio::test]
async fn turns_come_before_a_batch() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    harness.agent.resume().unwrap();
    let gate = Gate::new();
    let held_gate = gate.clone();
    harness.provider.set_responder(move |request| {
        if last_user_text(request) == "Wait." {
            text("So be it.").hold(0, &held_gate)
        } else {
            answer(ModelBehavior::FollowsLesson, request)
        }
    });
    let reader = harness.begin(json!({"task_id": "busy", "message": "Wait."})).await.unwrap();
    with_deadline(gate.reached()).await;
    let calls = harness.provider.requests().len();
    with_deadline(harness.agent.start_batch()).await.unwrap();
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(harness.provider.requests().len(), calls, "no stage begins while a turn is active");
    gate.release();
    store::testing::read_all(reader).await;
    wait_for_batch_end(&harness).await;
    assert_eq!(lessons(&harness).await.len(), 1);
}

#[tokio::test]
async fn where_the_model_fails_one_that_stands_in_for_it_is_asked_and_all_that_is_spent_counts() {
    let mut harness = learning_harness(ModelBehavior::FollowsLesson).await;
    let models = [(Wire::AnthropicMessages, "test-1"), (Wire::AnthropicMessages, "test-2")];
    harness.configure_gateway(&super::harness::gateway_config(&harness.provider, &models)).await;
    correct(&harness, "t", CORRECTION).await;
    harness.provider.set_responder(|request| {
        if request.model == "test-1" {
            return Reply::from_fault(Fault::refuse(Refusal::Overloaded));
        }
        answer(ModelBehavior::FollowsLesson, request)
    });
    run_batch(&harness).await;
    assert_eq!(lessons(&harness).await.len(), 1);
    let call_count =
        |model: &str| harness.provider.requests().iter().filter(|request| request.model == model).count();
    // The two turns before, and five learning calls to each model.
    assert_eq!((call_count("test-1"), call_count("test-2")), (7, 5));
}
