//! What was said in a session before it was loaded, as updates.

use api::conversations::{ConversationMessage, MediaReference, MessageBlock};
use api::engine::Role;
use api::event::{ToolCall, ToolResult};
use serde_json::{Value, json};

use super::tool_calls;

/// The updates that show a message. One that a retry has replaced is not shown.
pub(super) fn message_updates(message: &ConversationMessage) -> Vec<Value> {
    if message.superseded {
        return Vec::new();
    }
    message.content.iter().map(|block| block_update(message, block)).collect()
}

fn block_update(message: &ConversationMessage, block: &MessageBlock) -> Value {
    match block {
        MessageBlock::Text { text } => chunk(message, &json!({"type": "text", "text": text})),
        MessageBlock::Image(media) | MessageBlock::Document(media) | MessageBlock::Audio(media) => {
            chunk(message, &media_link(media))
        }
        MessageBlock::ToolUse { tool_call_id, tool, input } => tool_calls::announcement(&ToolCall {
            tool_call_id: *tool_call_id,
            tool: tool.clone(),
            input: input.clone(),
        }),
        MessageBlock::ToolResult { tool_call_id, output, error } => tool_calls::outcome(
            &ToolResult {
                tool_call_id: *tool_call_id,
                tool: String::new(),
                output: output.clone(),
                error: error.clone(),
                duration_ms: 0,
            },
            &[],
        ),
    }
}

fn chunk(message: &ConversationMessage, content: &Value) -> Value {
    let kind = match message.role {
        Role::User => "user_message_chunk",
        Role::Assistant => "agent_message_chunk",
    };
    json!({"sessionUpdate": kind, "messageId": message.message_id, "content": content})
}

/// An attachment by the hash of its bytes, which messages do not carry.
fn media_link(media: &MediaReference) -> Value {
    let MediaReference { hash, media_type, name } = media;
    let name = name.as_deref().unwrap_or("attachment");
    json!({"type": "resource_link", "uri": format!("urn:sha256:{hash}"), "name": name, "mimeType": media_type})
}
