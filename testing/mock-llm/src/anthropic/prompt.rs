//! A request as the prompt cache sees it: `tools`, `system` and `messages`, block by block. The settings of
//! thinking and of tool choice belong to the messages: changing them does not invalidate the cache of `tools` and
//! `system` (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>).

use serde_json::{Value, json};

use super::node::{block_type, blocks};
use crate::cache::{BlockRun, CacheKind, Piece, Prompt, without_marks};

pub(super) fn prompt(body: &Value) -> Prompt {
    let tools = body.get("tools").and_then(Value::as_array).cloned().unwrap_or_default();
    let system = body.get("system").map(blocks).unwrap_or_default();
    let mut pieces: Vec<Piece> = tools.iter().chain(&system).map(piece).collect();
    let first_message = pieces.len();
    let messages = body.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    pieces.extend(messages.iter().flat_map(message_pieces));
    if let Some(piece) = pieces.get_mut(first_message) {
        piece.scope = Some(json!([body.get("thinking"), body.get("tool_choice")]).to_string());
    }
    // A mark on the request counts as one on its last block.
    if body.get("cache_control").is_some_and(Value::is_object)
        && let Some(last) = pieces.last_mut()
    {
        last.is_marked = true;
    }
    Prompt { scope: String::new(), kind: CacheKind::Marked, pieces }
}

fn message_pieces(message: &Value) -> Vec<Piece> {
    let content = message.get("content").map(blocks).unwrap_or_default();
    let piece_of = |block: &Value| {
        let run = match block_type(block) {
            "tool_use" => Some(BlockRun::ToolCalls),
            "tool_result" => Some(BlockRun::ToolResults),
            _ => None,
        };
        let unmarked = json!({"role": message.get("role"), "block": without_marks(block.clone())});
        Piece { is_marked: has_mark(block), run, ..Piece::new(&unmarked) }
    };
    content.iter().map(piece_of).collect()
}

fn piece(value: &Value) -> Piece {
    Piece { is_marked: has_mark(value), ..Piece::new(&without_marks(value.clone())) }
}

/// Whether a block has a mark, or one of the parts of its content does.
fn has_mark(block: &Value) -> bool {
    let is_marked = |value: &Value| value.get("cache_control").is_some_and(Value::is_object);
    let parts = block.get("content").and_then(Value::as_array);
    is_marked(block) || parts.is_some_and(|parts| parts.iter().any(is_marked))
}
