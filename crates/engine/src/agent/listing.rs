//! The messages of a task as a person lists them: all that was said and not edited away, in its order.

use std::collections::BTreeSet;

use contract::engine::{Role, TaskMessage};
use contract::{MessageId, Timestamp};
use serde_json::{Value, json};

use crate::brain::StoredStep;
use crate::brain::steps::{Base, Opened, Said, Step, TurnOutcome};
use crate::models::{Answer, Block, Content};

/// Lists the messages of a journal.
pub(super) fn messages(steps: Vec<StoredStep>) -> Vec<TaskMessage> {
    let mut listing = Listing::default();
    for StoredStep { at, step, .. } in steps {
        listing.apply(step, at);
    }
    listing.entries.into_iter().map(Entry::into_message).collect()
}

#[derive(Default)]
struct Listing {
    entries: Vec<Entry>,
}

struct Entry {
    message_id: MessageId,
    role: Role,
    blocks: Vec<Value>,
    calls: BTreeSet<String>,
    at: Timestamp,
    superseded: bool,
}

impl Listing {
    fn apply(&mut self, step: Step, at: Timestamp) {
        match step {
            Step::Opened(Opened { message_id, message, media, base, .. }) => {
                self.go_to(base);
                if !base.is_retry() {
                    let text = Content::Text { text: message };
                    let blocks = std::iter::once(&text).chain(&media).map(content).collect();
                    self.push(message_id, Role::User, blocks, at);
                }
            }
            Step::Steered { message_id, message } => {
                self.push(message_id, Role::User, vec![text(&message)], at);
            }
            Step::Answered { message_id, answer, .. } => {
                let calls = answer.calls().map(|call| call.call_id.to_string()).collect();
                self.push(message_id, Role::Assistant, said(&answer), at);
                if let Some(entry) = self.entries.last_mut() {
                    entry.calls = calls;
                }
            }
            Step::Resulted { call_id, outcome, .. } => {
                let call_id = call_id.to_string();
                let mut block =
                    json!({"type": "tool_result", "tool_call_id": call_id, "output": outcome.output});
                if let (Some(error), Some(fields)) = (outcome.error, block.as_object_mut()) {
                    fields.insert("error".into(), error.into());
                }
                // The user may have steered in between.
                let of = self.entries.iter_mut().rev().find(|entry| entry.calls.contains(&call_id));
                if let Some(entry) = of {
                    entry.blocks.push(block);
                }
            }
            Step::Ended {
                outcome: TurnOutcome::Cancelled { said: Some(Said { message_id, text: said }) },
            } => {
                self.push(message_id, Role::Assistant, vec![text(&said)], at);
            }
            Step::Ended { .. }
            | Step::Spent { .. }
            | Step::Asked { .. }
            | Step::Resolved { .. }
            | Step::Intended { .. }
            | Step::Unknown => {}
        }
    }

    fn push(&mut self, message_id: MessageId, role: Role, blocks: Vec<Value>, at: Timestamp) {
        let calls = BTreeSet::new();
        self.entries.push(Entry { message_id, role, blocks, calls, at, superseded: false });
    }

    /// An edit takes out a message and what came after it; a retry keeps what it makes void.
    fn go_to(&mut self, base: Base) {
        let (Base::Edit { message_id } | Base::Retry { message_id }) = base else { return };
        let Some(at) = self.entries.iter().position(|entry| entry.message_id == message_id) else { return };
        if base.is_retry() {
            let after = self.entries.iter_mut().skip(at);
            for entry in after.skip_while(|entry| entry.message_id == message_id && entry.role == Role::User)
            {
                entry.superseded = true;
            }
        } else {
            self.entries.truncate(at);
        }
    }
}

impl Entry {
    fn into_message(self) -> TaskMessage {
        let Self { message_id, role, mut blocks, at, superseded, .. } = self;
        let content = match blocks.as_mut_slice() {
            [only] if only["type"] == "text" => only["text"].take(),
            [] => Value::String(String::new()),
            _ => Value::Array(blocks),
        };
        TaskMessage { message_id, role, content, created_at: at, superseded }
    }
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn content(content: &Content) -> Value {
    match content {
        Content::Text { text } => self::text(text),
        Content::Media(media) => {
            let mut block = json!({"type": media.kind, "media_type": media.media_type});
            if let (Some(name), Some(fields)) = (&media.name, block.as_object_mut()) {
                fields.insert("name".into(), name.as_str().into());
            }
            block
        }
    }
}

/// What a person is shown of an answer: no reasoning.
fn said(answer: &Answer) -> Vec<Value> {
    let blocks = answer.blocks.iter().filter_map(|block| match block {
        Block::Text { text } if text.is_empty() => None,
        Block::Text { text } => Some(self::text(text)),
        Block::ToolUse(call) => Some(json!({
            "type": "tool_use", "tool_call_id": call.call_id, "tool": call.name, "input": call.input,
        })),
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
    });
    blocks.collect()
}
