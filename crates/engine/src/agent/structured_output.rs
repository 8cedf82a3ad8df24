//! The form that a request sets for the final answer of its turn: JSON that matches a schema.
//!
//! Not every provider enforces a schema, and none does so for each one, so the engine validates the final answer
//! itself. One that does not match is answered once more: the model is told what is wrong and where. The rejection is
//! a step of the journal, so a turn that is killed meanwhile goes on with the correction.

use api::event::{Failure, FailureCode, StopReason};
use api::response_format::ResponseFormat;
use catalog::CompiledOutputSchema;

use super::AgentError;
use super::turn::Turn;
use super::turn_overrides::NOTE_MARK;

/// The verdict on the last answer of a turn that is about to complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The turn completes.
    Accepted,
    /// The model answers once more, after it was told these errors.
    Rejected(String),
    /// The turn fails.
    Failed(Failure),
}

/// Judges the last answer of a turn that completes for `reason`. Only an answer that the model has ended is judged.
pub(super) fn judge(turn: &Turn, reason: StopReason) -> Verdict {
    let Some(format) = format_of(turn).filter(|_| reason == StopReason::EndTurn) else {
        return Verdict::Accepted;
    };
    let text = turn.last_answer().map(|(_, answer)| answer.text()).unwrap_or_default();
    match validate(format, &text) {
        Ok(()) => Verdict::Accepted,
        Err(errors) if turn.output_rejected() => Verdict::Failed(failure(&errors)),
        Err(errors) => Verdict::Rejected(errors),
    }
}

/// The form of the final answer of a turn.
pub(super) fn format_of(turn: &Turn) -> Option<&ResponseFormat> {
    turn.overrides()?.response_format.as_ref()
}

/// Checks the schema of a request.
pub(super) fn check_schema(format: &ResponseFormat) -> Result<(), AgentError> {
    match CompiledOutputSchema::compile(format.schema.as_value()) {
        Ok(_) => Ok(()),
        Err(reason) => Err(AgentError::Invalid(format!("`response_format.schema`: {reason}"))),
    }
}

/// Validates the text of an answer. The errors say what is wrong and where, one line for each.
pub(super) fn validate(format: &ResponseFormat, text: &str) -> Result<(), String> {
    // It was compiled when the request arrived.
    let schema = CompiledOutputSchema::compile(format.schema.as_value());
    schema.map_err(|reason| format!("- {reason}"))?.validate(text)
}

/// The note about the form, beside the message.
pub(super) fn note(format: &ResponseFormat) -> String {
    let ResponseFormat { name, schema, .. } = format;
    let (name, schema) = (name.as_str(), schema.as_value());
    format!(
        "{NOTE_MARK}: the final answer must be JSON alone, without any other text and without a code fence. \
         Its form is called {name}, and it must match this JSON Schema: {schema}]"
    )
}

/// The note about an answer that does not match.
pub(super) fn rejection_note(errors: &str) -> String {
    format!(
        "{NOTE_MARK}: the answer above does not match the JSON Schema that it must match:\n{errors}\n\
         Answer again, with the corrected JSON alone. No tool can be called any more.]"
    )
}

/// The message about an answer that does not match even after a correction.
pub(super) fn describe_failure(errors: &str) -> String {
    format!("the answer does not match the schema of `response_format`, even after one correction:\n{errors}")
}

fn failure(errors: &str) -> Failure {
    Failure { code: FailureCode::OutputInvalid, message: describe_failure(errors), retryable: true }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/structured_output.rs"]
mod tests;
