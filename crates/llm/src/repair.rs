//! The repair pass: turns any history into a conversation that every provider accepts.
//!
//! The journal normally yields valid conversations, so there is hardly ever anything to repair. The pass handles
//! what the journal cannot prevent: servers that number their calls anew in each answer, answers that consist of
//! reasoning only, and damaged journals. The repair of a message depends only on the messages before it, so that
//! the beginning of a growing conversation, and with it the provider's cache, stays unchanged.

use std::collections::HashSet;

use super::media::is_blank;
use super::{Block, Content, Message, ToolReply, ToolUse};

/// The result of a call whose result is missing from the history, as the model reads it.
const UNKNOWN_OUTCOME_TEXT: &str =
    "The outcome of this call is unknown: its result was lost. It may have taken effect.";
/// The user's message that is inserted where otherwise two answers would follow each other, or an answer would
/// come last.
const CONTINUE_TEXT: &str = "Go on.";

/// A history that was repaired.
#[derive(Clone, Debug, PartialEq)]
pub struct RepairedHistory {
    /// The history in the form in which it is sent.
    pub messages: Vec<Message>,
    /// What was wrong, one line per fault, for the log; messages are numbered from 0. A call that got another id
    /// is not a fault and is not listed.
    pub notes: Vec<String>,
}

/// Makes `messages` valid for every provider; `None` if they already are, as nearly always.
///
/// The result begins with the user, ends with the user or with results, and has neither empty messages nor two
/// adjacent answers. The calls have unique ids and are followed by their results, in the order of the calls.
pub fn repair(messages: &[Message]) -> Option<RepairedHistory> {
    if is_valid(messages) {
        return None;
    }
    let mut repair = HistoryRepair::default();
    for (at, message) in messages.iter().enumerate() {
        repair.index = at;
        match message {
            empty if is_empty(empty) => repair.note("is empty; removed it"),
            Message::User { .. } => repair.push_user(message.clone()),
            Message::Assistant { model, blocks } => repair.push_answer(model, blocks),
            Message::Results(replies) => repair.push_results(replies),
        }
    }
    Some(repair.finish())
}

fn is_valid(messages: &[Message]) -> bool {
    let mut ids = HashSet::new();
    let mut previous: Option<&Message> = None;
    for message in messages {
        let is_allowed = match (previous, message) {
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
        if !is_allowed || is_empty(message) {
            return false;
        }
        previous = Some(message);
    }
    matches!(previous, Some(Message::User { .. } | Message::Results(_)))
}

/// Whether no part of a message can be sent to every provider. Reasoning alone does not make a message.
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

/// A repair in progress.
#[derive(Default)]
struct HistoryRepair {
    /// The index of the current message, for the notes.
    index: usize,
    messages: Vec<Message>,
    notes: Vec<String>,
    /// The ids of all calls so far.
    ids: HashSet<String>,
    /// The calls of the last message that still wait for results.
    open_calls: Vec<OpenCall>,
}

struct OpenCall {
    /// The id in the call's reply.
    original_id: String,
    /// The id with which the call is sent.
    sent_id: String,
    reply: Option<ToolReply>,
}

impl HistoryRepair {
    fn note(&mut self, fault: &str) {
        self.notes.push(format!("message {} of the conversation {fault}", self.index));
    }

    fn push_user(&mut self, message: Message) {
        self.close_calls();
        self.messages.push(message);
    }

    fn push_answer(&mut self, model: &str, blocks: &[Block]) {
        self.close_calls();
        match self.messages.last() {
            None => return self.note("is an answer without a preceding message; removed it"),
            // Merging two answers would mix their reasoning, which providers refuse.
            Some(Message::Assistant { .. }) => {
                self.note("is an answer that follows another answer; inserted a user message before it");
                self.messages.push(Message::user(CONTINUE_TEXT));
            }
            Some(Message::User { .. } | Message::Results(_)) => {}
        }
        let mut blocks = blocks.to_vec();
        for block in &mut blocks {
            if let Block::ToolUse(call) = block {
                let sent_id = self.unique_id(call);
                let original_id = std::mem::replace(&mut call.provider_id, sent_id.clone());
                self.open_calls.push(OpenCall { original_id, sent_id, reply: None });
            }
        }
        self.messages.push(Message::Assistant { model: model.to_owned(), blocks });
    }

    /// Returns an id that no earlier call has: the call's own, if possible.
    fn unique_id(&mut self, call: &ToolUse) -> String {
        let own_id = call.call_id.to_string();
        let mut id = call.provider_id.clone();
        let mut number = 1;
        while id.is_empty() || !self.ids.insert(id.clone()) {
            // Numbered only if the same call occurs several times in the history.
            id = if number == 1 { own_id.clone() } else { format!("{own_id}-{number}") };
            number += 1;
        }
        id
    }

    fn push_results(&mut self, replies: &[ToolReply]) {
        if self.open_calls.iter().any(|call| call.reply.is_some()) {
            self.note("continues the results of the previous message; merged them");
        }
        for reply in replies {
            let is_answered = |call: &OpenCall| call.reply.is_none() && call.original_id == reply.provider_id;
            let Some(at) = self.open_calls.iter().position(is_answered) else {
                self.note(&format!(
                    "has a result for {:?}, which is not an open call; removed the result",
                    reply.provider_id
                ));
                continue;
            };
            let (_, rest) = self.open_calls.split_at_mut(at);
            let [call, later @ ..] = rest else { continue };
            call.reply = Some(ToolReply { provider_id: call.sent_id.clone(), ..reply.clone() });
            if later.iter().any(|call| call.reply.is_some()) {
                self.note("has results in another order than their calls; reordered them");
            }
        }
    }

    /// Ends the wait for results of the last message's calls.
    fn close_calls(&mut self) {
        if self.open_calls.is_empty() {
            return;
        }
        let mut replies = Vec::new();
        for OpenCall { sent_id, reply, .. } in std::mem::take(&mut self.open_calls) {
            replies.push(reply.unwrap_or_else(|| {
                self.note(&format!("comes before the result of {sent_id:?}; inserted an unknown outcome"));
                ToolReply {
                    provider_id: sent_id,
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
            self.note("would be the model's answer but has no message to answer; added a user message");
            self.messages.push(Message::user(CONTINUE_TEXT));
        }
        RepairedHistory { messages: self.messages, notes: self.notes }
    }
}

#[cfg(test)]
#[path = "../tests/unit/repair.rs"]
mod tests;
