//! How many tokens something is, as near as it can be told without the provider's vocabulary.
//!
//! Vendors count about four bytes of text as a token. What a provider has counted is always better: this is for what
//! it has not seen yet.

use super::{Block, Content, Message, ToldTool};

/// Bytes of text in a token.
const BYTES: usize = 4;
/// What a message is beside its text.
const MESSAGE: usize = 16;
/// What an image or a document counts as, whatever its size: about 1,500 tokens, as vendors count an image.
pub(super) const MEDIA: usize = 6_000;

/// How many tokens these messages are.
pub fn messages(messages: &[Message]) -> u64 {
    tokens(messages.iter().map(|message| MESSAGE + bytes(message)).sum())
}

/// How many tokens a text is.
pub fn text(text: &str) -> u64 {
    tokens(text.len())
}

/// How many tokens a text of so many bytes is.
pub fn bytes_of_text(bytes: usize) -> u64 {
    tokens(bytes)
}

/// How many tokens an answer is.
pub fn answer(blocks: &[Block]) -> u64 {
    tokens(blocks.iter().map(block_bytes).sum())
}

/// How many tokens it takes to tell of these tools.
pub fn tools(tools: &[ToldTool]) -> u64 {
    let tool =
        |tool: &ToldTool| MESSAGE + tool.name.len() + tool.description.len() + tool.input_schema.get().len();
    tokens(tools.iter().map(tool).sum::<usize>())
}

fn bytes(message: &Message) -> usize {
    match message {
        Message::User { content } => content.iter().map(content_bytes).sum(),
        Message::Assistant { blocks, .. } => blocks.iter().map(block_bytes).sum(),
        Message::Results(replies) => {
            let reply = |reply: &super::ToolReply| {
                MESSAGE + reply.text.len() + reply.remarks.iter().map(content_bytes).sum::<usize>()
            };
            replies.iter().map(reply).sum()
        }
    }
}

fn content_bytes(content: &Content) -> usize {
    match content {
        Content::Text { text } | Content::Note { text } => text.len(),
        Content::Media(_) => MEDIA,
    }
}

fn block_bytes(block: &Block) -> usize {
    match block {
        Block::Text { text, .. } => text.len(),
        Block::Thinking { thinking, .. } => thinking.len(),
        Block::RedactedThinking { data } => data.len(),
        Block::ToolUse(call) => MESSAGE + call.name.len() + call.input.to_string().len(),
    }
}

fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(BYTES)).unwrap_or(u64::MAX)
}
