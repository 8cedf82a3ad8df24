//! The repair pass: whatever a history has become, what is sent is a conversation that every provider takes.
//!
//! The fold over the journal makes valid conversations, so there is next to never anything to do. This pass is for
//! what it cannot know: servers that number their calls anew in each answer, answers of nothing but reasoning,
//! journals that something else has damaged. What it makes of a message depends only on the messages before, so that
//! a conversation which grows keeps its beginning, and with it the provider's cache.

use std::collections::HashSet;

use super::media::is_blank;
use super::{Block, Content, Message, ToolReply, ToolUse};

/// What the model is told of a call whose result is not in the history.
const UNKNOWN_OUTCOME_TEXT: &str =
    "The outcome of this call is unknown: its result was lost. It may have taken effect.";
/// What the user says where the model would otherwise speak twice in a row, or have the last word.
const CONTINUE_TEXT: &str = "Go on.";

/// A history that was repaired.
#[derive(Clone, Debug, PartialEq)]
pub struct RepairedHistory {
    /// The history as it is to be sent.
    pub messages: Vec<Message>,
    /// What was wrong, a line each, for the log; messages count from 0. A call that was given another id is no fault
    /// and not among them.
    pub notes: Vec<String>,
}

/// Makes `messages` valid for every provider; none if they are, as they nearly always are.
///
/// What it gives begins with the user and ends with the user or with results, has no empty messages and no two
/// answers in a row; the calls of each answer have ids of their own and are followed by their results, in their
/// order.
pub fn repair(messages: &[Message]) -> Option<RepairedHistory> {
    if is_valid(messages) {
        return None;
    }
    let mut repair = HistoryRepair::default();
    for (at, message) in messages.iter().enumerate() {
        repair.index = at;
        match message {
            empty if is_empty(empty) => repair.note("is empty: left out"),
            Message::User { .. } => repair.push_user(message.clone()),
            Message::Assistant { model, blocks } => repair.push_answer(model, blocks),
            Message::Results(replies) => repair.push_results(replies),
        }
    }
    Some(repair.finish())
}

fn is_valid(messages: &[Message]) -> bool {
    let mut ids = HashSet::new();
    let mut before: Option<&Message> = None;
    for message in messages {
        let follows = match (before, message) {
            (Some(Message::Assistant { blocks, .. }), Message::Results(replies)) => {
                calls(blocks).map(|call| &call.provider_id).eq(replies.iter().map(|reply| &reply.provider_id))
            }
            (Some(Message::Assistant { blocks, .. }), Message::User { .. }) => calls(blocks).next().is_none(),
            (Some(Message::User { .. } | Message::Results(_)), Message::Assistant { blocks, .. }) => {
                calls(blocks).all(|call| !call.provider_id.is_empty() && ids.insert(&call.provider_id))
            }
            (_, Message::User { .. }) => true,
            (_, Message::Assistant { .. } | Message::Results(_)) => false,
        };
        if !follows || is_empty(message) {
            return false;
        }
        before = Some(message);
    }
    matches!(before, Some(Message::User { .. } | Message::Results(_)))
}

/// Whether nothing of a message can be sent to every provider: reasoning alone makes no message.
fn is_empty(message: &Message) -> bool {
    match message {
        Message::User { content } => content.iter().all(|content| match content {
            Content::Text { text } => is_blank(text),
            Content::Note { .. } => true,
            Content::Media(_) => false,
        }),
        Message::Assistant { blocks, .. } => blocks.iter().all(|block| match block {
            Block::Text { text, .. } => is_blank(text),
            Block::Thinking { .. } | Block::RedactedThinking { .. } => true,
            Block::ToolUse(_) => false,
        }),
        Message::Results(replies) => replies.is_empty(),
    }
}

fn calls(blocks: &[Block]) -> impl Iterator<Item = &ToolUse> {
    blocks.iter().filter_map(|block| match block {
        Block::ToolUse(call) => Some(call),
        Block::Text { .. } | Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
    })
}

/// A repair under way.
#[derive(Default)]
struct HistoryRepair {
    /// Which message is looked at, for the notes.
    index: usize,
    messages: Vec<Message>,
    notes: Vec<String>,
    /// The ids of all calls so far.
    ids: HashSet<String>,
    /// The calls of the last message, whose results may still come.
    open_calls: Vec<OpenCall>,
}

struct OpenCall {
    /// The id that its reply has.
    original_id: String,
    /// The id that it is sent with.
    sent_id: String,
    reply: Option<ToolReply>,
}

impl HistoryRepair {
    fn note(&mut self, what: &str) {
        self.notes.push(format!("message {} of the conversation {what}", self.index));
    }

    fn push_user(&mut self, message: Message) {
        self.close_calls();
        self.messages.push(message);
    }

    fn push_answer(&mut self, model: &str, blocks: &[Block]) {
        self.close_calls();
        match self.messages.last() {
            None => return self.note("is an answer to nothing: left out"),
            // Two answers made one would mix the reasoning of both, which providers refuse.
            Some(Message::Assistant { .. }) => {
                self.note("is an answer to an answer: put a word of the user between");
                self.messages.push(Message::user(CONTINUE_TEXT));
            }
            Some(Message::User { .. } | Message::Results(_)) => {}
        }
        let mut blocks = blocks.to_vec();
        for block in &mut blocks {
            if let Block::ToolUse(call) = block {
                let is = self.unique_id(call);
                let was = std::mem::replace(&mut call.provider_id, is.clone());
                self.open_calls.push(OpenCall { original_id: was, sent_id: is, reply: None });
            }
        }
        self.messages.push(Message::Assistant { model: model.to_owned(), blocks });
    }

    /// An id that no call before has: the call's own if it can be.
    fn unique_id(&mut self, call: &ToolUse) -> String {
        let ours = call.call_id.to_string();
        let mut id = call.provider_id.clone();
        let mut others = 1;
        while id.is_empty() || !self.ids.insert(id.clone()) {
            // Numbered only where one and the same call stands in the history several times.
            id = if others == 1 { ours.clone() } else { format!("{ours}-{others}") };
            others += 1;
        }
        id
    }

    fn push_results(&mut self, replies: &[ToolReply]) {
        if self.open_calls.iter().any(|call| call.reply.is_some()) {
            self.note("goes on with results: joined with those before");
        }
        for reply in replies {
            let is_its = |call: &OpenCall| call.reply.is_none() && call.original_id == reply.provider_id;
            let Some(at) = self.open_calls.iter().position(is_its) else {
                self.note(&format!("answers {:?}, which is no open call: left out", reply.provider_id));
                continue;
            };
            let (_, from_here) = self.open_calls.split_at_mut(at);
            let [call, later @ ..] = from_here else { continue };
            call.reply = Some(ToolReply { provider_id: call.sent_id.clone(), ..reply.clone() });
            if later.iter().any(|call| call.reply.is_some()) {
                self.note("has results in another order than their calls: put in order");
            }
        }
    }

    /// The calls of the last message get no more results.
    fn close_calls(&mut self) {
        if self.open_calls.is_empty() {
            return;
        }
        let mut replies = Vec::new();
        for OpenCall { sent_id: is, reply, .. } in std::mem::take(&mut self.open_calls) {
            replies.push(reply.unwrap_or_else(|| {
                self.note(&format!("comes before the result of {is:?}: said that it is unknown"));
                ToolReply {
                    provider_id: is,
                    text: UNKNOWN_OUTCOME_TEXT.into(),
                    remarks: Vec::new(),
                    is_error: true,
                }
            }));
        }
        self.messages.push(Message::Results(replies));
    }

    fn finish(mut self) -> RepairedHistory {
        self.index += 1;
        self.close_calls();
        if matches!(self.messages.last(), None | Some(Message::Assistant { .. })) {
            self.note("is the model's to write and has nothing to answer: added a word of the user");
            self.messages.push(Message::user(CONTINUE_TEXT));
        }
        RepairedHistory { messages: self.messages, notes: self.notes }
    }
}

#[cfg(test)]
#[path = "repair_tests.rs"]
mod tests;
