//! What the fold should give, told from whole turns: each is looked at from its opening to its end, and each
//! call with all that happened to it.

use super::*;
use crate::brain::steps::Base;

/// A message of the conversation.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) message_id: Option<MessageId>,
    /// Whether the user said it.
    users: bool,
    /// Whether it opened a turn.
    pub(super) opens: bool,
    message: Message,
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Now {
    New,
    Waiting(HitlId, HitlKind),
    Ready,
    Running,
    Done,
}

/// All that is known of a call.
pub(super) struct Call<'a> {
    pub(super) stage: Now,
    told: bool,
    answers: Vec<PersonsAnswer>,
    remarks: Vec<Content>,
    outcome: Option<&'a ToolOutcome>,
}

impl<'a> Call<'a> {
    /// Told from the steps after its answer.
    fn of(call: &ToolUse, steps: &[&'a Step]) -> Self {
        let is_its = |id: &CallId| *id == call.call_id;
        let requests: Vec<(HitlId, HitlKind)> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Asked { request_id, call_id, kind, .. } if is_its(call_id) => {
                    Some((*request_id, *kind))
                }
                _ => None,
            })
            .collect();
        let asked = |id: &HitlId| requests.iter().find(|(request_id, _)| request_id == id);
        let resolved = || {
            steps.iter().filter_map(|step| match step {
                Step::Resolved { request_id, answer, remarks } => {
                    asked(request_id).map(|(_, kind)| (*kind, answer, remarks))
                }
                _ => None,
            })
        };
        let stage = steps.iter().rev().find_map(|step| match step {
            Step::Resulted { call_id, .. } if is_its(call_id) => Some(Now::Done),
            Step::Intended { call_id } if is_its(call_id) => Some(Now::Running),
            Step::Asked { request_id, call_id, kind, .. } if is_its(call_id) => {
                Some(Now::Waiting(*request_id, *kind))
            }
            Step::Resolved { request_id, .. } if asked(request_id).is_some() => Some(Now::Ready),
            _ => None,
        });
        let questions = resolved().filter(|(kind, ..)| *kind == HitlKind::Question);
        Self {
            stage: stage.unwrap_or(Now::New),
            told: steps.iter().any(|step| matches!(step, Step::Intended { call_id } if is_its(call_id))),
            answers: questions.map(|(_, answer, _)| PersonsAnswer { answer: answer.clone() }).collect(),
            remarks: resolved().flat_map(|(_, _, remarks)| remarks.clone()).collect(),
            outcome: steps.iter().find_map(|step| match step {
                Step::Resulted { call_id, outcome, .. } if is_its(call_id) => Some(outcome),
                _ => None,
            }),
        }
    }

    /// What the model is told of it once the turn is over.
    fn reply(self, call: &ToolUse) -> ToolReply {
        let failed = |text: &str| (text.to_owned(), true);
        let (text, is_error) = match (self.outcome, self.stage) {
            (Some(ToolOutcome { error: Some(error), .. }), _) => failed(error),
            (Some(outcome), _) => (outcome.output.clone(), false),
            (None, Now::Running) => failed(OUTCOME_UNKNOWN),
            (None, _) if self.told => failed(STOPPED_AT_QUESTION),
            (None, _) => failed(NEVER_RUN),
        };
        ToolReply { provider_id: call.provider_id.clone(), text, remarks: self.remarks, is_error }
    }
}

/// The turns of a journal, each with its steps.
fn turns(journal: &[StoredStep]) -> Vec<Vec<&Step>> {
    let turns = journal.chunk_by(|one, next| one.turn_id == next.turn_id);
    turns.map(|turn| turn.iter().map(|stored| &stored.step).collect()).collect()
}

/// An answer with its message and its model.
type Answered<'a> = (MessageId, &'a str, &'a Answer);

/// A turn's answers, each with the steps up to the next one; what comes before the first has none.
fn parts<'a>(turn: &[&'a Step]) -> Vec<(Option<Answered<'a>>, Vec<&'a Step>)> {
    let mut parts = vec![(None, Vec::new())];
    for step in turn {
        match step {
            Step::Answered { message_id, model, answer, .. } => {
                parts.push((Some((*message_id, model.as_str(), answer)), Vec::new()));
            }
            other => parts.last_mut().unwrap().1.push(*other),
        }
    }
    parts
}

fn steered(steps: &[&Step]) -> Vec<Entry> {
    let entry = |step: &&Step| match step {
        Step::Steered { message_id, message } => {
            Some(users(*message_id, Message::user(message.clone()), false))
        }
        _ => None,
    };
    steps.iter().filter_map(entry).collect()
}

fn users(message_id: MessageId, message: Message, opens: bool) -> Entry {
    Entry { message_id: Some(message_id), users: true, opens, message }
}

fn agents(message_id: Option<MessageId>, message: Message) -> Entry {
    Entry { message_id, users: false, opens: false, message }
}

/// What a turn says after its opening. Of one that is not `over` what is not settled yet is left out.
fn said(turn: &[&Step], over: bool) -> Vec<Entry> {
    let mut entries = Vec::new();
    // What the user says while the model is asked comes after its answer.
    let mut later: Vec<Entry> = Vec::new();
    for (answered, steps) in parts(turn) {
        let Some((message_id, model, answer)) = answered else {
            later = steered(&steps);
            continue;
        };
        let message = Message::Assistant { model: model.to_owned(), blocks: answer.blocks.clone() };
        entries.push(agents(Some(message_id), message));
        let calls: Vec<&ToolUse> = answer.calls().collect();
        // Up to where the step goes: what is said from there on belongs to the next one.
        let done = |end: usize| calls.iter().all(|call| Call::of(call, &steps[..end]).outcome.is_some());
        let end = match calls.is_empty() {
            // An answer that would be the last one is followed by the first word that comes after it.
            true if later.is_empty() => {
                let first = steps.iter().position(|step| matches!(step, Step::Steered { .. }));
                first.map_or(steps.len(), |at| at + 1)
            }
            true => 0,
            false => match (0..=steps.len()).find(|end| done(*end)) {
                Some(end) => end,
                None if over => steps.len(),
                None => return entries,
            },
        };
        if !calls.is_empty() {
            let replies = calls.iter().map(|call| Call::of(call, &steps[..end]).reply(call)).collect();
            entries.push(agents(None, Message::Results(replies)));
        }
        entries.append(&mut later);
        entries.extend(steered(&steps[..end]));
        later = steered(&steps[end..]);
    }
    if over {
        entries.append(&mut later);
    }
    if let Some(Step::Ended { outcome: TurnOutcome::Cancelled { said: Some(said) } }) = turn.last() {
        let blocks = vec![Block::Text { text: said.text.clone(), signature: None }];
        entries.push(agents(Some(said.message_id), Message::Assistant { model: String::new(), blocks }));
    }
    entries
}

fn told(journal: &[StoredStep], all_over: bool) -> Vec<Entry> {
    let turns = turns(journal);
    let mut entries: Vec<Entry> = Vec::new();
    for (number, turn) in turns.iter().enumerate() {
        let Some(Step::Opened(opened)) = turn.first() else { panic!("it does not begin with its opening") };
        let at = |id: MessageId| entries.iter().position(|entry| entry.message_id == Some(id)).unwrap();
        let keep = match opened.base {
            Base::End => entries.len(),
            Base::Edit { message_id } => at(message_id),
            Base::Retry { message_id } => at(message_id) + usize::from(entries[at(message_id)].users),
        };
        entries.truncate(keep);
        if !opened.base.is_retry() {
            entries.push(users(opened.message_id, Message::user(opened.message.clone()), true));
        }
        let is_last = number + 1 == turns.len();
        let over = all_over || !is_last || matches!(turn.last(), Some(Step::Ended { .. }));
        entries.extend(said(turn, over));
    }
    entries
}

/// The messages with where they came from, once all turns are over.
pub(super) fn entries(journal: &[StoredStep]) -> Vec<Entry> {
    told(journal, true)
}

/// The conversation as the model is sent it.
pub(super) fn messages(journal: &[StoredStep]) -> Vec<Message> {
    told(journal, false).into_iter().map(|entry| entry.message).collect()
}

/// The calls of the last answer that have no result.
pub(super) fn open_calls(journal: &[StoredStep]) -> Vec<(&ToolUse, Call<'_>)> {
    let turn = turns(journal).pop().unwrap_or_default();
    let Some((Some((_, _, answer)), steps)) = parts(&turn).pop() else { return Vec::new() };
    let calls = answer.calls().map(|call| (call, Call::of(call, &steps)));
    calls.filter(|(_, now)| now.stage != Now::Done).collect()
}

/// What comes next.
pub(super) fn next(journal: &[StoredStep]) -> Next {
    let calls = open_calls(journal);
    let open = |(call, now): &(&ToolUse, Call<'_>)| {
        let stage = match now.stage {
            Now::New => OpenStage::New,
            Now::Ready => OpenStage::Ready,
            Now::Running => OpenStage::Running,
            Now::Waiting(..) | Now::Done => return None,
        };
        Some(OpenCall { call: (*call).clone(), stage, told: now.told, answers: now.answers.clone() })
    };
    let open: Vec<OpenCall> = calls.iter().filter_map(open).collect();
    if !open.is_empty() {
        return Next::RunTools(open);
    }
    let waits =
        |id: &HitlId| calls.iter().any(|(_, now)| matches!(now.stage, Now::Waiting(its, _) if its == *id));
    let first = journal.iter().find_map(|stored| match &stored.step {
        Step::Asked { request_id, call_id, kind, question, options } if waits(request_id) => {
            let (question, options) = (question.clone(), options.clone());
            Some(Asked {
                request_id: *request_id,
                call_id: *call_id,
                kind: *kind,
                question,
                options,
                owner: None,
            })
        }
        _ => None,
    });
    if let Some(first) = first {
        return Next::Wait(first);
    }
    let turn = turns(journal).pop().unwrap_or_default();
    let answers = turn.iter().filter(|step| matches!(step, Step::Answered { .. })).count();
    match messages(journal).last() {
        Some(Message::Assistant { .. }) => Next::Complete(StopReason::EndTurn),
        // Whatever the user says is heard, also where the cap is reached.
        Some(Message::User { .. }) => Next::AskModel,
        _ if answers >= 3 => Next::Complete(StopReason::MaxTurns),
        _ => Next::AskModel,
    }
}

/// The prompt tokens of the last turn.
pub(super) fn input_tokens(journal: &[StoredStep]) -> u64 {
    let turn = turns(journal).pop().unwrap_or_default();
    let spent = turn.iter().map(|step| match step {
        Step::Answered { answer, .. } => answer.usage.input,
        Step::Spent { tokens, .. } => tokens.input,
        _ => 0,
    });
    spent.sum()
}
