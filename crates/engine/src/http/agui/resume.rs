//! Interrupts: what a run stops for, and the answers with which the next one continues.

use api::approvals::{ApprovalDecision, ApprovalRequest, ApprovalRespond};
use api::engine::HitlRespond;
use api::event::{HitlKind, HitlRequest};
use api::{HitlId, TaskId, TurnId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{ResumeEntry, ResumeStatus};
use crate::agent::{AgentError, FollowedTurn};
use crate::http::Shared;
use crate::http::openai::VendorError;

/// The answer to a question that nobody answered.
const NOT_ANSWERED: &str = "(The user did not answer.)";

/// An interrupt: a request to a person, and the turn that waits for it.
pub(super) struct Interrupt {
    pub(super) turn_id: TurnId,
    pub(super) request_id: HitlId,
}

/// The answer that a run was given, by which a repeated one is recognized.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expected {
    Decision(ApprovalDecision),
    Answer(String),
    /// It can be either, since it is not known what was asked.
    Unknown,
}

/// What a resume entry says about a tool call.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ApprovalPayload {
    #[serde(default)]
    approved: Option<bool>,
    #[serde(default)]
    decision: Option<ApprovalDecision>,
    #[serde(default)]
    edited_args: Option<Value>,
    #[serde(default)]
    pattern: Option<String>,
    #[serde(default)]
    message: Option<String>,
}

impl Interrupt {
    /// The id, from which the turn is found again.
    pub(super) fn id(turn_id: TurnId, request_id: HitlId) -> String {
        format!("{turn_id}.{request_id}")
    }

    pub(super) fn parse(id: &str) -> Result<Self, VendorError> {
        let (turn_id, request_id) = id.split_once('.').ok_or_else(unknown_interrupt)?;
        let turn_id = turn_id.parse().map_err(|_| unknown_interrupt())?;
        let request_id = request_id.parse().map_err(|_| unknown_interrupt())?;
        Ok(Self { turn_id, request_id })
    }
}

fn unknown_interrupt() -> VendorError {
    VendorError::not_found("`resume`: there is no such interrupt in this thread", "interrupt_not_found")
}

/// The interrupt as the protocol has it. `approval` has the details if it is about a tool call.
pub(super) fn describe(turn_id: TurnId, request: &HitlRequest, approval: Option<&ApprovalRequest>) -> Value {
    let id = Interrupt::id(turn_id, request.request_id);
    match (request.kind, approval) {
        (HitlKind::Permission, approval) => {
            let mut interrupt = json!({
                "id": id, "reason": "tool_call", "message": request.question, "responseSchema": approval_schema(approval),
            });
            if let (Some(fields), Some(approval)) = (interrupt.as_object_mut(), approval) {
                fields.insert("toolCallId".to_owned(), json!(approval.tool_call_id));
                fields.insert("metadata".to_owned(), json!({"roundhouse": approval}));
            }
            interrupt
        }
        (HitlKind::Question, _) => {
            let mut answer = json!({"type": "string"});
            if let (Some(options), Some(fields)) = (&request.options, answer.as_object_mut()) {
                fields.insert("examples".to_owned(), json!(options));
            }
            json!({
                "id": id, "reason": "input_required", "message": request.question, "responseSchema": {
                    "type": "object", "properties": {"answer": answer}, "required": ["answer"],
                },
            })
        }
    }
}

fn approval_schema(approval: Option<&ApprovalRequest>) -> Value {
    let decisions = approval.map(|approval| approval.decisions.clone()).unwrap_or_default();
    json!({
        "type": "object",
        "properties": {
            "approved": {"type": "boolean"},
            "decision": {"type": "string", "enum": decisions},
            "editedArgs": {"type": "object"},
            "pattern": {"type": "string"},
            "message": {"type": "string"},
        },
        "additionalProperties": false,
    })
}

/// The turn that an interrupt belongs to, from its first event on.
pub(super) async fn follow(
    shared: &Shared,
    thread: &TaskId,
    interrupt: &Interrupt,
) -> Result<FollowedTurn, VendorError> {
    match shared.agent.follow(&interrupt.turn_id.to_string()).await {
        Ok(turn) if turn.task_id == *thread => Ok(turn),
        Ok(_) | Err(AgentError::UnknownTurn(_)) => Err(unknown_interrupt()),
        Err(error) => Err(error.into()),
    }
}

/// Answers an interrupt, unless it has been answered: then the projection finds out whether the answer was this one.
pub(super) async fn answer(
    shared: &Shared,
    thread: &TaskId,
    interrupt: &Interrupt,
    entry: ResumeEntry,
) -> Result<Expected, VendorError> {
    follow(shared, thread, interrupt).await?;
    let pending = shared.agent.pending_requests().await?;
    let is_ours = |id: HitlId| id == interrupt.request_id;
    let is_question =
        pending.iter().any(|request| is_ours(request.request_id) && request.kind == HitlKind::Question);
    let approvals = shared.agent.approvals(thread.clone()).await?;
    let id = interrupt.request_id.to_string();
    if approvals.iter().any(|request| is_ours(request.request_id)) {
        let respond = approval_answer(entry)?;
        let decision = respond.decision;
        return match shared.agent.answer_approval(thread.clone(), &id, respond).await {
            Ok(_) | Err(AgentError::ApprovalAnswered(_)) => Ok(Expected::Decision(decision)),
            Err(error) => Err(error.into()),
        };
    }
    if !is_question {
        return Ok(expected_of(entry));
    }
    let answer = question_answer(&entry)?;
    let respond = HitlRespond {
        task_id: thread.clone(),
        answer: answer.clone(),
        feedback: None,
        content_blocks: Vec::new(),
        request_id: Some(id),
        scope: None,
    };
    match shared.agent.respond(respond).await {
        Ok(_) | Err(AgentError::NotPending) => Ok(Expected::Answer(answer)),
        Err(error) => Err(error.into()),
    }
}

/// What the answer would have been to a request that no longer waits.
fn expected_of(entry: ResumeEntry) -> Expected {
    let is_about_a_call = entry.payload.get("approved").is_some() || entry.payload.get("decision").is_some();
    if is_about_a_call {
        return approval_answer(entry)
            .map_or(Expected::Unknown, |respond| Expected::Decision(respond.decision));
    }
    match entry.status {
        ResumeStatus::Cancelled => Expected::Unknown,
        ResumeStatus::Resolved => question_answer(&entry).map_or(Expected::Unknown, Expected::Answer),
    }
}

fn approval_answer(entry: ResumeEntry) -> Result<ApprovalRespond, VendorError> {
    let invalid = |error: &dyn std::fmt::Display| VendorError::invalid("resume[0].payload", error);
    let respond = |decision| ApprovalRespond { decision, pattern: None, input: None, message: None };
    let payload: ApprovalPayload = match (entry.status, entry.payload) {
        (ResumeStatus::Cancelled, _) => return Ok(respond(ApprovalDecision::Deny)),
        (ResumeStatus::Resolved, payload) => {
            serde_json::from_value(payload).map_err(|error| invalid(&error))?
        }
    };
    let decision = match (payload.approved, payload.decision) {
        (Some(true), None) => ApprovalDecision::AllowOnce,
        (Some(false), None) => ApprovalDecision::Deny,
        (None, Some(decision)) => decision,
        _ => return Err(invalid(&"must have one of `approved` and `decision`")),
    };
    Ok(ApprovalRespond {
        pattern: payload.pattern,
        input: payload.edited_args,
        message: payload.message,
        ..respond(decision)
    })
}

fn question_answer(entry: &ResumeEntry) -> Result<String, VendorError> {
    let answer = match (entry.status, &entry.payload) {
        (ResumeStatus::Cancelled, _) => Some(NOT_ANSWERED),
        (_, Value::String(answer)) => Some(answer.as_str()),
        (_, payload) => payload.get("answer").and_then(Value::as_str),
    };
    let expected = "must be the answer, or an object with `answer`";
    answer.map(str::to_owned).ok_or_else(|| VendorError::invalid("resume[0].payload", expected))
}
