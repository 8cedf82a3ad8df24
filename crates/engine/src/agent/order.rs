//! What a request to run a turn asks for, checked.

use bytes::Bytes;
use contract::content::{ContentBlock, MAX_CONTENT_BLOCKS};
use contract::engine::Execute;
use contract::{ClientRequestId, MessageId, TaskId, Timestamp};
use sha2::{Digest as _, Sha256};

use super::AgentError;
use super::branch::{Branch, NotThere};
use crate::brain::steps::{Base, Opened, TurnOptions};
use crate::brain::{Cut, RequestName};
use crate::models::{ChatModel, Content, Media, estimate};

/// The most model calls of a turn where the request does not say.
const DEFAULT_MAX_TURNS: u64 = 50;

/// See the module.
pub(super) struct Order {
    pub(super) task_id: TaskId,
    pub(super) request: Option<RequestName>,
    start: Start,
    message: String,
    media: Vec<Content>,
    options: TurnOptions,
}

/// From where the thread is to go on, as the caller names it.
enum Start {
    End,
    Edit(String),
    Retry(String),
}

impl Order {
    /// Checks a request. `model` is asked whether it takes what is attached.
    pub(super) fn parse(request: Execute, model: Option<&dyn ChatModel>) -> Result<Self, AgentError> {
        let invalid = |message: &str| Err(AgentError::Invalid(message.to_owned()));
        let named = request.client_request_id.as_ref().map(|id| named(id, &request));
        let start = match (request.edit_message_id, request.retry_message_id) {
            (Some(_), Some(_)) => {
                return invalid("`edit_message_id`, `retry_message_id`: only one of them can be given");
            }
            (Some(id), None) => Start::Edit(id),
            (None, Some(id)) => Start::Retry(id),
            (None, None) => Start::End,
        };
        if let Start::Retry(_) = start {
            if !request.media.is_empty() {
                return invalid("`media`: cannot be given with `retry_message_id`, which adds no message");
            }
        } else if request.message.trim().is_empty() {
            // Providers refuse a blank text, and would refuse every later turn that has it in its history.
            return invalid("`message`: must not be empty or blank");
        }
        let max_turns =
            request.max_turns.and_then(|max| u64::try_from(max.get()).ok()).unwrap_or(DEFAULT_MAX_TURNS);
        Ok(Self {
            task_id: request.task_id,
            request: named,
            start,
            message: request.message,
            media: attached("media", request.media, model)?,
            options: TurnOptions {
                max_turns,
                super_thinking: request.super_thinking,
                direct: request.direct,
            },
        })
    }

    /// Whether the turn goes on from an earlier message, so that the thread must be there.
    pub(super) fn goes_back(&self) -> bool {
        !matches!(self.start, Start::End)
    }

    /// From where it goes on; as if from the end where that is no message.
    pub(super) fn base(&self) -> Base {
        let of = |id: &str, base: fn(MessageId) -> Base| id.parse().map_or(Base::End, base);
        match &self.start {
            Start::End => Base::End,
            Start::Edit(id) => of(id, |message_id| Base::Edit { message_id }),
            Start::Retry(id) => of(id, |message_id| Base::Retry { message_id }),
        }
    }

    /// How the turn opens on a conversation, and what it takes out of it.
    pub(super) fn opening(
        self,
        before: Option<&Branch>,
        now: Timestamp,
    ) -> Result<(Opened, Cut), AgentError> {
        let Self { start, message, media, options, .. } = self;
        let (message_id, message, base, cut) = match start {
            Start::End => (MessageId::new(), message, Base::End, Cut::default()),
            Start::Edit(id) => {
                let edit = |(branch, message_id): (&Branch, MessageId)| {
                    let base = Base::Edit { message_id };
                    Ok((MessageId::new(), message, base, branch.cut(base)?))
                };
                find(before, &id).and_then(edit).map_err(|reason| not_there(&id, reason))?
            }
            Start::Retry(id) => {
                let retry = |(branch, message_id): (&Branch, MessageId)| {
                    let base = Base::Retry { message_id };
                    Ok((branch.answered_by_retry(message_id)?, String::new(), base, branch.cut(base)?))
                };
                find(before, &id).and_then(retry).map_err(|reason| not_there(&id, reason))?
            }
        };
        // An answer that is given anew keeps what stands beside its question.
        let notes = if base.is_retry() { Vec::new() } else { vec![sent_at(now)] };
        Ok((Opened { message_id, notes, message, media, options, base }, cut))
    }
}

/// What the model is told of when a message was sent.
pub(super) fn sent_at(now: Timestamp) -> String {
    let now = now.to_string();
    let minute = now.get(..16).unwrap_or(&now).replace('T', " ");
    format!("[Sent {minute} UTC]")
}

/// The conversation and the message that the caller calls `id`.
fn find<'a>(before: Option<&'a Branch>, id: &str) -> Result<(&'a Branch, MessageId), NotThere> {
    let branch = before.ok_or(NotThere::Unknown)?;
    let message_id = id.parse().map_err(|_| NotThere::Unknown)?;
    Ok((branch, message_id))
}

fn not_there(id: &str, reason: NotThere) -> AgentError {
    match reason {
        NotThere::Unknown => AgentError::UnknownMessage(format!("`{}`: {reason}", shortened(id))),
        NotThere::NotEditable => AgentError::Invalid(format!("`edit_message_id`: {reason}")),
    }
}

/// What a person attached, as the engine keeps it.
pub(super) fn attached(
    field: &str,
    blocks: Vec<ContentBlock>,
    model: Option<&dyn ChatModel>,
) -> Result<Vec<Content>, AgentError> {
    if blocks.len() > MAX_CONTENT_BLOCKS {
        return Err(AgentError::Invalid(format!("`{field}`: at most {MAX_CONTENT_BLOCKS} blocks are taken")));
    }
    let content = |(number, block)| match block {
        ContentBlock::Text(text) => Ok(Content::Text { text }),
        ContentBlock::Media(media) => {
            // Without a model the turn will say what is missing.
            if let Some(Err(reason)) = model.map(|model| model.takes(media.kind, &media.media_type)) {
                return Err(AgentError::Invalid(format!("`{field}[{number}]`: {reason}")));
            }
            let hash = hex(&Sha256::digest(&media.data));
            let tokens = Some(estimate::attached(&media.media_type, &media.data));
            Ok(Content::Media(Media {
                kind: media.kind,
                media_type: media.media_type,
                name: media.name,
                hash,
                tokens,
                data: Some(Bytes::from(media.data)),
            }))
        }
    };
    blocks.into_iter().enumerate().map(content).collect()
}

/// A request by its name, with what it asks for.
fn named(id: &ClientRequestId, request: &Execute) -> RequestName {
    let Execute {
        message, media, direct, edit_message_id, retry_message_id, max_turns, super_thinking, ..
    } = request;
    let mut asked = Sha256::new();
    let options = (message, edit_message_id, retry_message_id, direct, max_turns, super_thinking);
    // A tuple of texts and numbers can always be written.
    asked.update(serde_json::to_vec(&options).unwrap_or_default());
    for block in media {
        match block {
            ContentBlock::Text(text) => asked.update(Sha256::digest(text)),
            ContentBlock::Media(media) => asked.update(Sha256::digest(&media.data)),
        }
    }
    RequestName { id: id.as_str().to_owned(), hash: hex(&asked.finalize()) }
}

/// As much of an id as a message repeats.
fn shortened(id: &str) -> String {
    id.chars().take(64).collect()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
