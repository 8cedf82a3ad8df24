//! Conversations with questions about them: generated, or read from a file.

use std::ops::Range;

/// The number of a message in its conversation, counted from 0 over all sessions.
pub(crate) type MessageNumber = usize;

/// A conversation over many sessions, which a brain of its own remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    /// In the order in which they took place; each is a task.
    pub(crate) sessions: Vec<Session>,
    pub(crate) questions: Vec<Question>,
}

/// Messages of one occasion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    /// When it began, in Unix milliseconds.
    pub(crate) began_ms: i64,
    pub(crate) messages: Range<MessageNumber>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) speaker: Speaker,
    pub(crate) text: String,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaker {
    User,
    Agent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The group of questions in the report.
    pub(crate) kind: String,
    pub(crate) text: String,
    /// The messages that answer it, each once in ascending order; none if nothing does.
    pub(crate) evidence: Vec<MessageNumber>,
}

/// The part of a message that a result shows, in characters.
const MAX_SHOWN_CHARACTERS: usize = 1_000;
/// The characters that a result adds to a message: who said it, and the end of the line.
const LABEL_CHARACTERS: usize = "The agent: \n".len();

impl Conversation {
    /// How many characters of a result a message takes. Counted alike for every search.
    pub(crate) fn shown_characters(&self, message: MessageNumber) -> usize {
        let text = self.messages.get(message).map_or("", |message| &message.text);
        text.chars().count().min(MAX_SHOWN_CHARACTERS) + LABEL_CHARACTERS
    }

    /// The texts of messages, one below the other.
    pub(crate) fn text(&self, messages: Range<MessageNumber>) -> String {
        let messages = self.messages.get(messages).unwrap_or_default();
        messages.iter().map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n")
    }
}
