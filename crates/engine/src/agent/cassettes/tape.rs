//! The recorded calls of a cassette, and which of them a call of a run is given the result of. Pure.

use api::cassettes::{CallPairing, MissingCall};
use llm::{Content, ToolReply, ToolUse};
use serde_json::Value;

/// What a model reads as the result of a call that is not recorded.
pub(super) const NOT_RECORDED: &str =
    "This call is not recorded in the cassette, so nothing was run and there is no result. Go on without it.";

/// A recorded call with its result.
pub(super) struct RecordedCall {
    pub(super) tool: String,
    /// The input that the model gave.
    pub(super) input: Value,
    /// The input that ran instead.
    pub(super) ran_input: Option<Value>,
    pub(super) text: String,
    pub(super) is_error: bool,
    pub(super) remarks: Vec<Content>,
}

/// What a recorded answer was followed by.
pub(super) struct RecordedStep {
    pub(super) calls: Vec<RecordedCall>,
    /// What the user sent meanwhile.
    pub(super) steered: Vec<String>,
}

/// The recorded calls in order. Each is taken by at most one call of the run.
pub(super) struct Tape {
    calls: Vec<(RecordedCall, bool)>,
    steered: Vec<Vec<String>>,
}

/// The result that a call of the run is given.
#[derive(Debug, PartialEq)]
pub(super) struct Served {
    pub(super) pairing: CallPairing,
    /// The input of the recorded call, if that is another one.
    pub(super) recorded_input: Option<Value>,
    pub(super) reply: ToolReply,
}

impl RecordedCall {
    fn is_same(&self, call: &ToolUse) -> bool {
        let inputs = std::iter::once(&self.input).chain(&self.ran_input);
        self.tool == call.name && inputs.into_iter().any(|input| same_value(input, &call.input))
    }

    fn reply_to(&self, call: &ToolUse) -> ToolReply {
        let (text, remarks) = (self.text.clone(), self.remarks.clone());
        ToolReply { provider_id: call.provider_id.clone(), text, remarks, is_error: self.is_error }
    }
}

impl Tape {
    pub(super) fn new(steps: Vec<RecordedStep>) -> Self {
        let mut tape = Self { calls: Vec::new(), steered: Vec::new() };
        for RecordedStep { calls, steered } in steps {
            tape.calls.extend(calls.into_iter().map(|call| (call, false)));
            tape.steered.push(steered);
        }
        tape
    }

    /// What the user sent after the recorded step with this number.
    pub(super) fn steered(&self, step: usize) -> &[String] {
        self.steered.get(step).map(Vec::as_slice).unwrap_or_default()
    }

    /// The results of the calls of one answer, in their order. A call takes the first recorded one that is the same and
    /// not taken. Only then the others take what is left, so that no call loses its own result to another one.
    pub(super) fn serve(&mut self, calls: &[ToolUse]) -> Vec<Served> {
        let exact: Vec<Option<Served>> = calls.iter().map(|call| self.take_same(call)).collect();
        calls.iter().zip(exact).map(|(call, exact)| exact.unwrap_or_else(|| self.serve_other(call))).collect()
    }

    fn take_same(&mut self, call: &ToolUse) -> Option<Served> {
        let mut open = self.calls.iter_mut().filter(|(_, taken)| !*taken);
        let (recorded, taken) = open.find(|(recorded, _)| recorded.is_same(call))?;
        *taken = true;
        let reply = recorded.reply_to(call);
        Some(Served { pairing: CallPairing::Same, recorded_input: None, reply })
    }

    fn serve_other(&mut self, call: &ToolUse) -> Served {
        if let Some((recorded, _)) = self.calls.iter().rev().find(|(recorded, _)| recorded.is_same(call)) {
            let reply = recorded.reply_to(call);
            return Served { pairing: CallPairing::Repeated, recorded_input: None, reply };
        }
        // An input that could not be read is no input.
        if let Some(reason) = &call.broken {
            return not_recorded(call, reason);
        }
        let mut open = self.calls.iter_mut().filter(|(_, taken)| !*taken);
        let Some((recorded, taken)) = open.find(|(recorded, _)| recorded.tool == call.name) else {
            return not_recorded(call, NOT_RECORDED);
        };
        *taken = true;
        let recorded_input = Some(recorded.input.clone());
        Served { pairing: CallPairing::Approximate, recorded_input, reply: recorded.reply_to(call) }
    }

    /// The recorded calls that no call has taken.
    pub(super) fn into_missing(self) -> Vec<MissingCall> {
        let missing = self.calls.into_iter().filter(|(_, taken)| !taken);
        missing.map(|(RecordedCall { tool, input, .. }, _)| MissingCall { tool, input }).collect()
    }
}

fn not_recorded(call: &ToolUse, text: &str) -> Served {
    let (provider_id, text) = (call.provider_id.clone(), text.to_owned());
    let reply = ToolReply { provider_id, text, remarks: Vec::new(), is_error: true };
    Served { pairing: CallPairing::NotRecorded, recorded_input: None, reply }
}

/// Whether two values are the same whatever the order of their members and the notation of their numbers.
pub(super) fn same_value(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(name, value)| other.get(name).is_some_and(|other| same_value(value, other)))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same_value(one, other))
        }
        (Value::Number(one), Value::Number(other)) => {
            one == other || (is_float(one) || is_float(other)) && one.as_f64() == other.as_f64()
        }
        _ => one == other,
    }
}

fn is_float(number: &serde_json::Number) -> bool {
    number.is_f64()
}

#[cfg(test)]
#[path = "../../../tests/unit/agent/cassettes/tape.rs"]
mod tests;
