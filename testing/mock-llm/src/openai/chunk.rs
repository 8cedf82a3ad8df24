//! The chunks of a stream as types: members in the documented order, and little work per delta.

use serde::Serialize;
use serde_json::Value;

/// What every chunk and every completion begins with.
#[derive(Serialize)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) service_tier: &'static str,
    pub(super) system_fingerprint: &'static str,
}

/// A chunk.
#[derive(Serialize)]
pub(super) struct Chunk<'a> {
    #[serde(flatten)]
    pub(super) head: &'a Head,
    /// One choice, or none in the chunk of the usage.
    pub(super) choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Usage::is_absent")]
    pub(super) usage: Usage<'a>,
}

/// The usage of a chunk: "all other chunks will also include a usage field, but with a null value".
#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
pub(super) enum Usage<'a> {
    /// The request did not ask for it.
    Absent,
    /// It comes later.
    Null,
    /// Here it is.
    Counts(&'a Value),
}

/// The one choice.
#[derive(Serialize)]
pub(super) struct Choice<'a> {
    pub(super) index: usize,
    pub(super) delta: Delta<'a>,
    pub(super) logprobs: Option<()>,
    pub(super) finish_reason: Option<&'static str>,
}

/// What a chunk adds to the message.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Delta<'a> {
    Opening { role: &'static str, content: &'static str, refusal: Option<()> },
    Content { content: &'a str },
    Reasoning { reasoning_content: &'a str },
    ToolCalls { tool_calls: [ToolCall<'a>; 1] },
    End {},
}

/// A tool call or a part of its arguments.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ToolCall<'a> {
    Opening { index: usize, id: &'a str, r#type: &'static str, function: NamedFunction<'a> },
    Arguments { index: usize, function: Arguments<'a> },
}

/// A tool call's name, with arguments yet to come.
#[derive(Serialize)]
pub(super) struct NamedFunction<'a> {
    pub(super) name: &'a str,
    pub(super) arguments: &'static str,
}

/// A part of a tool call's arguments.
#[derive(Serialize)]
pub(super) struct Arguments<'a> {
    pub(super) arguments: &'a str,
}

impl Usage<'_> {
    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}
