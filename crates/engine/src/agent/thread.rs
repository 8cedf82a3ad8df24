//! A task's conversation and the state of its turn, folded from the journal. Pure: no clock, no store.
//!
//! Whatever happened to earlier turns, the fold gives a valid conversation: every call is followed by its
//! result, and a call that was never run by a result that says so.

mod call_state;

use std::ops::RangeInclusive;

use api::approvals::ApprovalReason;
use api::citations::NumberedPage;
use api::event::{HitlKind, StopReason};
use api::memory::Source;
use api::tool_names::RUN_AGENT;
use api::{CallId, HitlId, MessageId};
use call_state::{CallState, Stage};
pub(crate) use call_state::{OUTCOME_UNKNOWN, OpenCall, OpenStage};
use llm::{Answer, Block, Content, FinishReason, Message, ToolOutcome, ToolUse};
use serde_json::Value;
use store::steps::{MemoryWrite, Opened, PartialAnswer, Step, TurnOutcome};
use tools::HumanAnswer;

use super::branch::{Branch, MessageOrigin};
use super::compaction_view::RewriteKind;
use super::loop_detector::LoopDetector;
use super::structured_output;
use super::turn::Turn;

/// What a turn does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NextAction {
    /// Call the model.
    CallModel,
    /// Handle the calls of the last answer that have no result.
    RunTools(Vec<OpenCall>),
    /// Wait for the user.
    AwaitHuman(PendingHitl),
    /// Complete the turn.
    Complete(StopReason),
}

/// A pending request for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingHitl {
    /// The id of the request.
    pub(crate) request_id: HitlId,
    /// The call it belongs to.
    pub(crate) call_id: CallId,
    /// The kind of answer it needs.
    pub(crate) kind: HitlKind,
    /// The text to show.
    pub(crate) question: String,
    /// Answers to choose from.
    pub(crate) options: Option<Vec<String>>,
    /// Why the call needs an approval, if clients have received the call with the request.
    pub(crate) reason: Option<ApprovalReason>,
    /// The call that runs the sub-agent which made the call; `None` if it is the turn's own.
    pub(crate) owner: Option<CallId>,
}

/// A conversation and its current turn.
#[derive(Debug)]
pub(crate) struct Thread {
    branch: Branch,
    calls: Vec<CallState>,
    /// The pending requests in order. The first one is shown to the user.
    pending_hitl: Vec<PendingHitl>,
    /// What the user has sent since the last model call.
    steered: Vec<(MessageId, String)>,
    turn: Turn,
}

impl Thread {
    /// Opens a turn on `branch`. `stamps` are the `ts` of the events that open it.
    pub(crate) fn open(mut branch: Branch, opened: Opened, stamps: RangeInclusive<i64>) -> Self {
        let (events_from, ts) = stamps.into_inner();
        let source = opened.source_of_notes();
        let Opened { message_id, notes, recall_at, message, media, options, base, traceparent, .. } = opened;
        branch.rewind_to(base);
        if base.is_retry() {
            // New corrections are added to the question that is answered again, and what this request sets takes the
            // place of what an earlier retry has set.
            branch.remove_retry_options();
            for note in &notes {
                branch.append_to_last(note);
            }
            branch.mark_memory_note_sent();
        } else {
            let text = Content::Text { text: message };
            let notes = notes.into_iter().map(|text| Content::Note { text });
            let content = notes.chain([text]).chain(media.into_iter().map(Content::without_data)).collect();
            branch.push(Message::User { content }, MessageOrigin::Opening { message_id, events_from });
        }
        branch.record_source_of_last(source);
        let turn = Turn { recall_at, traceparent, ..Turn::new(message_id, options, base, ts) };
        Self { branch, calls: Vec::new(), pending_hitl: Vec::new(), steered: Vec::new(), turn }
    }

    /// Ends the turn and returns the conversation.
    pub(super) fn into_branch(mut self) -> Branch {
        self.close_step();
        self.branch
    }

    /// The messages as they are sent to a model. Valid whenever [`Thread::next_action`] returns
    /// [`NextAction::CallModel`].
    pub(crate) fn messages(&self) -> &[Message] {
        self.branch.messages()
    }

    /// The conversation with the origin of its messages.
    pub(crate) fn branch(&self) -> &Branch {
        &self.branch
    }

    /// The current turn.
    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
    }

    /// The pending requests in order. The first one is shown to the user.
    pub(crate) fn pending_hitl(&self) -> &[PendingHitl] {
        &self.pending_hitl
    }

    /// The user's message that memory is to be searched for: no step has followed the opening of a turn that recalls
    /// memories.
    pub(crate) fn message_to_recall_for(&self) -> Option<String> {
        self.turn.recall_at?;
        match self.branch.all_messages().last()? {
            Message::User { content } => Some(Content::text_of(content)),
            Message::Assistant { .. } | Message::Results(_) => None,
        }
    }

    /// Finds a call of the last answer, or of the last answer of a sub-agent.
    pub(crate) fn call(&self, call_id: CallId) -> Option<&ToolUse> {
        self.calls.iter().find_map(|state| {
            let own = (state.call.call_id == call_id).then_some(&state.call);
            own.or_else(|| state.sub_agent.as_ref()?.call(call_id))
        })
    }

    /// The source of what hooks have added to a call of the last answer so far, such as its input.
    pub(crate) fn source_of_call(&self, call_id: CallId) -> Source {
        let state = self.calls.iter().find(|state| state.call.call_id == call_id);
        state.map_or(Source::Agent, |state| state.source)
    }

    /// The conversation of the sub-agent that a call of the last answer runs.
    pub(crate) fn sub_agent(&self, call_id: CallId) -> Option<&Self> {
        let state = self.calls.iter().find(|state| state.call.call_id == call_id)?;
        state.sub_agent.as_deref()
    }

    /// The calls whose sub-agents are running, with their conversations.
    pub(crate) fn active_sub_agents(&self) -> impl Iterator<Item = (&ToolUse, &Self)> {
        let open = self.calls.iter().filter(|state| matches!(state.stage, Stage::Open(_)));
        open.filter_map(|state| Some((&state.call, state.sub_agent.as_deref()?)))
    }

    /// The calls that clients have received without their result, and whether their tools have begun.
    pub(crate) fn sent_open_calls(&self) -> impl Iterator<Item = (&ToolUse, bool)> {
        let sent = self.calls.iter().filter(|state| state.sent || state.announced);
        sent.filter(|state| !matches!(state.stage, Stage::Done(_))).map(|state| (&state.call, state.sent))
    }

    /// The number of model calls that the turn may still make.
    pub(crate) fn model_calls_left(&self) -> u64 {
        let made = self.turn.answers + self.turn.sub_agent_answers;
        self.turn.options.max_turns.saturating_add(self.turn.extra_calls).saturating_sub(made)
    }

    /// Returns what the turn does next.
    pub(crate) fn next_action(&self) -> NextAction {
        let open: Vec<OpenCall> = self.calls.iter().filter_map(CallState::to_open_call).collect();
        // No sub-agent runs while a request is pending: the answer would arrive in the middle of its model
        // step.
        let only_agents = open.iter().all(|open| open.call.name == RUN_AGENT);
        match self.pending_hitl.first() {
            Some(pending) if only_agents => return NextAction::AwaitHuman(pending.clone()),
            _ if !open.is_empty() => return NextAction::RunTools(open),
            _ => {}
        }
        if matches!(self.messages().last(), Some(Message::Assistant { .. })) {
            let cut_short = self.turn.answer_capped
                && self
                    .turn
                    .last_answer
                    .as_ref()
                    .is_some_and(|(_, answer)| answer.stop == FinishReason::Length);
            return NextAction::Complete(if cut_short { StopReason::Budget } else { StopReason::EndTurn });
        }
        if self.turn.loop_detector.is_looping() {
            return NextAction::Complete(StopReason::Loop);
        }
        if self.model_calls_left() == 0 {
            return NextAction::Complete(StopReason::MaxTurns);
        }
        NextAction::CallModel
    }

    /// Applies a committed step that follows the opening.
    pub(crate) fn apply(&mut self, step: Step, ts: i64) {
        if step.is_progress() {
            self.turn.last_step_ts = ts;
        }
        let source = step.source();
        let recall_at = self.turn.recall_at.take();
        match step {
            // An opening creates a new thread.
            Step::Opened(_) | Step::Cited { .. } | Step::Unknown => {}
            Step::Answered { message_id, model, answer, cost_usd, capped } => {
                self.turn.totals.add(&model, answer.usage, cost_usd, true);
                self.turn.answer_capped = capped;
                self.apply_answer(message_id, model, answer);
            }
            Step::Spent { model, tokens, cost_usd } => {
                self.turn.totals.add(&model, tokens, cost_usd, false);
            }
            Step::Compacted(compacted) => self.branch.rewrite(RewriteKind::Compacted(compacted)),
            Step::ReasoningDropped => self.branch.rewrite(RewriteKind::ReasoningDropped),
            Step::MediaDropped => self.branch.rewrite(RewriteKind::MediaDropped),
            Step::Recalled { note, .. } => {
                if let (Some(at), Some(note)) = (recall_at, note) {
                    self.branch.insert_note(at, &note);
                    self.branch.record_source_of_last(source);
                }
                // A repeated model call does not void the event that reports it.
                self.turn.last_step_ts = ts;
            }
            Step::Planned { plan, memory, .. } => {
                self.turn.planned = true;
                if let Some(plan) = plan {
                    self.branch.append_to_last(&plan);
                    self.branch.record_source_of_last(source);
                }
                self.record_memory_writes(memory);
            }
            Step::Noted { memory } => {
                for write in memory {
                    self.branch.record_memory_write_between_turns(write);
                }
            }
            Step::Delegated { call_id, did } => self.apply_delegated(call_id, *did, ts),
            Step::Steered { message_id, message } => self.apply_steering(message_id, message),
            Step::Asked { request_id, call_id, kind, question, options, reason } => {
                self.update_call(call_id, |state| {
                    state.stage = Stage::AwaitingHuman;
                    state.announced |= reason.is_some();
                });
                self.pending_hitl.push(PendingHitl {
                    request_id,
                    call_id,
                    kind,
                    question,
                    options,
                    reason,
                    owner: None,
                });
            }
            Step::Resolved { request_id, answer, remarks, .. } => {
                self.apply_resolution(request_id, answer, remarks);
            }
            Step::Hooked { call_id, input, notes, .. } => self.apply_hooks(call_id, input, notes, source),
            Step::Returned { call_id, outcome, memory, .. } => {
                self.update_call(call_id, |state| {
                    state.stage = Stage::Returned(outcome.without_data(), source);
                });
                self.record_memory_writes(memory);
            }
            Step::InputChanged { request_id, call_id, input, answer, remarks } => {
                self.update_call(call_id, |state| {
                    state.call.input = input;
                    // They have seen another input.
                    state.hooked = false;
                });
                self.apply_resolution(request_id, answer, remarks);
            }
            Step::Intended { call_id } => self.update_call(call_id, |state| {
                state.stage = Stage::Open(OpenStage::Running);
                state.sent = true;
            }),
            Step::Resulted { call_id, outcome, memory, .. } => {
                self.apply_result(call_id, outcome.without_data(), source);
                self.record_memory_writes(memory);
                if self.calls.iter().all(|state| matches!(state.stage, Stage::Done(_))) {
                    self.close_step();
                }
            }
            Step::Numbered { call_id, pages } => self.announce_pages(call_id, &pages),
            Step::OutputRejected { errors, .. } => self.apply_output_rejection(&errors),
            Step::Ended { outcome } => self.apply_end(outcome),
        }
    }

    fn apply_answer(&mut self, message_id: MessageId, model: String, answer: Answer) {
        self.turn.answers += 1;
        let measured = answer.usage;
        self.calls = answer.calls().map(CallState::new).collect();
        let message = Message::Assistant { model, blocks: answer.blocks.clone() };
        self.branch.push(message, MessageOrigin::Answer { message_id });
        if measured.input > 0 && !measured.estimated {
            // Reasoning is not always sent back, and if it is, it is sealed and short.
            self.branch.record_measured(measured.input + measured.output.saturating_sub(measured.reasoning));
        }
        self.turn.last_answer = Some((message_id, answer));
        if self.calls.is_empty() {
            self.close_step();
        }
    }

    /// Applies a step of a sub-agent, and records here what concerns the turn as a whole.
    fn apply_delegated(&mut self, call_id: CallId, step: Step, ts: i64) {
        match &step {
            Step::Answered { model, answer, cost_usd, .. } => {
                self.turn.sub_agent_answers += 1;
                self.turn.totals.add(model, answer.usage, *cost_usd, true);
            }
            Step::Spent { model, tokens, cost_usd } => {
                self.turn.totals.add(model, *tokens, *cost_usd, false);
            }
            Step::Asked { request_id, call_id: asking_call, kind, question, options, reason } => {
                self.pending_hitl.push(PendingHitl {
                    request_id: *request_id,
                    call_id: *asking_call,
                    kind: *kind,
                    question: question.clone(),
                    options: options.clone(),
                    reason: *reason,
                    owner: Some(call_id),
                });
            }
            Step::Resolved { request_id, .. } | Step::InputChanged { request_id, .. } => {
                self.pending_hitl.retain(|pending| pending.request_id != *request_id);
            }
            Step::Resulted { call_id, outcome, memory, .. } => {
                self.record_shown_pages(*call_id, outcome);
                self.record_memory_writes(memory.iter().cloned());
            }
            Step::Returned { memory, .. } => self.record_memory_writes(memory.iter().cloned()),
            Step::Numbered { call_id, pages } => self.announce_pages(*call_id, pages),
            _ => {}
        }
        self.update_call(call_id, |state| match step {
            Step::Opened(opened) => {
                state.sub_agent = Some(Box::new(Self::open(Branch::default(), opened, ts..=ts)));
            }
            step => {
                if let Some(sub) = &mut state.sub_agent {
                    sub.apply(step, ts);
                }
            }
        });
    }

    /// Records the pages of a result that follows. Those of a sub-agent are the turn's, too.
    fn announce_pages(&mut self, call_id: CallId, pages: &[NumberedPage]) {
        if let Some(known) = self.branch.citable_pages_mut() {
            known.announce(call_id, pages);
        }
    }

    /// Records which of them the result shows.
    fn record_shown_pages(&mut self, call_id: CallId, outcome: &ToolOutcome) {
        if let Some(known) = self.branch.citable_pages_mut() {
            known.settle(call_id, outcome);
        }
    }

    /// Applies the result of a call.
    fn apply_result(&mut self, call_id: CallId, outcome: ToolOutcome, source: Source) {
        self.record_shown_pages(call_id, &outcome);
        let Some(state) = self.calls.iter_mut().find(|state| state.call.call_id == call_id) else { return };
        state.repeat_count = self.turn.loop_detector.record(&state.call, &outcome);
        state.stage = Stage::Done(outcome);
        state.add_source(source);
    }

    /// Applies what hooks decided about a call.
    fn apply_hooks(&mut self, call_id: CallId, input: Option<Value>, notes: Vec<String>, source: Source) {
        self.update_call(call_id, |state| {
            state.hooked = true;
            if let Some(input) = input {
                state.call.input = input;
                if matches!(state.stage, Stage::Open(OpenStage::Ready)) {
                    // What was approved was another input.
                    state.stage = Stage::Open(OpenStage::New);
                }
            }
            state.notes.extend(notes);
            state.add_source(source);
        });
    }

    fn apply_steering(&mut self, message_id: MessageId, message: String) {
        self.steered.push((message_id, message));
        // The model has answered and would not be called again: close the step, so that it will be.
        let answered = matches!(self.messages().last(), Some(Message::Assistant { .. }));
        if self.calls.is_empty() && (answered || self.turn.loop_detector.is_looping()) {
            self.close_step();
        }
    }

    /// Tells the model why its final answer does not match, and lets it answer once more.
    fn apply_output_rejection(&mut self, errors: &str) {
        self.turn.output_rejected = true;
        // A message of notes alone would count as empty.
        self.branch.push(Message::user(structured_output::rejection_note(errors)), MessageOrigin::Results);
        self.branch.record_source_of_last(Source::Agent);
        if self.model_calls_left() == 0 {
            self.turn.extra_calls += 1;
        }
    }

    fn apply_end(&mut self, outcome: TurnOutcome) {
        self.close_step();
        if let TurnOutcome::Cancelled { said: Some(PartialAnswer { message_id, text }) } = outcome {
            let blocks = vec![Block::Text { text, signature: None }];
            let message = Message::Assistant { model: String::new(), blocks };
            self.branch.push(message, MessageOrigin::Answer { message_id });
        }
    }

    fn record_memory_writes(&mut self, writes: impl IntoIterator<Item = MemoryWrite>) {
        for write in writes {
            self.branch.record_memory_write(write);
        }
    }

    fn apply_resolution(&mut self, request_id: HitlId, answer: String, remarks: Vec<Content>) {
        let Some(at) = self.pending_hitl.iter().position(|pending| pending.request_id == request_id) else {
            return;
        };
        let PendingHitl { call_id, kind, .. } = self.pending_hitl.remove(at);
        self.update_call(call_id, |state| {
            state.stage = Stage::Open(OpenStage::Ready);
            state.remarks.extend(remarks.into_iter().map(Content::without_data));
            if kind == HitlKind::Question {
                state.answers.push(HumanAnswer { answer });
            }
        });
    }

    fn update_call(&mut self, call_id: CallId, change: impl FnOnce(&mut CallState)) {
        if let Some(state) = self.calls.iter_mut().find(|state| state.call.call_id == call_id) {
            change(state);
        }
    }

    /// Closes a step of the conversation: the results of the last answer's calls become the next message,
    /// followed by the user's steering messages.
    fn close_step(&mut self) {
        self.pending_hitl.clear();
        let from_tool = self.calls.iter().any(|state| state.source == Source::Tool);
        let replies: Vec<_> = self.calls.drain(..).map(CallState::into_reply).collect();
        if !replies.is_empty() {
            self.branch.push(Message::Results(replies), MessageOrigin::Results);
            self.branch.record_source_of_last(if from_tool { Source::Tool } else { Source::Agent });
        }
        if !self.steered.is_empty() && self.model_calls_left() == 0 {
            // A steering message is answered even if the call limit is reached.
            self.turn.extra_calls += 1;
        }
        if !self.steered.is_empty() {
            // A steering message may break the loop.
            self.turn.loop_detector = LoopDetector::default();
        }
        for (message_id, text) in self.steered.drain(..) {
            self.branch.push(Message::user(text), MessageOrigin::Steered { message_id });
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/thread/mod.rs"]
mod tests;
