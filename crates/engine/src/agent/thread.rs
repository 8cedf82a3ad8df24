//! A task's conversation and the state of its turn, folded from the journal. Pure: no clock, no store.
//!
//! Whatever happened to earlier turns, what the fold gives is a valid conversation: every call is followed by
//! its result, one that was never run by a result that says so.

use std::ops::RangeInclusive;

use contract::event::{HitlKind, StopReason};
use contract::{CallId, HitlId, MessageId, TurnId};

use super::branch::{Branch, Place};
use super::repeats::{Repeats, Times};
use super::rewrite::RewriteKind;
use super::turn::Turn;
use crate::brain::StoredStep;
use crate::brain::steps::{Opened, Said, Step, TurnOutcome};
use crate::models::{Answer, Block, Content, Message, StopCause, ToolOutcome, ToolReply, ToolUse};
use crate::sabotage::{self, Saboteur};
use crate::tools::{PersonsAnswer, RUN_AGENT};

/// What a turn does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    /// Ask the model.
    AskModel,
    /// See to the calls of the last answer that have no result.
    RunTools(Vec<OpenCall>),
    /// Wait for a person.
    Wait(Asked),
    /// End well.
    Complete(StopReason),
}

/// A call without a result that waits for nobody.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenCall {
    /// The call.
    pub(crate) call: ToolUse,
    /// How far it has come.
    pub(crate) stage: OpenStage,
    /// Whether clients have seen it.
    pub(crate) told: bool,
    /// What its tool asked and was answered.
    pub(crate) answers: Vec<PersonsAnswer>,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenStage {
    /// Nobody has looked at it.
    New,
    /// It may run, or run on: a person has given leave or answered.
    Ready,
    /// Its intent is on record: it may have run.
    Running,
}

/// A request for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The request.
    pub(crate) request_id: HitlId,
    /// The call for which it is made.
    pub(crate) call_id: CallId,
    /// What is wanted.
    pub(crate) kind: HitlKind,
    /// The text to show.
    pub(crate) question: String,
    /// Answers to choose from.
    pub(crate) options: Option<Vec<String>>,
    /// The call that runs the sub-agent whose call it is; none if it is the turn's own.
    pub(crate) owner: Option<CallId>,
}

/// A conversation and its current turn.
#[derive(Debug)]
pub(crate) struct Thread {
    branch: Branch,
    calls: Vec<CallState>,
    /// Who waits for a person, in their order. The first one is shown.
    asked: Vec<Asked>,
    /// What the user said since the model was asked last.
    steered: Vec<(MessageId, String)>,
    turn: Turn,
}

#[derive(Debug)]
struct CallState {
    call: ToolUse,
    stage: Stage,
    told: bool,
    answers: Vec<PersonsAnswer>,
    remarks: Vec<Content>,
    /// How often it was made with its result.
    times: Times,
    /// The conversation of the sub-agent that it runs.
    sub: Option<Box<Thread>>,
}

#[derive(Debug)]
enum Stage {
    Open(OpenStage),
    Waiting,
    Done(ToolOutcome),
}

/// A journal that does not begin a turn before it goes on with it.
#[derive(Debug, thiserror::Error)]
#[error("the journal of turn {0} does not begin with its opening")]
pub(crate) struct NotOpened(pub(super) TurnId);

impl Thread {
    /// The conversation of a journal, up to where that ends; none where it has none.
    pub(super) fn last(steps: Vec<StoredStep>) -> Result<Option<Self>, NotOpened> {
        let mut folding = Folding::new(Branch::whole());
        steps.into_iter().try_for_each(|stored| folding.take(stored)).map_err(|error| match error {
            FoldError::NotOpened(error) => error,
            FoldError::Unreachable(turn_id) => NotOpened(turn_id),
        })?;
        Ok(folding.thread)
    }

    /// The thread once a turn is opened, on the branch `before` it. `stamps` are the `ts` of the events that open it.
    pub(crate) fn open(mut branch: Branch, opened: Opened, stamps: RangeInclusive<i64>) -> Self {
        let (events_from, ts) = stamps.into_inner();
        let Opened { message_id, notes, message, media, options, base } = opened;
        branch.go_to(base);
        if base.is_retry() {
            // What was taught since stands beside what is answered anew.
            for note in &notes {
                branch.add_to_last(note);
            }
            branch.told_of_notes();
        } else {
            let text = Content::Text { text: message };
            let notes = notes.into_iter().map(|text| Content::Note { text });
            let content = notes.chain([text]).chain(media.into_iter().map(Content::stored)).collect();
            branch.push(Message::User { content }, Place::Opening { message_id, events_from });
        }
        let turn = Turn::new(message_id, options, base, ts);
        Self { branch, calls: Vec::new(), asked: Vec::new(), steered: Vec::new(), turn }
    }

    /// What remains of the conversation when its turn is over.
    pub(super) fn ended(mut self) -> Branch {
        self.settle();
        self.branch
    }

    /// The conversation, as a model is sent it. Valid whenever [`Thread::next`] says [`Next::AskModel`].
    pub(crate) fn messages(&self) -> &[Message] {
        self.branch.messages()
    }

    /// The conversation and where its messages came from.
    pub(crate) fn branch(&self) -> &Branch {
        &self.branch
    }

    /// The turn that runs.
    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
    }

    /// What waits for a person, in its order. The first one is shown to them.
    pub(crate) fn asked(&self) -> &[Asked] {
        &self.asked
    }

    /// A call of the last answer, or of the last answer of a sub-agent.
    pub(crate) fn call(&self, call_id: CallId) -> Option<&ToolUse> {
        self.calls.iter().find_map(|state| {
            let own = (state.call.call_id == call_id).then_some(&state.call);
            own.or_else(|| state.sub.as_ref()?.call(call_id))
        })
    }

    /// The conversation of the sub-agent that a call of the last answer runs.
    pub(crate) fn sub(&self, call_id: CallId) -> Option<&Self> {
        let state = self.calls.iter().find(|state| state.call.call_id == call_id)?;
        state.sub.as_deref()
    }

    /// The calls whose sub-agents are at work.
    pub(crate) fn delegating(&self) -> impl Iterator<Item = (&ToolUse, &Self)> {
        let at_work = self.calls.iter().filter(|state| matches!(state.stage, Stage::Open(_)));
        at_work.filter_map(|state| Some((&state.call, state.sub.as_deref()?)))
    }

    /// The calls that clients have seen and whose result they have not.
    pub(crate) fn calls_told_open(&self) -> impl Iterator<Item = &ToolUse> {
        self.calls
            .iter()
            .filter(|state| state.told && !matches!(state.stage, Stage::Done(_)))
            .map(|state| &state.call)
    }

    /// How many model calls the turn may still make.
    pub(crate) fn calls_left(&self) -> u64 {
        let made = self.turn.answers + self.turn.agents_answers;
        self.turn.options.max_turns.saturating_add(self.turn.beyond_cap).saturating_sub(made)
    }

    /// What the turn does next.
    pub(crate) fn next(&self) -> Next {
        let open: Vec<OpenCall> = self.calls.iter().filter_map(CallState::open).collect();
        // A sub-agent does not work while a person is waited for: their answer would fall into its model step.
        let only_agents = open.iter().all(|open| open.call.name == RUN_AGENT);
        match self.asked.first() {
            Some(asked) if only_agents => return Next::Wait(asked.clone()),
            _ if !open.is_empty() => return Next::RunTools(open),
            _ => {}
        }
        if matches!(self.messages().last(), Some(Message::Assistant { .. })) {
            let cut_short = self.turn.capped
                && self.turn.last_answer.as_ref().is_some_and(|(_, answer)| answer.stop == StopCause::Length);
            return Next::Complete(if cut_short { StopReason::Budget } else { StopReason::EndTurn });
        }
        if self.turn.loops {
            return Next::Complete(StopReason::Loop);
        }
        if self.calls_left() == 0 {
            return Next::Complete(StopReason::MaxTurns);
        }
        Next::AskModel
    }

    /// Takes in a step after the opening that is now on record.
    pub(crate) fn apply(&mut self, step: Step, ts: i64) {
        if step.moves_on() {
            self.turn.step_ts = ts;
        }
        match step {
            // An opening makes a thread of its own.
            Step::Opened(_) | Step::Unknown => {}
            Step::Answered { message_id, model, answer, cost_usd, capped } => {
                self.turn.spent.add(&model, answer.usage, cost_usd, true);
                self.turn.capped = capped;
                self.answered(message_id, model, answer);
            }
            Step::Spent { model, tokens, cost_usd } => {
                self.turn.spent.add(&model, tokens, cost_usd, false);
            }
            Step::Compacted(compacted) => self.branch.rewrite(RewriteKind::Compacted(compacted)),
            Step::ReasoningDropped => self.branch.rewrite(RewriteKind::ReasoningDropped),
            Step::Planned { plan, memory } => {
                self.turn.planned = true;
                if let Some(plan) = plan {
                    self.branch.add_to_last(&plan);
                }
                for write in memory {
                    self.branch.wrote(write);
                }
            }
            Step::Noted { memory } => memory.into_iter().for_each(|write| self.branch.noted(write)),
            Step::Delegated { call_id, did } => self.delegated(call_id, *did, ts),
            Step::Steered { message_id, message } => {
                self.steered.push((message_id, message));
                // The model has answered and would not be asked again: now it will be.
                let answered = matches!(self.messages().last(), Some(Message::Assistant { .. }));
                if self.calls.is_empty() && (answered || self.turn.loops) {
                    self.settle();
                }
            }
            Step::Asked { request_id, call_id, kind, question, options } => {
                self.with_call(call_id, |state| state.stage = Stage::Waiting);
                self.asked.push(Asked { request_id, call_id, kind, question, options, owner: None });
            }
            Step::Resolved { request_id, answer, remarks } => self.resolved(request_id, answer, remarks),
            Step::Intended { call_id } => self.with_call(call_id, |state| {
                state.stage = Stage::Open(OpenStage::Running);
                state.told = true;
            }),
            Step::Resulted { call_id, outcome, memory } => {
                self.resulted(call_id, outcome);
                for write in memory {
                    self.branch.wrote(write);
                }
                if self.calls.iter().all(|state| matches!(state.stage, Stage::Done(_))) {
                    self.settle();
                }
            }
            Step::Ended { outcome } => {
                self.settle();
                if let TurnOutcome::Cancelled { said: Some(Said { message_id, text }) } = outcome {
                    let blocks = vec![Block::Text { text, signature: None }];
                    let message = Message::Assistant { model: String::new(), blocks };
                    self.branch.push(message, Place::Answer { message_id });
                }
            }
        }
    }

    fn answered(&mut self, message_id: MessageId, model: String, answer: Answer) {
        self.turn.answers += 1;
        let measured = answer.usage;
        self.calls = answer.calls().map(CallState::new).collect();
        let message = Message::Assistant { model, blocks: answer.blocks.clone() };
        self.branch.push(message, Place::Answer { message_id });
        if measured.input > 0 && !measured.estimated {
            // Reasoning is not always sent back, and where it is it is sealed and short.
            self.branch.measure(measured.input + measured.output.saturating_sub(measured.reasoning));
        }
        self.turn.last_answer = Some((message_id, answer));
        if self.calls.is_empty() {
            self.settle();
        }
    }

    /// A sub-agent got on. What concerns the turn as a whole is noted here too.
    fn delegated(&mut self, call_id: CallId, step: Step, ts: i64) {
        match &step {
            Step::Answered { model, answer, cost_usd, .. } => {
                self.turn.agents_answers += 1;
                self.turn.spent.add(model, answer.usage, *cost_usd, true);
            }
            Step::Spent { model, tokens, cost_usd } => {
                self.turn.spent.add(model, *tokens, *cost_usd, false);
            }
            Step::Asked { request_id, call_id: asks, kind, question, options } => self.asked.push(Asked {
                request_id: *request_id,
                call_id: *asks,
                kind: *kind,
                question: question.clone(),
                options: options.clone(),
                owner: Some(call_id),
            }),
            Step::Resolved { request_id, .. } => self.asked.retain(|asked| asked.request_id != *request_id),
            Step::Resulted { memory, .. } => {
                for write in memory {
                    self.branch.wrote(write.clone());
                }
            }
            _ => {}
        }
        self.with_call(call_id, |state| match step {
            Step::Opened(opened) => {
                state.sub = Some(Box::new(Self::open(Branch::default(), opened, ts..=ts)));
            }
            step => {
                if let Some(sub) = &mut state.sub {
                    sub.apply(step, ts);
                }
            }
        });
    }

    /// A call came to its end.
    fn resulted(&mut self, call_id: CallId, outcome: ToolOutcome) {
        let Some(state) = self.calls.iter_mut().find(|state| state.call.call_id == call_id) else { return };
        state.times = self.turn.repeats.note(&state.call, &outcome);
        self.turn.loops |= state.times.is_loop();
        state.stage = Stage::Done(outcome);
    }

    fn resolved(&mut self, request_id: HitlId, answer: String, remarks: Vec<Content>) {
        let Some(at) = self.asked.iter().position(|asked| asked.request_id == request_id) else { return };
        let Asked { call_id, kind, .. } = self.asked.remove(at);
        self.with_call(call_id, |state| {
            state.stage = Stage::Open(OpenStage::Ready);
            state.remarks.extend(remarks.into_iter().map(Content::stored));
            if kind == HitlKind::Question {
                state.answers.push(PersonsAnswer { answer });
            }
        });
    }

    fn with_call(&mut self, call_id: CallId, change: impl FnOnce(&mut CallState)) {
        if let Some(state) = self.calls.iter_mut().find(|state| state.call.call_id == call_id) {
            change(state);
        }
    }

    /// Closes a step of the conversation: the calls of the last answer become the message that answers them, and
    /// what the user said meanwhile follows.
    fn settle(&mut self) {
        self.asked.clear();
        let replies: Vec<_> = self.calls.drain(..).map(CallState::reply).collect();
        if !replies.is_empty() && !sabotage::by(Saboteur::LeaveCallsOpen) {
            self.branch.push(Message::Results(replies), Place::Results);
        }
        if !self.steered.is_empty() && self.calls_left() == 0 {
            // What the user said is heard, also where the cap is reached.
            self.turn.beyond_cap += 1;
        }
        if !self.steered.is_empty() {
            // What the user said may be the way out.
            (self.turn.repeats, self.turn.loops) = (Repeats::default(), false);
        }
        for (message_id, text) in self.steered.drain(..) {
            self.branch.push(Message::user(text), Place::Steered { message_id });
        }
    }
}

impl CallState {
    fn new(call: &ToolUse) -> Self {
        let stage = Stage::Open(OpenStage::New);
        let (answers, remarks) = (Vec::new(), Vec::new());
        Self { call: call.clone(), stage, told: false, answers, remarks, times: Times::default(), sub: None }
    }

    fn open(&self) -> Option<OpenCall> {
        let Stage::Open(stage) = self.stage else { return None };
        // A sub-agent that waits for a person does nothing until they have answered.
        if self.sub.as_ref().is_some_and(|sub| matches!(sub.next(), Next::Wait(_))) {
            return None;
        }
        Some(OpenCall { call: self.call.clone(), stage, told: self.told, answers: self.answers.clone() })
    }

    fn reply(self) -> ToolReply {
        let (mut text, is_error) = match self.stage {
            Stage::Done(ToolOutcome { error: Some(error), .. }) => (error, true),
            Stage::Done(ToolOutcome { output, error: None, .. }) => (output, false),
            Stage::Open(OpenStage::Running) => (OUTCOME_UNKNOWN.to_owned(), true),
            // A tool that had asked had begun, and stopped at its question.
            Stage::Open(_) | Stage::Waiting if self.told => (STOPPED_AT_QUESTION.to_owned(), true),
            Stage::Open(_) | Stage::Waiting => (NEVER_RUN.to_owned(), true),
        };
        if let Some(remark) = self.times.remark() {
            text.push_str("\n\n");
            text.push_str(&remark);
        }
        ToolReply { provider_id: self.call.provider_id, text, remarks: self.remarks, is_error }
    }
}

/// What the model is told of a call that was begun and whose result nobody saw.
pub(crate) const OUTCOME_UNKNOWN: &str = "The outcome of this call is unknown: it was cut off after it had begun. \
                                          It may have taken effect. Check before you call it again.";
const NEVER_RUN: &str = "This call was not run: the turn ended before.";
const STOPPED_AT_QUESTION: &str =
    "This call was not finished: the turn ended before the person had answered it.";

/// Folds a journal, step by step.
pub(super) struct Folding {
    /// The branch before its first turn.
    before: Option<Branch>,
    pub(super) thread: Option<Thread>,
}

/// Why a journal cannot be folded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FoldError {
    /// It makes no sense.
    #[error(transparent)]
    NotOpened(#[from] NotOpened),
    /// A turn goes on from a message that is not in memory.
    #[error("turn {0} goes on from a message that is not in memory")]
    Unreachable(TurnId),
}

impl Folding {
    /// Of a journal that goes on from a branch.
    pub(super) fn new(before: Branch) -> Self {
        Self { before: Some(before), thread: None }
    }

    /// Takes in the next step.
    pub(super) fn take(&mut self, stored: StoredStep) -> Result<(), FoldError> {
        let StoredStep { turn_id, opened_ts, ts, step, .. } = stored;
        match (step, &mut self.thread) {
            (Step::Opened(opened), thread) => {
                let before =
                    thread.take().map(Thread::ended).or_else(|| self.before.take()).unwrap_or_default();
                if !before.reaches(opened.base) {
                    return Err(FoldError::Unreachable(turn_id));
                }
                *thread = Some(Thread::open(before, opened, opened_ts..=ts));
            }
            (Step::Unknown, _) => {}
            (_, None) => return Err(NotOpened(turn_id).into()),
            (step, Some(thread)) => thread.apply(step, ts),
        }
        Ok(())
    }

    /// What remains of the conversation when its last turn is over.
    pub(super) fn ended(self) -> Branch {
        self.thread.map(Thread::ended).or(self.before).unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
