//! Reports for a person.

use std::fmt::Write as _;

use api::cassettes::{
    CallPairing, CassetteReport, CassetteUsage, DiffOp, ReplayState, ReplayedCall, TextReport,
};
use serde_json::Value;

use crate::terminal::{escape_hidden_characters, single_line};

/// The most characters of an input.
const MAX_INPUT_CHARS: usize = 200;
/// The most characters of an unchanged part of a text.
const MAX_EQUAL_CHARS: usize = 80;
/// The most characters of a rule or a reason.
const MAX_RULE_CHARS: usize = 200;

/// A report of several lines.
pub(super) fn report(report: &CassetteReport) -> String {
    let mut text = String::new();
    let recorded = single_line(&report.recorded_models.join(", "), MAX_INPUT_CHARS);
    let run = single_line(&report.model, MAX_INPUT_CHARS);
    let task = single_line(report.task_id.as_str(), MAX_INPUT_CHARS);
    let _ = writeln!(text, "{} of “{task}”", report.turn_id);
    for gap in &report.incomplete {
        let _ = writeln!(text, "  note      {}", single_line(&gap.reason, usize::MAX));
    }
    let steps = report.step_counts;
    let _ = writeln!(text, "  recorded  {}", side(&recorded, steps.recorded, report.usage.recorded));
    let _ = writeln!(text, "  run       {}", side(&run, steps.run, report.usage.run));
    if let Some(error) = &report.end.error {
        let _ = writeln!(text, "  failed    {}", single_line(error, usize::MAX));
    }
    let calls = &report.calls;
    let _ = writeln!(
        text,
        "  calls     {} same, {} changed, {} missing, {} extra",
        calls.same, calls.changed, calls.missing, calls.extra
    );
    for call in report.steps.iter().flat_map(|step| &step.calls) {
        if let Some(line) = call_line(call) {
            let _ = writeln!(text, "    {line}");
        }
    }
    for call in &report.missing_calls {
        let _ = writeln!(text, "    missing   {} {}", name(&call.tool), input(&call.input));
    }
    write_text(&mut text, &report.text);
    for result in &report.expectations {
        let rule = serde_json::to_string(&result.expect).unwrap_or_default();
        let mark = if result.passed { "kept" } else { "broken" };
        let reason = result.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let line = format!("{}{reason}", single_line(&rule, MAX_RULE_CHARS));
        let _ = writeln!(text, "  rule      {mark}  {}", single_line(&line, usize::MAX));
    }
    let _ = write!(text, "  scores    {}", scores(report));
    text
}

/// A line about a cassette of a set.
pub(super) fn outcome_line(name: &str, report: Option<&CassetteReport>, error: Option<&str>) -> String {
    let name = single_line(name, MAX_INPUT_CHARS);
    match (report, error) {
        (Some(report), _) => {
            let state = match report.end.state {
                ReplayState::Completed => String::new(),
                ReplayState::Failed => {
                    format!(
                        "  failed: {}",
                        single_line(report.end.error.as_deref().unwrap_or_default(), usize::MAX)
                    )
                }
            };
            format!("{name}  {}{state}", scores(report))
        }
        (None, error) => format!("{name}  not run: {}", single_line(error.unwrap_or_default(), usize::MAX)),
    }
}

/// The line about a whole set.
pub(super) fn total_line(count: usize, failed: usize, total: f64) -> String {
    let failed = if failed == 0 { String::new() } else { format!(", {failed} not run") };
    format!("total {total}  ({count} cassettes{failed})")
}

fn scores(report: &CassetteReport) -> String {
    let scores = &report.scores;
    let rules = scores.expectations.map(|score| format!("  rules {score}")).unwrap_or_default();
    format!("total {}  tools {}  text {}{rules}", scores.total, scores.tools, scores.text)
}

fn side(model: &str, steps: u64, usage: CassetteUsage) -> String {
    let cost = usage.cost_usd.map(|cost| format!(", ${cost:.6}")).unwrap_or_default();
    format!("{model}: {steps} model calls, {}+{} tokens{cost}", usage.input_tokens, usage.output_tokens)
}

/// What is different about a call; `None` if nothing is.
fn call_line(call: &ReplayedCall) -> Option<String> {
    let (tool, made) = (name(&call.tool), input(&call.input));
    match call.pairing {
        CallPairing::Same => None,
        CallPairing::Approximate => {
            let recorded = call.recorded_input.as_ref().map(input).unwrap_or_default();
            Some(format!("changed   {tool} {recorded} → {made}"))
        }
        CallPairing::Repeated => Some(format!("repeated  {tool} {made}")),
        CallPairing::NotRecorded => Some(format!("extra     {tool} {made}")),
    }
}

fn name(tool: &str) -> String {
    single_line(tool, MAX_INPUT_CHARS)
}

fn input(input: &Value) -> String {
    single_line(&input.to_string(), MAX_INPUT_CHARS)
}

/// The difference of the texts: `[-deleted-]` and `{+inserted+}`.
fn write_text(out: &mut String, text: &TextReport) {
    if text.equal {
        let _ = writeln!(out, "  text      equal");
        return;
    }
    let _ = writeln!(out, "  text      similarity {}", text.similarity);
    let mut shown = String::new();
    for part in &text.diff {
        let part_text = escape_hidden_characters(&part.text);
        let _ = match part.op {
            DiffOp::Equal => write!(shown, "{}", shorten(&part_text)),
            DiffOp::Delete => write!(shown, "[-{part_text}-]"),
            DiffOp::Insert => write!(shown, "{{+{part_text}+}}"),
        };
    }
    for line in shown.lines() {
        let _ = writeln!(out, "    {line}");
    }
}

/// Leaves out the middle of a long part.
fn shorten(text: &str) -> String {
    let count = text.chars().count();
    if count <= MAX_EQUAL_CHARS {
        return text.to_owned();
    }
    let half = MAX_EQUAL_CHARS / 2;
    let start: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(count - half).collect();
    format!("{start} … {end}")
}
