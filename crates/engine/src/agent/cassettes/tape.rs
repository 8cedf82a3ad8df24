//! The recorded calls of a cassette, and which of them a call of a run is given the result of. Pure.

use api::cassettes::{CallPairing, MAX_CASSETTE_BYTES, MissingCall};
use llm::{Content, ToolReply, ToolUse};
use serde_json::Value;

/// What a model reads as the result of a call that is not recorded.
pub(super) const NOT_RECORDED: &str =
    "This call is not recorded in the cassette, so nothing was run and there is no result. Go on without it.";

/// The most bytes of results that a run is given: more than any model can be sent. A call may get the result of one
/// that was recorded once again and again.
pub(super) const MAX_SERVED_BYTES: usize = MAX_CASSETTE_BYTES;

/// The results of a run's calls would be over [`MAX_SERVED_BYTES`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuchServed;

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
    /// The bytes of the results that calls were given.
    served_bytes: usize,
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

    /// The size of its result. The bytes of files are shared.
    fn result_bytes(&self) -> usize {
        let remarks = self.remarks.iter().map(|content| match content {
            Content::Text { text } | Content::Note { text } => text.len(),
            Content::Media(_) => 0,
        });
        remarks.fold(self.text.len(), usize::saturating_add)
    }

    fn reply_to(&self, call: &ToolUse) -> ToolReply {
        let (text, remarks) = (self.text.clone(), self.remarks.clone());
        ToolReply { provider_id: call.provider_id.clone(), text, remarks, is_error: self.is_error }
    }
}

impl Tape {
    pub(super) fn new(steps: Vec<RecordedStep>) -> Self {
        let mut tape = Self { calls: Vec::new(), steered: Vec::new(), served_bytes: 0 };
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
    ///
    /// # Errors
    /// The results of the run would be too large. They are not copied.
    pub(super) fn serve(&mut self, calls: &[ToolUse]) -> Result<Vec<Served>, TooMuchServed> {
        let same: Vec<Option<usize>> = calls.iter().map(|call| self.take_same(call)).collect();
        let same = same.into_iter().map(|place| place.map(|place| (place, CallPairing::Same)));
        let places: Vec<_> =
            calls.iter().zip(same).map(|(call, same)| same.or_else(|| self.take_other(call))).collect();
        for (place, _) in places.iter().flatten() {
            let bytes = self.calls.get(*place).map_or(0, |(recorded, _)| recorded.result_bytes());
            self.served_bytes = self.served_bytes.saturating_add(bytes);
        }
        if self.served_bytes > MAX_SERVED_BYTES {
            return Err(TooMuchServed);
        }
        Ok(calls.iter().zip(places).map(|(call, place)| self.reply(call, place)).collect())
    }

    fn take_same(&mut self, call: &ToolUse) -> Option<usize> {
        // An input that could not be read is no input.
        if call.broken.is_some() {
            return None;
        }
        self.take(|recorded| recorded.is_same(call))
    }

    /// The recorded call whose result a call is given that is none of those left.
    fn take_other(&mut self, call: &ToolUse) -> Option<(usize, CallPairing)> {
        if call.broken.is_some() {
            return None;
        }
        if let Some(place) = self.calls.iter().rposition(|(recorded, _)| recorded.is_same(call)) {
            return Some((place, CallPairing::Repeated));
        }
        let place = self.take(|recorded| recorded.tool == call.name)?;
        Some((place, CallPairing::Approximate))
    }

    /// Takes the first call that is it and not taken.
    fn take(&mut self, is_it: impl Fn(&RecordedCall) -> bool) -> Option<usize> {
        let mut calls = self.calls.iter_mut().enumerate();
        let (place, (_, taken)) = calls.find(|(_, (recorded, taken))| !*taken && is_it(recorded))?;
        *taken = true;
        Some(place)
    }

    fn reply(&self, call: &ToolUse, place: Option<(usize, CallPairing)>) -> Served {
        let recorded =
            place.and_then(|(place, pairing)| self.calls.get(place).map(|(call, _)| (call, pairing)));
        let Some((recorded, pairing)) = recorded else {
            return not_recorded(call, call.broken.as_deref().unwrap_or(NOT_RECORDED));
        };
        let recorded_input = (pairing == CallPairing::Approximate).then(|| recorded.input.clone());
        Served { pairing, recorded_input, reply: recorded.reply_to(call) }
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
