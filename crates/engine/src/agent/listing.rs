//! The messages of a task as a person lists them: all that was said and not edited away, in the order in which the
//! model was told it.
//!
//! A journal is read twice: once for the order of its messages and their sizes, and once for what those say that are
//! listed. So a page of a long task takes the memory of a page.

use std::collections::HashMap;
use std::ops::Range;

use contract::engine::{Role, TaskMessage};
use contract::{CallId, MessageId};
use serde_json::{Value, json};

use super::branch::Branch;
use super::loading::LoadError;
use super::thread::{FoldError, Folding, NotOpened};
use crate::brain::steps::{Opened, Said, Step, TurnOutcome};
use crate::brain::{Brain, StoredStep, TaskRow};
use crate::models::{Answer, Block, Content, ToolOutcome};

/// The messages of a task in their order.
pub(super) struct Order {
    /// Each by its id, and whether it is in force.
    messages: Vec<(MessageId, bool)>,
    /// How many bytes of the journal each is.
    sizes: HashMap<MessageId, usize>,
}

impl Order {
    /// Reads the order of the messages of a task. Blocks.
    pub(super) fn read(brain: &Brain, task: TaskRow) -> Result<Self, LoadError> {
        let mut folding = Folding::new(Branch::order());
        let mut sizes: HashMap<MessageId, usize> = HashMap::new();
        let mut calls = Calls::default();
        let mut failed = None;
        brain.each_step(task, 0, |_, size, stored: StoredStep| {
            if let Some(message_id) = calls.message_of(&stored.step) {
                *sizes.entry(message_id).or_default() += size;
            }
            failed = folding.take(stored).err();
            failed.is_none()
        })?;
        match failed {
            None => {}
            Some(FoldError::NotOpened(error)) => return Err(error.into()),
            Some(FoldError::Unreachable(turn_id)) => return Err(NotOpened(turn_id).into()),
        }
        Ok(Self { messages: folding.ended().listed().collect(), sizes })
    }

    /// The places of at most `limit` messages before this one, or before the end; none where there is no such message.
    pub(super) fn page(&self, limit: usize, before: Option<MessageId>) -> Option<Range<usize>> {
        let end = match before {
            Some(before) => self.messages.iter().position(|(message_id, _)| *message_id == before)?,
            None => self.messages.len(),
        };
        Some(end.saturating_sub(limit)..end)
    }

    /// How many bytes of the journal the messages at these places are.
    pub(super) fn bytes(&self, page: Range<usize>) -> usize {
        let sizes = self.at(page).iter().filter_map(|(message_id, _)| self.sizes.get(message_id));
        sizes.fold(0, |bytes, size| bytes.saturating_add(*size))
    }

    fn at(&self, page: Range<usize>) -> &[(MessageId, bool)] {
        self.messages.get(page).unwrap_or_default()
    }

    /// Lists the messages at these places. Blocks.
    pub(super) fn messages(
        &self,
        brain: &Brain,
        task: TaskRow,
        page: Range<usize>,
    ) -> Result<Vec<TaskMessage>, rusqlite::Error> {
        let mut said: HashMap<MessageId, Option<TaskMessage>> =
            self.at(page.clone()).iter().map(|(message_id, _)| (*message_id, None)).collect();
        let mut calls = Calls::default();
        brain.each_step(task, 0, |_, _, stored| {
            let message_id = calls.message_of(&stored.step);
            if let Some(message) = message_id.and_then(|message_id| said.get_mut(&message_id)) {
                tell(stored, message);
            }
            true
        })?;
        let listed = self.at(page).iter().filter_map(|(message_id, in_force)| {
            let message = said.remove(message_id)??;
            Some(TaskMessage { content: plain(message.content), superseded: !in_force, ..message })
        });
        Ok(listed.collect())
    }
}

/// The calls of messages.
#[derive(Default)]
struct Calls(HashMap<CallId, MessageId>);

impl Calls {
    /// The message that a step is, or belongs to.
    fn message_of(&mut self, step: &Step) -> Option<MessageId> {
        match step {
            Step::Opened(opened) if !opened.base.is_retry() => Some(opened.message_id),
            Step::Steered { message_id, .. }
            | Step::Ended { outcome: TurnOutcome::Cancelled { said: Some(Said { message_id, .. }) } } => {
                Some(*message_id)
            }
            Step::Answered { message_id, answer, .. } => {
                self.0.extend(answer.calls().map(|call| (call.call_id, *message_id)));
                Some(*message_id)
            }
            Step::Resulted { call_id, .. } => self.0.remove(call_id),
            _ => None,
        }
    }
}

/// Adds what a step says to the message that it belongs to.
fn tell(StoredStep { at, step, .. }: StoredStep, message: &mut Option<TaskMessage>) {
    let (message_id, role, content) = match step {
        Step::Opened(opened) => (opened.message_id, Role::User, asked(&opened)),
        Step::Steered { message_id, message } => (message_id, Role::User, vec![text(&message)]),
        Step::Answered { message_id, answer, .. } => (message_id, Role::Assistant, answered(&answer)),
        Step::Ended { outcome: TurnOutcome::Cancelled { said: Some(Said { message_id, text: said }) } } => {
            (message_id, Role::Assistant, vec![text(&said)])
        }
        Step::Resulted { call_id, outcome, .. } => {
            if let Some(Value::Array(blocks)) = message.as_mut().map(|message| &mut message.content) {
                blocks.push(result(call_id, &outcome));
            }
            return;
        }
        _ => return,
    };
    let content = Value::Array(content);
    *message = Some(TaskMessage { message_id, role, content, created_at: at, superseded: false });
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
