//! Where what an agent saves came from. Pure.

use contract::memory::Source;

use crate::fault_injection::{self, Mutation};
use crate::llm::{Block, Content, Message, ToolReply};
use crate::memory_format::{self, TOOL_ORIGIN_NOTE};

/// Where an agent has from what it saves, once it has seen these messages. Nobody can tell what of it came from
/// where, so whatever followed on a tool's result, on a document, or on something remembered that came from one, counts as
/// a tool's.
pub(super) fn source(messages: &[Message]) -> Source {
    if fault_injection::active(Mutation::RaiseTrust) {
        return Source::User;
    }
    if messages.iter().any(|message| is_foreign(message, messages)) { Source::Tool } else { Source::Agent }
}

fn is_foreign(message: &Message, messages: &[Message]) -> bool {
    match message {
        Message::User { content } => content.iter().any(|content| match content {
            Content::Note { text } => text.contains(TOOL_ORIGIN_NOTE),
            // Whoever wrote a document is not the user who attached it.
            Content::Media(_) => content.is_document(),
            Content::Text { .. } => false,
        }),
        Message::Assistant { .. } => false,
        Message::Results(replies) => {
            replies.iter().any(|reply| reply.text.contains(TOOL_ORIGIN_NOTE) || !is_our_own(reply, messages))
        }
    }
}

/// Whether a result is of a tool that brings nothing in from outside.
fn is_our_own(reply: &ToolReply, messages: &[Message]) -> bool {
    let blocks = messages.iter().filter_map(|message| match message {
        Message::Assistant { blocks, .. } => Some(blocks),
        _ => None,
    });
    let mut calls = blocks.flatten().filter_map(|block| match block {
        Block::ToolUse(call) if call.provider_id == reply.provider_id => Some(call.name.as_str()),
        _ => None,
    });
    // An id that was used twice is of the stranger of the two.
    let known = calls.next();
    known.is_some_and(|name| !memory_format::is_untrusted_tool(name))
        && !calls.any(memory_format::is_untrusted_tool)
}
