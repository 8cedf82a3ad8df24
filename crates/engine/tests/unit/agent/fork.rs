//! The end of a copy is found in any journal, and what it leaves out is not of the conversation up to there.

use std::collections::BTreeMap;

use api::event::StopReason;
use llm::{Block, FinishReason, TokenUsage, ToolOutcome, ToolUse};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use serde_json::json;
use store::steps::{Opened, TurnBase, TurnOptions, TurnOutcome};

use super::*;

/// A journal that is being written.
#[derive(Default)]
struct Journal {
    steps: Vec<StoredStep>,
    turn: Option<TurnId>,
}

impl Journal {
    fn push(&mut self, step: Step) -> i64 {
        if matches!(step, Step::Opened(_)) {
            self.turn = Some(TurnId::new());
        }
        let ts = i64::try_from(self.steps.len()).unwrap() + 1;
        let at = api::Timestamp::from_unix_ms(ts);
        self.steps.push(StoredStep { turn_id: self.turn.unwrap(), opened_ts: ts, ts, at, step });
        ts
    }

    fn open(&mut self, base: TurnBase) -> MessageId {
        let message_id = MessageId::new();
        let options = TurnOptions { max_turns: 9, super_thinking: false, direct: true, overrides: None };
        self.push(Step::Opened(Opened {
            message_id,
            notes: Vec::new(),
            notes_source: api::memory::Source::Agent.into(),
            recall_at: None,
            message: "hello".into(),
            media: Vec::new(),
            options,
            base,
            prompt: None,
            traceparent: None,
        }));
        message_id
    }

    fn recall(&mut self) -> i64 {
        self.push(Step::Recalled { note: Some("a memory".into()), source: api::memory::Source::Agent.into() })
    }

    fn answer(&mut self, calls: &[api::CallId]) -> MessageId {
        let message_id = MessageId::new();
        let blocks = calls.iter().map(|call_id| {
            Block::ToolUse(ToolUse {
                call_id: *call_id,
                provider_id: call_id.to_string(),
                name: "read_file".into(),
                input: json!({}),
                signature: None,
                broken: None,
            })
        });
        let text = Block::Text { text: "an answer".into(), signature: None };
        let blocks = std::iter::once(text).chain(blocks).collect();
        let answer = llm::Answer { blocks, usage: TokenUsage::default(), stop: FinishReason::default() };
        self.push(Step::Answered { message_id, model: "m".into(), answer, cost_usd: None, capped: false });
        message_id
    }

    fn steer(&mut self) -> (MessageId, i64) {
        let message_id = MessageId::new();
        (message_id, self.push(Step::Steered { message_id, message: "also".into() }))
    }

    fn result(&mut self, call_id: api::CallId) -> i64 {
        let outcome = ToolOutcome::new("done".into(), None, 1);
        let source = api::memory::Source::Tool.into();
        self.push(Step::Resulted { call_id, outcome, memory: Vec::new(), source })
    }

    fn end(&mut self) -> i64 {
        self.push(Step::Ended { outcome: TurnOutcome::Completed { stop_reason: StopReason::EndTurn } })
    }

    fn listed(&self) -> Vec<MessageId> {
        let mut fold = JournalFold::new(Branch::order_only());
        self.steps.iter().cloned().try_for_each(|stored| fold.apply(stored)).unwrap();
        fold.into_branch().listed().map(|(message_id, _)| message_id).collect()
    }

    fn point(&self, after: MessageId) -> Option<(i64, Vec<i64>)> {
        let listed = self.listed();
        let copied = listed.iter().copied().take_while(|id| *id != after).chain([after]).collect();
        let mut search = PointSearch::new(after, &copied);
        for (row, stored) in (1..).zip(self.steps.iter().cloned()) {
            if !search.apply(row, stored).unwrap() {
                break;
            }
        }
        search.into_found()
    }
}

#[test]
fn a_copy_ends_with_a_question_or_with_an_answer_and_the_end_of_its_turn() {
    let mut journal = Journal::default();
    let question = journal.open(TurnBase::End);
    let call = api::CallId::new();
    let calling = journal.answer(&[call]);
    let (also, _) = journal.steer();
    let resulted = journal.result(call);
    let answer = journal.answer(&[]);
    let ended = journal.end();
    let next = journal.open(TurnBase::End);
    assert_eq!(journal.point(question), Some((1, vec![])));
    // The message that was sent meanwhile follows the results.
    assert_eq!(journal.point(calling), Some((resulted, vec![3])));
    assert_eq!(journal.point(also), Some((resulted, vec![])));
    assert_eq!(journal.point(answer), Some((ended, vec![])));
    assert_eq!(journal.point(next), Some((ended + 1, vec![])));
    assert_eq!(journal.point(MessageId::new()), None);
}

#[test]
fn a_copy_that_ends_with_a_question_has_what_was_recalled_for_it() {
    let mut journal = Journal::default();
    let question = journal.open(TurnBase::End);
    let recalled = journal.recall();
    let answer = journal.answer(&[]);
    let ended = journal.end();
    let next = journal.open(TurnBase::End);
    let recalled_next = journal.recall();
    let (also, _) = journal.steer();
    assert_eq!(journal.point(question), Some((recalled, vec![])));
    assert_eq!(journal.point(answer), Some((ended, vec![])));
    assert_eq!(journal.point(next), Some((recalled_next, vec![])));
    let last = journal.answer(&[]);
    assert_eq!(journal.listed(), [question, answer, next, last, also]);
    assert_eq!(journal.point(next), Some((recalled_next, vec![])));
}

#[test]
fn a_message_that_the_model_got_after_its_answer_is_left_out_of_a_copy_of_the_answer() {
    let mut journal = Journal::default();
    journal.open(TurnBase::End);
    let (also, steered) = journal.steer();
    let answer = journal.answer(&[]);
    assert_eq!(journal.listed().last(), Some(&also));
    assert_eq!(journal.point(answer), Some((3, vec![steered])));
    assert_eq!(journal.point(also), Some((3, vec![])));
}

proptest! {
    /// Of any message of any conversation, the copy lists the messages up to it, in their order.
    #[test]
    fn a_copy_lists_the_messages_up_to_its_last_one(actions in prop::collection::vec(0..8_u8, 1..40), pick in any::<prop::sample::Index>()) {
        let mut journal = Journal::default();
        journal.open(TurnBase::End);
        let mut open: Vec<api::CallId> = Vec::new();
        let mut questions: BTreeMap<usize, MessageId> = BTreeMap::new();
        for action in actions {
            let call = api::CallId::new();
            match action {
                0 if open.is_empty() => _ = journal.answer(&[]),
                1 if open.is_empty() => {
                    journal.answer(&[call]);
                    open.push(call);
                }
                2 => _ = journal.steer(),
                7 if matches!(journal.steps.last(), Some(StoredStep { step: Step::Opened(_), .. })) => {
                    journal.recall();
                }
                3 => open.pop().into_iter().for_each(|call| _ = journal.result(call)),
                4 => {
                    journal.end();
                    open.clear();
                    questions.insert(journal.steps.len(), journal.open(TurnBase::End));
                }
                5 | 6 => {
                    let listed = journal.listed();
                    let known = questions.values().copied().rfind(|id| listed.contains(id));
                    let Some(message_id) = known else { continue };
                    journal.end();
                    open.clear();
                    if action == 5 {
                        questions.insert(journal.steps.len(), journal.open(TurnBase::Edit { message_id }));
                    }
                }
                _ => {}
            }
        }
        let listed = journal.listed();
        let at = pick.index(listed.len());
        let (last, left_out) = journal.point(listed[at]).expect("a listed message is found");
        let steps = (1..).zip(journal.steps).filter(|(row, _)| *row <= last && !left_out.contains(row));
        let copy = Journal { steps: steps.map(|(_, stored)| stored).collect(), turn: None };
        prop_assert_eq!(copy.listed(), &listed[..=at]);
    }
}
