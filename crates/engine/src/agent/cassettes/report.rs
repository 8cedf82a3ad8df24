//! What is different in a run, and how well it did. Pure, and the same for the same run.

use api::cassettes::{
    CallDifference, CallPairing, Cassette, CassetteReport, CassetteScores, CassetteUsage, ReplayState,
    ReplayedStep, StepCounts, TextReport, UsageComparison,
};

use super::expectations::{self, Performed};
use super::player::Performance;
use super::text_diff::{compare, ratio, round};

/// Compares a run on the model called `model` with its cassette.
pub(super) fn report(cassette: Cassette, model: String, run: Performance) -> CassetteReport {
    let calls = count_calls(&run);
    let text = compare_texts(cassette.outcome.text, run.text());
    let made = run.steps.iter().flat_map(|step| &step.calls);
    let performed = Performed { text: &text.run, tools: made.map(|call| call.tool.as_str()).collect() };
    let expectations: Vec<_> =
        cassette.expect.into_iter().map(|expect| expectations::check(expect, &performed)).collect();
    let kept = expectations.iter().filter(|result| result.passed).count();
    let kept = (!expectations.is_empty()).then(|| ratio(kept, expectations.len()));
    let scores = score(&calls, text.similarity, kept, run.end.state);
    let mut recorded_models: Vec<String> = Vec::new();
    for step in &cassette.steps {
        if !recorded_models.contains(&step.model) {
            recorded_models.push(step.model.clone());
        }
    }
    CassetteReport {
        task_id: cassette.task_id,
        turn_id: cassette.turn_id,
        incomplete: cassette.incomplete,
        recorded_models,
        model,
        step_counts: StepCounts { recorded: count(cassette.steps.len()), run: count(run.steps.len()) },
        usage: UsageComparison {
            recorded: sum(cassette.steps.iter().map(|step| step.usage)),
            run: sum(run.steps.iter().map(|step: &ReplayedStep| step.usage)),
        },
        end: run.end,
        steps: run.steps,
        missing_calls: run.missing,
        calls,
        text,
        expectations,
        scores,
    }
}

fn count_calls(run: &Performance) -> CallDifference {
    let mut counted = CallDifference { missing: count(run.missing.len()), ..CallDifference::default() };
    for call in run.steps.iter().flat_map(|step| &step.calls) {
        match call.pairing {
            CallPairing::Same => counted.same += 1,
            CallPairing::Approximate => counted.changed += 1,
            CallPairing::Repeated | CallPairing::NotRecorded => counted.extra += 1,
        }
    }
    counted
}

fn compare_texts(recorded: String, run: &str) -> TextReport {
    let compared = compare(&recorded, run);
    TextReport {
        equal: recorded == run,
        similarity: compared.similarity,
        recorded,
        run: run.to_owned(),
        diff: compared.parts,
    }
}

fn score(calls: &CallDifference, text: f64, expectations: Option<f64>, state: ReplayState) -> CassetteScores {
    let CallDifference { same, changed, missing, extra } = *calls;
    let as_size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let tools = ratio(as_size(same), as_size(same + changed + missing.max(extra)));
    let total = match state {
        ReplayState::Failed => 0.0,
        ReplayState::Completed => round(f64::midpoint(tools, expectations.unwrap_or(text))),
    };
    CassetteScores { tools, text, expectations, total }
}

/// The sum of calls; its cost is unknown if that of any call is.
fn sum(calls: impl Iterator<Item = CassetteUsage>) -> CassetteUsage {
    let none = CassetteUsage { cost_usd: Some(0.0), ..CassetteUsage::default() };
    calls.fold(none, |sum, call| CassetteUsage {
        input_tokens: sum.input_tokens.saturating_add(call.input_tokens),
        output_tokens: sum.output_tokens.saturating_add(call.output_tokens),
        cost_usd: sum.cost_usd.zip(call.cost_usd).map(|(sum, call)| sum + call),
    })
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "../../../tests/unit/agent/cassettes/report.rs"]
mod tests;
