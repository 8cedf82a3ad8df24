//! The branch of a task's conversation that is in force: the messages that a model is sent, where each came from,
//! and what an edit or a retry takes out. Pure.

use std::collections::HashSet;

use contract::MessageId;
use contract::memory::Source;
use serde::{Deserialize, Serialize};

use super::compaction_view::{self, MAX_WORKING_MEMORY_BYTES, Rewrite, RewriteKind, compacted_count, view};
use super::{loaded_skills, provenance};
use crate::llm::{Content, Message};
use crate::store::Rewind;
use crate::store::steps::{MemoryWrite, Replacement, TurnBase};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    messages: Vec<Message>,
    /// Where each of them came from.
    origins: Vec<MessageOrigin>,
    /// All messages that are listed, those that a retry superseded too, in the order in which they were said.
    listed: Vec<MessageId>,
    /// What was written to working memory, each with how many messages there were then.
    memory_writes: Vec<(usize, MemoryWrite)>,
    /// What was written to it between turns, and no turn was told of yet.
    unsent_memory_writes: Vec<(usize, MemoryWrite)>,
    /// What changes what is sent, oldest first.
    rewrites: Vec<Rewrite>,
    /// What is sent, where that is not the messages themselves.
    view: Option<Vec<Message>>,
    /// How many tokens the conversation was when it had so many messages, as a provider counted them.
    measured: Option<(usize, u64)>,
    /// What is left out of memory.
    evicted: Evicted,
    /// What is not.
    retention: Retention,
}

/// What of a conversation is held in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Retention {
    /// What turns need that do not go back behind a compaction.
    #[default]
    Needed,
    /// All of it.
    All,
    /// The order of its messages, and nothing of what they say.
    OrderOnly,
}

/// The messages at the beginning of a conversation that were compacted, and are needed only by a turn that goes back to
/// before that. In the place of each stands an empty one, but for those that a later compaction says again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Evicted {
    /// How many they are.
    count: usize,
    /// How many messages there were when they were compacted: a turn can go back as far as that.
    floor: usize,
    /// Whether one of them came from a tool.
    is_foreign: bool,
}

/// What stands in the place of a message that is left out of memory.
const EVICTED: Message = Message::Results(Vec::new());

/// A branch as a checkpoint holds it.
#[derive(Serialize, Deserialize)]
struct BranchCheckpoint {
    hidden: Evicted,
    /// Those of the hidden messages that are held all the same, each by its number.
    held: Vec<(usize, Message)>,
    messages: Vec<Message>,
    places: Vec<MessageOrigin>,
    listed: Vec<MessageId>,
    written: Vec<(usize, MemoryWrite)>,
    #[serde(default)]
    noted: Vec<(usize, MemoryWrite)>,
    rewrites: Vec<Rewrite>,
    measured: Option<(usize, u64)>,
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MessageOrigin {
    /// It opened a turn.
    Opening {
        /// The message.
        message_id: MessageId,
        /// The `ts` of the turn's first event: an edit takes out all events from it on.
        events_from: i64,
    },
    /// The user said it to a running turn.
    Steered {
        /// The message.
        message_id: MessageId,
    },
    /// The model said it.
    Answer {
        /// The message.
        message_id: MessageId,
    },
    /// The results of calls, which are part of the answer before.
    Results,
}

impl MessageOrigin {
    fn message_id(self) -> Option<MessageId> {
        match self {
            Self::Opening { message_id, .. } | Self::Steered { message_id } | Self::Answer { message_id } => {
                Some(message_id)
            }
            Self::Results => None,
        }
    }

    fn is_user(self) -> bool {
        matches!(self, Self::Opening { .. } | Self::Steered { .. })
    }
}

/// Why a turn cannot go on from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BranchPointError {
    /// There is no such message, or it is no longer in force.
    #[error("there is no such message in this task, or it is no longer in force")]
    Unknown,
    /// It did not begin a turn.
    #[error("only a message that began a turn can be edited")]
    NotEditable,
}

impl Branch {
    /// The messages as a model is sent them, oldest first.
    pub(crate) fn messages(&self) -> &[Message] {
        self.view.as_deref().unwrap_or(&self.messages)
    }

    /// A branch that will hold all messages, those too that are no longer sent.
    pub(super) fn retaining_all() -> Self {
        Self { retention: Retention::All, ..Self::default() }
    }

    /// A branch that will hold the order of its messages, and nothing of what they say.
    pub(super) fn order_only() -> Self {
        Self { retention: Retention::OrderOnly, ..Self::default() }
    }

    /// All messages in force, oldest first, those that are no longer sent too; these may be empty.
    pub(super) fn all_messages(&self) -> &[Message] {
        &self.messages
    }

    /// How many of them are no longer sent.
    pub(super) fn compacted_count(&self) -> usize {
        compacted_count(&self.rewrites)
    }

    /// What is sent in their place.
    pub(super) fn replacement(&self) -> Option<&Replacement> {
        compaction_view::replacement(&self.rewrites)
    }

    /// How many tokens the conversation was before the messages that came since, and those; none where nobody has
    /// counted it in the form that it has.
    pub(super) fn measured_tokens(&self) -> Option<(u64, &[Message])> {
        let (at, tokens) = self.measured?;
        Some((tokens, self.messages.get(at..)?))
    }

    /// A provider counted the conversation, the last message included.
    pub(super) fn record_measured(&mut self, tokens: u64) {
        self.measured = Some((self.messages.len(), tokens));
    }

    /// The conversation is sent in another form from here on.
    pub(super) fn rewrite(&mut self, kind: RewriteKind) {
        self.rewrites.push(Rewrite { made_at: self.messages.len(), kind });
        self.measured = None;
        self.rebuild_view();
        self.evict_compacted();
    }

    /// Leaves out of memory what was compacted, and what else was before.
    fn evict_compacted(&mut self) {
        let Some((floor, _)) =
            compaction_view::last_compaction(&self.rewrites).filter(|_| self.retention == Retention::Needed)
        else {
            return;
        };
        let count = self.compacted_count().min(self.messages.len());
        if count == 0 {
            return;
        }
        let gone = self.messages.get(..count).unwrap_or_default();
        let is_foreign = self.evicted.is_foreign || provenance::source(gone) == Source::Tool;
        // What a skill says and what the user wanted are said again by a later compaction.
        let mut held: HashSet<usize> = loaded_skills::newest_loads(gone)
            .iter()
            .flat_map(loaded_skills::SkillLoad::message_indexes)
            .collect();
        held.extend(gone.iter().rposition(|message| matches!(message, Message::User { .. })));
        let hidden = self.messages.iter_mut().zip(&mut self.origins).enumerate().take(count);
        for (at, (message, place)) in hidden {
            *place = MessageOrigin::Results;
            if !held.contains(&at) {
                *message = EVICTED;
            }
        }
        self.evicted = Evicted { count, floor, is_foreign };
        let last =
            self.rewrites.iter().rposition(|rewrite| matches!(rewrite.kind, RewriteKind::Compacted(_)));
        self.rewrites.drain(..last.unwrap_or(0));
        let newest: Vec<(usize, MemoryWrite)> = {
            let before = self.memory_writes.iter().filter(|(at, _)| *at <= floor).map(|(_, write)| write);
            compaction_view::current_memory(before).into_iter().map(|write| (floor, write.clone())).collect()
        };
        self.memory_writes.retain(|(at, _)| *at > floor);
        self.memory_writes.splice(..0, newest);
        let first = self.origins.iter().skip(floor).find_map(|place| place.message_id());
        let listed = first.and_then(|first| self.listed.iter().position(|listed| *listed == first));
        self.listed.drain(..listed.unwrap_or(self.listed.len()));
    }

    /// Whether a turn can go on from `base`: whether all that this needs is in memory.
    pub(super) fn can_continue_from(&self, base: TurnBase) -> bool {
        match base {
            TurnBase::Edit { message_id } | TurnBase::Retry { message_id } if self.evicted.count > 0 => {
                let at = self.origins.iter().position(|place| place.message_id() == Some(message_id));
                // Of an answer that is given anew the question must be there too.
                let has_question = !base.is_retry() || self.retried_message(message_id).is_ok();
                has_question && at.is_some_and(|at| at >= self.evicted.floor)
            }
            TurnBase::End | TurnBase::Edit { .. } | TurnBase::Retry { .. } => true,
        }
    }

    /// Where an agent has from what it saves, once it has seen all this.
    pub(super) fn memory_source(&self) -> Source {
        if self.evicted.is_foreign { Source::Tool } else { provenance::source(&self.messages) }
    }

    /// The branch as a checkpoint holds it.
    pub(super) fn to_checkpoint(&self) -> Result<String, serde_json::Error> {
        let (hidden, messages) = self.messages.split_at(self.evicted.count.min(self.messages.len()));
        let held = hidden.iter().cloned().enumerate().filter(|(_, message)| *message != EVICTED);
        serde_json::to_string(&BranchCheckpoint {
            hidden: self.evicted,
            held: held.collect(),
            messages: messages.to_vec(),
            places: self.origins.get(self.evicted.count..).unwrap_or_default().to_vec(),
            listed: self.listed.clone(),
            written: self.memory_writes.clone(),
            noted: self.unsent_memory_writes.clone(),
            rewrites: self.rewrites.clone(),
            measured: self.measured,
        })
    }

    /// The branch that a checkpoint holds.
    pub(super) fn from_checkpoint(checkpoint: &str) -> Result<Self, serde_json::Error> {
        let BranchCheckpoint { hidden, held, messages, places, listed, written, noted, rewrites, measured } =
            serde_json::from_str(checkpoint)?;
        let mut all = vec![EVICTED; hidden.count];
        for (at, message) in held {
            all.get_mut(at).into_iter().for_each(|hidden| hidden.clone_from(&message));
        }
        all.extend(messages);
        let places = std::iter::repeat_n(MessageOrigin::Results, hidden.count).chain(places).collect();
        let mut branch = Self {
            messages: all,
            origins: places,
            listed,
            memory_writes: written,
            unsent_memory_writes: noted,
            rewrites,
            measured,
            evicted: hidden,
            ..Self::default()
        };
        branch.rebuild_view();
        Ok(branch)
    }

    /// What would be sent if the conversation were rewritten so.
    pub(super) fn preview_rewrite(&self, kind: RewriteKind) -> Vec<Message> {
        let mut rewrites = self.rewrites.clone();
        rewrites.push(Rewrite { made_at: self.messages.len(), kind });
        self.view_with(&rewrites)
    }

    /// What is sent with these rewrites.
    fn view_with(&self, rewrites: &[Rewrite]) -> Vec<Message> {
        let by_then = compaction_view::last_compaction(rewrites).map_or(0, |(made_at, _)| made_at);
        let said = self.messages.get(..by_then.min(self.messages.len())).unwrap_or_default();
        let from_tools = self.evicted.is_foreign || provenance::source(said) == Source::Tool;
        view(&self.messages, rewrites, &self.memory_writes, from_tools)
    }

    /// Makes anew what is sent, of messages that have changed.
    pub(super) fn rebuild_view(&mut self) {
        let rewritten = !self.rewrites.is_empty() && self.retention != Retention::OrderOnly;
        self.view = rewritten.then(|| self.view_with(&self.rewrites));
    }

    /// All messages that are listed, in the order in which the model was told them, and whether each is in force.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (MessageId, bool)> {
        let in_force: HashSet<MessageId> =
            self.origins.iter().filter_map(|place| place.message_id()).collect();
        self.listed.iter().map(move |message_id| (*message_id, in_force.contains(message_id)))
    }

    /// A message follows.
    pub(crate) fn push(&mut self, message: Message, place: MessageOrigin) {
        let message = if self.retention == Retention::OrderOnly { emptied(&message) } else { message };
        if let Some(view) = &mut self.view {
            view.push(message.clone());
        }
        if matches!(place, MessageOrigin::Opening { .. }) {
            self.mark_memory_note_sent();
        }
        self.messages.push(message);
        self.origins.push(place);
        self.listed.extend(place.message_id());
    }

    /// Adds to the last message, which is not the model's, and which no model has been told so.
    pub(super) fn append_to_last(&mut self, text: &str) {
        let view = self.view.iter_mut().filter_map(|view| view.last_mut());
        for message in self.messages.last_mut().into_iter().chain(view) {
            match message {
                Message::User { content } => content.push(Content::Note { text: text.to_owned() }),
                Message::Results(replies) => {
                    if let Some(last) = replies.last_mut() {
                        last.remarks.push(Content::Text { text: text.to_owned() });
                    }
                }
                Message::Assistant { .. } => {}
            }
        }
    }

    /// Whether working memory has room for these too, each in the place of what its key had. What makes it no larger always
    /// fits: a version without a bound may have filled it.
    pub(super) fn has_room_for(&self, writes: &[MemoryWrite]) -> bool {
        let before = || self.memory_writes.iter().map(|(_, write)| write);
        let after = memory_bytes(before().chain(writes));
        after <= MAX_WORKING_MEMORY_BYTES || after <= memory_bytes(before())
    }

    /// A tool wrote to working memory.
    pub(crate) fn record_memory_write(&mut self, write: MemoryWrite) {
        if self.retention == Retention::OrderOnly {
            return;
        }
        self.memory_writes.push((self.messages.len(), write));
    }

    /// Working memory was written between two turns.
    pub(super) fn record_memory_write_between_turns(&mut self, write: MemoryWrite) {
        self.unsent_memory_writes.push((self.messages.len(), write.clone()));
        self.record_memory_write(write);
    }

    /// What the next turn is to be told of that.
    pub(super) fn memory_note(&self) -> Option<String> {
        let lines = self.unsent_memory_writes.iter().map(|(_, MemoryWrite { key, value })| match value {
            serde_json::Value::Null => format!("\n- {key} was taken out"),
            value => format!("\n- {key}: {value}"),
        });
        let lines: String = lines.collect();
        (!lines.is_empty()).then(|| format!("[Working memory was changed between the messages:]{lines}"))
    }

    /// A turn was told of it.
    pub(super) fn mark_memory_note_sent(&mut self) {
        self.unsent_memory_writes.clear();
    }

    /// Goes back to where a turn goes on from. A message that is not there changes nothing.
    pub(crate) fn rewind_to(&mut self, base: TurnBase) {
        let Ok(keep) = self.kept_count(base) else { return };
        self.messages.truncate(keep);
        self.origins.truncate(keep);
        self.memory_writes.retain(|(at, _)| *at <= keep);
        self.unsent_memory_writes.retain(|(at, _)| *at <= keep);
        if keep < self.measured.map_or(0, |(at, _)| at) {
            self.measured = None;
        }
        self.rewrites.retain(|rewrite| rewrite.made_at <= keep);
        self.rebuild_view();
        if let TurnBase::Edit { message_id } = base
            && let Some(at) = self.listed.iter().position(|listed| *listed == message_id)
        {
            self.listed.truncate(at);
        }
    }

    /// What a turn that goes on from `base` takes out of the task.
    pub(crate) fn rewind_effects(&self, base: TurnBase) -> Result<Rewind, BranchPointError> {
        let keep = self.kept_count(base)?;
        let (events_from, messages) = match (base, self.origins.get(keep)) {
            (TurnBase::Edit { message_id }, Some(MessageOrigin::Opening { events_from, .. })) => {
                let before = self.listed.iter().position(|listed| *listed == message_id);
                let gone = before.map_or(0, |before| self.listed.len() - before);
                (Some(*events_from), u64::try_from(gone).unwrap_or(0))
            }
            (TurnBase::Edit { .. }, _) => return Err(BranchPointError::NotEditable),
            (TurnBase::End | TurnBase::Retry { .. }, _) => (None, 0),
        };
        let (kept, undone): (Vec<_>, Vec<_>) = self.memory_writes.iter().partition(|(at, _)| *at <= keep);
        let mut memory: Vec<(String, Option<serde_json::Value>)> = Vec::new();
        for (_, MemoryWrite { key, .. }) in undone {
            if !memory.iter().any(|(seen, _)| seen == key) {
                let before = kept.iter().rev().find(|(_, write)| write.key == *key);
                memory.push((key.clone(), before.map(|(_, write)| write.value.clone())));
            }
        }
        Ok(Rewind { events_from, messages, memory })
    }

    /// The user's message that a retry from `message_id` answers.
    pub(crate) fn retried_message(&self, message_id: MessageId) -> Result<MessageId, BranchPointError> {
        let keep = self.kept_count(TurnBase::Retry { message_id })?;
        let before = self.origins.iter().take(keep).rev();
        before
            .filter(|place| place.is_user())
            .find_map(|place| place.message_id())
            .ok_or(BranchPointError::Unknown)
    }

    /// How many messages are kept.
    fn kept_count(&self, base: TurnBase) -> Result<usize, BranchPointError> {
        let find = |message_id| {
            let at = self.origins.iter().position(|place| place.message_id() == Some(message_id));
            at.ok_or(BranchPointError::Unknown)
        };
        match base {
            TurnBase::End => Ok(self.messages.len()),
            TurnBase::Edit { message_id } => find(message_id),
            TurnBase::Retry { message_id } => {
                let at = find(message_id)?;
                let users = self.origins.get(at).is_some_and(|place| place.is_user());
                Ok(at + usize::from(users))
            }
        }
    }
}

/// A message of the same kind that says nothing.
fn emptied(message: &Message) -> Message {
    match message {
        Message::User { .. } => Message::User { content: Vec::new() },
        Message::Assistant { .. } => Message::Assistant { model: String::new(), blocks: Vec::new() },
        Message::Results(_) => EVICTED,
    }
}

/// What working memory takes after these writes: the keys and values that hold.
fn memory_bytes<'a>(writes: impl Iterator<Item = &'a MemoryWrite>) -> usize {
    let bytes = |write: &MemoryWrite| match &write.value {
        // How a value is taken out.
        serde_json::Value::Null => 0,
        value => write.key.len() + value.to_string().len(),
    };
    compaction_view::current_memory(writes).into_iter().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn memory_that_is_over_its_bound_already_can_be_made_smaller() {
        let write = |key: &str, value: Value| MemoryWrite { key: key.into(), value };
        let mut branch = Branch::default();
        // As a version without a bound left it.
        for key in ["a", "b", "c"] {
            branch.record_memory_write(write(key, json!("x".repeat(MAX_WORKING_MEMORY_BYTES / 2))));
        }
        assert!(branch.has_room_for(&[write("a", Value::Null)]));
        assert!(branch.has_room_for(&[write("a", json!("shorter"))]));
        assert!(!branch.has_room_for(&[write("d", json!("more"))]));
        for key in ["a", "b"] {
            branch.record_memory_write(write(key, Value::Null));
        }
        assert!(branch.has_room_for(&[write("d", json!("more"))]));
    }
}
