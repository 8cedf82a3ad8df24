//! A request to a person, as the protocol asks it, and what the person's answer means. Pure.

use api::engine::{HitlRespond, PendingRequest};
use api::event::{HitlKind, HitlRequest};
use api::turn_reports::TurnReport;
use serde_json::{Value, json};

use crate::http::questions::choices;

/// What an agent is told if its question is declined.
const DECLINED: &str = "I do not want to answer that.";

/// What the answer to a request means.
#[derive(Debug)]
pub(super) enum Answer {
    /// The person answered or refused.
    Given(HitlRespond),
    /// The person did neither.
    Dismissed,
}

/// The parameters of `elicitation/create` for `request`, which `report` names.
pub(super) fn params(request: &HitlRequest, report: &TurnReport) -> Value {
    let choices = choices(request, &report.approvals);
    let answer = choices.map_or_else(
        || json!({"type": "string", "title": "Answer", "minLength": 1}),
        |choices| json!({"type": "string", "title": "Answer", "enum": choices}),
    );
    let properties = match request.kind {
        HitlKind::Question => json!({"answer": answer}),
        HitlKind::Permission => {
            let feedback = json!({"type": "string", "title": "Comment for the agent"});
            json!({"answer": answer, "feedback": feedback})
        }
    };
    json!({
        "mode": "form",
        "message": request.question,
        "requestedSchema": {"type": "object", "properties": properties, "required": ["answer"]},
    })
}

/// What the result of `elicitation/create` for `request` means; a failed request is one that nobody answered.
pub(super) fn parse_answer(request: &PendingRequest, result: Option<&Value>) -> Result<Answer, String> {
    let Some(result) = result else { return Ok(Answer::Dismissed) };
    let given = |answer: &str, feedback: Option<String>| {
        Answer::Given(HitlRespond {
            task_id: request.task_id.clone(),
            answer: answer.to_owned(),
            feedback,
            content_blocks: Vec::new(),
            request_id: Some(request.request_id.to_string()),
            scope: None,
        })
    };
    match result.get("action").and_then(Value::as_str) {
        Some("accept") => {
            let content = result.get("content");
            let answer = content.and_then(|content| content.get("answer")?.as_str());
            let feedback = content.and_then(|content| content.get("feedback")?.as_str());
            let answer = answer.filter(|answer| !answer.trim().is_empty());
            let answer = answer.ok_or("`content.answer`: must be a text that is not blank")?;
            Ok(given(answer, feedback.map(str::to_owned)))
        }
        Some("decline") => Ok(match request.kind {
            HitlKind::Permission => given("no", None),
            HitlKind::Question => given(DECLINED, None),
        }),
        Some("cancel") => Ok(Answer::Dismissed),
        _ => Err("`action`: must be `accept`, `decline` or `cancel`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use api::HitlId;
    use pretty_assertions::assert_eq;

    use super::*;

    fn request(kind: HitlKind) -> PendingRequest {
        PendingRequest {
            request_id: HitlId::new(),
            task_id: api::TaskId::new("t").unwrap(),
            kind,
            question: "May I?".into(),
            created_at: api::Timestamp::from_unix_ms(0),
        }
    }

    fn words(kind: HitlKind, result: &Value) -> Result<Option<(String, Option<String>)>, String> {
        parse_answer(&request(kind), Some(result)).map(|answer| match answer {
            Answer::Given(respond) => Some((respond.answer, respond.feedback)),
            Answer::Dismissed => None,
        })
    }

    #[test]
    fn an_answer_is_one_of_three() {
        let accept = |content: &Value| json!({"action": "accept", "content": content});
        let permission = HitlKind::Permission;
        assert_eq!(words(permission, &accept(&json!({"answer": "yes"}))), Ok(Some(("yes".into(), None))));
        let with_feedback = accept(&json!({"answer": "no", "feedback": "not there"}));
        assert_eq!(words(permission, &with_feedback), Ok(Some(("no".into(), Some("not there".into())))));
        assert_eq!(words(permission, &json!({"action": "decline"})), Ok(Some(("no".into(), None))));
        assert_eq!(
            words(HitlKind::Question, &json!({"action": "decline"})),
            Ok(Some((DECLINED.into(), None)))
        );
        assert_eq!(words(permission, &json!({"action": "cancel"})), Ok(None));
        for wrong in
            [json!({}), json!([]), json!({"action": "maybe"}), accept(&json!({})), accept(&json!(null))]
        {
            assert!(words(permission, &wrong).is_err(), "{wrong}");
        }
        assert!(words(permission, &accept(&json!({"answer": " "}))).is_err());
        assert!(matches!(parse_answer(&request(permission), None), Ok(Answer::Dismissed)));
    }
}
