//! Human in the loop: what a user's answer to a request means, and what is committed for it. Pure.

use api::content::ContentBlock;
use api::engine::{GrantScope, HitlRespond};
use api::event::{Event, HitlKind, HitlResolved};
use api::{CallId, GrantId, HitlId};
use llm::{Content, ToolOutcome, ToolUse};
use store::NewGrant;
use store::event_log::Commit;
use store::steps::Step;
use tools::{Toolbox, grants};

use super::attribution::{agent_name, wrap_event, wrap_step};
use super::call_events::{tool_call_event, tool_result_event};
use super::thread::{PendingHitl, Thread};
use super::{AgentError, provenance};

/// A user's answer, as it was sent.
pub(super) struct HitlResponse {
    request_id: HitlId,
    answer: String,
    feedback: Option<String>,
    content_blocks: Vec<ContentBlock>,
    scope: Option<GrantScope>,
}

impl HitlResponse {
    /// An answer to the request that is `pending` when it arrives. If another answer is handled first, this one
    /// does not apply to the request that follows it, which nobody has seen.
    pub(super) fn new(pending: Option<HitlId>, respond: HitlRespond) -> Result<Self, AgentError> {
        let HitlRespond { answer, feedback, content_blocks, request_id, scope, .. } = respond;
        let pending = pending.ok_or(AgentError::NotPending)?;
        if request_id.is_some_and(|request_id| request_id != pending.to_string()) {
            return Err(AgentError::NotPending);
        }
        let feedback = feedback.filter(|feedback| !feedback.trim().is_empty());
        Ok(Self { request_id: pending, answer, feedback, content_blocks, scope })
    }

    /// The attachments of the answer.
    pub(super) fn content_blocks(&self) -> Vec<ContentBlock> {
        self.content_blocks.clone()
    }

    /// Returns the decision about the request that is pending now.
    pub(super) fn decision_on(&self, pending: &PendingHitl) -> Result<Decision, AgentError> {
        if self.request_id == pending.request_id {
            self.interpret(pending.kind)
        } else {
            Err(AgentError::NotPending)
        }
    }

    /// Interprets the answer for a request of `kind`.
    fn interpret(&self, kind: HitlKind) -> Result<Decision, AgentError> {
        let invalid = |message: &str| Err(AgentError::Invalid(message.to_owned()));
        let decision = match (kind, self.answer.as_str()) {
            (HitlKind::Question, _) => Decision::Answered,
            (HitlKind::Permission, "yes") => Decision::Allowed,
            (HitlKind::Permission, "no") => Decision::Refused,
            (HitlKind::Permission, "always") => {
                return Ok(Decision::AlwaysAllowed(self.scope.unwrap_or_default()));
            }
            (HitlKind::Permission, _) => {
                return invalid("`answer`: must be `yes`, `no` or `always` for a permission request");
            }
        };
        if self.scope.is_some() {
            return invalid("`scope`: is allowed only with the answer `always` to a permission request");
        }
        Ok(decision)
    }
}

/// The user's decision about a request.
pub(super) enum Decision {
    Answered,
    Allowed,
    AlwaysAllowed(GrantScope),
    Refused,
}

/// What is committed when a request is answered.
pub(super) struct Resolution {
    pub(super) commit: Commit,
    pub(super) steps: Vec<Step>,
    pub(super) events: Vec<Event>,
    /// The request that is shown next.
    pub(super) next: Option<PendingHitl>,
}

impl Resolution {
    /// The resolution of `pending`, the first request of `thread`, by the user's response.
    pub(super) fn new(
        thread: &Thread,
        toolbox: &Toolbox,
        pending: &PendingHitl,
        decision: &Decision,
        response: HitlResponse,
        attachments: Vec<Content>,
    ) -> Self {
        let &PendingHitl { request_id, call_id, owner, .. } = pending;
        let HitlResponse { answer, feedback, .. } = response;
        let commit = Commit::new().close_hitl_request(request_id).attachments(&attachments).durable();
        let events = vec![Event::HitlResolved(HitlResolved { request_id, answer: answer.clone() })];
        let mut remarks = attachments;
        let mut refusal = None;
        if let Decision::Refused = decision {
            let comment = feedback.map(|feedback| format!(" They said: {feedback}")).unwrap_or_default();
            refusal = Some(format!("The person did not allow this call, so it was not run.{comment}"));
        } else if let Some(feedback) = feedback {
            remarks.insert(0, Content::Text { text: format!("The user added: {feedback}") });
        }
        let steps = vec![wrap_step(owner, Step::Resolved { request_id, answer, remarks })];
        let mut resolution = Self { commit, steps, events, next: None };
        let call = thread.call(call_id);
        if let (Some(call), Some(reason)) = (call, refusal) {
            resolution.refuse_call(thread, owner, call, reason);
        }
        let mut others: Vec<PendingHitl> = thread.pending_hitl().iter().skip(1).cloned().collect();
        if let (Some(call), Decision::AlwaysAllowed(scope)) = (call, decision) {
            others = resolution.grant(thread, toolbox, call, *scope, others);
        }
        resolution.next = others.into_iter().next();
        resolution
    }

    /// Adds an error as the result of a call that the user did not allow.
    fn refuse_call(&mut self, thread: &Thread, owner: Option<CallId>, call: &ToolUse, reason: String) {
        let outcome = ToolOutcome { output: String::new(), error: Some(reason), duration_ms: 0 };
        let call_events = [tool_call_event(call), tool_result_event(call, &outcome)];
        self.events.extend(call_events.map(|event| wrap_event_for(thread, owner, event)));
        let source = provenance::source_of_result(&call.name, None);
        let step = Step::Resulted { call_id: call.call_id, outcome, memory: Vec::new(), source };
        self.steps.push(wrap_step(owner, step));
    }

    /// Adds a grant for calls like `call`, and resolves those of the `others` that it covers. Returns the
    /// rest.
    fn grant(
        &mut self,
        thread: &Thread,
        toolbox: &Toolbox,
        call: &ToolUse,
        scope: GrantScope,
        mut others: Vec<PendingHitl>,
    ) -> Vec<PendingHitl> {
        let command_of = |call: &ToolUse| toolbox.find(&call.name)?.command(&call.input);
        let command = command_of(call);
        let prefix = command.as_deref().map(grants::prefix_of);
        let grant = NewGrant {
            id: GrantId::new(),
            tool: call.name.clone(),
            scope,
            prefix: prefix.map(str::to_owned),
            binding: toolbox.find(&call.name).and_then(|tool| tool.binding()),
        };
        self.commit = std::mem::take(&mut self.commit).grant(grant);
        others.retain(|other| {
            let is_covered = |other: &ToolUse| {
                other.name == call.name && grants::allows(prefix, command_of(other).as_deref())
            };
            let is_granted =
                other.kind == HitlKind::Permission && thread.call(other.call_id).is_some_and(is_covered);
            if is_granted {
                // Nobody has been shown this request yet, and nobody needs to be.
                let (request_id, answer) = (other.request_id, "yes".to_owned());
                self.steps
                    .push(wrap_step(other.owner, Step::Resolved { request_id, answer, remarks: Vec::new() }));
            }
            !is_granted
        });
        others
    }
}

/// Attributes an event to the sub-agent that the call `owner` runs, or to the turn itself.
fn wrap_event_for(thread: &Thread, owner: Option<CallId>, event: Event) -> Event {
    match owner.and_then(|owner| thread.call(owner)) {
        Some(call) => wrap_event(call.call_id, agent_name(&call.input), event),
        None => event,
    }
}
