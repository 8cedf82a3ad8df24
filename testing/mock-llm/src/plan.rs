//! Plans one answer as a list of steps, which `playback` performs. Delays, gates and faults are
//! resolved here, so that this code can be tested without waiting.

use std::time::Duration;

use bytes::Bytes;

use crate::fault::Fault;
use crate::gate::Gate;
use crate::reply::{Hold, Reply};
use crate::transcript::Transcript;

/// One step of an answer's body.
#[derive(Debug)]
pub(crate) enum Step {
    /// Sends these bytes.
    Send(Bytes),
    /// Waits for this time.
    Pause(Duration),
    /// Waits at a gate.
    Hold(Gate),
    /// Drops the connection.
    Cut,
    /// Keeps the connection open without sending anything.
    Hang,
}

/// How a stream ends.
enum StreamEnd {
    Complete,
    WithoutEndMark,
    Cut(usize),
    Hang(usize),
    ErrorEvent(usize),
}

impl StreamEnd {
    fn from_fault(fault: Option<&Fault>) -> Self {
        match fault {
            None | Some(Fault::Refuse { .. } | Fault::SlowHeaders { .. }) => Self::Complete,
            Some(Fault::NoEndMark) => Self::WithoutEndMark,
            Some(Fault::CutAfter { deltas }) => Self::Cut(*deltas),
            Some(Fault::HangAfter { deltas }) => Self::Hang(*deltas),
            Some(Fault::ErrorEventAfter { deltas, .. }) => Self::ErrorEvent(*deltas),
        }
    }

    /// The number of deltas that are sent, and the offset at which the answer ends.
    fn truncation_point(&self, transcript: &Transcript) -> (usize, usize) {
        match *self {
            Self::Complete => (transcript.deltas(), transcript.end()),
            Self::WithoutEndMark => (transcript.deltas(), transcript.end_mark()),
            Self::Cut(deltas) | Self::Hang(deltas) | Self::ErrorEvent(deltas) => {
                (deltas.min(transcript.deltas()), transcript.offset_after(deltas))
            }
        }
    }
}

/// Plans a streamed answer. `error_event` renders the wire's error in the stream from the number of events before
/// it.
pub(crate) fn plan_stream(
    transcript: &Transcript,
    reply: &Reply,
    error_event: impl FnOnce(usize) -> Bytes,
) -> Vec<Step> {
    let stream_end = StreamEnd::from_fault(reply.fault.as_ref());
    let (last_delta, end) = stream_end.truncation_point(transcript);
    let delay = Duration::from_millis(reply.delay_ms);
    let mut plan = StreamPlan { transcript, sent: 0, steps: Vec::new() };
    for delta in 0..=last_delta {
        for gate in gates_at(&reply.holds, |after| after == delta) {
            plan.send_then(transcript.offset_after(delta), Step::Hold(gate));
        }
        if !delay.is_zero() && (1..last_delta).contains(&delta) {
            plan.send_then(transcript.offset_after(delta), Step::Pause(delay));
        }
    }
    // A gate after a fault is never reached, because the answer ends first.
    if matches!(stream_end, StreamEnd::Complete | StreamEnd::WithoutEndMark) {
        for gate in gates_at(&reply.holds, |after| after > last_delta) {
            plan.send_then(transcript.end_mark(), Step::Hold(gate));
        }
    }
    plan.send_up_to(end);
    match stream_end {
        StreamEnd::Complete | StreamEnd::WithoutEndMark => {}
        StreamEnd::Cut(_) => plan.steps.push(Step::Cut),
        StreamEnd::Hang(_) => plan.steps.push(Step::Hang),
        StreamEnd::ErrorEvent(deltas) => {
            plan.steps.push(Step::Send(error_event(transcript.boundary_after(deltas).events)));
        }
    }
    plan.steps
}

/// A plan under construction. All bytes between two other steps become a single send.
struct StreamPlan<'a> {
    transcript: &'a Transcript,
    sent: usize,
    steps: Vec<Step>,
}

impl StreamPlan<'_> {
    fn send_up_to(&mut self, offset: usize) {
        if offset > self.sent {
            self.steps.push(Step::Send(self.transcript.slice(self.sent..offset)));
            self.sent = offset;
        }
    }

    fn send_then(&mut self, offset: usize, step: Step) {
        self.send_up_to(offset);
        self.steps.push(step);
    }
}

/// Plans an answer that is not streamed.
pub(crate) fn plan_complete(body: &Bytes, reply: &Reply) -> Vec<Step> {
    let mut steps: Vec<Step> = reply.holds.iter().map(|hold| Step::Hold(hold.gate.clone())).collect();
    let half = body.slice(..body.len() / 2);
    match StreamEnd::from_fault(reply.fault.as_ref()) {
        StreamEnd::Complete | StreamEnd::WithoutEndMark | StreamEnd::ErrorEvent(_) => {
            steps.push(Step::Send(body.clone()));
        }
        StreamEnd::Cut(_) => steps.extend([Step::Send(half), Step::Cut]),
        StreamEnd::Hang(_) => steps.extend([Step::Send(half), Step::Hang]),
    }
    steps
}

/// The gates whose number of preceding deltas satisfies a condition.
fn gates_at(holds: &[Hold], condition: impl Fn(usize) -> bool) -> impl Iterator<Item = Gate> {
    holds.iter().filter(move |hold| condition(hold.after_deltas)).map(|hold| hold.gate.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::transcript::TranscriptWriter;

    /// Three deltas `1`, `2`, `3` between a head `0` and a tail `4`.
    fn transcript() -> Transcript {
        let mut writer = TranscriptWriter::default();
        writer.event(None, &json!(0));
        for delta in 1..=3 {
            writer.delta(None, &json!(delta));
        }
        writer.event(None, &json!(4));
        writer.finish("END")
    }

    fn describe(reply: &Reply) -> String {
        let error = |events: usize| Bytes::from(format!("ERR@{events}"));
        let steps = plan_stream(&transcript(), reply, error);
        let show = |step: &Step| match step {
            Step::Send(bytes) => String::from_utf8_lossy(bytes).replace("data: ", "").replace("\n\n", ""),
            Step::Pause(_) => "~".to_owned(),
            Step::Hold(_) => "|".to_owned(),
            Step::Cut => "X".to_owned(),
            Step::Hang => "…".to_owned(),
        };
        steps.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_answer_becomes_steps() {
        let gate = Gate::new();
        let paused = |reply: Reply| reply.delay(Duration::from_millis(1));
        let cases = [
            (Reply::new(), "01234END"),
            (paused(Reply::new()), "01 ~ 2 ~ 34END"),
            (Reply::new().hold(0, &gate), "0 | 1234END"),
            (Reply::new().hold(2, &gate), "012 | 34END"),
            (Reply::new().hold(9, &gate), "01234 | END"),
            (Reply::new().fault(Fault::NoEndMark), "01234"),
            (Reply::new().fault(Fault::cut_after(0)), "0 X"),
            (Reply::new().fault(Fault::cut_after(2)), "012 X"),
            (Reply::new().fault(Fault::cut_after(9)), "01234 X"),
            (Reply::new().fault(Fault::hang_after(1)), "01 …"),
            (Reply::new().fault(Fault::error_event_after(1)), "01 ERR@2"),
            (Reply::new().fault(Fault::cut_after(1)).hold(1, &gate), "01 | X"),
            (Reply::new().fault(Fault::cut_after(1)).hold(2, &gate), "01 X"),
        ];
        for (reply, expected) in cases {
            assert_eq!(describe(&reply), expected, "{reply:?}");
        }
    }
}
