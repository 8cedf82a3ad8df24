//! Human in the loop: what a user's answer to a request means, and what is committed for it. Pure.

use api::approvals::{ApprovalDecision, ApprovalReason, ApprovalResolved};
use api::content::ContentBlock;
use api::engine::{GrantScope, HitlRespond};
use api::event::{Event, HitlKind, HitlResolved};
use api::{CallId, GrantId, HitlId};
use llm::{ChatModel, Content, ToolOutcome, ToolUse};
use serde_json::Value;
use store::NewGrant;
use store::event_log::Commit;
use store::steps::Step;
use tools::patterns::{self, Subject};
use tools::{Toolbox, approval};

use super::approval_answer::{ASKED_EACH_TIME, ApprovalAnswer};
use super::approval_prompt::decisions_for;
use super::attachment_intake::Intake;
use super::attribution::{agent_name, wrap_event, wrap_step};
use super::call_events::{tool_call_event, tool_result_event};
use super::thread::{PendingHitl, Thread};
use super::{AgentError, provenance, turn_request};

/// A user's answer, as it was sent.
pub(super) struct HitlResponse {
    request_id: HitlId,
    answer: String,
    feedback: Option<String>,
    content_blocks: Vec<ContentBlock>,
    /// What is known of them.
    intake: Box<Intake>,
    scope: Option<GrantScope>,
    /// The caller's own id of the answer.
    answer_id: Option<String>,
    /// What only the answer to an approval request has.
    approval: Option<Box<ApprovalAnswer>>,
}

impl HitlResponse {
    /// An answer to the request that is `pending` when it arrives. If another answer is handled first, this one
    /// does not apply to the request that follows it, which nobody has seen.
    pub(super) fn new(
        pending: Option<HitlId>,
        respond: HitlRespond,
        intake: Intake,
        answer_id: Option<String>,
    ) -> Result<Self, AgentError> {
        let HitlRespond { answer, feedback, content_blocks, request_id, scope, .. } = respond;
        let pending = pending.ok_or(AgentError::NotPending)?;
        if request_id.is_some_and(|request_id| request_id != pending.to_string()) {
            return Err(AgentError::NotPending);
        }
        let feedback = feedback.filter(|feedback| !feedback.trim().is_empty());
        Ok(Self {
            request_id: pending,
            answer,
            feedback,
            content_blocks,
            intake: Box::new(intake),
            scope,
            answer_id,
            approval: None,
        })
    }

    /// A decision about a call, which need not be the one that is shown first.
    pub(super) fn for_approval(request_id: HitlId, answer: ApprovalAnswer, message: Option<String>) -> Self {
        let (words, scope) = match answer.decision {
            ApprovalDecision::AllowOnce => ("yes", None),
            ApprovalDecision::AllowTask => ("always", Some(GrantScope::Task)),
            ApprovalDecision::AllowAlways => ("always", Some(GrantScope::Engine)),
            ApprovalDecision::Deny => ("no", None),
        };
        Self {
            request_id,
            answer: words.to_owned(),
            feedback: message,
            content_blocks: Vec::new(),
            intake: Box::default(),
            scope,
            answer_id: None,
            approval: Some(Box::new(answer)),
        }
    }

    /// The attachments of the answer, for a model.
    pub(super) fn attachments(&self, model: Option<&dyn ChatModel>) -> Result<Vec<Content>, AgentError> {
        let (blocks, extracted) = (self.content_blocks.clone(), self.intake.extracted.clone());
        turn_request::parse_attachments("content_blocks", blocks, extracted, model)
    }

    /// Returns the request that is answered and the decision about it.
    pub(super) fn decide(
        &self,
        thread: &Thread,
        toolbox: &Toolbox,
    ) -> Result<(PendingHitl, Decision), AgentError> {
        let mut requests = thread.pending_hitl().iter();
        let found = requests.find(|pending| pending.request_id == self.request_id);
        let pending = found.ok_or(AgentError::NotPending)?;
        if let (Some(answer), Some(call)) = (&self.approval, thread.call(pending.call_id)) {
            answer.validate(pending.reason, call, toolbox)?;
        }
        let decision = self.interpret(pending.kind)?;
        let is_possible =
            |decision| pending.reason.is_none_or(|reason| decisions_for(reason).contains(&decision));
        if decision.approval().is_some_and(|approval| !is_possible(approval)) {
            return Err(AgentError::Invalid(format!(
                "`answer`: {ASKED_EACH_TIME}; it must be `yes` or `no`"
            )));
        }
        Ok((pending.clone(), decision))
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
#[derive(Clone, Copy)]
pub(super) enum Decision {
    Answered,
    Allowed,
    AlwaysAllowed(GrantScope),
    Refused,
}

impl Decision {
    /// The decision as an approval; `None` for the answer to a question.
    fn approval(self) -> Option<ApprovalDecision> {
        match self {
            Self::Answered => None,
            Self::Allowed => Some(ApprovalDecision::AllowOnce),
            Self::AlwaysAllowed(GrantScope::Task) => Some(ApprovalDecision::AllowTask),
            Self::AlwaysAllowed(GrantScope::Engine) => Some(ApprovalDecision::AllowAlways),
            Self::Refused => Some(ApprovalDecision::Deny),
        }
    }
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
    /// The resolution of `pending`, a request of `thread`, by the user's response.
    pub(super) fn new(
        thread: &Thread,
        toolbox: &Toolbox,
        pending: &PendingHitl,
        decision: Decision,
        response: HitlResponse,
        attachments: Vec<Content>,
    ) -> Self {
        let &PendingHitl { request_id, call_id, owner, .. } = pending;
        let HitlResponse { answer, feedback, approval, answer_id, .. } = response;
        let (changed, pattern) = approval.map(|answer| (answer.input, answer.pattern)).unwrap_or_default();
        let call = thread.call(call_id);
        let changed = changed.filter(|input| call.is_some_and(|call| call.input != *input));
        let mut resolution = Self {
            commit: Commit::new().attachments(&attachments).durable(),
            steps: Vec::new(),
            events: Vec::new(),
            next: None,
        };
        let grant = match (call, decision) {
            (Some(call), Decision::AlwaysAllowed(scope)) => {
                let call = ToolUse { input: changed.clone().unwrap_or(call.input.clone()), ..call.clone() };
                Some(new_grant(toolbox, &call, scope, pattern, request_id))
            }
            _ => None,
        };
        let grant_id = grant.as_ref().map(|grant| grant.id);
        resolution.close(thread, pending, &answer, decision, grant_id);
        if let Some(Event::ApprovalResolved(resolved)) = resolution.events.last_mut() {
            (resolved.input, resolved.message) = (changed.clone(), feedback.clone());
        }
        let mut remarks = attachments;
        let mut refusal = None;
        if let Decision::Refused = decision {
            let comment = feedback.map(|feedback| format!(" They said: {feedback}")).unwrap_or_default();
            refusal = Some(format!("The person did not allow this call, so it was not run.{comment}"));
        } else if let Some(feedback) = feedback {
            remarks.insert(0, Content::Text { text: format!("The user added: {feedback}") });
        }
        let step = match changed {
            Some(input) => {
                remarks.insert(0, Content::Text { text: describe_change(&input) });
                Step::InputChanged { request_id, call_id, input, answer, remarks }
            }
            None => Step::Resolved { request_id, answer, remarks, answer_id },
        };
        resolution.steps.push(wrap_step(owner, step));
        if let (Some(call), Some(reason)) = (call, refusal) {
            resolution.refuse_call(thread, pending, call, reason);
        }
        let others = thread.pending_hitl().iter().filter(|other| other.request_id != request_id);
        let mut others: Vec<PendingHitl> = others.cloned().collect();
        if let Some(grant) = grant {
            others = resolution.apply_grant(thread, toolbox, decision, grant, others);
        }
        // The one that is shown stays so if it is still open.
        let shown = thread.pending_hitl().first().map(|shown| shown.request_id);
        resolution.next = others.into_iter().next().filter(|next| Some(next.request_id) != shown);
        resolution
    }

    /// Closes a request for clients and for the store.
    fn close(
        &mut self,
        thread: &Thread,
        pending: &PendingHitl,
        answer: &str,
        decision: Decision,
        grant_id: Option<GrantId>,
    ) {
        let &PendingHitl { request_id, call_id, reason, .. } = pending;
        // Only the first one was shown as a HITL request.
        if thread.pending_hitl().first().is_some_and(|shown| shown.request_id == request_id) {
            self.commit = std::mem::take(&mut self.commit).close_hitl_request(request_id);
            self.events.push(Event::HitlResolved(HitlResolved { request_id, answer: answer.to_owned() }));
        }
        if let (Some(_), Some(decision)) = (reason, decision.approval()) {
            self.commit = std::mem::take(&mut self.commit).close_approval(request_id, decision);
            self.events.push(Event::ApprovalResolved(ApprovalResolved {
                request_id,
                tool_call_id: call_id,
                decision,
                input: None,
                message: None,
                grant_id,
            }));
        }
    }

    /// Adds an error as the result of a call that the user did not allow.
    fn refuse_call(&mut self, thread: &Thread, pending: &PendingHitl, call: &ToolUse, reason: String) {
        let owner = pending.owner;
        let outcome = ToolOutcome::new(String::new(), Some(reason), 0);
        // Clients have received the call together with the request for its approval.
        let announcement = pending.reason.is_none().then(|| tool_call_event(call));
        let call_events = announcement.into_iter().chain([tool_result_event(call, &outcome)]);
        self.events.extend(call_events.map(|event| wrap_event_for(thread, owner, event)));
        let source = provenance::source_of_result(&call.name, None);
        let step = Step::Resulted { call_id: call.call_id, outcome, memory: Vec::new(), source };
        self.steps.push(wrap_step(owner, step));
    }

    /// Adds a grant, and resolves those of the `others` that it covers. Returns the rest.
    fn apply_grant(
        &mut self,
        thread: &Thread,
        toolbox: &Toolbox,
        decision: Decision,
        grant: NewGrant,
        mut others: Vec<PendingHitl>,
    ) -> Vec<PendingHitl> {
        others.retain(|other| {
            let is_covered = |call: &ToolUse| {
                let subject = subject_of(toolbox, call);
                call.name == grant.tool && patterns::allows(grant.prefix.as_deref(), subject.as_ref())
            };
            // Nothing lasting covers what is asked about each time.
            let is_granted = other.kind == HitlKind::Permission
                && other.reason != Some(ApprovalReason::UntrustedContent)
                && thread.call(other.call_id).is_some_and(is_covered);
            if is_granted {
                let (request_id, answer) = (other.request_id, "yes".to_owned());
                self.close(thread, other, &answer, decision, Some(grant.id));
                let step = Step::Resolved { request_id, answer, remarks: Vec::new(), answer_id: None };
                self.steps.push(wrap_step(other.owner, step));
            }
            !is_granted
        });
        self.commit = std::mem::take(&mut self.commit).grant(grant);
        others
    }
}

/// A grant for calls like `call`: those that the pattern covers, or else as the tool limits them.
fn new_grant(
    toolbox: &Toolbox,
    call: &ToolUse,
    scope: GrantScope,
    pattern: Option<String>,
    request_id: HitlId,
) -> NewGrant {
    let subject = subject_of(toolbox, call);
    let default = || subject.as_ref().and_then(Subject::default_pattern).map(str::to_owned);
    NewGrant {
        id: GrantId::new(),
        tool: call.name.clone(),
        scope,
        request_id,
        prefix: pattern.or_else(default),
        binding: toolbox.find(&call.name).and_then(|tool| tool.binding()),
    }
}

fn subject_of(toolbox: &Toolbox, call: &ToolUse) -> Option<Subject> {
    toolbox.find(&call.name)?.grant_subject(&call.input)
}

/// What the model is told about a call that ran with another input than its own.
fn describe_change(input: &Value) -> String {
    let shown = approval::pretty_json(input);
    format!("The user changed the input of this call before it ran. It ran with this input:\n{shown}")
}

/// Attributes an event to the sub-agent that the call `owner` runs, or to the turn itself.
fn wrap_event_for(thread: &Thread, owner: Option<CallId>, event: Event) -> Event {
    match owner.and_then(|owner| thread.call(owner)) {
        Some(call) => wrap_event(call.call_id, agent_name(&call.input), event),
        None => event,
    }
}
