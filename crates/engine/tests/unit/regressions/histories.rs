//! Histories that are broken forever. Whatever happened to a task, the provider accepts its history.

mod scenario;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::engine::{Role, TaskMessage};
use mock_llm::{Fault, Gate, Refusal, Reply, Stop, Wire};
use proptest::prelude::*;
use scenario::{
    Action, INTERRUPTIONS, InterruptPoint, Interruption, ModelStep, StartFrom, TaskScenario, TurnOutcome,
    TurnPlan,
};
use serde_json::{Value, json};
use store::event_log::EventReader;
use store::testing::next_events;
use testkit::{SseEvent, task_id, with_deadline};

use crate::agent::harness::{AgentHarness, GatedTool, WIRES, gateway_config, streams_tool_input};

async fn run_actions(wire: Wire, actions: &[Action]) {
    let mut scenario = TaskScenario::begin(wire).await;
    for action in actions {
        scenario.perform(action).await;
    }
    // Whichever model is called next accepts the history: the previous one, and one of every vendor.
    scenario.plain_turn().await;
    for wire in WIRES {
        scenario.perform(&Action::Switch(wire, 1, wire)).await;
        scenario.plain_turn().await;
    }
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let start_from = prop_oneof![
        4 => Just(StartFrom::End),
        1 => any::<usize>().prop_map(StartFrom::Edit),
        1 => any::<usize>().prop_map(StartFrom::Retry),
    ];
    let calls = prop::collection::vec(0..7_u8, 0..4);
    let step = (calls, prop::option::weighted(0.2, 0..8_usize));
    let steps = prop::collection::vec(
        step.prop_map(|(calls, breaks)| ModelStep { calls, breaks_after: breaks }),
        0..3,
    );
    let point = prop_oneof![
        (0..9_usize).prop_map(InterruptPoint::Stream),
        Just(InterruptPoint::Tool),
        Just(InterruptPoint::Person)
    ];
    let outcome = prop_oneof![
        2 => Just(TurnOutcome::Completes),
        1 => Just(TurnOutcome::Capped),
        1 => Just(TurnOutcome::Fails),
        1 => Just(TurnOutcome::Fallback),
        2 => Just(TurnOutcome::TooLong),
        1 => Just(TurnOutcome::BrokenHistory),
        5 => (point, prop::sample::select(&INTERRUPTIONS)).prop_map(|(point, interruption)| TurnOutcome::Interrupted(point, interruption)),
    ];
    let turn = (start_from, any::<bool>(), steps, any::<bool>(), outcome);
    let turn = turn.prop_map(|(start_from, think, steps, approves, outcome)| TurnPlan {
        start_from,
        think,
        steps,
        approves,
        outcome,
    });
    let switch = (prop::sample::select(&WIRES), 0..2_usize, prop::sample::select(&WIRES))
        .prop_map(|(wire, model, other)| Action::Switch(wire, model, other));
    let action = prop_oneof![5 => turn.prop_map(Action::Turn), 1 => switch];
    prop::collection::vec(action, 1..8)
}

#[test]
fn regression_e04_after_any_sequence_of_events_the_provider_takes_the_history() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // A number of cases that runs quickly, unless more are requested.
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = requested.unwrap_or(24);
    let config =
        ProptestConfig { cases, max_shrink_iters: 30, failure_persistence: None, ..Default::default() };
    proptest!(config, |(wire in prop::sample::select(&WIRES), actions in actions())| {
        runtime.block_on(run_actions(wire, &actions));
    });
}

#[tokio::test]
async fn regression_e04_no_deed_in_any_moment_breaks_the_history() {
    for wire in WIRES {
        for point in [
            InterruptPoint::Stream(1),
            InterruptPoint::Stream(6),
            InterruptPoint::Tool,
            InterruptPoint::Person,
        ] {
            let mut scenario = TaskScenario::begin(wire).await;
            for (interruption, think) in INTERRUPTIONS.into_iter().zip([false, true, true, false]) {
                let steps = vec![ModelStep { calls: vec![0, 5], breaks_after: None }];
                let turn = |outcome| TurnPlan {
                    start_from: StartFrom::End,
                    think,
                    steps: steps.clone(),
                    approves: think,
                    outcome,
                };
                scenario.perform(&Action::Turn(turn(TurnOutcome::Interrupted(point, interruption)))).await;
                scenario.perform(&Action::Turn(turn(TurnOutcome::Completes))).await;
            }
        }
    }
}

#[tokio::test]
async fn regression_e04_no_remedy_breaks_the_history() {
    for (wire, other) in WIRES.into_iter().zip(WIRES.into_iter().cycle().skip(1)) {
        let mut scenario = TaskScenario::begin(wire).await;
        let turn = |start_from, think, outcome| {
            let steps = vec![
                ModelStep { calls: vec![0, 5], breaks_after: None },
                ModelStep { calls: vec![2], breaks_after: Some(3) },
            ];
            Action::Turn(TurnPlan { start_from, think, steps, approves: think, outcome })
        };
        let actions = [
            turn(StartFrom::End, true, TurnOutcome::Completes),
            turn(StartFrom::End, true, TurnOutcome::TooLong),
            turn(
                StartFrom::End,
                true,
                TurnOutcome::Interrupted(InterruptPoint::Stream(3), Interruption::Kill),
            ),
            Action::Switch(wire, 1, other),
            turn(StartFrom::End, true, TurnOutcome::Fallback),
            turn(StartFrom::End, true, TurnOutcome::TooLong),
            turn(StartFrom::End, false, TurnOutcome::BrokenHistory),
            turn(StartFrom::End, true, TurnOutcome::Completes),
            // After a compaction, and after messages without their reasoning.
            turn(StartFrom::Retry(3), true, TurnOutcome::Completes),
            turn(StartFrom::Edit(1), true, TurnOutcome::TooLong),
            turn(StartFrom::Edit(0), true, TurnOutcome::Completes),
        ];
        for action in &actions {
            scenario.perform(action).await;
        }
        assert!(scenario.compaction_count >= 2, "{wire:?}: shortened {} times", scenario.compaction_count);
    }
}

/// After a restart the default model is called again, so the fallback model's thinking is left out.
#[tokio::test]
async fn regression_e04_words_behind_results_begin_no_thinking_that_another_model_would_have_to_end() {
    let step = |calls: &[u8]| ModelStep { calls: calls.to_vec(), breaks_after: None };
    let turn = |think, steps: Vec<ModelStep>, approves, outcome| {
        Action::Turn(TurnPlan { start_from: StartFrom::End, think, steps, approves, outcome })
    };
    let wire = Wire::AnthropicMessages;
    let actions = [
        Action::Switch(wire, 0, wire),
        turn(true, vec![step(&[0])], false, TurnOutcome::TooLong),
        turn(false, vec![], false, TurnOutcome::Fails),
        turn(
            true,
            vec![step(&[0]), step(&[6, 3, 1])],
            true,
            TurnOutcome::Interrupted(InterruptPoint::Tool, Interruption::Restart),
        ),
    ];
    run_actions(wire, &actions).await;
}
