//! Random journals that obey the rules of a turn, with random choices where a turn has several options.

use api::approvals::ApprovalReason;
use api::citations::NumberedPage;
use api::{Timestamp, TurnId};
use llm::TokenUsage;
use proptest::prelude::*;
use store::steps::{Compacted, MemoryWrite, Replacement, TurnBase, TurnOutcome};

use super::model::{self, CallStage, Entry};
use super::*;

/// The random choices that determine a journal.
pub(super) fn choices(max_len: usize) -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec(any::<(u8, u8)>(), 1..max_len)
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
        for (action, variant) in choices {
            journal.push_random_step(*action, usize::from(*variant));
        }
        journal.steps
    }

    /// A journal with compactions and writes to working memory.
    pub(super) fn compacted(choices: &[(u8, u8)]) -> Vec<StoredStep> {
        let mut journal = Self::default();
        for (action, variant) in choices {
            journal.push_random_step(*action, usize::from(*variant));
            let mut numbered = None;
            if let Some(last) = journal.steps.last_mut()
                && let Step::Resulted { call_id, outcome, memory, .. } = &mut last.step
            {
                let key = format!("key {}", variant % 3);
                memory.push(MemoryWrite { key, value: json!(*action) });
                let n = u32::from(variant % 7) + 1;
                outcome.output.extend([" [", &n.to_string(), "]"]);
                let page = NumberedPage { n, url: format!("https://a.example/{n}"), title: None };
                let step = Step::Numbered { call_id: *call_id, pages: vec![page] };
                numbered = Some(StoredStep { step, ..last.clone() });
            }
            if let Some(numbered) = numbered {
                journal.steps.insert(journal.steps.len() - 1, numbered);
            }
            let calls_model =
                journal.turn.is_some() && model::next_action(&journal.steps) == NextAction::CallModel;
            if calls_model && variant % 5 == 0 {
                let messages = model::messages(&journal.steps).len();
                // Results stay with their calls.
                let kept = if variant % 2 == 0 {
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

    fn push_random_step(&mut self, action: u8, variant: usize) {
        let next = self.turn.map(|_| model::next_action(&self.steps));
        match (action % 16, next) {
            // A turn may be left unfinished, as if the brain could not be written for it.
            (0, _) | (_, None) => self.open_turn(variant),
            (1, _) => self.end(TurnOutcome::Errored { failure: failure() }),
            (2, next) => {
                let text = "a partial answer".to_owned();
                let has_text = next == Some(NextAction::CallModel) && variant % 2 == 1;
                let partial_answer = has_text.then(|| PartialAnswer { message_id: MessageId::new(), text });
                self.end(TurnOutcome::Cancelled { said: partial_answer });
            }
            (3, Some(NextAction::CallModel)) => {
                let tokens = TokenUsage { input: 7, ..TokenUsage::default() };
                self.push(Step::Spent { model: "m".into(), tokens, cost_usd: None });
            }
            (5, Some(NextAction::CallModel)) if self.recalls() => {
                // Only corrections may have been recalled.
                let note = (!variant.is_multiple_of(4)).then(|| format!("memory {variant}"));
                let source = if variant.is_multiple_of(2) { Source::Tool } else { Source::Agent };
                self.push(Step::Recalled { note, source: source.into() });
            }
            (4, _) => {
                self.push(Step::Steered { message_id: MessageId::new(), message: format!("mind {variant}") });
            }
            (_, Some(NextAction::CallModel)) => self.push(answered(answer(variant % 4))),
            (_, Some(NextAction::Complete(stop_reason))) => self.end(TurnOutcome::Completed { stop_reason }),
            (_, Some(NextAction::RunTools(_) | NextAction::AwaitHuman(_))) => {
                self.advance_call(action, variant);
            }
        }
    }

    fn push(&mut self, step: Step) {
        let ts = i64::try_from(self.steps.len()).unwrap() + 1;
        self.steps.push(stored(self.turn.unwrap(), ts, step));
    }

    fn open_turn(&mut self, variant: usize) {
        let entries = model::entries(&self.steps);
        let base = match variant % 4 {
            0 => pick(&entries, variant / 4, |entry| entry.opens_turn)
                .map_or(TurnBase::End, |message_id| TurnBase::Edit { message_id }),
            1 => pick(&entries, variant / 4, |_| true)
                .map_or(TurnBase::End, |message_id| TurnBase::Retry { message_id }),
            _ => TurnBase::End,
        };
        self.turn = Some(TurnId::new());
        let Step::Opened(opened) = opened("a question") else { return };
        let (notes, recall_at) = if base.is_retry() {
            (Vec::new(), None)
        } else {
            (vec!["the first note".into(), "the last note".into()], Some(variant % 3))
        };
        self.push(Step::Opened(Opened { base, notes, recall_at, ..opened }));
    }

    /// Whether the last step has opened a turn that recalls memories.
    fn recalls(&self) -> bool {
        let last = self.steps.last().map(|stored| &stored.step);
        matches!(last, Some(Step::Opened(Opened { recall_at: Some(_), .. })))
    }

    /// Advances one of the calls that have no result.
    fn advance_call(&mut self, action: u8, variant: usize) {
        let calls = model::open_calls(&self.steps);
        let (call, record) = &calls[variant % calls.len()];
        let call_id = call.call_id;
        match (record.stage, action % 3) {
            // Hooks also see an input that the user has changed.
            (CallStage::New | CallStage::Ready, 0) if !record.hooked && variant.is_multiple_of(3) => {
                let input = variant.is_multiple_of(2).then(|| json!({"changed": call_id}));
                self.push_hooks(call_id, input, variant);
            }
            (CallStage::Running, 1) if variant.is_multiple_of(3) => {
                let outcome = ToolOutcome::new("not checked yet".into(), None, 1);
                let source = Source::Agent.into();
                self.push(Step::Returned { call_id, outcome, memory: Vec::new(), source });
            }
            (CallStage::Returned, 0) => self.push_hooks(call_id, None, variant),
            (CallStage::New, 0) => self.push_question(call_id, HitlKind::Permission),
            (CallStage::Running, 0) => self.push_question(call_id, HitlKind::Question),
            (CallStage::New, 1) | (CallStage::Ready, _) => self.push(Step::Intended { call_id }),
            (CallStage::Waiting(request_id, kind), choice) => {
                let remarks = vec![Content::Text { text: format!("remark {variant}") }];
                let remarks = if variant.is_multiple_of(2) { remarks } else { Vec::new() };
                let refused = kind == HitlKind::Permission && choice == 0;
                let answer = if refused { "no" } else { "yes" }.to_owned();
                if kind == HitlKind::Permission && variant % 3 == 1 && !refused {
                    let input = json!({"changed": variant});
                    self.push(Step::InputChanged { request_id, call_id, input, answer, remarks });
                } else {
                    self.push(Step::Resolved { request_id, answer, remarks, answer_id: None });
                }
                if refused {
                    self.push_result(call_id, false);
                }
            }
            (CallStage::New | CallStage::Running | CallStage::Returned, choice) => {
                self.push_result(call_id, choice == 1);
            }
            (CallStage::Done, _) => unreachable!("a call without a result is not done"),
        }
    }

    fn push_question(&mut self, call_id: CallId, kind: HitlKind) {
        let (request_id, question) = (HitlId::new(), "may I?".to_owned());
        // Earlier versions have stored no reason.
        let is_known = kind == HitlKind::Permission && self.steps.len().is_multiple_of(2);
        let reason = is_known.then_some(ApprovalReason::Permission);
        self.push(Step::Asked { request_id, call_id, kind, question, options: None, reason });
    }

    fn push_hooks(&mut self, call_id: CallId, input: Option<serde_json::Value>, variant: usize) {
        let (notes, source) = (vec![format!("note {variant}")], Source::Agent.into());
        self.push(Step::Hooked { call_id, input, notes, source });
    }

    fn push_result(&mut self, call_id: CallId, success: bool) {
        let error = (!success).then(|| "failed".to_owned());
        let output = if success { format!("result of {call_id}") } else { String::new() };
        self.push(resulted(call_id, ToolOutcome::new(output, error, 1)));
    }

    fn end(&mut self, outcome: TurnOutcome) {
        self.push(Step::Ended { outcome });
        self.turn = None;
    }
}

/// Picks one of the messages that satisfy `wanted`.
fn pick(entries: &[Entry], variant: usize, wanted: impl Fn(&Entry) -> bool) -> Option<MessageId> {
    let ids: Vec<MessageId> =
        entries.iter().filter(|entry| wanted(entry)).filter_map(|entry| entry.message_id).collect();
    Some(ids[variant.checked_rem(ids.len())?])
}
