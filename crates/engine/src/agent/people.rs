//! The person in the loop: what they answer, and a turn that waits for them.

use contract::content::ContentBlock;
use contract::engine::{GrantScope, HitlRespond};
use contract::event::{Event, HitlKind, HitlResolved};
use contract::{CallId, GrantId, HitlId};

use super::calls::{tool_call, tool_result};
use super::delegate::{agent_of, nested, under};
use super::life::{Life, State};
use super::run::{Stopped, TurnRun, answer};
use super::running::Reply;
use super::thread::{Asked, Next};
use super::{AgentError, order};
use crate::brain::NewGrant;
use crate::brain::steps::Step;
use crate::channel::Record;
use crate::models::{Content, ToolOutcome, ToolUse};
use crate::tools::grants;

/// A person's answer, as it was sent.
pub(super) struct Response {
    request_id: HitlId,
    answer: String,
    feedback: Option<String>,
    content_blocks: Vec<ContentBlock>,
    scope: Option<GrantScope>,
}

impl Response {
    /// An answer to what is `pending` when it comes: one that waits behind another answer is none to what that one
    /// brings up, which nobody has seen.
    pub(super) fn to(pending: Option<HitlId>, respond: HitlRespond) -> Result<Self, AgentError> {
        let HitlRespond { answer, feedback, content_blocks, request_id, scope, .. } = respond;
        let pending = pending.ok_or(AgentError::NotPending)?;
        if request_id.is_some_and(|request_id| request_id != pending.to_string()) {
            return Err(AgentError::NotPending);
        }
        let feedback = feedback.filter(|feedback| !feedback.trim().is_empty());
        Ok(Self { request_id: pending, answer, feedback, content_blocks, scope })
    }

    /// What the answer means to a request of `kind`.
    fn decide(&self, kind: HitlKind) -> Result<Decision, AgentError> {
        let invalid = |message: &str| Err(AgentError::Invalid(message.to_owned()));
        let decision = match (kind, self.answer.as_str()) {
            (HitlKind::Question, _) => Decision::Answered,
            (HitlKind::Permission, "yes") => Decision::Allowed,
            (HitlKind::Permission, "no") => Decision::Refused,
            (HitlKind::Permission, "always") => {
                return Ok(Decision::AllowedForGood(self.scope.unwrap_or_default()));
            }
            (HitlKind::Permission, _) => {
                return invalid("`answer`: a permission is answered with `yes`, `no` or `always`");
            }
        };
        if self.scope.is_some() {
            return invalid("`scope`: goes with the answer `always` to a permission only");
        }
        Ok(decision)
    }
}

enum Decision {
    Answered,
    Allowed,
    AllowedForGood(GrantScope),
    Refused,
}

impl TurnRun {
    /// A person answered.
    pub(super) async fn respond(&mut self, response: Response, reply: Reply<HitlId>) -> Result<(), Stopped> {
        let (asked, decision, given) = match self.judge(&response) {
            Ok(judged) => judged,
            Err(error) => {
                // Who answered may have gone.
                let _ = reply.send(Err(error));
                return Ok(());
            }
        };
        let request_id = asked.request_id;
        let committed = self.resolve(asked, &decision, response, given).await;
        answer(reply, request_id, committed)
    }

    /// What is answered, how, and what was given with it.
    fn judge(&self, response: &Response) -> Result<(Asked, Decision, Vec<Content>), AgentError> {
        let asked = self.thread.asked().first().ok_or(AgentError::NotPending)?;
        if response.request_id != asked.request_id {
            return Err(AgentError::NotPending);
        }
        let decision = response.decide(asked.kind)?;
        let model = self.life.means.gateway.model().ok();
        let given = order::attached("content_blocks", response.content_blocks.clone(), model.as_deref())?;
        Ok((asked.clone(), decision, given))
    }

    async fn resolve(
        &mut self,
        asked: Asked,
        decision: &Decision,
        response: Response,
        given: Vec<Content>,
    ) -> Result<(), crate::brain::WriteError> {
        let Asked { request_id, call_id, owner, .. } = asked;
        let Response { answer, feedback, .. } = response;
        let mut record = Record::new().settle(request_id).attached(&given).against_power_loss();
        let mut events = vec![Event::HitlResolved(HitlResolved { request_id, answer: answer.clone() })];
        let mut remarks = given;
        let mut refused = None;
        if let Decision::Refused = decision {
            let said = feedback.map(|feedback| format!(" They said: {feedback}")).unwrap_or_default();
            refused = Some(format!("The person did not allow this call, so it was not run.{said}"));
        } else if let Some(feedback) = feedback {
            remarks.insert(0, Content::Text { text: format!("The person who was asked added: {feedback}") });
        }
        let mut steps = vec![under(owner, Step::Resolved { request_id, answer, remarks })];
        let call = self.thread.call(call_id).cloned();
        if let (Some(call), Some(reason)) = (&call, refused) {
            let outcome = ToolOutcome { output: String::new(), error: Some(reason), duration_ms: 0 };
            let told = [tool_call(call), tool_result(call, &outcome)];
            events.extend(told.map(|event| self.told_of(owner, event)));
            steps.push(under(owner, Step::Resulted { call_id, outcome, memory: Vec::new() }));
        }
        let mut others: Vec<Asked> = self.thread.asked().iter().skip(1).cloned().collect();
        if let (Some(call), Decision::AllowedForGood(scope)) = (&call, decision) {
            let command = self.command_of(call);
            let tool = self.life.kit.toolbox.find(&call.name);
            let prefix = command.as_deref().map(grants::prefix_of);
            record = record.grant(NewGrant {
                id: GrantId::new(),
                tool: call.name.clone(),
                scope: *scope,
                prefix: prefix.map(str::to_owned),
                binding: tool.and_then(|tool| tool.binding()),
            });
            others.retain(|other| {
                let covered = |other: &ToolUse| {
                    other.name == call.name && grants::allows(prefix, self.command_of(other).as_deref())
                };
                let granted = other.kind == HitlKind::Permission
                    && self.thread.call(other.call_id).is_some_and(covered);
                if granted {
                    // Nobody was shown this one yet, and nobody need be.
                    let (request_id, answer) = (other.request_id, "yes".to_owned());
                    steps
                        .push(under(other.owner, Step::Resolved { request_id, answer, remarks: Vec::new() }));
                }
                !granted
            });
        }
        if let Some(next) = others.first() {
            let request =
                self.life.request(next.request_id, next.kind, next.question.clone(), next.options.clone());
            events.push(Event::HitlRequest(request.clone()));
            record = record.ask(request);
        }
        self.record(record, steps, events).await
    }
}

impl TurnRun {
    /// The command that a call runs, if its tool runs commands.
    fn command_of(&self, call: &ToolUse) -> Option<String> {
        self.life.kit.toolbox.find(&call.name)?.command(&call.input)
    }

    /// An event as one of the sub-agent that the call `owner` runs, or of the turn itself.
    fn told_of(&self, owner: Option<CallId>, event: Event) -> Event {
        match owner.and_then(|owner| self.thread.call(owner)) {
            Some(call) => nested(call.call_id, agent_of(&call.input), event),
            None => event,
        }
    }
}

/// A turn that waits for a person. What it takes to go on is read again when they have answered: a turn may wait
/// for days, and most of an engine's memory would be such turns.
pub(super) struct Resting {
    life: Life,
}

impl Life {
    /// The turn waits for a person, and lets go of what it does not need for that.
    pub(super) fn rest(mut self) -> Resting {
        self.place = None;
        self.recorder.forget_published();
        self.registration.rest();
        Resting { life: self }
    }
}

impl Resting {
    /// Waits until the turn is told something, or nobody has answered in time.
    pub(super) async fn wait(mut self) -> State {
        let clock = self.life.means.clock.clone();
        let patience = self.life.patience();
        let command = tokio::select! {
            biased;
            () = self.life.stopping.cancelled() => return State::Over,
            command = self.life.inbox.recv() => match command {
                Some(command) => Some(command),
                None => return State::Over,
            },
            () = clock.sleep(patience) => None,
        };
        // Before the command is let go of: an answer on its way counts as work, and so does what it leads to.
        self.life.registration.work();
        let mut run = match self.life.load().await {
            Ok(run) => run,
            Err(stranded) => {
                // It still waits, and can be answered once it can be read.
                if let Some(command) = command {
                    command.refuse_with(|| AgentError::NotReadable);
                }
                return State::Stranded(stranded);
            }
        };
        match command {
            None => run.expire().await,
            Some(command) => match run.obey(command).await {
                // It may have been told something that was no answer.
                Ok(()) if matches!(run.thread.next(), Next::Wait(_)) => State::Resting(run.life.rest()),
                Ok(()) => State::AtWork(Box::new(run)),
                Err(stopped) => run.stop(stopped).await,
            },
        }
    }
}
