//! The messages of a task as users list them: everything that was said and not edited away, in the order in
//! which the model received it.
//!
//! The journal is read twice: first for the order and the sizes of its messages, then for the contents of those
//! on the page. So a page of a long task takes only the memory of that page.

use std::collections::HashMap;
use std::ops::Range;

use api::engine::{Role, TaskMessage};
use api::{CallId, MessageId};
use llm::{Answer, Block, Content, ToolOutcome};
use serde_json::{Value, json};
use store::steps::{Opened, PartialAnswer, Step, TurnOutcome};
use store::{Brain, StoredStep, TaskRow};

use super::branch::Branch;
use super::journal_fold::{FoldError, JournalFold, MissingOpening};
use super::thread_loader::LoadError;

/// The messages of a task in order.
pub(super) struct MessageList {
    /// The id of each message, and whether it is on the current branch.
    messages: Vec<(MessageId, bool)>,
    /// The size of each message in the journal, in bytes.
    sizes: HashMap<MessageId, usize>,
}

impl MessageList {
    /// Reads the order of a task's messages. Blocks.
    pub(super) fn load(brain: &Brain, task: TaskRow) -> Result<Self, LoadError> {
        let mut fold = JournalFold::new(Branch::order_only());
        let mut sizes: HashMap<MessageId, usize> = HashMap::new();
        let mut calls = CallMessages::default();
        let mut failed = None;
        brain.for_each_step(task, 0, |_, size, stored: StoredStep| {
            if let Some(message_id) = calls.message_of(&stored.step) {
                *sizes.entry(message_id).or_default() += size;
            }
            failed = fold.apply(stored).err();
            failed.is_none()
        })?;
        match failed {
            None => {}
            Some(FoldError::MissingOpening(error)) => return Err(error.into()),
            Some(FoldError::BaseNotInMemory(turn_id)) => return Err(MissingOpening(turn_id).into()),
        }
        Ok(Self { messages: fold.into_branch().listed().collect(), sizes })
    }

    /// The range of at most `limit` messages before `before`, or before the end; `None` if there is no such
    /// message.
    pub(super) fn page(&self, limit: usize, before: Option<MessageId>) -> Option<Range<usize>> {
        let end = match before {
            Some(before) => self.messages.iter().position(|(message_id, _)| *message_id == before)?,
            None => self.messages.len(),
        };
        Some(end.saturating_sub(limit)..end)
    }

    /// The size of these messages in the journal, in bytes.
    pub(super) fn journal_bytes(&self, page: Range<usize>) -> usize {
        let sizes = self.slice(page).iter().filter_map(|(message_id, _)| self.sizes.get(message_id));
        sizes.fold(0, |bytes, size| bytes.saturating_add(*size))
    }

    /// Whether the message is listed.
    pub(super) fn contains(&self, message_id: MessageId) -> bool {
        self.messages.iter().any(|(listed, _)| *listed == message_id)
    }

    fn slice(&self, page: Range<usize>) -> &[(MessageId, bool)] {
        self.messages.get(page).unwrap_or_default()
    }

    /// Loads the messages in this range. Blocks.
    pub(super) fn load_messages(
        &self,
        brain: &Brain,
        task: TaskRow,
        page: Range<usize>,
    ) -> Result<Vec<TaskMessage>, store::StoreError> {
        let mut messages: HashMap<MessageId, Option<TaskMessage>> =
            self.slice(page.clone()).iter().map(|(message_id, _)| (*message_id, None)).collect();
        let mut calls = CallMessages::default();
        brain.for_each_step(task, 0, |_, _, stored| {
            let message_id = calls.message_of(&stored.step);
            if let Some(message) = message_id.and_then(|message_id| messages.get_mut(&message_id)) {
                apply_step(stored, message);
            }
            true
        })?;
        let listed = self.slice(page).iter().filter_map(|(message_id, is_current)| {
            let message = messages.remove(message_id)??;
            Some(TaskMessage {
                content: collapse_single_text(message.content),
                superseded: !is_current,
                ..message
            })
        });
        Ok(listed.collect())
    }
}

/// Maps each open call to the message it belongs to.
#[derive(Default)]
struct CallMessages(HashMap<CallId, MessageId>);

impl CallMessages {
    /// Returns the message that a step is or belongs to.
    fn message_of(&mut self, step: &Step) -> Option<MessageId> {
        match step {
            Step::Opened(opened) if !opened.base.is_retry() => Some(opened.message_id),
            Step::Steered { message_id, .. }
            | Step::Ended {
                outcome: TurnOutcome::Cancelled { said: Some(PartialAnswer { message_id, .. }) },
            } => Some(*message_id),
            Step::Answered { message_id, answer, .. } => {
                self.0.extend(answer.calls().map(|call| (call.call_id, *message_id)));
                Some(*message_id)
            }
            Step::Resulted { call_id, .. } => self.0.remove(call_id),
            _ => None,
        }
    }
}

/// Adds the content of a step to the message it belongs to.
fn apply_step(StoredStep { at, step, .. }: StoredStep, message: &mut Option<TaskMessage>) {
    let (message_id, role, content) = match step {
        Step::Opened(opened) => (opened.message_id, Role::User, user_blocks(&opened)),
        Step::Steered { message_id, message } => (message_id, Role::User, vec![text_block(&message)]),
        Step::Answered { message_id, answer, .. } => (message_id, Role::Assistant, assistant_blocks(&answer)),
        Step::Ended {
            outcome: TurnOutcome::Cancelled { said: Some(PartialAnswer { message_id, text: said }) },
        } => (message_id, Role::Assistant, vec![text_block(&said)]),
        Step::Resulted { call_id, outcome, .. } => {
            if let Some(Value::Array(blocks)) = message.as_mut().map(|message| &mut message.content) {
                blocks.push(tool_result_block(call_id, &outcome));
            }
            return;
        }
        _ => return,
    };
    let content = Value::Array(content);
    *message = Some(TaskMessage { message_id, role, content, created_at: at, superseded: false });
}

/// A message that consists of a single text becomes that text.
fn collapse_single_text(content: Value) -> Value {
    match content.as_array().map(Vec::as_slice) {
        Some([only]) if only["type"] == "text" => only["text"].clone(),
        Some([]) => Value::String(String::new()),
        _ => content,
    }
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn user_blocks(opened: &Opened) -> Vec<Value> {
    let media = opened.media.iter().map(|content| match content {
        Content::Text { text } | Content::Note { text } => self::text_block(text),
        Content::Media(media) => match &media.name {
            Some(name) => json!({"type": media.kind, "media_type": media.media_type, "name": name}),
            None => json!({"type": media.kind, "media_type": media.media_type}),
        },
    });
    std::iter::once(text_block(&opened.message)).chain(media).collect()
}

/// The blocks of an answer that users see: everything but reasoning.
fn assistant_blocks(answer: &Answer) -> Vec<Value> {
    let blocks = answer.blocks.iter().filter_map(|block| match block {
        Block::Text { text, .. } if text.is_empty() => None,
        Block::Text { text, .. } => Some(self::text_block(text)),
        Block::ToolUse(call) => Some(json!({
            "type": "tool_use", "tool_call_id": call.call_id, "tool": call.name, "input": call.input,
        })),
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
    });
    blocks.collect()
}

fn tool_result_block(call_id: CallId, outcome: &ToolOutcome) -> Value {
    match &outcome.error {
        None => json!({"type": "tool_result", "tool_call_id": call_id, "output": outcome.output}),
        Some(error) => json!({
            "type": "tool_result", "tool_call_id": call_id, "output": outcome.output, "error": error,
        }),
    }
}
