//! Reads the cassette of a turn from the journal.
//!
//! The journal is folded like for a turn, up to the end of the turn that is exported. What the model was sent first is
//! the conversation just before its first answer; each message that follows belongs to a step.

use std::collections::HashMap;

use api::cassettes::{
    CallResult, CassetteCall, CassetteGap, CassettePartName, CassetteStep, CassetteUsage, PersonAnswer,
};
use api::{CallId, HitlId, Timestamp, TurnId};
use llm::{Answer, Message, ToolReply};
use store::steps::{PromptHashes, Step, TurnOptions, TurnOutcome};
use store::{Brain, StoredStep, TaskRow};

use super::super::branch::Branch;
use super::super::journal_fold::{FoldError, JournalFold, MissingOpening};
use super::super::thread_loader::LoadError;

/// What the journal holds of a turn.
pub(super) struct RecordedTurn {
    /// What the model was sent first.
    pub(super) messages: Vec<Message>,
    pub(super) options: TurnOptions,
    /// Hashes of what was sent before that.
    pub(super) prompt: Option<PromptHashes>,
    pub(super) steps: Vec<StepRecord>,
    pub(super) gaps: Vec<CassetteGap>,
    /// The time of its last step.
    pub(super) last_at: Timestamp,
}

/// An answer, and what followed.
pub(super) struct StepRecord {
    model: String,
    text: String,
    usage: CassetteUsage,
    calls: Vec<CallRecord>,
    steered: Vec<String>,
}

/// A call of an answer. Its result is that of its reply.
struct CallRecord {
    call_id: CallId,
    call: CassetteCall,
    reply: Option<ToolReply>,
}

impl StepRecord {
    fn new(model: String, answer: &Answer, cost_usd: Option<f64>) -> Self {
        let calls = answer.calls().map(|call| CallRecord {
            call_id: call.call_id,
            call: CassetteCall {
                tool: call.name.clone(),
                input: call.input.clone(),
                ran_input: None,
                result: CallResult::default(),
                duration_ms: None,
                person: Vec::new(),
            },
            reply: None,
        });
        Self {
            model,
            text: answer.text(),
            usage: CassetteUsage {
                input_tokens: answer.usage.input,
                output_tokens: answer.usage.output,
                cost_usd,
            },
            calls: calls.collect(),
            steered: Vec::new(),
        }
    }

    /// The results of its calls.
    pub(super) fn replies_mut(&mut self) -> impl Iterator<Item = &mut ToolReply> {
        self.calls.iter_mut().filter_map(|call| call.reply.as_mut())
    }

    /// The step as it is recorded; `record` converts results.
    pub(super) fn into_step(self, record: impl Fn(ToolReply) -> CallResult) -> CassetteStep {
        let Self { model, text, usage, calls, steered } = self;
        let calls = calls.into_iter().map(|CallRecord { call, reply, .. }| CassetteCall {
            result: reply.map(&record).unwrap_or_default(),
            ..call
        });
        CassetteStep { model, text, calls: calls.collect(), usage, steered }
    }
}

/// Reads a turn; `None` if the journal has none of it. Blocks.
pub(super) fn read(brain: &Brain, task: TaskRow, turn_id: TurnId) -> Result<Option<RecordedTurn>, LoadError> {
    // A turn that goes back behind a compaction needs what is usually not held in memory.
    for before in [Branch::default(), Branch::retaining_all()] {
        let mut reading = Reading::new(before, turn_id);
        let mut failed = None;
        brain.for_each_step(task, 0, |_, _, stored| match reading.apply(stored) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                failed = Some(error);
                false
            }
        })?;
        match failed {
            None => return Ok(reading.into_turn()),
            Some(FoldError::BaseNotInMemory(_)) => {}
            Some(FoldError::MissingOpening(error)) => return Err(error.into()),
        }
    }
    Err(MissingOpening(turn_id).into())
}

/// A journal that is being read.
struct Reading {
    turn_id: TurnId,
    fold: JournalFold,
    /// The turn, once its opening was read.
    opened: Option<(TurnOptions, Option<PromptHashes>)>,
    messages: Option<Vec<Message>>,
    /// The number of messages that were looked at.
    seen: usize,
    steps: Vec<StepRecord>,
    /// The call and the place of each request to a person.
    asked: HashMap<HitlId, (CallId, usize)>,
    gaps: Vec<CassetteGap>,
    last_at: Timestamp,
    has_ended: bool,
}

impl Reading {
    fn new(before: Branch, turn_id: TurnId) -> Self {
        Self {
            turn_id,
            fold: JournalFold::new(before),
            opened: None,
            messages: None,
            seen: 0,
            steps: Vec::new(),
            asked: HashMap::new(),
            gaps: Vec::new(),
            last_at: Timestamp::from_unix_ms(0),
            has_ended: false,
        }
    }

    /// Applies the next step of the journal. Returns whether the turn may go on.
    fn apply(&mut self, stored: StoredStep) -> Result<bool, FoldError> {
        if stored.turn_id != self.turn_id {
            if self.opened.is_some() {
                // The next turn begins only after the end of this one.
                self.has_ended = true;
                return Ok(false);
            }
            self.fold.apply(stored)?;
            return Ok(true);
        }
        let (step, at) = (stored.step.clone(), stored.at);
        if matches!(step, Step::Answered { .. } | Step::Ended { .. }) {
            self.keep_messages();
        }
        self.fold.apply(stored)?;
        self.last_at = at;
        self.record(&step);
        self.record_new_messages(&step);
        Ok(!self.has_ended)
    }

    /// Keeps the conversation before the first answer.
    fn keep_messages(&mut self) {
        if let (None, Some(thread)) = (&self.messages, &self.fold.thread) {
            self.messages = Some(thread.messages().to_vec());
            self.seen = thread.branch().all_messages().len();
        }
    }

    fn record(&mut self, step: &Step) {
        match step {
            Step::Opened(opened) => self.opened = Some((opened.options.clone(), opened.prompt.clone())),
            Step::Answered { model, answer, cost_usd, .. } => {
                self.steps.push(StepRecord::new(model.clone(), answer, *cost_usd));
            }
            Step::Compacted(_) if self.messages.is_some() => {
                self.gaps.push(CassetteGap {
                    part: CassettePartName::Messages,
                    reason: format!(
                        "after step {} the conversation was compacted; a run sends it in full",
                        self.steps.len()
                    ),
                });
            }
            Step::Hooked { call_id, input: Some(input), .. } => self.change_input(*call_id, input),
            Step::InputChanged { request_id, call_id, input, answer, .. } => {
                self.change_input(*call_id, input);
                self.answer(*request_id, answer);
            }
            Step::Asked { request_id, call_id, kind, question, .. } => {
                if let Some(record) = self.call(*call_id) {
                    let asked = PersonAnswer { kind: *kind, question: question.clone(), answer: None };
                    record.call.person.push(asked);
                    let place = record.call.person.len() - 1;
                    self.asked.insert(*request_id, (*call_id, place));
                }
            }
            Step::Resolved { request_id, answer, .. } => self.answer(*request_id, answer),
            Step::Resulted { call_id, outcome, .. } => {
                if let Some(record) = self.call(*call_id) {
                    record.call.duration_ms = Some(outcome.duration_ms);
                }
            }
            Step::Ended { .. } => self.has_ended = true,
            _ => {}
        }
    }

    fn call(&mut self, call_id: CallId) -> Option<&mut CallRecord> {
        self.steps.last_mut()?.calls.iter_mut().find(|record| record.call_id == call_id)
    }

    fn change_input(&mut self, call_id: CallId, input: &serde_json::Value) {
        if let Some(record) = self.call(call_id) {
            record.call.ran_input = Some(input.clone());
        }
    }

    fn answer(&mut self, request_id: HitlId, answer: &str) {
        let Some((call_id, place)) = self.asked.get(&request_id).copied() else { return };
        if let Some(asked) = self.call(call_id).and_then(|record| record.call.person.get_mut(place)) {
            asked.answer = Some(answer.to_owned());
        }
    }

    /// Assigns the messages that a step has added to the last answer.
    fn record_new_messages(&mut self, step: &Step) {
        let (Some(thread), Some(last)) = (&self.fold.thread, self.steps.last_mut()) else { return };
        // What tells the model that its answer does not match, and the part of an answer that was cancelled, are the
        // engine's own.
        let is_own = matches!(
            step,
            Step::OutputRejected { .. } | Step::Ended { outcome: TurnOutcome::Cancelled { .. } }
        );
        let messages = thread.branch().all_messages();
        for message in messages.get(self.seen..).unwrap_or_default() {
            match message {
                Message::Results(replies) => {
                    for (record, reply) in last.calls.iter_mut().zip(replies) {
                        record.reply = Some(reply.clone());
                    }
                }
                Message::User { content } if !is_own => {
                    last.steered.push(llm::Content::text_of(content));
                }
                Message::User { .. } | Message::Assistant { .. } => {}
            }
        }
        self.seen = messages.len();
    }

    fn into_turn(mut self) -> Option<RecordedTurn> {
        self.keep_messages();
        let (options, prompt) = self.opened?;
        Some(RecordedTurn {
            messages: self.messages.unwrap_or_default(),
            options,
            prompt,
            steps: self.steps,
            gaps: self.gaps,
            last_at: self.last_at,
        })
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/agent/cassettes/export.rs"]
mod tests;
