//! The messages of a task as a person lists them: all that was said and not edited away, in the order in which the
//! model was told it.

use std::collections::HashMap;

use contract::engine::{Role, TaskMessage};
use contract::{CallId, MessageId};
use serde_json::{Value, json};

use super::thread::{LoadError, Thread};
use crate::brain::StoredStep;
use crate::brain::steps::{Opened, Said, Step, TurnOutcome};
use crate::models::{Answer, Block, Content, ToolOutcome};

/// Lists the messages of a journal.
pub(super) fn messages(steps: Vec<StoredStep>) -> Result<Vec<TaskMessage>, LoadError> {
    let mut said: HashMap<MessageId, TaskMessage> = HashMap::new();
    let mut calls: HashMap<CallId, MessageId> = HashMap::new();
    for StoredStep { at, step, .. } in &steps {
        let (message_id, role, content) = match step {
            Step::Opened(opened) if !opened.base.is_retry() => (opened.message_id, Role::User, asked(opened)),
            Step::Steered { message_id, message } => (*message_id, Role::User, vec![text(message)]),
            Step::Answered { message_id, answer, .. } => {
                calls.extend(answer.calls().map(|call| (call.call_id, *message_id)));
                (*message_id, Role::Assistant, answered(answer))
            }
            Step::Ended {
                outcome: TurnOutcome::Cancelled { said: Some(Said { message_id, text: said }) },
            } => (*message_id, Role::Assistant, vec![text(said)]),
            Step::Resulted { call_id, outcome, .. } => {
                let of = calls.get(call_id).and_then(|message_id| said.get_mut(message_id));
                if let Some(Value::Array(blocks)) = of.map(|message| &mut message.content) {
                    blocks.push(result(*call_id, outcome));
                }
                continue;
            }
            _ => continue,
        };
        let content = Value::Array(content);
        let message = TaskMessage { message_id, role, content, created_at: *at, superseded: false };
        said.insert(message_id, message);
    }
    let branch = Thread::branch_of(steps)?;
    let listed = branch.listed().filter_map(|(message_id, in_force)| {
        let message = said.remove(&message_id)?;
        Some(TaskMessage { content: plain(message.content), superseded: !in_force, ..message })
    });
    Ok(listed.collect())
}

/// A message that is one text is that text.
fn plain(content: Value) -> Value {
    match content.as_array().map(Vec::as_slice) {
        Some([only]) if only["type"] == "text" => only["text"].clone(),
        Some([]) => Value::String(String::new()),
        _ => content,
    }
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn asked(opened: &Opened) -> Vec<Value> {
    let media = opened.media.iter().map(|content| match content {
        Content::Text { text } | Content::Note { text } => self::text(text),
        Content::Media(media) => match &media.name {
            Some(name) => json!({"type": media.kind, "media_type": media.media_type, "name": name}),
            None => json!({"type": media.kind, "media_type": media.media_type}),
        },
    });
    std::iter::once(text(&opened.message)).chain(media).collect()
}

/// What a person is shown of an answer: no reasoning.
fn answered(answer: &Answer) -> Vec<Value> {
    let blocks = answer.blocks.iter().filter_map(|block| match block {
        Block::Text { text, .. } if text.is_empty() => None,
        Block::Text { text, .. } => Some(self::text(text)),
        Block::ToolUse(call) => Some(json!({
            "type": "tool_use", "tool_call_id": call.call_id, "tool": call.name, "input": call.input,
        })),
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
    });
    blocks.collect()
}

fn result(call_id: CallId, outcome: &ToolOutcome) -> Value {
    match &outcome.error {
        None => json!({"type": "tool_result", "tool_call_id": call_id, "output": outcome.output}),
        Some(error) => json!({
            "type": "tool_result", "tool_call_id": call_id, "output": outcome.output, "error": error,
        }),
    }
}
