//! Human in the loop: the user's answers, and turns that wait for them.

use api::content::ContentBlock;
use api::engine::{GrantScope, HitlRespond};
use api::event::{Event, HitlKind, HitlResolved};
use api::{CallId, GrantId, HitlId};
use llm::{Content, ToolOutcome, ToolUse};
use store::NewGrant;
use store::event_log::Commit;
use store::steps::Step;
use tools::grants;

use super::active_turn::{ActiveTurn, Interrupt, reply_committed};
use super::sub_agent::{agent_name, wrap_event, wrap_step};
use super::thread::{NextAction, PendingHitl};
use super::tool_calls::{tool_call_event, tool_result_event};
use super::turn_lifecycle::{TurnContext, TurnState};
use super::turn_registry::Reply;
use super::{AgentError, provenance, turn_request};

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

enum Decision {
    Answered,
    Allowed,
    AlwaysAllowed(GrantScope),
    Refused,
}

impl ActiveTurn {
    /// Handles a user's answer.
    pub(super) async fn respond(
        &mut self,
        response: HitlResponse,
        reply: Reply<HitlId>,
    ) -> Result<(), Interrupt> {
        let (pending, decision, attachments) = match self.validate_response(&response) {
            Ok(validated) => validated,
            Err(error) => {
                // The caller may be gone.
                let _ = reply.send(Err(error));
                return Ok(());
            }
        };
        let request_id = pending.request_id;
        let committed = self.resolve(pending, &decision, response, attachments).await;
        reply_committed(reply, request_id, committed)
    }

    /// Returns the request that is answered, the decision, and the attachments of the answer.
    fn validate_response(
        &self,
        response: &HitlResponse,
    ) -> Result<(PendingHitl, Decision, Vec<Content>), AgentError> {
        let pending = self.thread.pending_hitl().first().ok_or(AgentError::NotPending)?;
        if response.request_id != pending.request_id {
            return Err(AgentError::NotPending);
        }
        let decision = response.interpret(pending.kind)?;
        let model = self.context.services.gateway.model().ok();
        let attachments = turn_request::parse_attachments(
            "content_blocks",
            response.content_blocks.clone(),
            model.as_deref(),
        )?;
        Ok((pending.clone(), decision, attachments))
    }

    async fn resolve(
        &mut self,
        pending: PendingHitl,
        decision: &Decision,
        response: HitlResponse,
        attachments: Vec<Content>,
    ) -> Result<(), store::WriteError> {
        let PendingHitl { request_id, call_id, owner, .. } = pending;
        let HitlResponse { answer, feedback, .. } = response;
        let mut commit = Commit::new().close_hitl_request(request_id).attachments(&attachments).durable();
        let mut events = vec![Event::HitlResolved(HitlResolved { request_id, answer: answer.clone() })];
        let mut remarks = attachments;
        let mut refusal = None;
        if let Decision::Refused = decision {
            let comment = feedback.map(|feedback| format!(" They said: {feedback}")).unwrap_or_default();
            refusal = Some(format!("The person did not allow this call, so it was not run.{comment}"));
        } else if let Some(feedback) = feedback {
            remarks.insert(0, Content::Text { text: format!("The user added: {feedback}") });
        }
        let mut steps = vec![wrap_step(owner, Step::Resolved { request_id, answer, remarks })];
        let call = self.thread.call(call_id).cloned();
        if let (Some(call), Some(reason)) = (&call, refusal) {
            let outcome = ToolOutcome { output: String::new(), error: Some(reason), duration_ms: 0 };
            let call_events = [tool_call_event(call), tool_result_event(call, &outcome)];
            events.extend(call_events.map(|event| self.wrap_event_for(owner, event)));
            let source = provenance::source_of_result(&call.name, None);
            steps.push(wrap_step(owner, Step::Resulted { call_id, outcome, memory: Vec::new(), source }));
        }
        let mut others: Vec<PendingHitl> = self.thread.pending_hitl().iter().skip(1).cloned().collect();
        if let (Some(call), Decision::AlwaysAllowed(scope)) = (&call, decision) {
            let command = self.command_of(call);
            let tool = self.context.snapshot.toolbox.find(&call.name);
            let prefix = command.as_deref().map(grants::prefix_of);
            commit = commit.grant(NewGrant {
                id: GrantId::new(),
                tool: call.name.clone(),
                scope: *scope,
                prefix: prefix.map(str::to_owned),
                binding: tool.and_then(|tool| tool.binding()),
            });
            others.retain(|other| {
                let is_covered = |other: &ToolUse| {
                    other.name == call.name && grants::allows(prefix, self.command_of(other).as_deref())
                };
                let is_granted = other.kind == HitlKind::Permission
                    && self.thread.call(other.call_id).is_some_and(is_covered);
                if is_granted {
                    // Nobody has been shown this request yet, and nobody needs to be.
                    let (request_id, answer) = (other.request_id, "yes".to_owned());
                    steps.push(wrap_step(
                        other.owner,
                        Step::Resolved { request_id, answer, remarks: Vec::new() },
                    ));
                }
                !is_granted
            });
        }
        if let Some(next) = others.first() {
            let request = self.context.hitl_request(
                next.request_id,
                next.kind,
                next.question.clone(),
                next.options.clone(),
            );
            events.push(Event::HitlRequest(request.clone()));
            commit = commit.open_hitl_request(request);
        }
        self.commit_to_turn(commit, steps, events).await
    }
}

impl ActiveTurn {
    /// The command that a call runs, if its tool runs commands.
    fn command_of(&self, call: &ToolUse) -> Option<String> {
        self.context.snapshot.toolbox.find(&call.name)?.command(&call.input)
    }

    /// Attributes an event to the sub-agent that the call `owner` runs, or to the turn itself.
    fn wrap_event_for(&self, owner: Option<CallId>, event: Event) -> Event {
        match owner.and_then(|owner| self.thread.call(owner)) {
            Some(call) => wrap_event(call.call_id, agent_name(&call.input), event),
            None => event,
        }
    }
}

/// A turn that waits for its user. Its state is loaded again when the user has answered: a turn may wait for
/// days, and most of an engine's memory would hold such turns.
pub(super) struct AwaitingHuman {
    context: TurnContext,
}

impl TurnContext {
    /// Makes the turn wait for its user and releases what it does not need meanwhile.
    pub(super) fn await_human(mut self) -> AwaitingHuman {
        self.permit = None;
        self.recorder.clear_published();
        self.registration.mark_idle();
        AwaitingHuman { context: self }
    }
}

impl AwaitingHuman {
    /// Waits until a command arrives or the time to answer runs out.
    pub(super) async fn wait(mut self) -> TurnState {
        let clock = self.context.services.clock.clone();
        let time_left = self.context.hitl_time_left();
        let command = tokio::select! {
            biased;
            () = self.context.stopping.cancelled() => return TurnState::Ended,
            command = self.context.inbox.recv() => match command {
                Some(command) => Some(command),
                None => return TurnState::Ended,
            },
            () = clock.sleep(time_left) => None,
        };
        // Before the command is dropped: an answer in transit counts as activity, and so does its result.
        self.context.registration.mark_busy();
        let mut turn = match self.context.load().await {
            Ok(turn) => turn,
            Err(context) => {
                // The turn still waits, and can be answered once it can be read.
                if let Some(command) = command {
                    command.refuse_with(|| AgentError::TemporarilyUnreadable);
                }
                return TurnState::StoreUnavailable(context);
            }
        };
        match command {
            None => turn.expire().await,
            Some(command) => match turn.handle_command(command).await {
                // The command may not have been an answer.
                Ok(()) if matches!(turn.thread.next_action(), NextAction::AwaitHuman(_)) => {
                    TurnState::AwaitingHuman(turn.context.await_human())
                }
                Ok(()) => TurnState::Active(Box::new(turn)),
                Err(interrupt) => turn.handle_interrupt(interrupt).await,
            },
        }
    }
}
