use api::cassettes::{MissingCall, ReplayEnd, ReplayedCall};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn cassette(text: &str, expect: &serde_json::Value) -> Cassette {
    let usage = json!({"input_tokens": 10, "output_tokens": 2, "cost_usd": 0.25});
    let step = json!({"model": "a", "text": text, "usage": usage});
    serde_json::from_value(json!({
        "format": "roundhouse.cassette", "version": 1, "task_id": "task", "turn_id": api::TurnId::new(),
        "prompt": {
            "system": "s", "options": {"max_turns": 3},
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        },
        "steps": [step, step], "outcome": {"state": "completed", "text": text}, "expect": expect,
    }))
    .unwrap()
}

fn run(text: &str, pairings: &[CallPairing], missing: usize, state: ReplayState) -> Performance {
    let calls = pairings.iter().map(|&pairing| ReplayedCall {
        tool: "read".into(),
        input: json!({}),
        pairing,
        recorded_input: None,
    });
    let usage = CassetteUsage { input_tokens: 5, output_tokens: 1, cost_usd: None };
    Performance {
        steps: vec![ReplayedStep { model: "b".into(), text: text.into(), calls: calls.collect(), usage }],
        missing: vec![MissingCall { tool: "read".into(), input: json!({}) }; missing],
        end: ReplayEnd { state, stop_reason: None, error: None },
    }
}

#[test]
fn the_same_run_has_the_best_scores() {
    let run = run("Green.", &[CallPairing::Same], 0, ReplayState::Completed);
    let report = report(cassette("Green.", &json!([])), "b".into(), run);
    let CassetteScores { tools, text, expectations, total } = report.scores;
    assert_eq!((tools, text, expectations, total), (1.0, 1.0, None, 1.0));
    assert!(report.text.equal && report.text.diff.is_empty());
    assert_eq!(report.recorded_models, ["a"]);
    assert_eq!(report.step_counts, StepCounts { recorded: 2, run: 1 });
    assert_eq!(report.usage.recorded.cost_usd, Some(0.5));
    assert_eq!((report.usage.run.cost_usd, report.usage.run.input_tokens), (None, 5));
}

#[test]
fn rules_take_the_place_of_the_text_and_a_failed_run_has_nothing() {
    let rules = json!([{"rule": "contains", "text": "red"}, {"rule": "calls", "tool": "read"}]);
    let of = |state| {
        let run = run("It is red.", &[CallPairing::Same, CallPairing::NotRecorded], 1, state);
        report(cassette("Green.", &rules), "b".into(), run)
    };
    let good = of(ReplayState::Completed);
    assert_eq!(good.calls, CallDifference { same: 1, changed: 0, missing: 1, extra: 1 });
    assert_eq!((good.scores.tools, good.scores.expectations, good.scores.total), (0.5, Some(1.0), 0.75));
    assert_eq!(json!(of(ReplayState::Failed).scores.total), json!(0.0));
}

proptest! {
    #[test]
    fn scores_are_shares(
        kinds in prop::collection::vec(0..4_u8, 0..10), missing in 0..5_usize,
        old in "[ab ]{0,10}", new in "[ab ]{0,10}",
    ) {
        let pairings: Vec<_> = kinds.iter().map(|kind| match kind {
            0 => CallPairing::Same,
            1 => CallPairing::Repeated,
            2 => CallPairing::Approximate,
            _ => CallPairing::NotRecorded,
        }).collect();
        let build = || report(cassette(&old, &json!([])), "b".into(), run(&new, &pairings, missing, ReplayState::Completed));
        let (one, other) = (build(), build());
        prop_assert_eq!(one.scores, other.scores);
        let CassetteScores { tools, text, total, .. } = one.scores;
        for score in [tools, text, total] {
            prop_assert!((0.0..=1.0).contains(&score));
        }
        let is_alike = pairings.iter().all(|pairing| *pairing == CallPairing::Same) && missing == 0;
        prop_assert_eq!(json!(tools) == json!(1.0), is_alike);
        prop_assert_eq!(one.text.equal, old == new);
    }
}
