//! The branch of a task's conversation that is in force: the messages that a model is sent, where each came from,
//! and what an edit or a retry takes out. Pure.

use std::collections::HashSet;

use contract::MessageId;
use contract::memory::Source;
use serde::{Deserialize, Serialize};

use super::rewrite::{self, MAX_MEMORY, Rewrite, RewriteKind, covered, view};
use super::{loaded, provenance};
use crate::brain::Cut;
use crate::brain::steps::{Base, Instead, MemoryWrite};
use crate::models::{Content, Message};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    messages: Vec<Message>,
    /// Where each of them came from.
    places: Vec<Place>,
    /// All messages that are listed, those that a retry superseded too, in the order in which they were said.
    listed: Vec<MessageId>,
    /// What was written to working memory, each with how many messages there were then.
    written: Vec<(usize, MemoryWrite)>,
    /// What was written to it between turns, and no turn was told of yet.
    noted: Vec<(usize, MemoryWrite)>,
    /// What changes what is sent, oldest first.
    rewrites: Vec<Rewrite>,
    /// What is sent, where that is not the messages themselves.
    view: Option<Vec<Message>>,
    /// How many tokens the conversation was when it had so many messages, as a provider counted them.
    measured: Option<(usize, u64)>,
    /// What is left out of memory.
    hidden: Hidden,
    /// What is not.
    keeps: Keeps,
}

/// What of a conversation is held in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Keeps {
    /// What turns need that do not go back behind a compaction.
    #[default]
    Needed,
    /// All of it.
    All,
    /// The order of its messages, and nothing of what they say.
    Order,
}

/// The messages at the beginning of a conversation that were compacted, and are needed only by a turn that goes back to
/// before that. In the place of each stands an empty one, but for those that a later compaction says again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Hidden {
    /// How many they are.
    count: usize,
    /// How many messages there were when they were compacted: a turn can go back as far as that.
    floor: usize,
    /// Whether one of them came from a tool.
    is_foreign: bool,
}

/// What stands in the place of a message that is left out of memory.
const HIDDEN: Message = Message::Results(Vec::new());

/// A branch as a checkpoint holds it.
#[derive(Serialize, Deserialize)]
struct Stored {
    hidden: Hidden,
    /// Those of the hidden messages that are held all the same, each by its number.
    held: Vec<(usize, Message)>,
    messages: Vec<Message>,
    places: Vec<Place>,
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
pub(crate) enum Place {
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

impl Place {
    fn message_id(self) -> Option<MessageId> {
        match self {
            Self::Opening { message_id, .. } | Self::Steered { message_id } | Self::Answer { message_id } => {
                Some(message_id)
            }
            Self::Results => None,
        }
    }

    fn is_users(self) -> bool {
        matches!(self, Self::Opening { .. } | Self::Steered { .. })
    }
}

/// Why a turn cannot go on from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotThere {
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
    pub(super) fn whole() -> Self {
        Self { keeps: Keeps::All, ..Self::default() }
    }

    /// A branch that will hold the order of its messages, and nothing of what they say.
    pub(super) fn order() -> Self {
        Self { keeps: Keeps::Order, ..Self::default() }
    }

    /// All messages in force, oldest first, those that are no longer sent too; these may be empty.
    pub(super) fn all(&self) -> &[Message] {
        &self.messages
    }

    /// How many of them are no longer sent.
    pub(super) fn covered(&self) -> usize {
        covered(&self.rewrites)
    }

    /// What is sent in their place.
    pub(super) fn instead(&self) -> Option<&Instead> {
        rewrite::instead(&self.rewrites)
    }

    /// How many tokens the conversation was before the messages that came since, and those; none where nobody has
    /// counted it in the form that it has.
    pub(super) fn measured(&self) -> Option<(u64, &[Message])> {
        let (at, tokens) = self.measured?;
        Some((tokens, self.messages.get(at..)?))
    }

    /// A provider counted the conversation, the last message included.
    pub(super) fn measure(&mut self, tokens: u64) {
        self.measured = Some((self.messages.len(), tokens));
    }

    /// The conversation is sent in another form from here on.
    pub(super) fn rewrite(&mut self, kind: RewriteKind) {
        self.rewrites.push(Rewrite { made_at: self.messages.len(), kind });
        self.measured = None;
        self.look();
        self.hide();
    }

    /// Leaves out of memory what was compacted, and what else was before.
    fn hide(&mut self) {
        let Some((floor, _)) =
            rewrite::last_compaction(&self.rewrites).filter(|_| self.keeps == Keeps::Needed)
        else {
            return;
        };
        let count = self.covered().min(self.messages.len());
        if count == 0 {
            return;
        }
        let gone = self.messages.get(..count).unwrap_or_default();
        let is_foreign = self.hidden.is_foreign || provenance::source(gone) == Source::Tool;
        // What a skill says and what the user wanted are said again by a later compaction.
        let mut held: HashSet<usize> = loaded::newest(gone).iter().flat_map(loaded::Load::messages).collect();
        held.extend(gone.iter().rposition(|message| matches!(message, Message::User { .. })));
        let hidden = self.messages.iter_mut().zip(&mut self.places).enumerate().take(count);
        for (at, (message, place)) in hidden {
            *place = Place::Results;
            if !held.contains(&at) {
                *message = HIDDEN;
            }
        }
        self.hidden = Hidden { count, floor, is_foreign };
        let last =
            self.rewrites.iter().rposition(|rewrite| matches!(rewrite.kind, RewriteKind::Compacted(_)));
        self.rewrites.drain(..last.unwrap_or(0));
        let newest: Vec<(usize, MemoryWrite)> = {
            let before = self.written.iter().filter(|(at, _)| *at <= floor).map(|(_, write)| write);
            rewrite::memory(before).into_iter().map(|write| (floor, write.clone())).collect()
        };
        self.written.retain(|(at, _)| *at > floor);
        self.written.splice(..0, newest);
        let first = self.places.iter().skip(floor).find_map(|place| place.message_id());
        let listed = first.and_then(|first| self.listed.iter().position(|listed| *listed == first));
        self.listed.drain(..listed.unwrap_or(self.listed.len()));
    }

    /// Whether a turn can go on from `base`: whether all that this needs is in memory.
    pub(super) fn reaches(&self, base: Base) -> bool {
        match base {
            Base::Edit { message_id } | Base::Retry { message_id } if self.hidden.count > 0 => {
                let at = self.places.iter().position(|place| place.message_id() == Some(message_id));
                // Of an answer that is given anew the question must be there too.
                let has_question = !base.is_retry() || self.answered_by_retry(message_id).is_ok();
                has_question && at.is_some_and(|at| at >= self.hidden.floor)
            }
            Base::End | Base::Edit { .. } | Base::Retry { .. } => true,
        }
    }

    /// Where an agent has from what it saves, once it has seen all this.
    pub(super) fn source(&self) -> Source {
        if self.hidden.is_foreign { Source::Tool } else { provenance::source(&self.messages) }
    }

    /// The branch as a checkpoint holds it.
    pub(super) fn to_checkpoint(&self) -> Result<String, serde_json::Error> {
        let (hidden, messages) = self.messages.split_at(self.hidden.count.min(self.messages.len()));
        let held = hidden.iter().cloned().enumerate().filter(|(_, message)| *message != HIDDEN);
        serde_json::to_string(&Stored {
            hidden: self.hidden,
            held: held.collect(),
            messages: messages.to_vec(),
            places: self.places.get(self.hidden.count..).unwrap_or_default().to_vec(),
            listed: self.listed.clone(),
            written: self.written.clone(),
            noted: self.noted.clone(),
            rewrites: self.rewrites.clone(),
            measured: self.measured,
        })
    }

    /// The branch that a checkpoint holds.
    pub(super) fn from_checkpoint(checkpoint: &str) -> Result<Self, serde_json::Error> {
        let Stored { hidden, held, messages, places, listed, written, noted, rewrites, measured } =
            serde_json::from_str(checkpoint)?;
        let mut all = vec![HIDDEN; hidden.count];
        for (at, message) in held {
            all.get_mut(at).into_iter().for_each(|hidden| hidden.clone_from(&message));
        }
        all.extend(messages);
        let places = std::iter::repeat_n(Place::Results, hidden.count).chain(places).collect();
        let mut branch = Self {
            messages: all,
            places,
            listed,
            written,
            noted,
            rewrites,
            measured,
            hidden,
            ..Self::default()
        };
        branch.look();
        Ok(branch)
    }

    /// What would be sent if the conversation were rewritten so.
    pub(super) fn rewritten(&self, kind: RewriteKind) -> Vec<Message> {
        let mut rewrites = self.rewrites.clone();
        rewrites.push(Rewrite { made_at: self.messages.len(), kind });
        self.view_with(&rewrites)
    }

    /// What is sent with these rewrites.
    fn view_with(&self, rewrites: &[Rewrite]) -> Vec<Message> {
        let by_then = rewrite::last_compaction(rewrites).map_or(0, |(made_at, _)| made_at);
        let said = self.messages.get(..by_then.min(self.messages.len())).unwrap_or_default();
        let from_tools = self.hidden.is_foreign || provenance::source(said) == Source::Tool;
        view(&self.messages, rewrites, &self.written, from_tools)
    }

    /// Makes anew what is sent, of messages that have changed.
    pub(super) fn look(&mut self) {
        let rewritten = !self.rewrites.is_empty() && self.keeps != Keeps::Order;
        self.view = rewritten.then(|| self.view_with(&self.rewrites));
    }

    /// All messages that are listed, in the order in which the model was told them, and whether each is in force.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (MessageId, bool)> {
        let in_force: HashSet<MessageId> =
            self.places.iter().filter_map(|place| place.message_id()).collect();
        self.listed.iter().map(move |message_id| (*message_id, in_force.contains(message_id)))
    }

    /// A message follows.
    pub(crate) fn push(&mut self, message: Message, place: Place) {
        let message = if self.keeps == Keeps::Order { emptied(&message) } else { message };
        if let Some(view) = &mut self.view {
            view.push(message.clone());
        }
        if matches!(place, Place::Opening { .. }) {
            self.told_of_notes();
        }
        self.messages.push(message);
        self.places.push(place);
        self.listed.extend(place.message_id());
    }

    /// Adds to the last message, which is not the model's, and which no model has been told so.
    pub(super) fn add_to_last(&mut self, text: &str) {
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
        let before = || self.written.iter().map(|(_, write)| write);
        let after = memory_bytes(before().chain(writes));
        after <= MAX_MEMORY || after <= memory_bytes(before())
    }

    /// A tool wrote to working memory.
    pub(crate) fn wrote(&mut self, write: MemoryWrite) {
        if self.keeps == Keeps::Order {
            return;
        }
        self.written.push((self.messages.len(), write));
    }

    /// Working memory was written between two turns.
    pub(super) fn noted(&mut self, write: MemoryWrite) {
        self.noted.push((self.messages.len(), write.clone()));
        self.wrote(write);
    }

    /// What the next turn is to be told of that.
    pub(super) fn notes(&self) -> Option<String> {
        let lines = self.noted.iter().map(|(_, MemoryWrite { key, value })| match value {
            serde_json::Value::Null => format!("\n- {key} was taken out"),
            value => format!("\n- {key}: {value}"),
        });
        let lines: String = lines.collect();
        (!lines.is_empty()).then(|| format!("[Working memory was changed between the messages:]{lines}"))
    }

    /// A turn was told of it.
    pub(super) fn told_of_notes(&mut self) {
        self.noted.clear();
    }

    /// Goes back to where a turn goes on from. A message that is not there changes nothing.
    pub(crate) fn go_to(&mut self, base: Base) {
        let Ok(keep) = self.kept(base) else { return };
        self.messages.truncate(keep);
        self.places.truncate(keep);
        self.written.retain(|(at, _)| *at <= keep);
        self.noted.retain(|(at, _)| *at <= keep);
        if keep < self.measured.map_or(0, |(at, _)| at) {
            self.measured = None;
        }
        self.rewrites.retain(|rewrite| rewrite.made_at <= keep);
        self.look();
        if let Base::Edit { message_id } = base
            && let Some(at) = self.listed.iter().position(|listed| *listed == message_id)
        {
            self.listed.truncate(at);
        }
    }

    /// What a turn that goes on from `base` takes out of the task.
    pub(crate) fn cut(&self, base: Base) -> Result<Cut, NotThere> {
        let keep = self.kept(base)?;
        let (events_from, messages) = match (base, self.places.get(keep)) {
            (Base::Edit { message_id }, Some(Place::Opening { events_from, .. })) => {
                let before = self.listed.iter().position(|listed| *listed == message_id);
                let gone = before.map_or(0, |before| self.listed.len() - before);
                (Some(*events_from), u64::try_from(gone).unwrap_or(0))
            }
            (Base::Edit { .. }, _) => return Err(NotThere::NotEditable),
            (Base::End | Base::Retry { .. }, _) => (None, 0),
        };
        let (kept, undone): (Vec<_>, Vec<_>) = self.written.iter().partition(|(at, _)| *at <= keep);
        let mut memory: Vec<(String, Option<serde_json::Value>)> = Vec::new();
        for (_, MemoryWrite { key, .. }) in undone {
            if !memory.iter().any(|(seen, _)| seen == key) {
                let before = kept.iter().rev().find(|(_, write)| write.key == *key);
                memory.push((key.clone(), before.map(|(_, write)| write.value.clone())));
            }
        }
        Ok(Cut { events_from, messages, memory })
    }

    /// The user's message that a retry from `message_id` answers.
    pub(crate) fn answered_by_retry(&self, message_id: MessageId) -> Result<MessageId, NotThere> {
        let keep = self.kept(Base::Retry { message_id })?;
        let before = self.places.iter().take(keep).rev();
        before.filter(|place| place.is_users()).find_map(|place| place.message_id()).ok_or(NotThere::Unknown)
    }

    /// How many messages are kept.
    fn kept(&self, base: Base) -> Result<usize, NotThere> {
        let find = |message_id| {
            let at = self.places.iter().position(|place| place.message_id() == Some(message_id));
            at.ok_or(NotThere::Unknown)
        };
        match base {
            Base::End => Ok(self.messages.len()),
            Base::Edit { message_id } => find(message_id),
            Base::Retry { message_id } => {
                let at = find(message_id)?;
                let users = self.places.get(at).is_some_and(|place| place.is_users());
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
        Message::Results(_) => HIDDEN,
    }
}

/// What working memory takes after these writes: the keys and values that hold.
fn memory_bytes<'a>(writes: impl Iterator<Item = &'a MemoryWrite>) -> usize {
    let bytes = |write: &MemoryWrite| match &write.value {
        // How a value is taken out.
        serde_json::Value::Null => 0,
        value => write.key.len() + value.to_string().len(),
    };
    rewrite::memory(writes).into_iter().map(bytes).sum()
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
            branch.wrote(write(key, json!("x".repeat(MAX_MEMORY / 2))));
        }
        assert!(branch.has_room_for(&[write("a", Value::Null)]));
        assert!(branch.has_room_for(&[write("a", json!("shorter"))]));
        assert!(!branch.has_room_for(&[write("d", json!("more"))]));
        for key in ["a", "b"] {
            branch.wrote(write(key, Value::Null));
        }
        assert!(branch.has_room_for(&[write("d", json!("more"))]));
    }
}
