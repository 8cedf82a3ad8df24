//! The events of a stream as types, which serialize in the documented order of members without an allocation per
//! delta.

use serde::Serialize;
use serde_json::Value;

/// An event. Its name is the value of `type`.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Event<'a> {
    MessageStart { message: &'a Value },
    ContentBlockStart { index: usize, content_block: &'a Value },
    Ping,
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: StopDelta, usage: &'a Value },
}

/// A fragment of a block.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names are the wire's")]
pub(super) enum Delta<'a> {
    TextDelta { text: &'a str },
    ThinkingDelta { thinking: &'a str },
    SignatureDelta { signature: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

/// The end of a message, in `message_delta`.
#[derive(Serialize)]
pub(super) struct StopDelta {
    pub(super) stop_reason: &'static str,
    pub(super) stop_sequence: Option<&'static str>,
}

impl Event<'_> {
    /// The name of the server-sent event.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::Ping => "ping",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
        }
    }
}
