//! The source of what an agent saves to memory. Pure.

use api::memory::Source;
use llm::{Block, Content, Message, ToolReply};
use store::memory_format::{self, TOOL_ORIGIN_NOTE};

/// The source of what an agent saves after it has seen these messages. It is unknowable which part came from
/// where, so everything after a tool's result, after a document, or after a memory that came from one counts as
/// a tool's.
pub(super) fn source(messages: &[Message]) -> Source {
    if messages.iter().any(|message| is_foreign(message, messages)) { Source::Tool } else { Source::Agent }
}

fn is_foreign(message: &Message, messages: &[Message]) -> bool {
    match message {
        Message::User { content } => content.iter().any(|content| match content {
            Content::Note { text } => text.contains(TOOL_ORIGIN_NOTE),
            // The author of a document is not the user who attached it.
            Content::Media(_) => content.is_document(),
            Content::Text { .. } => false,
        }),
        Message::Assistant { .. } => false,
        Message::Results(replies) => {
            replies.iter().any(|reply| reply.text.contains(TOOL_ORIGIN_NOTE) || !is_our_own(reply, messages))
        }
    }
}

/// Returns whether a result is from a tool that brings in nothing from outside.
fn is_our_own(reply: &ToolReply, messages: &[Message]) -> bool {
    let blocks = messages.iter().filter_map(|message| match message {
        Message::Assistant { blocks, .. } => Some(blocks),
        _ => None,
    });
    let mut calls = blocks.flatten().filter_map(|block| match block {
        Block::ToolUse(call) if call.provider_id == reply.provider_id => Some(call.name.as_str()),
        _ => None,
    });
    // If an id was used by two calls, the less trusted tool counts.
    let first = calls.next();
    first.is_some_and(|name| !memory_format::is_untrusted_tool(name))
        && !calls.any(memory_format::is_untrusted_tool)
}
