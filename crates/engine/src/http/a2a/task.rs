//! A turn as a task of the protocol.

use api::approvals::ApprovalRequest;
use api::citations::Citation;
use api::event::{Failure, HitlRequest, StopReason};
use api::turn_reports::TurnReport;
use api::turns::{TurnRecord, TurnState};
use api::{TaskId, Timestamp, TurnId};
use serde_json::{Map, Value, json};

use crate::http::questions::choices;

/// The id of the artifact that has the answer.
const ANSWER: &str = "answer";

/// What the protocol shows of a turn.
pub(super) struct TaskView<'a> {
    turn_id: TurnId,
    task_id: &'a TaskId,
    state: TurnState,
    at: Option<Timestamp>,
    stop_reason: Option<StopReason>,
    error: Option<&'a Failure>,
    pending: Option<&'a HitlRequest>,
    approvals: &'a [ApprovalRequest],
    /// The answer, or its beginning.
    text: Option<&'a str>,
    citations: &'a [Citation],
}

impl<'a> TaskView<'a> {
    pub(super) fn of_report(report: &'a TurnReport) -> Self {
        let pending = report.pending.first();
        Self {
            turn_id: report.turn_id,
            task_id: &report.task_id,
            state: if pending.is_some() { TurnState::WaitingForPerson } else { report.status },
            at: (report.last_ts > 0).then(|| Timestamp::from_unix_ms(report.last_ts)),
            stop_reason: report.stop_reason,
            error: report.error.as_ref(),
            pending,
            approvals: &report.approvals,
            text: report.text.as_deref(),
            citations: &report.citations,
        }
    }

    pub(super) fn of_record(task_id: &'a TaskId, record: &'a TurnRecord) -> Self {
        Self {
            turn_id: record.turn_id,
            task_id,
            state: record.state,
            at: record.ended_at.or(record.started_at).or(record.queued_at),
            stop_reason: record.stop_reason,
            error: record.error.as_ref(),
            pending: None,
            approvals: &[],
            text: record.text.as_deref(),
            citations: &[],
        }
    }

    /// With this beginning of an answer, if there is none yet.
    pub(super) fn with_partial_text(self, text: &'a str) -> Self {
        let partial = (!text.is_empty()).then_some(text);
        Self { text: self.text.or(partial), ..self }
    }

    /// The same without its answer.
    pub(super) fn without_artifacts(self) -> Self {
        Self { text: None, ..self }
    }

    /// The task.
    pub(super) fn task(&self) -> Value {
        let mut task = json!({"id": self.turn_id, "contextId": self.task_id, "status": self.status()});
        if let (Some(text), Some(fields)) = (self.text, task.as_object_mut()) {
            fields.insert("artifacts".to_owned(), json!([artifact(text, self.citations)]));
        }
        self.add_metadata(&mut task);
        task
    }

    /// An event that says in which state the task is.
    pub(super) fn status_update(&self) -> Value {
        let mut update = json!({"taskId": self.turn_id, "contextId": self.task_id, "status": self.status()});
        self.add_metadata(&mut update);
        json!({"statusUpdate": update})
    }

    /// An event that says in which state the task is, with a remark.
    pub(super) fn remark(&self, message_id: &str, text: &str) -> Value {
        let mut status = self.status();
        if let Some(fields) = status.as_object_mut() {
            fields.insert("message".to_owned(), self.message(message_id, &[json!({"text": text})]));
        }
        json!({"statusUpdate": {"taskId": self.turn_id, "contextId": self.task_id, "status": status}})
    }

    /// An event with text of the answer, which continues or replaces what was sent before.
    pub(super) fn artifact_update(&self, text: &str, continues: bool, is_last: bool) -> Value {
        let citations = if is_last { self.citations } else { &[] };
        json!({"artifactUpdate": {
            "taskId": self.turn_id, "contextId": self.task_id, "artifact": artifact(text, citations),
            "append": continues, "lastChunk": is_last,
        }})
    }

    fn add_metadata(&self, value: &mut Value) {
        let Some(stop_reason) = self.stop_reason else { return };
        if let Some(fields) = value.as_object_mut() {
            fields.insert("metadata".to_owned(), json!({"stop_reason": stop_reason}));
        }
    }

    fn status(&self) -> Value {
        let mut status = Map::new();
        status.insert("state".to_owned(), json!(state_name(self.state)));
        if let Some(at) = self.at {
            status.insert("timestamp".to_owned(), json!(at));
        }
        let message = match (self.pending, self.error) {
            (Some(request), _) => Some(self.question(request)),
            (None, Some(failure)) => {
                let id = format!("{}-failure", self.turn_id);
                Some(self.message(&id, &[json!({"text": failure.message}), json!({"data": failure})]))
            }
            (None, None) => None,
        };
        status.extend(message.map(|message| ("message".to_owned(), message)));
        Value::Object(status)
    }

    fn question(&self, request: &HitlRequest) -> Value {
        let mut data = json!({"request_id": request.request_id, "kind": request.kind});
        if let (Some(options), Some(fields)) = (choices(request, self.approvals), data.as_object_mut()) {
            fields.insert("options".to_owned(), json!(options));
        }
        let parts =
            [json!({"text": request.question}), json!({"data": data, "mediaType": "application/json"})];
        self.message(&request.request_id.to_string(), &parts)
    }

    fn message(&self, id: &str, parts: &[Value]) -> Value {
        json!({
            "messageId": id, "contextId": self.task_id, "taskId": self.turn_id, "role": "ROLE_AGENT",
            "parts": parts,
        })
    }
}

fn artifact(text: &str, citations: &[Citation]) -> Value {
    let mut artifact = json!({
        "artifactId": ANSWER, "name": ANSWER, "parts": [{"text": text, "mediaType": "text/plain"}],
    });
    if !citations.is_empty()
        && let Some(fields) = artifact.as_object_mut()
    {
        fields.insert("metadata".to_owned(), json!({"citations": citations}));
    }
    artifact
}

/// The protocol's name of a state.
const fn state_name(state: TurnState) -> &'static str {
    match state {
        TurnState::Queued => "TASK_STATE_SUBMITTED",
        TurnState::Running => "TASK_STATE_WORKING",
        TurnState::WaitingForPerson => "TASK_STATE_INPUT_REQUIRED",
        TurnState::Completed => "TASK_STATE_COMPLETED",
        TurnState::Failed => "TASK_STATE_FAILED",
        TurnState::Cancelled => "TASK_STATE_CANCELED",
    }
}
