//! The branch of a task's conversation that is in force: the messages that a model is sent, where each came from,
//! and what an edit or a retry takes out. Pure.

use std::collections::HashSet;

use contract::MessageId;

use crate::brain::Cut;
use crate::brain::steps::{Base, MemoryWrite};
use crate::models::{Content, Media, Message};

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
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It opened a turn, with the event `ts`.
    Opening {
        /// The message.
        message_id: MessageId,
        /// The event.
        ts: i64,
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
    /// The messages, oldest first.
    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// All messages that are listed, in the order in which the model was told them, and whether each is in force.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (MessageId, bool)> {
        let in_force: HashSet<MessageId> =
            self.places.iter().filter_map(|place| place.message_id()).collect();
        self.listed.iter().map(move |message_id| (*message_id, in_force.contains(message_id)))
    }

    /// All media in the messages.
    pub(crate) fn media(&mut self) -> impl Iterator<Item = &mut Media> {
        let contents =
            self.messages.iter_mut().flat_map(|message| -> Box<dyn Iterator<Item = &mut Content>> {
                match message {
                    Message::User { content } => Box::new(content.iter_mut()),
                    Message::Results(replies) => {
                        Box::new(replies.iter_mut().flat_map(|reply| &mut reply.remarks))
                    }
                    Message::Assistant { .. } => Box::new(std::iter::empty()),
                }
            });
        contents.filter_map(|content| match content {
            Content::Media(media) => Some(media),
            Content::Text { .. } => None,
        })
    }

    /// A message follows.
    pub(crate) fn push(&mut self, message: Message, place: Place) {
        self.messages.push(message);
        self.places.push(place);
        self.listed.extend(place.message_id());
    }

    /// A tool wrote to working memory.
    pub(crate) fn wrote(&mut self, write: MemoryWrite) {
        self.written.push((self.messages.len(), write));
    }

    /// Goes back to where a turn goes on from. A message that is not there changes nothing.
    pub(crate) fn go_to(&mut self, base: Base) {
        let Ok(keep) = self.kept(base) else { return };
        self.messages.truncate(keep);
        self.places.truncate(keep);
        self.written.retain(|(at, _)| *at <= keep);
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
            (Base::Edit { message_id }, Some(Place::Opening { ts, .. })) => {
                let before = self.listed.iter().position(|listed| *listed == message_id);
                let gone = before.map_or(0, |before| self.listed.len() - before);
                (Some(*ts), u64::try_from(gone).unwrap_or(0))
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
