//! The messages of a task as users list them: everything that was said and not edited away, in the order in
//! which the model received it.
//!
//! The journal is read twice: first for the order and the sizes of its messages, then for the contents of those
//! on the page. So a page of a long task takes only the memory of that page.

use std::collections::HashMap;
use std::ops::Range;

use api::content::MediaKind;
use api::conversations::{ConversationMessage, MediaReference, MessageBlock};
use api::engine::{Role, TaskMessage};
use api::turn_options::Metadata;
use api::{CallId, MessageId};
use llm::{Answer, Block, Content, ToolOutcome};
use serde_json::{Value, json};
use store::steps::{Opened, PartialAnswer, Step, TurnOutcome};
use store::{Brain, StoredStep, TaskRow};

use super::branch::Branch;
use super::journal_fold::{FoldError, JournalFold, MissingOpening};
use super::thread_loader::LoadError;

/// The place of a page among the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PagePlace {
    /// The newest ones.
    End,
    /// Just before a message.
    Before(MessageId),
    /// Just after a message.
    After(MessageId),
}

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

    /// The range of at most `limit` messages at this place; `None` if there is no such message.
    pub(super) fn page(&self, limit: usize, place: PagePlace) -> Option<Range<usize>> {
        let position =
            |wanted: MessageId| self.messages.iter().position(|(message_id, _)| *message_id == wanted);
        let end = match place {
            PagePlace::End => self.messages.len(),
            PagePlace::Before(before) => position(before)?,
            PagePlace::After(after) => {
                let start = position(after)? + 1;
                return Some(start..start.saturating_add(limit).min(self.messages.len()));
            }
        };
        Some(end.saturating_sub(limit)..end)
    }

    /// The number of messages.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The ids of the messages in order.
    pub(super) fn ids(&self) -> impl Iterator<Item = MessageId> {
        self.messages.iter().map(|(message_id, _)| *message_id)
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
    ) -> Result<Vec<ConversationMessage>, store::StoreError> {
        let mut messages: HashMap<MessageId, Option<ConversationMessage>> =
            self.slice(page.clone()).iter().map(|(message_id, _)| (*message_id, None)).collect();
        let mut calls = CallMessages::default();
        // A retry adds no message of its own, so its answers show its metadata.
        let mut retry_metadata = None;
        brain.for_each_step(task, 0, |_, _, stored| {
            if let Step::Opened(opened) = &stored.step {
                retry_metadata = opened.base.is_retry().then(|| metadata_of(opened)).flatten();
            }
            let message_id = calls.message_of(&stored.step);
            if let Some(message) = message_id.and_then(|message_id| messages.get_mut(&message_id)) {
                apply_step(stored, message, retry_metadata.as_ref());
            }
            true
        })?;
        let listed = self.slice(page).iter().filter_map(|(message_id, is_current)| {
            let message = messages.remove(message_id)??;
            Some(ConversationMessage { superseded: !is_current, ..message })
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
            | Step::Cited { message_id, .. }
            | Step::Ended {
                outcome: TurnOutcome::Cancelled { said: Some(PartialAnswer { message_id, .. }) },
            } => Some(*message_id),
            Step::Answered { message_id, answer, .. } => {
                self.0.extend(answer.calls().map(|call| (call.call_id, *message_id)));
                Some(*message_id)
            }
            Step::InputChanged { call_id, .. } => self.0.get(call_id).copied(),
            Step::Resulted { call_id, .. } => self.0.remove(call_id),
            _ => None,
        }
    }
}

/// Adds the content of a step to the message it belongs to.
fn apply_step(
    StoredStep { turn_id, at, step, .. }: StoredStep,
    message: &mut Option<ConversationMessage>,
    retry_metadata: Option<&Metadata>,
) {
    let mut metadata = None;
    let (message_id, role, content) = match step {
        Step::Opened(opened) => {
            metadata = metadata_of(&opened);
            (opened.message_id, Role::User, user_blocks(opened))
        }
        Step::Steered { message_id, message } => (message_id, Role::User, vec![text_block(message)]),
        Step::Answered { message_id, answer, .. } => {
            metadata = retry_metadata.cloned();
            (message_id, Role::Assistant, assistant_blocks(answer))
        }
        Step::Ended {
            outcome: TurnOutcome::Cancelled { said: Some(PartialAnswer { message_id, text: said }) },
        } => (message_id, Role::Assistant, vec![text_block(said)]),
        Step::Resulted { call_id, outcome, .. } => {
            if let Some(message) = message {
                message.content.push(tool_result_block(call_id, outcome));
            }
            return;
        }
        Step::Cited { citations, .. } => {
            if let Some(message) = message {
                message.citations = citations;
            }
            return;
        }
        Step::InputChanged { call_id, input, .. } => {
            if let Some(message) = message {
                change_input(&mut message.content, call_id, input);
            }
            return;
        }
        _ => return,
    };
    let superseded = false;
    *message = Some(ConversationMessage {
        message_id,
        turn_id,
        role,
        content,
        created_at: at,
        superseded,
        metadata,
        citations: Vec::new(),
    });
}

/// Shows a call with the input that it ran with.
fn change_input(content: &mut [MessageBlock], call_id: CallId, changed: Value) {
    for block in content {
        if let MessageBlock::ToolUse { tool_call_id, input, .. } = block
            && *tool_call_id == call_id
        {
            *input = changed;
            return;
        }
    }
}

/// The caller's own data about a turn.
fn metadata_of(opened: &Opened) -> Option<Metadata> {
    opened.options.overrides.as_ref()?.metadata.clone()
}

fn text_block(text: String) -> MessageBlock {
    MessageBlock::Text { text }
}

fn user_blocks(opened: Opened) -> Vec<MessageBlock> {
    let media = opened.media.into_iter().map(|content| match content {
        Content::Text { text } | Content::Note { text } => text_block(text),
        Content::Media(media) => {
            let reference =
                MediaReference { hash: media.hash, media_type: media.media_type, name: media.name };
            match media.kind {
                MediaKind::Image => MessageBlock::Image(reference),
                MediaKind::Document => MessageBlock::Document(reference),
                MediaKind::Audio => MessageBlock::Audio(reference),
            }
        }
    });
    std::iter::once(text_block(opened.message)).chain(media).collect()
}

/// The blocks of an answer that users see: everything but reasoning.
fn assistant_blocks(answer: Answer) -> Vec<MessageBlock> {
    let blocks = answer.blocks.into_iter().filter_map(|block| match block {
        Block::Text { text, .. } if text.is_empty() => None,
        Block::Text { text, .. } => Some(text_block(text)),
        Block::ToolUse(call) => {
            Some(MessageBlock::ToolUse { tool_call_id: call.call_id, tool: call.name, input: call.input })
        }
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
    });
    blocks.collect()
}

fn tool_result_block(tool_call_id: CallId, outcome: ToolOutcome) -> MessageBlock {
    MessageBlock::ToolResult { tool_call_id, output: outcome.output, error: outcome.error }
}

/// A message in the form of `GET /tasks/{task_id}`: a single text is that text, and what a block has not is left
/// out of it.
pub(super) fn task_message(message: ConversationMessage) -> TaskMessage {
    let ConversationMessage { message_id, role, content, created_at, superseded, .. } = message;
    let mut blocks: Vec<Value> = content.into_iter().map(block_value).collect();
    let content = match blocks.as_mut_slice() {
        [only] if only["type"] == "text" => only["text"].take(),
        [] => Value::String(String::new()),
        _ => Value::Array(blocks),
    };
    TaskMessage { message_id, role, content, created_at, superseded }
}

fn block_value(block: MessageBlock) -> Value {
    match block {
        MessageBlock::Text { text } => json!({"type": "text", "text": text}),
        MessageBlock::Image(media) => media_value(MediaKind::Image, media),
        MessageBlock::Document(media) => media_value(MediaKind::Document, media),
        MessageBlock::Audio(media) => media_value(MediaKind::Audio, media),
        MessageBlock::ToolUse { tool_call_id, tool, input } => json!({
            "type": "tool_use", "tool_call_id": tool_call_id, "tool": tool, "input": input,
        }),
        MessageBlock::ToolResult { tool_call_id, output, error: None } => {
            json!({"type": "tool_result", "tool_call_id": tool_call_id, "output": output})
        }
        MessageBlock::ToolResult { tool_call_id, output, error: Some(error) } => json!({
            "type": "tool_result", "tool_call_id": tool_call_id, "output": output, "error": error,
        }),
    }
}

fn media_value(kind: MediaKind, MediaReference { media_type, name, .. }: MediaReference) -> Value {
    match name {
        Some(name) => json!({"type": kind, "media_type": media_type, "name": name}),
        None => json!({"type": kind, "media_type": media_type}),
    }
}
