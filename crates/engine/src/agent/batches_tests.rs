//! How batches go on: through kills, failing providers, used up budgets, sleep and turns.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use contract::learning::Lesson;
use serde_json::json;
use strict_provider::{Fault, Gate, Refusal, Reply, Wire};

use super::learning::Pace;
use super::learning_tests::{
    CORRECTION, Pupil, QUESTION, answer, correct, corrections_in_force, go_on, last_said, learn, lessons,
    say, school, teach, text,
};
use super::rig::Rig;
use super::*;
use crate::testing::within;

#[tokio::test]
async fn a_batch_killed_after_any_of_its_commits_ends_once_with_each_lesson_once() {
    for killed_after in 0.. {
        let mut rig = school(Pupil::Good).await;
        correct(&rig, "t", CORRECTION).await;
        say(&rig, "nz", "What is the capital of New Zealand?").await;
        correct(&rig, "nz", "It is Wellington.").await;
        let batch = within(rig.agent.start_batch()).await.unwrap().batch_id;
        let mut pace = Pace::On;
        for _ in 0..killed_after {
            pace = within(rig.agent.learner.step()).await.unwrap();
        }
        rig.kill().await;
        rig.agent.resume().unwrap();
        ended(&rig).await;
        let learned = lessons(&rig).await;
        // The second is merged with the first.
        let [Lesson { content, evidence, .. }] = &learned[..] else { panic!("{killed_after}: {learned:#?}") };
        assert_eq!(content, "LESSON LESSON  It is Canberra. It is Wellington.", "{killed_after}");
        assert_eq!((evidence.batch_id, evidence.corrections.len()), (batch, 2), "{killed_after}");
        let known = rig.brain.knowledge(10, 0).unwrap();
        assert_eq!(known.len(), 4, "{killed_after}: {known:#?}");
        let batches = "SELECT COUNT(*), COUNT(ended_at) FROM batches";
        let batches: (i64, i64) =
            rig.outside().query_row(batches, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(batches, (1, 1), "{killed_after}");
        if pace == Pace::Idle {
            // Two corrections of six stages each, and the end.
            assert_eq!(killed_after, 13);
            return;
        }
    }
}

/// Waits until no batch is under way.
async fn ended(rig: &Rig) {
    within(async {
        while rig.brain.batch_under_way().unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_batch_killed_inside_any_of_its_calls_makes_that_call_again_and_no_other() {
    for call in 0..5 {
        let mut rig = school(Pupil::Good).await;
        correct(&rig, "t", CORRECTION).await;
        rig.agent.resume().unwrap();
        let gate = Gate::new();
        let before = rig.provider.requests().len();
        let (at, held) = (AtomicUsize::new(0), gate.clone());
        rig.provider.set_responder(move |request| {
            let number = at.fetch_add(1, Ordering::SeqCst);
            let reply = answer(Pupil::Good, request);
            if number == call { reply.hold(0, &held) } else { reply }
        });
        within(rig.agent.start_batch()).await.unwrap();
        within(gate.reached()).await;
        rig.kill().await;
        rig.agent.resume().unwrap();
        ended(&rig).await;
        assert_eq!(lessons(&rig).await.len(), 1, "{call}");
        assert_eq!(rig.provider.requests().len() - before, 6, "{call}");
    }
}

#[tokio::test]
async fn a_correction_at_which_the_engine_dies_again_and_again_is_left_as_it_is() {
    let mut rig = school(Pupil::Good).await;
    correct(&rig, "t", CORRECTION).await;
    let gate = Gate::new();
    let held = gate.clone();
    rig.provider.set_responder(move |request| answer(Pupil::Good, request).hold(0, &held));
    within(rig.agent.start_batch()).await.unwrap();
    let before = rig.provider.requests().len();
    // The first start brings it to its draft, at which five die.
    for start in 1..=6 {
        rig.agent.resume().unwrap();
        within(rig.provider.wait_for_requests(before + start)).await;
        rig.kill().await;
    }
    rig.agent.resume().unwrap();
    ended(&rig).await;
    assert_eq!(rig.provider.requests().len(), before + 6);
    assert_eq!((lessons(&rig).await.len(), corrections_in_force(&rig)), (0, 1));
}

#[tokio::test]
async fn a_provider_that_is_down_ends_the_batch_in_time_and_the_next_one_learns() {
    let rig = school(Pupil::Good).await;
    correct(&rig, "t", CORRECTION).await;
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    rig.provider.set_responder(move |request| {
        if is_down.load(Ordering::SeqCst) {
            Reply::of_fault(Fault::refuse(Refusal::Overloaded))
        } else {
            answer(Pupil::Good, request)
        }
    });
    within(rig.agent.start_batch()).await.unwrap();
    let mut waits = Vec::new();
    loop {
        match within(rig.agent.learner.step()).await.unwrap() {
            Pace::On => {}
            Pace::Wait(wait) => waits.push(wait.as_secs()),
            Pace::Idle => break,
        }
    }
    assert_eq!(waits, [60, 240, 960, 3_600, 3_600]);
    assert_eq!((lessons(&rig).await.len(), corrections_in_force(&rig)), (0, 1));
    down.store(false, Ordering::SeqCst);
    assert_eq!(say(&rig, "new", QUESTION).await, "Canberra.");
    learn(&rig).await;
    assert_eq!(lessons(&rig).await.len(), 1);
}

#[tokio::test]
async fn a_used_up_budget_is_not_broken_by_learning() {
    let mut rig = school(Pupil::Good).await;
    correct(&rig, "t", CORRECTION).await;
    let mut gateway = super::rig::gateway_of(&rig.provider, &[(Wire::AnthropicMessages, "test-1")]);
    gateway["budgets"] = json!({"tokens_per_hour": 3_000});
    rig.configure(&gateway).await;
    let calls = rig.provider.requests().len();
    within(rig.agent.start_batch()).await.unwrap();
    assert_eq!(within(rig.agent.learner.step()).await.unwrap(), Pace::On);
    assert_eq!(within(rig.agent.learner.step()).await.unwrap(), Pace::Wait(Duration::from_mins(1)));
    assert_eq!(rig.provider.requests().len(), calls);
    gateway["budgets"] = json!({});
    rig.configure(&gateway).await;
    go_on(&rig).await;
    assert_eq!(lessons(&rig).await.len(), 1);
}

#[tokio::test]
async fn a_batch_that_fell_due_while_the_engine_slept_begins_when_it_wakes() {
    let mut rig = school(Pupil::Good).await;
    correct(&rig, "t", CORRECTION).await;
    rig.batch_interval = Some(Duration::from_hours(24));
    rig.restart().await;
    rig.agent.resume().unwrap();
    // Nothing is due; the next look is within the hour.
    rig.clock.asleep_for(Duration::from_hours(1)).await;
    assert!(rig.brain.unread_since().unwrap().is_some());
    assert_eq!(lessons(&rig).await, []);
    rig.clock.pass(Duration::from_hours(25));
    rig.restart().await;
    rig.agent.resume().unwrap();
    within(async {
        while lessons(&rig).await.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    ended(&rig).await;
    assert_eq!(rig.brain.unread_since().unwrap(), None);
}

#[tokio::test]
async fn an_engine_at_a_batch_is_not_quiesced_and_one_that_waits_for_its_model_is() {
    let rig = school(Pupil::Good).await;
    correct(&rig, "t", CORRECTION).await;
    rig.agent.resume().unwrap();
    let gate = Gate::new();
    let held = gate.clone();
    rig.provider.set_responder(move |_| Reply::of_fault(Fault::refuse(Refusal::Overloaded)).hold(0, &held));
    let first = within(rig.agent.start_batch()).await.unwrap();
    assert!(!rig.agent.quiesce());
    assert_eq!(within(rig.agent.start_batch()).await.unwrap(), first, "one is under way at a time");
    gate.release();
    within(async {
        while !rig.agent.quiesce() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(matches!(within(rig.agent.start_batch()).await, Err(AgentError::Quiesced)));
    rig.agent.lift_quiesce();
    // Who asks for a batch has the one that waits tried at once.
    teach(&rig, Pupil::Good);
    assert_eq!(within(rig.agent.start_batch()).await.unwrap(), first);
    ended(&rig).await;
    assert_eq!(lessons(&rig).await.len(), 1);
}

#[tokio::test]
async fn turns_come_before_a_batch() {
    let rig = school(Pupil::Good).await;
    correct(&rig, "t", CORRECTION).await;
    rig.agent.resume().unwrap();
    let gate = Gate::new();
    let held = gate.clone();
    rig.provider.set_responder(move |request| {
        if last_said(request) == "Wait." {
            text("So be it.").hold(0, &held)
        } else {
            answer(Pupil::Good, request)
        }
    });
    let reader = rig.begin(json!({"task_id": "busy", "message": "Wait."})).await.unwrap();
    within(gate.reached()).await;
    let calls = rig.provider.requests().len();
    within(rig.agent.start_batch()).await.unwrap();
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.provider.requests().len(), calls, "no stage begins while a turn is at work");
    gate.release();
    crate::testing::read_all(reader).await;
    ended(&rig).await;
    assert_eq!(lessons(&rig).await.len(), 1);
}

#[tokio::test]
async fn where_the_model_fails_one_that_stands_in_for_it_is_asked_and_all_that_is_spent_counts() {
    let mut rig = school(Pupil::Good).await;
    let models = [(Wire::AnthropicMessages, "test-1"), (Wire::AnthropicMessages, "test-2")];
    rig.configure(&super::rig::gateway_of(&rig.provider, &models)).await;
    correct(&rig, "t", CORRECTION).await;
    rig.provider.set_responder(|request| {
        if request.model == "test-1" {
            return Reply::of_fault(Fault::refuse(Refusal::Overloaded));
        }
        answer(Pupil::Good, request)
    });
    learn(&rig).await;
    assert_eq!(lessons(&rig).await.len(), 1);
    let asked = |model: &str| rig.provider.requests().iter().filter(|request| request.model == model).count();
    // Two turns before, and five questions of each.
    assert_eq!((asked("test-1"), asked("test-2")), (7, 5));
}
