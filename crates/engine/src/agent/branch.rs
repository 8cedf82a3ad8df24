//! The current branch of a task's conversation: the messages that are sent to a model, the origin of each, and
//! what an edit or a retry removes. Pure.

use std::collections::HashSet;

use api::MessageId;
use api::memory::Source;
use llm::{Content, Message};
use serde::{Deserialize, Serialize};
use store::Rewind;
use store::steps::{MemoryWrite, Replacement, TurnBase};

use super::compaction_view::{self, MAX_WORKING_MEMORY_BYTES, Rewrite, RewriteKind, compacted_count, view};
use super::{loaded_skills, provenance};

/// The messages of a conversation's current branch, with what is needed to render, rewrite and rewind them.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    messages: Vec<Message>,
    /// The origin of each message.
    origins: Vec<MessageOrigin>,
    /// The ids of all listed messages, including those that a retry superseded, in chronological
    /// order.
    listed: Vec<MessageId>,
    /// The writes to working memory, each with the number of messages at that time.
    memory_writes: Vec<(usize, MemoryWrite)>,
    /// The writes between turns that no turn has been sent yet.
    unsent_memory_writes: Vec<(usize, MemoryWrite)>,
    /// The positions of the messages to which the engine added text from a tool.
    tool_texts: Vec<usize>,
    /// The rewrites of what is sent, oldest first.
    rewrites: Vec<Rewrite>,
    /// The messages that are sent, if they differ from `messages`.
    view: Option<Vec<Message>>,
    /// A number of messages and the tokens that a provider counted for the conversation at that length.
    measured: Option<(usize, u64)>,
    /// The part of the conversation that is not held in memory.
    evicted: Evicted,
    /// Which part of the conversation is held in memory.
    retention: Retention,
}

/// What of a conversation is held in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Retention {
    /// What turns need that do not go back behind a compaction.
    #[default]
    Needed,
    /// Everything.
    All,
    /// The order of the messages, without their contents.
    OrderOnly,
}

/// The compacted messages at the beginning of a conversation, which only a turn that goes back behind the
/// compaction needs. An empty message stands in place of each, except for those that a later compaction
/// repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Evicted {
    /// The number of evicted messages.
    count: usize,
    /// The number of messages when they were compacted: a turn can go back that far.
    floor: usize,
    /// Whether any of them came from a tool.
    is_foreign: bool,
}

/// The placeholder for an evicted message.
const EVICTED: Message = Message::Results(Vec::new());

/// The serialized form of a branch in a checkpoint.
#[derive(Serialize, Deserialize)]
struct BranchCheckpoint {
    hidden: Evicted,
    /// The evicted messages that are retained all the same, each with its index.
    held: Vec<(usize, Message)>,
    messages: Vec<Message>,
    places: Vec<MessageOrigin>,
    listed: Vec<MessageId>,
    written: Vec<(usize, MemoryWrite)>,
    #[serde(default)]
    noted: Vec<(usize, MemoryWrite)>,
    tool_texts: Vec<usize>,
    rewrites: Vec<Rewrite>,
    measured: Option<(usize, u64)>,
}

/// The origin of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MessageOrigin {
    /// The message opened a turn.
    Opening {
        /// The id of the message.
        message_id: MessageId,
        /// The `ts` of the turn's first event: an edit removes all events from it on.
        events_from: i64,
    },
    /// The user sent the message to a running turn.
    Steered {
        /// The id of the message.
        message_id: MessageId,
    },
    /// The model's answer.
    Answer {
        /// The id of the message.
        message_id: MessageId,
    },
    /// The results of calls, which belong to the answer before them.
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

/// Why a turn cannot continue from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BranchPointError {
    /// There is no such message, or it is no longer on the branch.
    #[error("there is no such message in this task, or it is no longer on the current branch")]
    Unknown,
    /// The message did not begin a turn.
    #[error("only a message that began a turn can be edited")]
    NotEditable,
}

impl Branch {
    /// The messages as they are sent to a model, oldest first.
    pub(crate) fn messages(&self) -> &[Message] {
        self.view.as_deref().unwrap_or(&self.messages)
    }

    /// Creates a branch that retains all messages, including those that are no longer sent.
    pub(super) fn retaining_all() -> Self {
        Self { retention: Retention::All, ..Self::default() }
    }

    /// Creates a branch that retains the order of its messages but not their contents.
    pub(super) fn order_only() -> Self {
        Self { retention: Retention::OrderOnly, ..Self::default() }
    }

    /// All messages on the branch, oldest first, including those that are no longer sent; these may be empty.
    pub(super) fn all_messages(&self) -> &[Message] {
        &self.messages
    }

    /// The number of messages that are no longer sent.
    pub(super) fn compacted_count(&self) -> usize {
        compacted_count(&self.rewrites)
    }

    /// What is sent in place of the compacted messages.
    pub(super) fn replacement(&self) -> Option<&Replacement> {
        compaction_view::replacement(&self.rewrites)
    }

    /// The number of tokens that a provider counted, and the messages added since; `None` if the conversation
    /// has not been counted in its current form.
    pub(super) fn measured_tokens(&self) -> Option<(u64, &[Message])> {
        let (at, tokens) = self.measured?;
        Some((tokens, self.messages.get(at..)?))
    }

    /// Records a provider's token count of the conversation, including the last message.
    pub(super) fn record_measured(&mut self, tokens: u64) {
        self.measured = Some((self.messages.len(), tokens));
    }

    /// Applies a rewrite: from here on the conversation is sent in another form.
    pub(super) fn rewrite(&mut self, kind: RewriteKind) {
        self.rewrites.push(Rewrite { made_at: self.messages.len(), kind });
        self.measured = None;
        self.rebuild_view();
        self.evict_compacted();
    }

    /// Evicts the compacted messages from memory, together with what an earlier compaction evicted.
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
        let compacted = self.messages.get(..count).unwrap_or_default();
        let is_foreign =
            self.evicted.is_foreign || provenance::source(compacted, &self.tool_texts) == Source::Tool;
        // A later compaction repeats the loaded skills and the user's request.
        let mut retained: HashSet<usize> = loaded_skills::newest_loads(compacted)
            .iter()
            .flat_map(loaded_skills::SkillLoad::message_indexes)
            .collect();
        retained.extend(compacted.iter().rposition(|message| matches!(message, Message::User { .. })));
        let hidden = self.messages.iter_mut().zip(&mut self.origins).enumerate().take(count);
        for (at, (message, origin)) in hidden {
            *origin = MessageOrigin::Results;
            if !retained.contains(&at) {
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
        let first = self.origins.iter().skip(floor).find_map(|origin| origin.message_id());
        let listed = first.and_then(|first| self.listed.iter().position(|listed| *listed == first));
        self.listed.drain(..listed.unwrap_or(self.listed.len()));
    }

    /// Returns whether everything that a turn from `base` needs is in memory.
    pub(super) fn can_continue_from(&self, base: TurnBase) -> bool {
        match base {
            TurnBase::Edit { message_id } | TurnBase::Retry { message_id } if self.evicted.count > 0 => {
                let at = self.origins.iter().position(|origin| origin.message_id() == Some(message_id));
                // A retried answer needs its question as well.
                let has_question = !base.is_retry() || self.retried_message(message_id).is_ok();
                has_question && at.is_some_and(|at| at >= self.evicted.floor)
            }
            TurnBase::End | TurnBase::Edit { .. } | TurnBase::Retry { .. } => true,
        }
    }

    /// The source of what an agent saves to memory after it has seen this conversation.
    pub(super) fn memory_source(&self) -> Source {
        if self.evicted.is_foreign {
            Source::Tool
        } else {
            provenance::source(&self.messages, &self.tool_texts)
        }
    }

    /// Serializes the branch for a checkpoint.
    pub(super) fn to_checkpoint(&self) -> Result<String, serde_json::Error> {
        let (hidden, messages) = self.messages.split_at(self.evicted.count.min(self.messages.len()));
        let retained = hidden.iter().cloned().enumerate().filter(|(_, message)| *message != EVICTED);
        serde_json::to_string(&BranchCheckpoint {
            hidden: self.evicted,
            held: retained.collect(),
            messages: messages.to_vec(),
            places: self.origins.get(self.evicted.count..).unwrap_or_default().to_vec(),
            listed: self.listed.clone(),
            written: self.memory_writes.clone(),
            noted: self.unsent_memory_writes.clone(),
            tool_texts: self.tool_texts.clone(),
            rewrites: self.rewrites.clone(),
            measured: self.measured,
        })
    }

    /// Restores a branch from a checkpoint.
    pub(super) fn from_checkpoint(checkpoint: &str) -> Result<Self, serde_json::Error> {
        let BranchCheckpoint {
            hidden,
            held,
            messages,
            places,
            listed,
            written,
            noted,
            tool_texts,
            rewrites,
            measured,
        } = serde_json::from_str(checkpoint)?;
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
            tool_texts,
            rewrites,
            measured,
            evicted: hidden,
            ..Self::default()
        };
        branch.rebuild_view();
        Ok(branch)
    }

    /// The messages that would be sent after such a rewrite.
    pub(super) fn preview_rewrite(&self, kind: RewriteKind) -> Vec<Message> {
        let mut rewrites = self.rewrites.clone();
        rewrites.push(Rewrite { made_at: self.messages.len(), kind });
        self.view_with(&rewrites)
    }

    /// The messages that are sent under these rewrites.
    fn view_with(&self, rewrites: &[Rewrite]) -> Vec<Message> {
        let compacted_at = compaction_view::last_compaction(rewrites).map_or(0, |(made_at, _)| made_at);
        let before = self.messages.get(..compacted_at.min(self.messages.len())).unwrap_or_default();
        let from_tools =
            self.evicted.is_foreign || provenance::source(before, &self.tool_texts) == Source::Tool;
        view(&self.messages, rewrites, &self.memory_writes, from_tools)
    }

    /// Rebuilds the view after the messages have changed.
    pub(super) fn rebuild_view(&mut self) {
        let rewritten = !self.rewrites.is_empty() && self.retention != Retention::OrderOnly;
        self.view = rewritten.then(|| self.view_with(&self.rewrites));
    }

    /// All listed messages in the order in which the model received them, each with whether it is on the
    /// current branch.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (MessageId, bool)> {
        let current: HashSet<MessageId> =
            self.origins.iter().filter_map(|origin| origin.message_id()).collect();
        self.listed.iter().map(move |message_id| (*message_id, current.contains(message_id)))
    }

    /// Appends a message.
    pub(crate) fn push(&mut self, message: Message, origin: MessageOrigin) {
        let message = if self.retention == Retention::OrderOnly { emptied(&message) } else { message };
        if let Some(view) = &mut self.view {
            view.push(message.clone());
        }
        if matches!(origin, MessageOrigin::Opening { .. }) {
            self.mark_memory_note_sent();
        }
        self.messages.push(message);
        self.origins.push(origin);
        self.listed.extend(origin.message_id());
    }

    /// Appends text to the last message, which must not be the model's and must not have been sent to a model
    /// yet.
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

    /// Records the source of text that the engine added to the last message.
    pub(super) fn record_source_of_last(&mut self, source: Source) {
        if source == Source::Tool {
            self.tool_texts.extend(self.messages.len().checked_sub(1));
        }
    }

    /// Returns whether working memory has room for these writes, each replacing its key's value. A write that
    /// does not increase the size always fits, since a version without a limit may have filled the memory.
    pub(super) fn has_room_for(&self, writes: &[MemoryWrite]) -> bool {
        let before = || self.memory_writes.iter().map(|(_, write)| write);
        let after = memory_bytes(before().chain(writes));
        after <= MAX_WORKING_MEMORY_BYTES || after <= memory_bytes(before())
    }

    /// Records a tool's write to working memory.
    pub(crate) fn record_memory_write(&mut self, write: MemoryWrite) {
        if self.retention == Retention::OrderOnly {
            return;
        }
        self.memory_writes.push((self.messages.len(), write));
    }

    /// Records a write to working memory between two turns.
    pub(super) fn record_memory_write_between_turns(&mut self, write: MemoryWrite) {
        self.unsent_memory_writes.push((self.messages.len(), write.clone()));
        self.record_memory_write(write);
    }

    /// The note about such writes for the next turn.
    pub(super) fn memory_note(&self) -> Option<String> {
        let lines = self.unsent_memory_writes.iter().map(|(_, MemoryWrite { key, value })| match value {
            serde_json::Value::Null => format!("\n- {key} was removed"),
            value => format!("\n- {key}: {value}"),
        });
        let lines: String = lines.collect();
        (!lines.is_empty()).then(|| format!("[Working memory was changed between the messages:]{lines}"))
    }

    /// Records that a turn has received the note.
    pub(super) fn mark_memory_note_sent(&mut self) {
        self.unsent_memory_writes.clear();
    }

    /// Rewinds to the point from which a turn continues. An unknown message changes nothing.
    pub(crate) fn rewind_to(&mut self, base: TurnBase) {
        let Ok(kept) = self.kept_count(base) else { return };
        self.messages.truncate(kept);
        self.origins.truncate(kept);
        self.memory_writes.retain(|(at, _)| *at <= kept);
        self.unsent_memory_writes.retain(|(at, _)| *at <= kept);
        self.tool_texts.retain(|at| *at < kept);
        if kept < self.measured.map_or(0, |(at, _)| at) {
            self.measured = None;
        }
        self.rewrites.retain(|rewrite| rewrite.made_at <= kept);
        self.rebuild_view();
        if let TurnBase::Edit { message_id } = base
            && let Some(at) = self.listed.iter().position(|listed| *listed == message_id)
        {
            self.listed.truncate(at);
        }
    }

    /// Returns what a turn that continues from `base` removes from the task.
    pub(crate) fn rewind_effects(&self, base: TurnBase) -> Result<Rewind, BranchPointError> {
        let keep = self.kept_count(base)?;
        let (events_from, messages) = match (base, self.origins.get(keep)) {
            (TurnBase::Edit { message_id }, Some(MessageOrigin::Opening { events_from, .. })) => {
                let before = self.listed.iter().position(|listed| *listed == message_id);
                let removed = before.map_or(0, |before| self.listed.len() - before);
                (Some(*events_from), u64::try_from(removed).unwrap_or(0))
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

    /// Returns the user's message that a retry from `message_id` answers.
    pub(crate) fn retried_message(&self, message_id: MessageId) -> Result<MessageId, BranchPointError> {
        let kept = self.kept_count(TurnBase::Retry { message_id })?;
        let before = self.origins.iter().take(kept).rev();
        before
            .filter(|origin| origin.is_user())
            .find_map(|origin| origin.message_id())
            .ok_or(BranchPointError::Unknown)
    }

    /// Returns how many messages are kept.
    fn kept_count(&self, base: TurnBase) -> Result<usize, BranchPointError> {
        let find = |message_id| {
            let at = self.origins.iter().position(|origin| origin.message_id() == Some(message_id));
            at.ok_or(BranchPointError::Unknown)
        };
        match base {
            TurnBase::End => Ok(self.messages.len()),
            TurnBase::Edit { message_id } => find(message_id),
            TurnBase::Retry { message_id } => {
                let at = find(message_id)?;
                let is_user = self.origins.get(at).is_some_and(|origin| origin.is_user());
                Ok(at + usize::from(is_user))
            }
        }
    }
}

/// An empty message of the same kind.
fn emptied(message: &Message) -> Message {
    match message {
        Message::User { .. } => Message::User { content: Vec::new() },
        Message::Assistant { .. } => Message::Assistant { model: String::new(), blocks: Vec::new() },
        Message::Results(_) => EVICTED,
    }
}

/// The size of working memory after these writes: the current keys and values.
fn memory_bytes<'a>(writes: impl Iterator<Item = &'a MemoryWrite>) -> usize {
    let bytes = |write: &MemoryWrite| match &write.value {
        // A null value deletes the key.
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
        // The state that a version without a limit may have left.
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
