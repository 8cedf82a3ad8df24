//! Requests to a person, as other protocols ask them.

use api::approvals::{ApprovalDecision, ApprovalRequest};
use api::event::{HitlKind, HitlRequest};

/// The answers that a person can choose from; `None` if any text is one.
pub(super) fn choices(request: &HitlRequest, approvals: &[ApprovalRequest]) -> Option<Vec<String>> {
    if request.kind == HitlKind::Question {
        return request.options.clone();
    }
    let approval = approvals.iter().find(|approval| approval.request_id == request.request_id);
    let may_last = approval.is_some_and(|approval| approval.decisions.contains(&ApprovalDecision::AllowTask));
    let choices = ["yes", "no"].into_iter().chain(may_last.then_some("always"));
    Some(choices.map(str::to_owned).collect())
}
