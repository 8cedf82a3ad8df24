//! The fold over random journals, cut at every step: whatever came before, the resulting messages are a valid
//! conversation, and the turn's next action is right.

use std::collections::BTreeSet;

use api::TurnId;
use api::event::{Failure, FailureCode};
use journals::{Journal, choices, compacted, stored};
use llm::{TokenUsage, ToolReply};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::json;
use store::StoredStep;
use store::steps::TurnBase;
use store::steps::TurnOptions;

use super::call_state::{NEVER_RUN, NOT_CHECKED, STOPPED_AT_QUESTION};
use super::*;
use crate::agent::journal_fold::{FoldError, JournalFold, fold_journal};

mod hooks;
mod journals;
mod model;
mod notes;

const OPTIONS: TurnOptions =
    TurnOptions { max_turns: 3, super_thinking: false, direct: false, overrides: None };

fn failure() -> Failure {
    Failure { code: FailureCode::ProviderUnavailable, message: "down".into(), retryable: true }
}

fn opened(message: &str) -> Step {
    Step::Opened(Opened {
        notes: Vec::new(),
        notes_source: Source::Agent.into(),
        recall_at: None,
        message_id: MessageId::new(),
        message: message.into(),
        media: Vec::new(),
        options: OPTIONS,
        base: TurnBase::End,
        prompt: None,
        traceparent: None,
    })
}

fn resulted(call_id: CallId, outcome: ToolOutcome) -> Step {
    Step::Resulted { call_id, outcome, memory: Vec::new(), source: Source::Agent.into() }
}

fn answer(calls: usize) -> Answer {
    let mut blocks = vec![Block::Text { text: "so far".into(), signature: None }];
    blocks.extend((0..calls).map(|_| {
        let call_id = CallId::new();
        // No two calls are the same: repetitions are tested in `loop_detector`.
        let (provider_id, name, input) =
            (format!("p-{call_id}"), "tool".to_owned(), json!({"call": call_id}));
        Block::ToolUse(ToolUse { call_id, provider_id, name, input, signature: None, broken: None })
    }));
    Answer {
        blocks,
        usage: TokenUsage { input: 10, output: 1, ..TokenUsage::default() },
        stop: llm::FinishReason::Done,
    }
}

fn answered(answer: Answer) -> Step {
    Step::Answered { message_id: MessageId::new(), model: "m".into(), answer, cost_usd: None, capped: false }
}

/// Checks whether a provider would accept these messages as a conversation to answer.
fn check_conversation(messages: &[Message]) -> Result<(), String> {
    if !matches!(messages.first(), Some(Message::User { .. })) {
        return Err("the first message is not from the user".into());
    }
    if matches!(messages.last(), Some(Message::Assistant { .. })) {
        return Err("there is nothing to answer".into());
    }
    let mut pending: Vec<&str> = Vec::new();
    for message in messages {
        match message {
            Message::Results(replies) => {
                let ids: Vec<&str> = replies.iter().map(|reply| reply.provider_id.as_str()).collect();
                if pending.is_empty() || ids != pending {
                    return Err(format!("results of {ids:?}, but {pending:?} are expected"));
                }
                pending.clear();
            }
            _ if !pending.is_empty() => return Err(format!("results of {pending:?} are missing")),
            Message::User { .. } => {}
            Message::Assistant { blocks, .. } => {
                pending = blocks.iter().filter_map(provider_id).collect();
            }
        }
    }
    if pending.is_empty() { Ok(()) } else { Err(format!("results of {pending:?} are missing at the end")) }
}

fn provider_id(block: &Block) -> Option<&str> {
    match block {
        Block::ToolUse(call) => Some(&call.provider_id),
        _ => None,
    }
}

fn fold(journal: &[StoredStep]) -> Thread {
    fold_journal(journal.to_vec()).unwrap().unwrap()
}

/// Folds a journal that continues from a branch.
fn fold_from(base: Branch, journal: &[StoredStep]) -> Result<JournalFold, FoldError> {
    let mut folding = JournalFold::new(base);
    journal.iter().cloned().try_for_each(|stored| folding.apply(stored))?;
    Ok(folding)
}

/// The rewind effects of a turn from each reachable message.
fn all_rewind_effects(branch: &Branch, journal: &[StoredStep], reached: &Branch) -> Vec<String> {
    let ids = model::entries(journal).into_iter().filter_map(|entry| entry.message_id);
    let bases = ids.flat_map(|message_id| [TurnBase::Edit { message_id }, TurnBase::Retry { message_id }]);
    let reachable = bases.filter(|base| reached.can_continue_from(*base));
    let question = |base| match base {
        TurnBase::Retry { message_id } => Some(branch.retried_message(message_id)),
        TurnBase::End | TurnBase::Edit { .. } => None,
    };
    reachable.map(|base| format!("{base:?} {:?} {:?}", branch.rewind_effects(base), question(base))).collect()
}

/// The journal with one more turn opened.
fn with_next_turn(journal: &[StoredStep]) -> Vec<StoredStep> {
    let mut longer = journal.to_vec();
    longer.push(stored(TurnId::new(), 1_000_000, opened("and then?")));
    longer
}

/// A turn's steps, with `ts` counting up.
fn journal(turn_id: TurnId, steps: impl IntoIterator<Item = Step>) -> Vec<StoredStep> {
    (1..).zip(steps).map(|(ts, step)| stored(turn_id, ts, step)).collect()
}

proptest! {
    #[test]
    fn from_a_checkpoint_on_a_journal_comes_to_the_same(choices in choices(80)) {
        let journal = Journal::compacted(&choices);
        let full = fold_journal(journal.clone()).unwrap().unwrap();
        let full_branch = fold_journal(journal.clone()).unwrap().unwrap().into_branch();
        let ends = journal.iter().enumerate().filter(|(_, stored)| matches!(stored.step, Step::Opened(_)));
        for end in ends.map(|(at, _)| at).chain([journal.len()]) {
            let (before, after) = journal.split_at(end);
            // For a turn that goes back behind the retained messages, the journal is read from its beginning.
            let Ok(folding) = fold_from(Branch::default(), before) else { continue };
            let checkpoint = folding.into_branch().to_checkpoint().unwrap();
            let Ok(folding) = fold_from(Branch::from_checkpoint(&checkpoint).unwrap(), after) else { continue };
            if let Some(thread) = &folding.thread {
                prop_assert_eq!(thread.messages(), full.messages());
                prop_assert_eq!(thread.next_action(), full.next_action());
            }
            let branch = folding.into_branch();
            prop_assert_eq!(branch.messages(), full_branch.messages());
            prop_assert_eq!(branch.memory_source(), full_branch.memory_source());
            prop_assert_eq!(branch.measured_tokens(), full_branch.measured_tokens());
            prop_assert_eq!(branch.citable_pages(), full_branch.citable_pages());
            prop_assert_eq!(branch.compacted_count(), full_branch.compacted_count());
            let expected = all_rewind_effects(&full_branch, &journal, &branch);
            prop_assert_eq!(all_rewind_effects(&branch, &journal, &branch), expected);
            let compaction = RewriteKind::Compacted(compacted(full_branch.all_messages().len()));
            prop_assert_eq!(branch.preview_rewrite(compaction.clone()), full_branch.preview_rewrite(compaction));
        }
    }

    #[test]
    fn the_order_of_messages_is_the_same_without_what_they_say(choices in choices(80)) {
        let journal = Journal::compacted(&choices);
        let listed: Vec<_> = fold_journal(journal.clone()).unwrap().unwrap().into_branch().listed().collect();
        let order = fold_from(Branch::order_only(), &journal).unwrap().into_branch();
        prop_assert_eq!(order.listed().collect::<Vec<_>>(), listed);
    }

    #[test]
    fn any_journal_cut_anywhere_is_a_valid_conversation(choices in choices(60)) {
        let journal = Journal::random(&choices);
        for end in 1..=journal.len() {
            let cut = &journal[..end];
            let thread = fold(cut);
            prop_assert_eq!(thread.messages(), model::messages(cut));
            let ended = matches!(cut.last().unwrap().step, Step::Ended { .. });
            if !ended {
                prop_assert_eq!(thread.next_action(), model::next_action(cut));
                if thread.next_action() == NextAction::CallModel {
                    prop_assert_eq!(check_conversation(thread.messages()), Ok(()));
                }
            }
            let longer = with_next_turn(cut);
            let next_turn = fold(&longer);
            prop_assert_eq!(next_turn.next_action(), NextAction::CallModel);
            prop_assert_eq!(next_turn.messages(), model::messages(&longer));
            prop_assert_eq!(check_conversation(next_turn.messages()), Ok(()));
            // What was sent before stays the same, byte for byte: providers cache it.
            prop_assert!(next_turn.messages().starts_with(thread.messages()));
        }
    }

    #[test]
    fn steps_taken_in_one_by_one_and_all_at_once_are_the_same(choices in choices(40)) {
        let journal = Journal::random(&choices);
        let turn = journal.last().unwrap().turn_id;
        let start = journal.iter().position(|stored| stored.turn_id == turn).unwrap();
        let mut thread = fold(&journal[..=start]);
        for StoredStep { ts, step, .. } in &journal[start + 1..] {
            thread.apply(step.clone(), *ts);
        }
        let full = fold(&journal);
        prop_assert_eq!(thread.messages(), full.messages());
        prop_assert_eq!(thread.next_action(), full.next_action());
        prop_assert_eq!(thread.pending_hitl(), full.pending_hitl());
        prop_assert!(thread.sent_open_calls().eq(full.sent_open_calls()));
        prop_assert_eq!(thread.turn().usage(), full.turn().usage());
        prop_assert_eq!(thread.turn().usage().input_tokens, model::input_tokens(&journal));
        prop_assert_eq!(thread.turn().last_step_ts(), full.turn().last_step_ts());
    }
}

#[test]
fn random_journals_have_every_step_and_every_way_to_open_and_to_end() {
    let mut runner = TestRunner::deterministic();
    let mut found = BTreeSet::new();
    for _ in 0..100 {
        let choices = choices(60).new_tree(&mut runner).unwrap().current();
        found.extend(Journal::random(&choices).iter().map(|stored| kind(&stored.step)));
    }
    let kinds = "answered asked:permission asked:question ended:cancelled:None ended:cancelled:Some ended:completed \
                 ended:errored hooked input_changed intended opened:edit opened:end opened:retry recalled resolved \
                 resulted returned spent steered";
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>().join(" "), kinds);
}

/// A name for the kind of the step.
fn kind(step: &Step) -> String {
    let body = serde_json::to_value(step).unwrap();
    let name = body["step"].as_str().unwrap();
    match step {
        Step::Opened(opened) => match opened.base {
            TurnBase::End => "opened:end".into(),
            TurnBase::Edit { .. } => "opened:edit".into(),
            TurnBase::Retry { .. } => "opened:retry".into(),
        },
        Step::Asked { kind, .. } => format!("{name}:{}", kind.as_str()),
        Step::Ended { outcome: TurnOutcome::Cancelled { said: None } } => "ended:cancelled:None".into(),
        Step::Ended { outcome: TurnOutcome::Cancelled { said: Some(_) } } => "ended:cancelled:Some".into(),
        Step::Ended { .. } => format!("{name}:{}", body["outcome"]["outcome"].as_str().unwrap()),
        _ => name.to_owned(),
    }
}

#[test]
fn the_conversation_check_goes_red() {
    let user = || Message::user("q");
    let assistant = |answer: &Answer| Message::Assistant { model: "m".into(), blocks: answer.blocks.clone() };
    let reply = |call: &ToolUse| ToolReply {
        provider_id: call.provider_id.clone(),
        remarks: Vec::new(),
        text: String::new(),
        is_error: false,
    };
    let two = answer(2);
    let replies: Vec<ToolReply> = two.calls().map(reply).collect();
    let swapped: Vec<ToolReply> = replies.iter().rev().cloned().collect();
    assert_eq!(check_conversation(&[user(), assistant(&two), Message::Results(replies.clone())]), Ok(()));
    for broken in [
        vec![],
        vec![assistant(&answer(0)), user()],
        vec![user(), assistant(&answer(0))],
        vec![user(), Message::Results(replies.clone())],
        vec![user(), assistant(&two), user()],
        vec![user(), assistant(&two), Message::Results(replies[..1].to_vec())],
        vec![user(), assistant(&two), Message::Results(swapped)],
        vec![user(), assistant(&two), Message::Results(replies.clone()), Message::Results(replies)],
    ] {
        assert!(check_conversation(&broken).is_err(), "{broken:?}");
    }
}

#[test]
fn an_earlier_turn_that_ended_with_open_calls_says_what_is_known_of_them() {
    let two = answer(2);
    let calls: Vec<ToolUse> = two.calls().cloned().collect();
    let steps = [
        opened("do it"),
        answered(two),
        Step::Intended { call_id: calls[1].call_id },
        Step::Ended { outcome: TurnOutcome::Errored { failure: failure() } },
    ];
    let journal = journal(TurnId::new(), steps);
    // Also if the end itself was never recorded.
    for journal in [&journal[..], &journal[..3]] {
        let thread = fold(&with_next_turn(journal));
        let Message::Results(replies) = &thread.messages()[2] else { panic!("{:?}", thread.messages()) };
        let results: Vec<(&str, bool)> =
            replies.iter().map(|reply| (reply.text.as_str(), reply.is_error)).collect();
        assert_eq!(results, [(NEVER_RUN, true), (OUTCOME_UNKNOWN, true)]);
    }
}

#[test]
fn results_stand_in_the_order_of_the_calls_however_they_came() {
    let two = answer(2);
    let calls: Vec<CallId> = two.calls().map(|call| call.call_id).collect();
    let outcome = |output: &str| ToolOutcome::new(output.into(), None, 0);
    let steps = [
        opened("both"),
        answered(two),
        resulted(calls[1], outcome("second")),
        resulted(calls[0], outcome("first")),
    ];
    let thread = fold(&journal(TurnId::new(), steps));
    let Message::Results(replies) = &thread.messages()[2] else { panic!("{:?}", thread.messages()) };
    assert_eq!(replies.iter().map(|reply| reply.text.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(thread.next_action(), NextAction::CallModel);
}

#[test]
fn a_failed_call_shows_its_pictures_too() {
    let one = answer(1);
    let call_id = one.calls().next().unwrap().call_id;
    let picture = Content::Media(llm::Media {
        kind: api::content::MediaKind::Image,
        media_type: "image/png".into(),
        name: None,
        hash: "0".repeat(64),
        tokens: None,
        text: None,
        data: None,
    });
    let failed = ToolOutcome::new(String::new(), Some("[picture 1, shown with this result]".into()), 0);
    let failed = ToolOutcome { media: vec![picture.clone()], ..failed };
    let thread = fold(&journal(TurnId::new(), [opened("look"), answered(one), resulted(call_id, failed)]));
    let Message::Results(replies) = &thread.messages()[2] else { panic!("{:?}", thread.messages()) };
    assert_eq!((replies[0].is_error, &replies[0].remarks[..]), (true, &[picture][..]));
}

#[test]
fn a_turn_ends_at_its_cap_with_its_calls_answered() {
    let mut steps = vec![opened("loop")];
    for _ in 0..3 {
        let one = answer(1);
        let call_id = one.calls().next().unwrap().call_id;
        let outcome = ToolOutcome::new("done".into(), None, 0);
        steps.extend([answered(one), Step::Intended { call_id }, resulted(call_id, outcome)]);
    }
    let thread = fold(&journal(TurnId::new(), steps));
    assert_eq!(thread.next_action(), NextAction::Complete(StopReason::MaxTurns));
    let usage = thread.turn().usage();
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.model.as_str()), (30, 3, "m"));
}

#[test]
fn a_journal_without_an_opening_is_refused() {
    let turn = TurnId::new();
    assert!(fold_journal(journal(turn, [answered(answer(0))])).is_err());
    assert!(fold_journal(Vec::new()).unwrap().is_none());
}
