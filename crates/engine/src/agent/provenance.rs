//! The source of what an agent saves to memory. Pure.

use api::memory::Source;
use llm::{Block, Content, Message, ToolReply};
use store::memory_format;
use store::steps::StoredSource;

/// The source of what an agent saves after it has seen these messages. It is unknowable which part came from
/// where, so everything after a tool's result, after a document or a recording, or after a memory that came from one
/// counts as a tool's. `tool_texts` are the positions of messages to which the engine added text from a tool, such as a
/// recalled memory.
pub(super) fn source(messages: &[Message], tool_texts: &[usize]) -> Source {
    let has_tool_text = tool_texts.iter().any(|at| *at < messages.len());
    let is_foreign = has_tool_text || messages.iter().any(|message| is_foreign(message, messages));
    if is_foreign { Source::Tool } else { Source::Agent }
}

/// The source of the result of a call of `tool`, whose output names its own source if it has one.
pub(super) fn source_of_result(tool: &str, output: Option<Source>) -> StoredSource {
    let own = output.unwrap_or(Source::Agent);
    if memory_format::is_untrusted_tool(tool) { Source::Tool.into() } else { own.into() }
}

fn is_foreign(message: &Message, messages: &[Message]) -> bool {
    match message {
        // The author of a document, or the speaker of a recording, may not be the user who attached it.
        Message::User { content } => content.iter().any(Content::may_be_others_words),
        Message::Assistant { .. } => false,
        Message::Results(replies) => replies.iter().any(|reply| {
            reply.remarks.iter().any(Content::may_be_others_words) || !is_our_own(reply, messages)
        }),
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
