//! The fold over random journals, cut at every step: whatever came before, what a model would be sent is a valid
//! conversation, and what the turn does next is right.

use contract::Timestamp;
use contract::event::{Failure, FailureCode};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::brain::steps::{Base, TurnOutcome};
use crate::models::{Block, Tokens};

/// A journal, written by the rules that a turn keeps and by random choices where it has any.
#[derive(Debug, Default)]
struct Journal {
    steps: Vec<StoredStep>,
    turn: Option<TurnId>,
    open: Vec<(CallId, bool)>,
    may_answer: bool,
}

const OPTIONS: TurnOptions = TurnOptions { max_turns: 3, super_thinking: false, direct: false };

impl Journal {
    fn random(choices: &[(u8, u8)]) -> Vec<StoredStep> {
        let mut journal = Self::default();
        for (what, which) in choices {
            journal.go_on(*what, usize::from(*which));
        }
        journal.steps
    }

    fn go_on(&mut self, what: u8, which: usize) {
        // One time in eight the turn is left as it stands, as one that the brain could not be written for.
        if self.turn.is_none() || what.is_multiple_of(8) {
            return self.open_turn();
        }
        if what % 16 == 1 {
            return self.end(TurnOutcome::Errored { failure: failure() });
        }
        if self.open.is_empty() {
            if self.may_answer {
                return self.answer(which % 4);
            }
            return self.end(TurnOutcome::Completed { stop_reason: StopReason::EndTurn });
        }
        let at = which % self.open.len();
        if self.open[at].1 || what.is_multiple_of(3) {
            self.result(at, what.is_multiple_of(2));
        } else {
            self.open[at].1 = true;
            self.push(Step::Intended { call_id: self.open[at].0 });
        }
    }

    fn push(&mut self, step: Step) {
        let ts = i64::try_from(self.steps.len()).unwrap() + 1;
        self.steps.push(stored(self.turn.unwrap(), ts, step));
    }

    fn open_turn(&mut self) {
        self.turn = Some(TurnId::new());
        self.open.clear();
        self.may_answer = true;
        self.push(opened("a question"));
    }

    fn answer(&mut self, calls: usize) {
        let answer = answer(calls);
        self.open = answer.calls().map(|call| (call.call_id, false)).collect();
        self.may_answer = calls > 0;
        self.push(answered(answer));
    }

    fn result(&mut self, at: usize, well: bool) {
        let (call_id, _) = self.open.remove(at);
        let error = (!well).then(|| "failed".to_owned());
        let output = if well { format!("result of {call_id}") } else { String::new() };
        self.push(resulted(call_id, ToolOutcome { output, error, duration_ms: 1 }));
    }

    fn end(&mut self, outcome: TurnOutcome) {
        self.push(Step::Ended { outcome });
        self.turn = None;
    }
}

fn failure() -> Failure {
    Failure { code: FailureCode::ProviderUnavailable, message: "down".into(), retryable: true }
}

fn opened(message: &str) -> Step {
    Step::Opened(Opened {
        message_id: MessageId::new(),
        message: message.into(),
        media: Vec::new(),
        options: OPTIONS,
        base: Base::End,
    })
}

fn resulted(call_id: CallId, outcome: ToolOutcome) -> Step {
    Step::Resulted { call_id, outcome, memory: Vec::new() }
}

fn stored(turn_id: TurnId, ts: i64, step: Step) -> StoredStep {
    StoredStep { turn_id, ts, at: Timestamp::from_unix_ms(ts), step }
}

fn answer(calls: usize) -> Answer {
    let mut blocks = vec![Block::Text { text: "so far".into() }];
    blocks.extend((0..calls).map(|_| {
        let call_id = CallId::new();
        let (provider_id, name, input) = (format!("p-{call_id}"), "tool".to_owned(), json!({}));
        Block::ToolUse(ToolUse { call_id, provider_id, name, input, broken: None })
    }));
    Answer { blocks, usage: Tokens { input: 10, output: 1, ..Tokens::default() } }
}

fn answered(answer: Answer) -> Step {
    Step::Answered { message_id: MessageId::new(), model: "m".into(), answer }
}

/// Whether a provider would take these messages as the conversation to answer.
fn check_conversation(messages: &[Message]) -> Result<(), String> {
    if !matches!(messages.first(), Some(Message::User { .. })) {
        return Err("it must begin with the user".into());
    }
    if matches!(messages.last(), Some(Message::Assistant { .. })) {
        return Err("there is nothing to answer".into());
    }
    let mut owed: Vec<&str> = Vec::new();
    for message in messages {
        match message {
            Message::Results(replies) => {
                let ids: Vec<&str> = replies.iter().map(|reply| reply.provider_id.as_str()).collect();
                if owed.is_empty() || ids != owed {
                    return Err(format!("results {ids:?} where {owed:?} are owed"));
                }
                owed.clear();
            }
            _ if !owed.is_empty() => return Err(format!("results of {owed:?} are owed")),
            Message::User { .. } => {}
            Message::Assistant { blocks, .. } => {
                owed = blocks.iter().filter_map(provider_id).collect();
            }
        }
    }
    if owed.is_empty() { Ok(()) } else { Err(format!("results of {owed:?} are owed at the end")) }
}

fn provider_id(block: &Block) -> Option<&str> {
    match block {
        Block::ToolUse(call) => Some(&call.provider_id),
        _ => None,
    }
}

/// What comes next, told from the journal's last turn alone and step by step.
fn expected_next(journal: &[StoredStep]) -> Next {
    let turn = journal.last().unwrap().turn_id;
    let steps: Vec<&Step> =
        journal.iter().filter(|stored| stored.turn_id == turn).map(|stored| &stored.step).collect();
    let answers: Vec<&Answer> = steps
        .iter()
        .filter_map(|step| if let Step::Answered { answer, .. } = step { Some(answer) } else { None })
        .collect();
    let Some(last) = answers.last() else { return Next::AskModel };
    let is_result = |step: &&Step, call: &ToolUse| matches!(step, Step::Resulted { call_id, .. } if *call_id == call.call_id);
    let is_intent =
        |step: &&Step, call: &ToolUse| matches!(step, Step::Intended { call_id } if *call_id == call.call_id);
    let open: Vec<OpenCall> = last
        .calls()
        .filter(|call| !steps.iter().any(|step| is_result(step, call)))
        .map(|call| {
            let told = steps.iter().any(|step| is_intent(step, call));
            let stage = if told { OpenStage::Running } else { OpenStage::New };
            OpenCall { call: call.clone(), stage, told, answers: Vec::new() }
        })
        .collect();
    if !open.is_empty() {
        Next::RunTools(open)
    } else if last.calls().next().is_none() {
        Next::Complete(StopReason::EndTurn)
    } else if answers.len() >= 3 {
        Next::Complete(StopReason::MaxTurns)
    } else {
        Next::AskModel
    }
}

fn fold(journal: &[StoredStep]) -> Thread {
    Thread::fold(journal.to_vec()).unwrap().unwrap()
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
    fn any_journal_cut_anywhere_is_a_valid_conversation(
        choices in prop::collection::vec(any::<(u8, u8)>(), 1..60),
    ) {
        let journal = Journal::random(&choices);
        for end in 1..=journal.len() {
            let cut = &journal[..end];
            let thread = fold(cut);
            let ended = matches!(cut.last().unwrap().step, Step::Ended { .. });
            if !ended {
                prop_assert_eq!(thread.next(), expected_next(cut));
                if thread.next() == Next::AskModel {
                    prop_assert_eq!(check_conversation(thread.messages()), Ok(()));
                }
            }
            let next_turn = fold(&with_next_turn(cut));
            prop_assert_eq!(next_turn.next(), Next::AskModel);
            prop_assert_eq!(check_conversation(next_turn.messages()), Ok(()));
            // What was sent before stays as it was, byte for byte: providers cache it.
            prop_assert!(next_turn.messages().starts_with(thread.messages()));
        }
    }

    #[test]
    fn steps_taken_in_one_by_one_and_all_at_once_are_the_same(
        choices in prop::collection::vec(any::<(u8, u8)>(), 1..40),
    ) {
        let journal = Journal::random(&choices);
        let turn = journal.last().unwrap().turn_id;
        let begins = journal.iter().position(|stored| stored.turn_id == turn).unwrap();
        let mut thread = fold(&journal[..=begins]);
        for StoredStep { ts, step, .. } in &journal[begins + 1..] {
            thread.apply(step.clone(), *ts);
        }
        let whole = fold(&journal);
        prop_assert_eq!(thread.messages(), whole.messages());
        prop_assert_eq!(thread.next(), whole.next());
        prop_assert_eq!(thread.turn().usage(), whole.turn().usage());
        prop_assert_eq!(thread.turn().step_ts(), whole.turn().step_ts());
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
    // Also where the end itself never came to be on record.
    for journal in [&journal[..], &journal[..3]] {
        let thread = fold(&with_next_turn(journal));
        let Message::Results(replies) = &thread.messages()[2] else { panic!("{:?}", thread.messages()) };
        let told: Vec<(&str, bool)> =
            replies.iter().map(|reply| (reply.text.as_str(), reply.is_error)).collect();
        assert_eq!(told, [(NEVER_RUN, true), (OUTCOME_UNKNOWN, true)]);
    }
}

#[test]
fn results_stand_in_the_order_of_the_calls_however_they_came() {
    let two = answer(2);
    let calls: Vec<CallId> = two.calls().map(|call| call.call_id).collect();
    let outcome = |output: &str| ToolOutcome { output: output.into(), error: None, duration_ms: 0 };
    let steps = [
        opened("both"),
        answered(two),
        resulted(calls[1], outcome("second")),
        resulted(calls[0], outcome("first")),
    ];
    let thread = fold(&journal(TurnId::new(), steps));
    let Message::Results(replies) = &thread.messages()[2] else { panic!("{:?}", thread.messages()) };
    assert_eq!(replies.iter().map(|reply| reply.text.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(thread.next(), Next::AskModel);
}

#[test]
fn a_turn_ends_at_its_cap_with_its_calls_answered() {
    let mut steps = vec![opened("loop")];
    for _ in 0..3 {
        let one = answer(1);
        let call_id = one.calls().next().unwrap().call_id;
        let outcome = ToolOutcome { output: "done".into(), error: None, duration_ms: 0 };
        steps.extend([answered(one), Step::Intended { call_id }, resulted(call_id, outcome)]);
    }
    let thread = fold(&journal(TurnId::new(), steps));
    assert_eq!(thread.next(), Next::Complete(StopReason::MaxTurns));
    let usage = thread.turn().usage();
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.model.as_str()), (30, 3, "m"));
}

#[test]
fn a_journal_without_an_opening_is_refused() {
    let turn = TurnId::new();
    assert!(Thread::fold(journal(turn, [answered(answer(0))])).is_err());
    assert!(Thread::fold(Vec::new()).unwrap().is_none());
}
