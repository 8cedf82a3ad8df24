//! The events of a turn as the stream that answers a call of `ask`.

use std::collections::BTreeSet;

use api::event::{BlockType, Event, HitlRequest, Lifecycle, SentEvent};
use api::turn_reports::TurnReport;
use api::turns::TurnState;
use api::{HitlId, TaskId, TurnId};
use serde_json::{Value, json};

use super::resumption::{EventId, Place, RETRY_MS};
use super::revision::Revision;
use super::{elicitation, tools};
use crate::agent::ReportFold;
use crate::http::json_rpc::{self, Fault, RequestId};
use crate::http::projection::{Projector, push_sse};

/// The code for an answer that does not come because the engine stops.
const ENGINE_STOPS: i64 = -32000;

/// How a person is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asking {
    /// By a request on the stream, which stays open.
    ByRequest,
    /// By the result, which ends it; the call is then sent again.
    ByResult,
    /// Not at all: the result says what waits.
    Never,
}

/// The answer to a call of `ask`.
pub(super) struct AskProjection {
    id: RequestId,
    revision: Revision,
    asking: Asking,
    progress_token: Option<Value>,
    place: Place,
    /// The time of the last event whose message the caller has, if the stream is taken up again.
    known_until: Option<i64>,
    /// Whether events follow that the caller knows.
    is_behind: bool,
    fold: ReportFold,
    /// What the caller's user does not want to answer.
    dismissed: BTreeSet<HitlId>,
    has_ended: bool,
}

impl AskProjection {
    pub(super) fn new(
        id: RequestId,
        revision: Revision,
        asking: Asking,
        progress_token: Option<Value>,
        (task_id, turn_id): (TaskId, TurnId),
        dismissed: Vec<HitlId>,
    ) -> Self {
        let fold = ReportFold::new(task_id, turn_id, false);
        Self {
            id,
            revision,
            asking,
            progress_token,
            place: Place::default(),
            known_until: None,
            is_behind: false,
            fold,
            dismissed: dismissed.into_iter().collect(),
            has_ended: false,
        }
    }

    /// The same for a caller that has everything until `place`.
    pub(super) fn taken_up_at(self, place: Place) -> Self {
        Self { place, known_until: Some(place.ts), is_behind: true, ..self }
    }

    /// The event with which a stream begins, so that it can be taken up again before it has said something.
    pub(super) fn first_event(&self) -> Option<String> {
        self.revision
            .has_first_event()
            .then(|| format!("id: {}\nretry: {RETRY_MS}\ndata:\n\n", self.event_id()))
    }

    fn event_id(&self) -> EventId {
        EventId {
            turn_id: self.fold.report().turn_id,
            request: self.id.clone(),
            progress_token: self.progress_token.clone(),
            place: self.place,
        }
    }

    fn send(&self, out: &mut String, message: &Value) {
        use std::fmt::Write as _;

        if self.revision.has_event_ids() {
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "id: {}", self.event_id());
        }
        push_sse(out, None, message);
    }

    /// Ends it without a result.
    pub(super) const fn give_up(&mut self) {
        self.has_ended = true;
    }

    /// The caller's user does not want to answer this request.
    pub(super) fn dismiss(&mut self, request_id: HitlId, out: &mut String) {
        self.dismissed.insert(request_id);
        self.caught_up(out);
    }

    fn finish(&mut self, out: &mut String, message: &Value) {
        self.has_ended = true;
        self.send(out, message);
    }

    /// Ends it with the outcome of the turn, or with what the turn waits for.
    fn finish_with_report(&mut self, out: &mut String) {
        let result = self.revision.complete(tool_result(self.fold.report()));
        self.finish(out, &json_rpc::result(&self.id, &result));
    }

    fn report_progress(&mut self, out: &mut String, message: &str) {
        let Some(token) = &self.progress_token else { return };
        self.place.progress += 1;
        let params = json!({"progressToken": token, "progress": self.place.progress, "message": message});
        self.send(out, &json_rpc::call(None, "notifications/progress", &params));
    }

    fn ask(&mut self, out: &mut String, request: &HitlRequest) {
        let params = elicitation::params(request, self.fold.report());
        if self.asking == Asking::ByResult {
            let question = json!({"method": "elicitation/create", "params": params});
            let result = self.revision.input_required(json!({
                "inputRequests": {request.request_id.to_string(): question},
                "requestState": self.fold.report().turn_id,
            }));
            self.finish(out, &json_rpc::result(&self.id, &result));
        } else if self.place.asked != Some(request.request_id) {
            self.place.asked = Some(request.request_id);
            let id = RequestId::text(request.request_id.to_string());
            self.send(out, &json_rpc::call(Some(&id), "elicitation/create", &params));
        }
    }
}

/// What is said about an event, if it is progress.
fn progress_message(sent: &SentEvent) -> Option<String> {
    Some(match &sent.event {
        Event::ThreadLifecycle(Lifecycle::Started { .. }) => {
            format!("Turn {} of task {} began.", sent.turn_id, sent.task_id.as_str())
        }
        Event::ThreadLifecycle(Lifecycle::Resumed { .. }) => "The turn goes on after a restart.".to_owned(),
        Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => "The agent begins anew.".to_owned(),
        Event::ContentBlockStart(block) => match block.block_type {
            BlockType::Text => "The agent writes.".to_owned(),
            BlockType::Thinking => "The agent thinks.".to_owned(),
            BlockType::ToolUse => return None,
        },
        Event::ToolCall(call) => format!("The agent calls {}.", call.tool),
        Event::ToolResult(result) if result.error.is_some() => "The call failed.".to_owned(),
        Event::ToolResult(_) => "The call is done.".to_owned(),
        Event::HitlRequest(_) => "The agent waits for a person.".to_owned(),
        Event::HitlResolved(_) => "The person answered.".to_owned(),
        _ => return None,
    })
}

/// The result for a turn that has ended or waits.
fn tool_result(report: &TurnReport) -> Value {
    let is_waiting = !report.pending.is_empty();
    let status = if is_waiting { TurnState::WaitingForPerson } else { report.status };
    let text = match (status, &report.text, &report.error) {
        (TurnState::WaitingForPerson, ..) => waiting_text(report),
        (TurnState::Cancelled, ..) => "The turn was cancelled.".to_owned(),
        (_, Some(text), _) => text.clone(),
        (_, None, Some(failure)) => failure.message.clone(),
        (_, None, None) => "The turn failed.".to_owned(),
    };
    let mut structured = json!({
        "task_id": report.task_id, "turn_id": report.turn_id, "status": status, "pending": report.pending,
    });
    let optional = [
        ("text", report.text.as_ref().map(|text| json!(text))),
        ("stop_reason", report.stop_reason.map(|reason| json!(reason))),
        ("error", report.error.as_ref().map(|failure| json!(failure))),
    ];
    if let Some(fields) = structured.as_object_mut() {
        let given = optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        fields.extend(given);
    }
    let mut result = tools::success(&text, &structured);
    if let Some(fields) = result.as_object_mut() {
        let has_failed = matches!(status, TurnState::Failed | TurnState::Cancelled);
        fields.insert("isError".to_owned(), json!(has_failed));
    }
    result
}

/// What waits, and how it is answered.
fn waiting_text(report: &TurnReport) -> String {
    let questions: Vec<&str> = report.pending.iter().map(|request| request.question.as_str()).collect();
    format!(
        "The agent waits for a person: {}\nThe turn goes on once a person has answered, in the product or with POST \
         /hitl/respond. `tasks` with this task_id and turn_id then has the outcome.",
        questions.join("\n")
    )
}

impl Projector for AskProjection {
    fn apply(&mut self, event: SentEvent, out: &mut String) {
        if self.has_ended {
            return;
        }
        let is_known = self.known_until.is_some_and(|known| event.ts <= known);
        self.is_behind = self.known_until.is_some_and(|known| event.ts < known);
        self.place.ts = self.place.ts.max(event.ts);
        if !is_known && let Some(message) = progress_message(&event) {
            self.report_progress(out, &message);
        }
        // Its reason follows.
        let is_errored = matches!(event.event, Event::ThreadLifecycle(Lifecycle::Errored { .. }));
        self.fold.apply(event);
        if !self.fold.has_ended() || is_errored {
            return;
        }
        if is_known {
            self.has_ended = true;
        } else {
            self.finish_with_report(out);
        }
    }

    fn caught_up(&mut self, out: &mut String) {
        let Some(request) = self.fold.report().pending.first().cloned() else { return };
        if self.has_ended || self.is_behind {
            return;
        }
        if self.asking == Asking::Never || self.dismissed.contains(&request.request_id) {
            self.finish_with_report(out);
        } else {
            self.ask(out, &request);
        }
    }

    fn interrupt(&mut self, out: &mut String) {
        if self.has_ended {
            return;
        }
        let TurnReport { task_id, turn_id, .. } = self.fold.report();
        let message = "the engine stops; the turn goes on at its next start, and `tasks` then has the answer";
        let data = json!({"task_id": task_id, "turn_id": turn_id});
        let fault = Fault::new(ENGINE_STOPS, message).with_data(data);
        let message = json_rpc::error(Some(&self.id), &fault);
        self.finish(out, &message);
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }
}
