//! Formats a journal: a heading for each turn, and a line for each of its steps.

use std::collections::HashMap;

use api::event::HitlKind;
use api::{CallId, Timestamp};
use llm::{Answer, Content, TokenUsage, ToolOutcome, ToolUse};
use store::StoredStep;
use store::steps::{Compacted, Opened, Replacement, Step, TurnBase, TurnOutcome};

use crate::terminal::single_line;

/// The longest excerpt of a text, in characters.
const MAX_TEXT_CHARS: usize = 100;

/// The calls of a task by id; later steps refer to a call only by its id.
type CallsById<'a> = HashMap<CallId, &'a ToolUse>;

/// Formats `steps`, all of the same task, for a person to read.
pub(super) fn format_steps(steps: &[StoredStep]) -> String {
    let answers = steps.iter().filter_map(|stored| match innermost_step(&stored.step) {
        Step::Answered { answer, .. } => Some(answer),
        _ => None,
    });
    let calls: CallsById<'_> = answers.flat_map(Answer::calls).map(|call| (call.call_id, call)).collect();
    let turns: Vec<String> = steps
        .chunk_by(|one, next| one.turn_id == next.turn_id)
        .map(|steps| format_turn(steps, &calls))
        .collect();
    turns.join("\n\n")
}

/// Returns the wrapped step if a sub-agent took it, or else the step itself.
fn innermost_step(step: &Step) -> &Step {
    match step {
        Step::Delegated { did, .. } => did,
        step => step,
    }
}

fn format_turn(steps: &[StoredStep], calls: &CallsById<'_>) -> String {
    let heading = steps
        .first()
        .map(|first| format!("{}  opened {}  {}", first.turn_id, first.at, turn_state(steps)))
        .unwrap_or_default();
    let lines = steps.iter().map(|stored| {
        let (kind, summary) = describe_step(&stored.step, calls);
        format!("  {}  {kind:<8}  {summary}", time_of_day(stored.at)).trim_end().to_owned()
    });
    std::iter::once(heading).chain(lines).collect::<Vec<_>>().join("\n")
}

/// Describes how the turn ended, or what it is doing now.
fn turn_state(steps: &[StoredStep]) -> String {
    let ended = steps.iter().find_map(|stored| match &stored.step {
        Step::Ended { outcome } => Some(outcome),
        _ => None,
    });
    match ended {
        Some(TurnOutcome::Completed { stop_reason }) => format!("completed ({})", wire_name(stop_reason)),
        Some(TurnOutcome::Errored { failure }) => format!("errored ({})", wire_name(&failure.code)),
        Some(TurnOutcome::Cancelled { .. }) => "cancelled".into(),
        Some(TurnOutcome::Unknown) => "ended".into(),
        None if awaits_human(steps) => "waiting for the user".into(),
        None => "not ended".into(),
    }
}

/// Whether a request to the user is still unanswered.
fn awaits_human(steps: &[StoredStep]) -> bool {
    let requested =
        steps.iter().filter(|stored| matches!(innermost_step(&stored.step), Step::Asked { .. })).count();
    let is_resolution = |step: &Step| matches!(step, Step::Resolved { .. } | Step::InputChanged { .. });
    let resolved = steps.iter().filter(|stored| is_resolution(innermost_step(&stored.step))).count();
    requested > resolved
}

/// The time without its date, which the heading shows.
fn time_of_day(at: Timestamp) -> String {
    let timestamp = at.to_string();
    timestamp.split_once('T').map_or(timestamp.as_str(), |(_, time)| time.trim_end_matches('Z')).to_owned()
}

/// Returns a step's kind and a summary of it.
fn describe_step(step: &Step, calls: &CallsById<'_>) -> (&'static str, String) {
    let call = |id: &CallId| calls.get(id).copied();
    match step {
        Step::Opened(opened) => ("opened", describe_message(opened)),
        Step::Answered { model, answer, .. } => ("answered", describe_answer(model, answer)),
        Step::Spent { model, tokens, .. } => {
            ("spent", format!("{} for other model calls", describe_usage(model, *tokens)))
        }
        Step::Compacted(compacted) => ("compacted", describe_compaction(compacted)),
        Step::ReasoningDropped => ("dropped", "the reasoning so far, which the provider refused".into()),
        Step::MediaDropped => {
            ("dropped", "the images, PDFs and recordings so far, which the provider refused".into())
        }
        Step::Noted { memory } => {
            let keys: Vec<&str> = memory.iter().map(|write| write.key.as_str()).collect();
            ("noted", format!("working memory was changed: {}", keys.join(", ")))
        }
        Step::Recalled { note: Some(note), .. } => ("recalled", quoted(note)),
        Step::Recalled { note: None, .. } => ("recalled", "corrections only".into()),
        Step::Planned { plan: Some(plan), .. } => ("planned", quoted(plan)),
        Step::Planned { plan: None, .. } => ("planned", "nothing".into()),
        Step::Delegated { call_id, did } => {
            let (kind, summary) = describe_step(did, calls);
            let agent =
                call(call_id).and_then(|call| call.input.get("agent")?.as_str()).unwrap_or("an agent");
            ("agent", format!("{}: {kind}  {summary}", single_line(agent, MAX_TEXT_CHARS)))
        }
        Step::Steered { message, .. } => ("steered", quoted(message)),
        Step::Asked { call_id, kind, question, options, .. } => {
            ("asked", describe_request(*kind, call(call_id), question, options.as_deref()))
        }
        Step::Resolved { answer, remarks, .. } => ("resolved", describe_resolution(answer, remarks)),
        Step::InputChanged { call_id, input, answer, remarks, .. } => {
            let tool = call(call_id).map_or("a call", |call| call.name.as_str());
            let changed = single_line(&format!("{tool} {input}"), MAX_TEXT_CHARS);
            ("changed", format!("{changed}  {}", describe_resolution(answer, remarks)))
        }
        Step::Intended { call_id } => ("intended", call(call_id).map(describe_call).unwrap_or_default()),
        Step::Hooked { call_id, input, notes, .. } => {
            ("hooked", describe_hooks(call(call_id), input.as_ref(), notes))
        }
        Step::Returned { call_id, outcome, .. } => ("returned", describe_result(call(call_id), outcome)),
        Step::Resulted { call_id, outcome, .. } => ("resulted", describe_result(call(call_id), outcome)),
        Step::Numbered { call_id, pages } => {
            let tool = call(call_id).map_or("a call", |call| call.name.as_str());
            let numbers: Vec<_> = pages.iter().map(|page| format!("[{}]", page.n)).collect();
            ("numbered", format!("{}: {}", single_line(tool, MAX_TEXT_CHARS), numbers.join(" ")))
        }
        Step::Cited { citations, .. } => {
            let cited: Vec<_> =
                citations.iter().map(|cited| format!("[{}] {}", cited.n, cited.url)).collect();
            ("cited", single_line(&cited.join(", "), MAX_TEXT_CHARS))
        }
        Step::OutputRejected { errors, .. } => ("rejected", format!("the answer's form: {}", quoted(errors))),
        Step::Ended { outcome } => ("ended", describe_end(outcome)),
        Step::Unknown => ("unknown", "a step that this version does not know".into()),
    }
}

fn describe_compaction(compacted: &Compacted) -> String {
    let what = match &compacted.instead {
        Replacement::Summary { text } => quoted(text),
        Replacement::Reset => "working memory and the last message only".into(),
    };
    format!("{} messages, replaced by {what}", compacted.covers)
}

fn describe_message(opened: &Opened) -> String {
    let mut text = match opened.base {
        TurnBase::End => quoted(&opened.message),
        TurnBase::Edit { message_id } => format!("{} in place of {message_id}", quoted(&opened.message)),
        TurnBase::Retry { message_id } => format!("again from {message_id}"),
    };
    text.push_str(&describe_attachments(&opened.media));
    text
}

fn describe_answer(model: &str, answer: &Answer) -> String {
    let text = answer.text();
    let text_part = (!text.is_empty()).then(|| quoted(&text));
    let parts = std::iter::once(describe_usage(model, answer.usage))
        .chain(text_part)
        .chain(answer.calls().map(describe_call));
    parts.collect::<Vec<_>>().join("  ")
}

fn describe_request(
    kind: HitlKind,
    call: Option<&ToolUse>,
    question: &str,
    options: Option<&[String]>,
) -> String {
    let tool = call.map(|call| single_line(&call.name, MAX_TEXT_CHARS)).unwrap_or_default();
    let options: Vec<String> = options.into_iter().flatten().map(|option| quoted(option)).collect();
    // The options of a permission request are always the same.
    let choice = if options.is_empty() || kind == HitlKind::Permission {
        String::new()
    } else {
        format!("  of {}", options.join(" "))
    };
    format!("{}  {tool}  {}{choice}", kind.as_str(), quoted(question))
}

fn describe_resolution(answer: &str, remarks: &[Content]) -> String {
    let text = Content::text_of(remarks);
    let text = if text.is_empty() { text } else { format!("  {}", quoted(&text)) };
    format!("{}{text}{}", quoted(answer), describe_attachments(remarks))
}

fn describe_result(call: Option<&ToolUse>, outcome: &ToolOutcome) -> String {
    let tool = call.map(|call| single_line(&call.name, MAX_TEXT_CHARS)).unwrap_or_default();
    let what = match &outcome.error {
        Some(error) => format!("failed: {}", quoted(error)),
        None => quoted(&outcome.output),
    };
    format!("{tool}  {what}  {} ms", outcome.duration_ms)
}

fn describe_hooks(call: Option<&ToolUse>, input: Option<&serde_json::Value>, notes: &[String]) -> String {
    let tool = call.map(|call| single_line(&call.name, MAX_TEXT_CHARS)).unwrap_or_default();
    let input = input.map(|input| format!("with {}", single_line(&input.to_string(), MAX_TEXT_CHARS)));
    let notes = notes.iter().map(|note| quoted(note));
    std::iter::once(tool).chain(input).chain(notes).collect::<Vec<_>>().join("  ")
}

fn describe_end(outcome: &TurnOutcome) -> String {
    match outcome {
        TurnOutcome::Completed { stop_reason } => format!("completed  {}", wire_name(stop_reason)),
        TurnOutcome::Errored { failure } => {
            format!("errored  {}  {}", wire_name(&failure.code), quoted(&failure.message))
        }
        TurnOutcome::Cancelled { said: Some(said) } => format!("cancelled after {}", quoted(&said.text)),
        TurnOutcome::Cancelled { said: None } => "cancelled".into(),
        TurnOutcome::Unknown => "with an outcome that this version does not know".into(),
    }
}

fn describe_usage(model: &str, tokens: TokenUsage) -> String {
    format!("{}  {}+{} tokens", single_line(model, MAX_TEXT_CHARS), tokens.input, tokens.output)
}

fn describe_call(call: &ToolUse) -> String {
    let broken = if call.broken.is_some() { " (broken)" } else { "" };
    let input = single_line(&call.input.to_string(), MAX_TEXT_CHARS);
    format!("{} {input}{broken}", single_line(&call.name, MAX_TEXT_CHARS))
}

/// Summarizes the content other than text.
fn describe_attachments(contents: &[Content]) -> String {
    match contents.iter().filter(|content| matches!(content, Content::Media(_))).count() {
        0 => String::new(),
        count => format!("  and {count} attached"),
    }
}

fn quoted(text: &str) -> String {
    format!("“{}”", single_line(text, MAX_TEXT_CHARS))
}

/// Returns the name of a plain variant as serialized on the wire.
fn wire_name(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}
