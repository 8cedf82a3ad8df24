//! Random journals that obey the rules of a turn, with random choices where a turn has several options.

use api::{Timestamp, TurnId};
use proptest::prelude::*;

use super::model::{self, CallStage, Entry};
use super::*;
use crate::llm::TokenUsage;
use crate::store::steps::{Compacted, MemoryWrite, Replacement, TurnBase, TurnOutcome};

/// The random choices that determine a journal.
pub(super) fn choices(most: usize) -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec(any::<(u8, u8)>(), 1..most)
}

/// A journal that is being built.
#[derive(Default)]
pub(super) struct Journal {
    steps: Vec<StoredStep>,
    turn: Option<TurnId>,
}

/// A compaction that covers the first `covers` messages.
pub(super) fn compacted(covers: usize) -> Compacted {
    Compacted {
        covers: u64::try_from(covers).unwrap(),
        instead: Replacement::Summary { text: format!("a summary of {covers}") },
        results_up_to: None,
        memory_up_to: None,
    }
}

pub(super) fn stored(turn_id: TurnId, ts: i64, step: Step) -> StoredStep {
    StoredStep { turn_id, opened_ts: ts, ts, at: Timestamp::from_unix_ms(ts), step }
}

impl Journal {
    pub(super) fn random(choices: &[(u8, u8)]) -> Vec<StoredStep> {
        let mut journal = Self::default();
        for (what, which) in choices {
            journal.push_random_step(*what, usize::from(*which));
        }
        journal.steps
    }

    /// A journal with compactions and writes to working memory.
    pub(super) fn compacted(choices: &[(u8, u8)]) -> Vec<StoredStep> {
        let mut journal = Self::default();
        for (what, which) in choices {
            journal.push_random_step(*what, usize::from(*which));
            if let Some(Step::Resulted { memory, .. }) =
                journal.steps.last_mut().map(|stored| &mut stored.step)
            {
                let key = format!("key {}", which % 3);
                memory.push(MemoryWrite { key, value: json!(*what) });
            }
            let asks = journal.turn.is_some() && model::next_action(&journal.steps) == NextAction::CallModel;
            if asks && which % 5 == 0 {
                let messages = model::messages(&journal.steps).len();
                // Results stay with their calls.
                let kept = if which % 2 == 0 {
                    0
                } else {
                    model::messages(&journal.steps)
                        .iter()
                        .rev()
                        .position(|message| !matches!(message, Message::Results(_)))
                        .unwrap_or(0)
                        + 1
                };
                // What is omitted stays omitted.
                let covered = fold(&journal.steps).branch().compacted_count();
                journal.push(Step::Compacted(compacted(messages.saturating_sub(kept).max(covered))));
            }
        }
        journal.steps
    }

    fn push_random_step(&mut self, what: u8, which: usize) {
        let next = self.turn.map(|_| model::next_action(&self.steps));
        match (what % 16, next) {
            // A turn may be left unfinished, as if the brain could not be written for it.
            (0, _) | (_, None) => self.open_turn(which),
            (1, _) => self.end(TurnOutcome::Errored { failure: failure() }),
            (2, next) => {
                let text = "what I said".to_owned();
                let speaks = next == Some(NextAction::CallModel) && which % 2 == 1;
                let said = speaks.then(|| PartialAnswer { message_id: MessageId::new(), text });
                self.end(TurnOutcome::Cancelled { said });
            }
            (3, Some(NextAction::CallModel)) => {
                let tokens = TokenUsage { input: 7, ..TokenUsage::default() };
                self.push(Step::Spent { model: "m".into(), tokens, cost_usd: None });
            }
            (4, _) => {
                self.push(Step::Steered { message_id: MessageId::new(), message: format!("mind {which}") });
            }
            (_, Some(NextAction::CallModel)) => self.push(answered(answer(which % 4))),
            (_, Some(NextAction::Complete(stop_reason))) => self.end(TurnOutcome::Completed { stop_reason }),
            (_, Some(NextAction::RunTools(_) | NextAction::AwaitHuman(_))) => self.advance_call(what, which),
        }
    }

    fn push(&mut self, step: Step) {
        let ts = i64::try_from(self.steps.len()).unwrap() + 1;
        self.steps.push(stored(self.turn.unwrap(), ts, step));
    }

    fn open_turn(&mut self, which: usize) {
        let entries = model::entries(&self.steps);
        let base = match which % 4 {
            0 => pick(&entries, which / 4, |entry| entry.opens_turn)
                .map_or(TurnBase::End, |message_id| TurnBase::Edit { message_id }),
            1 => pick(&entries, which / 4, |_| true)
                .map_or(TurnBase::End, |message_id| TurnBase::Retry { message_id }),
            _ => TurnBase::End,
        };
        self.turn = Some(TurnId::new());
        let Step::Opened(opened) = opened("a question") else { return };
        self.push(Step::Opened(Opened { base, ..opened }));
    }

    /// Advances one of the calls that have no result.
    fn advance_call(&mut self, what: u8, which: usize) {
        let calls = model::open_calls(&self.steps);
        let (call, now) = &calls[which % calls.len()];
        let call_id = call.call_id;
        match (now.stage, what % 3) {
            (CallStage::New, 0) => self.push_question(call_id, HitlKind::Permission),
            (CallStage::Running, 0) => self.push_question(call_id, HitlKind::Question),
            (CallStage::New, 1) | (CallStage::Ready, _) => self.push(Step::Intended { call_id }),
            (CallStage::Waiting(request_id, kind), choice) => {
                let remarks = vec![Content::Text { text: format!("remark {which}") }];
                let remarks = if which.is_multiple_of(2) { remarks } else { Vec::new() };
                let refused = kind == HitlKind::Permission && choice == 0;
                let answer = if refused { "no" } else { "yes" }.to_owned();
                self.push(Step::Resolved { request_id, answer, remarks });
                if refused {
                    self.push_result(call_id, false);
                }
            }
            (CallStage::New | CallStage::Running, choice) => self.push_result(call_id, choice == 1),
            (CallStage::Done, _) => unreachable!("a call without a result is not done"),
        }
    }

    fn push_question(&mut self, call_id: CallId, kind: HitlKind) {
        let (request_id, question) = (HitlId::new(), "may I?".to_owned());
        self.push(Step::Asked { request_id, call_id, kind, question, options: None });
    }

    fn push_result(&mut self, call_id: CallId, well: bool) {
        let error = (!well).then(|| "failed".to_owned());
        let output = if well { format!("result of {call_id}") } else { String::new() };
        self.push(resulted(call_id, ToolOutcome { output, error, duration_ms: 1 }));
    }

    fn end(&mut self, outcome: TurnOutcome) {
        self.push(Step::Ended { outcome });
        self.turn = None;
    }
}

/// Picks one of the messages that satisfy `wanted`.
fn pick(entries: &[Entry], which: usize, wanted: impl Fn(&Entry) -> bool) -> Option<MessageId> {
    let ids: Vec<MessageId> =
        entries.iter().filter(|entry| wanted(entry)).filter_map(|entry| entry.message_id).collect();
    Some(ids[which.checked_rem(ids.len())?])
}
