//! The current branch of a task's conversation: the messages that are sent to a model, and the origin of
//! each. Pure.

mod checkpoint;
mod rewind;

use std::collections::HashSet;

use api::MessageId;
use api::memory::Source;
use llm::{Content, Message};
pub(crate) use rewind::BranchPointError;
use serde::{Deserialize, Serialize};
use store::steps::{MemoryWrite, Replacement};

use super::citable_pages::CitablePages;
use super::compaction_view::{self, Rewrite, RewriteKind, compacted_count, view};
use super::working_memory::{MAX_WORKING_MEMORY_BYTES, current_values, size_bytes};
use super::{loaded_skills, provenance, turn_overrides};

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
    /// The pages that may be cited, including those of messages that are no longer on the branch.
    citable_pages: CitablePages,
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
    /// The results of calls, or why the answer does not match its schema: they belong to the answer before them.
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
        let mut earlier = last.unwrap_or(0);
        self.rewrites.retain(|rewrite| {
            let is_kept = earlier == 0 || rewrite.kind == RewriteKind::MediaDropped;
            earlier = earlier.saturating_sub(1);
            is_kept
        });
        let newest: Vec<(usize, MemoryWrite)> = {
            let before = self.memory_writes.iter().filter(|(at, _)| *at <= floor).map(|(_, write)| write);
            current_values(before).into_iter().map(|write| (floor, write.clone())).collect()
        };
        self.memory_writes.retain(|(at, _)| *at > floor);
        self.memory_writes.splice(..0, newest);
        let first = self.origins.iter().skip(floor).find_map(|origin| origin.message_id());
        let listed = first.and_then(|first| self.listed.iter().position(|listed| *listed == first));
        self.listed.drain(..listed.unwrap_or(self.listed.len()));
    }

    /// The source of what an agent saves to memory after it has seen this conversation.
    pub(super) fn memory_source(&self) -> Source {
        if self.evicted.is_foreign {
            Source::Tool
        } else {
            provenance::source(&self.messages, &self.tool_texts)
        }
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

    /// The last listed message; none if a compaction has evicted all.
    pub(super) fn last_listed(&self) -> Option<MessageId> {
        self.listed.last().copied()
    }

    /// The working memory: the newest value of each key, null for those that were removed.
    pub(super) fn current_memory(&self) -> Vec<MemoryWrite> {
        current_values(self.memory_writes.iter().map(|(_, write)| write)).into_iter().cloned().collect()
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

    /// Inserts a note into the last message, which must be the user's and must not have been sent to a model yet,
    /// behind the first `at` ones.
    pub(super) fn insert_note(&mut self, at: usize, text: &str) {
        let view = self.view.iter_mut().filter_map(|view| view.last_mut());
        for message in self.messages.last_mut().into_iter().chain(view) {
            if let Message::User { content } = message {
                content.insert(at.min(content.len()), Content::Note { text: text.to_owned() });
            }
        }
    }

    /// Removes from the last message what a retry has appended to it about the options of its turn.
    pub(super) fn remove_retry_options(&mut self) {
        let view = self.view.iter_mut().filter_map(|view| view.last_mut());
        for message in self.messages.last_mut().into_iter().chain(view) {
            match message {
                Message::User { content } => {
                    // What the message itself was sent with comes before its text.
                    let mut is_after_text = false;
                    content.retain(|content| {
                        is_after_text |= !matches!(content, Content::Note { .. });
                        !is_after_text || !turn_overrides::is_note(content)
                    });
                }
                Message::Results(replies) => {
                    if let Some(last) = replies.last_mut() {
                        last.remarks.retain(|remark| !turn_overrides::is_note(remark));
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
        let after = size_bytes(before().chain(writes));
        after <= MAX_WORKING_MEMORY_BYTES || after <= size_bytes(before())
    }

    /// Records a tool's write to working memory.
    pub(crate) fn record_memory_write(&mut self, write: MemoryWrite) {
        if self.retention == Retention::OrderOnly {
            return;
        }
        self.memory_writes.push((self.messages.len(), write));
    }

    /// The pages that may be cited.
    pub(super) fn citable_pages(&self) -> &CitablePages {
        &self.citable_pages
    }

    /// The pages that may be cited, to record more; `None` if the branch holds no contents.
    pub(super) fn citable_pages_mut(&mut self) -> Option<&mut CitablePages> {
        (self.retention != Retention::OrderOnly).then_some(&mut self.citable_pages)
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
}

/// An empty message of the same kind.
fn emptied(message: &Message) -> Message {
    match message {
        Message::User { .. } => Message::User { content: Vec::new() },
        Message::Assistant { .. } => Message::Assistant { model: String::new(), blocks: Vec::new() },
        Message::Results(_) => EVICTED,
    }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/branch.rs"]
mod tests;
