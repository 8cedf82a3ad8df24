//! The reference model of the fold. It derives the expected conversation from whole turns: each turn from its
//! opening to its end, and each call with all steps that concern it.

use store::steps::TurnBase;

use super::*;

/// A message of the conversation.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) message_id: Option<MessageId>,
    /// Whether it came from the user.
    from_user: bool,
    /// Whether it opened a turn.
    pub(super) opens_turn: bool,
    message: Message,
}

/// The stage of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallStage {
    New,
    Waiting(HitlId, HitlKind),
    Ready,
    Running,
    Returned,
    Done,
}

/// All that is known of a call.
pub(super) struct CallRecord<'a> {
    pub(super) stage: CallStage,
    sent: bool,
    /// Whether clients have received it with a request for its approval.
    announced: bool,
    answers: Vec<HumanAnswer>,
    remarks: Vec<Content>,
    outcome: Option<&'a ToolOutcome>,
    /// What hooks have decided before the call.
    pub(super) hooked: bool,
    /// The input that a hook or the user has given it.
    input: Option<&'a serde_json::Value>,
    notes: Vec<String>,
    returned: Option<(ToolOutcome, Source)>,
}

impl<'a> CallRecord<'a> {
    /// Derives the record from the steps after the call's answer.
    fn from_steps(call: &ToolUse, steps: &[&'a Step]) -> Self {
        let is_this_call = |id: &CallId| *id == call.call_id;
        let requests: Vec<(HitlId, HitlKind)> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Asked { request_id, call_id, kind, .. } if is_this_call(call_id) => {
                    Some((*request_id, *kind))
                }
                _ => None,
            })
            .collect();
        let find_request = |id: &HitlId| requests.iter().find(|(request_id, _)| request_id == id);
        let resolved = || {
            steps.iter().filter_map(|step| match step {
                Step::Resolved { request_id, answer, remarks, .. }
                | Step::InputChanged { request_id, answer, remarks, .. } => {
                    find_request(request_id).map(|(_, kind)| (*kind, answer, remarks))
                }
                _ => None,
            })
        };
        let stage = steps.iter().rev().find_map(|step| match step {
            Step::Resulted { call_id, .. } if is_this_call(call_id) => Some(CallStage::Done),
            Step::Returned { call_id, .. } if is_this_call(call_id) => Some(CallStage::Returned),
            Step::Intended { call_id } if is_this_call(call_id) => Some(CallStage::Running),
            Step::Asked { request_id, call_id, kind, .. } if is_this_call(call_id) => {
                Some(CallStage::Waiting(*request_id, *kind))
            }
            // What was approved before was another input.
            Step::Hooked { call_id, input: Some(_), .. } if is_this_call(call_id) => Some(CallStage::New),
            Step::Resolved { request_id, .. } | Step::InputChanged { request_id, .. }
                if find_request(request_id).is_some() =>
            {
                Some(CallStage::Ready)
            }
            _ => None,
        });
        let notes = steps.iter().flat_map(|step| match step {
            Step::Hooked { call_id, notes, .. } if is_this_call(call_id) => notes.clone(),
            _ => Vec::new(),
        });
        let questions = resolved().filter(|(kind, ..)| *kind == HitlKind::Question);
        Self {
            stage: stage.unwrap_or(CallStage::New),
            announced: steps.iter().any(
                |step| matches!(step, Step::Asked { call_id, reason: Some(_), .. } if is_this_call(call_id)),
            ),
            sent: steps
                .iter()
                .any(|step| matches!(step, Step::Intended { call_id } if is_this_call(call_id))),
            answers: questions.map(|(_, answer, _)| HumanAnswer { answer: answer.clone() }).collect(),
            remarks: resolved().flat_map(|(_, _, remarks)| remarks.clone()).collect(),
            outcome: steps.iter().find_map(|step| match step {
                Step::Resulted { call_id, outcome, .. } if is_this_call(call_id) => Some(outcome),
                _ => None,
            }),
            hooked: steps.iter().rev().find_map(|step| match step {
                Step::Hooked { call_id, .. } if is_this_call(call_id) => Some(true),
                // They have seen another input.
                Step::InputChanged { call_id, .. } if is_this_call(call_id) => Some(false),
                _ => None,
            }) == Some(true),
            input: steps.iter().rev().find_map(|step| match step {
                Step::Hooked { call_id, input, .. } if is_this_call(call_id) => input.as_ref(),
                Step::InputChanged { call_id, input, .. } if is_this_call(call_id) => Some(input),
                _ => None,
            }),
            notes: notes.collect(),
            returned: steps.iter().find_map(|step| match step {
                Step::Returned { call_id, outcome, .. } if is_this_call(call_id) => {
                    Some((outcome.clone(), step.source()))
                }
                _ => None,
            }),
        }
    }

    /// The result that the model receives once the turn is over.
    fn into_reply(self, call: &ToolUse) -> ToolReply {
        let failed = |text: &str| (text.to_owned(), true);
        let (mut text, is_error) = match (self.outcome, self.stage) {
            (Some(ToolOutcome { error: Some(error), .. }), _) => failed(error),
            (Some(outcome), _) => (outcome.output.clone(), false),
            (None, CallStage::Returned) => failed(NOT_CHECKED),
            (None, CallStage::Running) => failed(OUTCOME_UNKNOWN),
            (None, _) if self.sent => failed(STOPPED_AT_QUESTION),
            (None, _) => failed(NEVER_RUN),
        };
        for note in &self.notes {
            text.push_str("\n\n");
            text.push_str(note);
        }
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

/// A turn's answers, each with the steps up to the next one; the steps before the first have none.
fn steps_by_answer<'a>(turn: &[&'a Step]) -> Vec<(Option<Answered<'a>>, Vec<&'a Step>)> {
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

fn steered_entries(steps: &[&Step]) -> Vec<Entry> {
    let entry = |step: &&Step| match step {
        Step::Steered { message_id, message } => {
            Some(user_entry(*message_id, Message::user(message.clone()), false))
        }
        _ => None,
    };
    steps.iter().filter_map(entry).collect()
}

fn user_entry(message_id: MessageId, message: Message, opens_turn: bool) -> Entry {
    Entry { message_id: Some(message_id), from_user: true, opens_turn, message }
}

fn agent_entry(message_id: Option<MessageId>, message: Message) -> Entry {
    Entry { message_id, from_user: false, opens_turn: false, message }
}

/// The messages of a turn after its opening. If it has not `ended`, what is still undecided is left out.
fn turn_entries(turn: &[&Step], ended: bool) -> Vec<Entry> {
    let mut entries = Vec::new();
    // Steering messages that arrive during a model call follow its answer.
    let mut deferred: Vec<Entry> = Vec::new();
    for (answered, steps) in steps_by_answer(turn) {
        let Some((message_id, model, answer)) = answered else {
            deferred = steered_entries(&steps);
            continue;
        };
        let message = Message::Assistant { model: model.to_owned(), blocks: answer.blocks.clone() };
        entries.push(agent_entry(Some(message_id), message));
        let calls: Vec<&ToolUse> = answer.calls().collect();
        // The end of the conversation step; messages after it belong to the next one.
        let all_done = |end: usize| {
            calls.iter().all(|call| CallRecord::from_steps(call, &steps[..end]).outcome.is_some())
        };
        let end = match calls.is_empty() {
            // An answer that would be the last one is followed by the first steering message after it.
            true if deferred.is_empty() => {
                let first = steps.iter().position(|step| matches!(step, Step::Steered { .. }));
                first.map_or(steps.len(), |at| at + 1)
            }
            true => 0,
            false => match (0..=steps.len()).find(|end| all_done(*end)) {
                Some(end) => end,
                None if ended => steps.len(),
                None => return entries,
            },
        };
        if !calls.is_empty() {
            let replies = calls
                .iter()
                .map(|call| CallRecord::from_steps(call, &steps[..end]).into_reply(call))
                .collect();
            entries.push(agent_entry(None, Message::Results(replies)));
        }
        entries.append(&mut deferred);
        entries.extend(steered_entries(&steps[..end]));
        deferred = steered_entries(&steps[end..]);
    }
    if ended {
        entries.append(&mut deferred);
    }
    if let Some(Step::Ended { outcome: TurnOutcome::Cancelled { said: Some(partial) } }) = turn.last() {
        let blocks = vec![Block::Text { text: partial.text.clone(), signature: None }];
        entries
            .push(agent_entry(Some(partial.message_id), Message::Assistant { model: String::new(), blocks }));
    }
    entries
}

/// The message that opened a turn, whose next step is `next`.
fn opening_message(opened: &Opened, next: Option<&&Step>) -> Message {
    let mut notes = opened.notes.clone();
    if let (Some(at), Some(Step::Recalled { note: Some(note), .. })) = (opened.recall_at, next) {
        notes.insert(at, note.clone());
    }
    let notes = notes.into_iter().map(|text| Content::Note { text });
    Message::User { content: notes.chain([Content::Text { text: opened.message.clone() }]).collect() }
}

fn replay(journal: &[StoredStep], all_ended: bool) -> Vec<Entry> {
    let turns = turns(journal);
    let mut entries: Vec<Entry> = Vec::new();
    for (number, turn) in turns.iter().enumerate() {
        let Some(Step::Opened(opened)) = turn.first() else {
            panic!("the turn does not begin with its opening")
        };
        let at = |id: MessageId| entries.iter().position(|entry| entry.message_id == Some(id)).unwrap();
        let kept = match opened.base {
            TurnBase::End => entries.len(),
            TurnBase::Edit { message_id } => at(message_id),
            TurnBase::Retry { message_id } => at(message_id) + usize::from(entries[at(message_id)].from_user),
        };
        entries.truncate(kept);
        if !opened.base.is_retry() {
            entries.push(user_entry(opened.message_id, opening_message(opened, turn.get(1)), true));
        }
        let is_last = number + 1 == turns.len();
        let ended = all_ended || !is_last || matches!(turn.last(), Some(Step::Ended { .. }));
        entries.extend(turn_entries(turn, ended));
    }
    entries
}

/// The messages with their origins, once all turns are over.
pub(super) fn entries(journal: &[StoredStep]) -> Vec<Entry> {
    replay(journal, true)
}

/// The messages as they are sent to a model.
pub(super) fn messages(journal: &[StoredStep]) -> Vec<Message> {
    replay(journal, false).into_iter().map(|entry| entry.message).collect()
}

/// The calls of the last answer that have no result.
pub(super) fn open_calls(journal: &[StoredStep]) -> Vec<(&ToolUse, CallRecord<'_>)> {
    let turn = turns(journal).pop().unwrap_or_default();
    let Some((Some((_, _, answer)), steps)) = steps_by_answer(&turn).pop() else { return Vec::new() };
    let calls = answer.calls().map(|call| (call, CallRecord::from_steps(call, &steps)));
    calls.filter(|(_, record)| record.stage != CallStage::Done).collect()
}

/// The expected next action.
pub(super) fn next_action(journal: &[StoredStep]) -> NextAction {
    let calls = open_calls(journal);
    let open = |(call, record): &(&ToolUse, CallRecord<'_>)| {
        let stage = match record.stage {
            CallStage::New => OpenStage::New,
            CallStage::Ready => OpenStage::Ready,
            CallStage::Running => OpenStage::Running,
            CallStage::Returned => OpenStage::Returned,
            CallStage::Waiting(..) | CallStage::Done => return None,
        };
        let mut call = (*call).clone();
        if let Some(input) = record.input {
            call.input = input.clone();
        }
        let (answers, returned) = (record.answers.clone(), record.returned.clone());
        let sent = record.sent || record.announced;
        Some(OpenCall { call, stage, sent, answers, hooked: record.hooked, returned })
    };
    let open: Vec<OpenCall> = calls.iter().filter_map(open).collect();
    if !open.is_empty() {
        return NextAction::RunTools(open);
    }
    let is_waiting_for = |id: &HitlId| {
        calls
            .iter()
            .any(|(_, record)| matches!(record.stage, CallStage::Waiting(pending, _) if pending == *id))
    };
    let first = journal.iter().find_map(|stored| match &stored.step {
        Step::Asked { request_id, call_id, kind, question, options, reason }
            if is_waiting_for(request_id) =>
        {
            let (question, options) = (question.clone(), options.clone());
            Some(PendingHitl {
                request_id: *request_id,
                call_id: *call_id,
                kind: *kind,
                question,
                options,
                reason: *reason,
                owner: None,
            })
        }
        _ => None,
    });
    if let Some(first) = first {
        return NextAction::AwaitHuman(first);
    }
    let turn = turns(journal).pop().unwrap_or_default();
    let answers = turn.iter().filter(|step| matches!(step, Step::Answered { .. })).count();
    match messages(journal).last() {
        Some(Message::Assistant { .. }) => NextAction::Complete(StopReason::EndTurn),
        // A steering message is answered even if the call limit is reached.
        Some(Message::User { .. }) => NextAction::CallModel,
        _ if answers >= 3 => NextAction::Complete(StopReason::MaxTurns),
        _ => NextAction::CallModel,
    }
}

/// The prompt tokens of the last turn.
pub(super) fn input_tokens(journal: &[StoredStep]) -> u64 {
    let turn = turns(journal).pop().unwrap_or_default();
    let tokens = turn.iter().map(|step| match step {
        Step::Answered { answer, .. } => answer.usage.input,
        Step::Spent { tokens, .. } => tokens.input,
        _ => 0,
    });
    tokens.sum()
}
