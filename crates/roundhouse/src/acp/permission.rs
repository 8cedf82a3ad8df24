//! What a person is asked, in the protocol's form, and what their answers mean.

use api::approvals::{ApprovalDecision, ApprovalRequest};
use api::event::HitlRequest;
use serde_json::{Value, json};

use super::rpc::Answer;
use super::tool_calls;

/// The answer to a question that nobody answered.
const NOT_ANSWERED: &str = "(The user did not answer.)";

/// The parameters of the request for a permission.
pub(super) fn permission_params(session_id: &str, request: &ApprovalRequest) -> Value {
    let options: Vec<Value> = request.decisions.iter().map(|decision| option(*decision)).collect();
    json!({
        "sessionId": session_id,
        "toolCall": {
            "toolCallId": request.tool_call_id,
            "title": tool_calls::title(&request.tool, &request.input),
            "name": request.tool,
            "kind": tool_calls::kind(&request.tool),
            "status": "pending",
            "content": tool_calls::preview_content(&request.preview),
            "rawInput": request.input,
        },
        "options": options,
    })
}

fn option(decision: ApprovalDecision) -> Value {
    let (kind, name) = match decision {
        ApprovalDecision::AllowOnce => ("allow_once", "Allow once"),
        ApprovalDecision::AllowTask => ("allow_always", "Allow in this session"),
        ApprovalDecision::AllowAlways => ("allow_always", "Always allow"),
        ApprovalDecision::Deny => ("reject_once", "Deny"),
    };
    json!({"optionId": decision.as_str(), "name": name, "kind": kind})
}

/// What the client answered to the request for a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermissionAnswer {
    Decided(ApprovalDecision),
    /// The person wants the whole turn to end.
    Cancelled,
    /// The client cannot ask, or its answer is none of the options.
    Unusable,
}

pub(super) fn permission_answer(request: &ApprovalRequest, answer: &Answer) -> PermissionAnswer {
    let Ok(result) = answer else { return PermissionAnswer::Unusable };
    let member = |name: &str| result.pointer(&format!("/outcome/{name}")).and_then(Value::as_str);
    match member("outcome") {
        Some("cancelled") => PermissionAnswer::Cancelled,
        Some("selected") => {
            let chosen =
                request.decisions.iter().find(|decision| member("optionId") == Some(decision.as_str()));
            chosen.map_or(PermissionAnswer::Unusable, |decision| PermissionAnswer::Decided(*decision))
        }
        _ => PermissionAnswer::Unusable,
    }
}

/// The parameters of the request for an answer to a question, for clients that have forms.
pub(super) fn question_params(session_id: &str, request: &HitlRequest) -> Value {
    let mut answer = json!({"type": "string", "title": "Answer"});
    if let (Some(options), Some(fields)) = (&request.options, answer.as_object_mut()) {
        fields.insert("enum".to_owned(), json!(options));
    }
    json!({
        "sessionId": session_id, "mode": "form", "message": request.question,
        "requestedSchema": {"type": "object", "properties": {"answer": answer}, "required": ["answer"]},
    })
}

/// The text with which a form was answered. A person who gives none lets the agent go on without.
pub(super) fn question_answer(answer: &Answer) -> String {
    let given =
        answer.as_ref().ok().filter(|result| result.get("action").is_some_and(|action| action == "accept"));
    let text = given.and_then(|result| result.pointer("/content/answer")).and_then(Value::as_str);
    text.filter(|text| !text.trim().is_empty()).unwrap_or(NOT_ANSWERED).to_owned()
}

/// The question as a text of the agent, for clients without forms: the next prompt is its answer.
pub(super) fn question_text(request: &HitlRequest) -> String {
    let mut text = request.question.clone();
    for option in request.options.iter().flatten() {
        text.push_str("\n- ");
        text.push_str(option);
    }
    text
}
