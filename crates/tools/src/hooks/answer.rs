//! The answer of a hook. Pure.

use api::event::HookPhase;
use resources::text::first_chars;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The longest reason of a refusal or a failure, in characters.
pub(super) const MAX_REASON_CHARS: usize = 1_024;
/// The longest note for the model, in characters.
const MAX_NOTE_CHARS: usize = 4_096;

/// The longest result, in characters: of a tool as a hook is sent it, and of a hook as it replaces a tool's.
pub(super) const MAX_RESULT_CHARS: usize = 64 * 1024;

/// What a hook answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HookAnswer {
    /// Why it refuses.
    pub(super) refusal: Option<String>,
    /// The input that replaces the call's: an object.
    pub(super) input: Option<Value>,
    /// The text that replaces the result.
    pub(super) result: Option<String>,
    /// What the model reads with the result.
    pub(super) note: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAnswer {
    decision: Decision,
    reason: Option<String>,
    input: Option<Map<String, Value>>,
    result: Option<String>,
    note: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Allow,
    Refuse,
}

impl HookAnswer {
    /// Parses the answer of a hook that runs in `phase`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str, phase: HookPhase) -> Result<Self, String> {
        let written: WrittenAnswer = serde_json::from_str(text).map_err(|error| {
            let reason = first_chars(&error.to_string(), MAX_REASON_CHARS).to_owned();
            format!("its answer is not a JSON object with `decision`: {reason}")
        })?;
        let WrittenAnswer { decision, reason, input, result, note } = written;
        match phase {
            HookPhase::Before if result.is_some() => {
                return Err("its answer has a `result`, but the tool has not run".to_owned());
            }
            HookPhase::After if input.is_some() => {
                return Err("its answer has an `input`, but the tool has run".to_owned());
            }
            HookPhase::Before | HookPhase::After => {}
        }
        if decision == Decision::Refuse {
            let reason = reason.filter(|reason| !reason.trim().is_empty());
            let reason = reason.unwrap_or_else(|| "it gave no reason".to_owned());
            let refusal = Some(shorten(&reason, MAX_REASON_CHARS));
            return Ok(Self { refusal, ..Self::default() });
        }
        let note = note.filter(|note| !note.trim().is_empty());
        Ok(Self {
            refusal: None,
            input: input.map(Value::Object),
            result: result.map(|result| shorten(&result, MAX_RESULT_CHARS)),
            note: note.map(|note| shorten(&note, MAX_NOTE_CHARS)),
        })
    }
}

fn shorten(text: &str, max_chars: usize) -> String {
    let kept = first_chars(text, max_chars);
    if kept.len() < text.len() { format!("{kept} [cut]") } else { text.to_owned() }
}
