//! The chunks of a stream as types, which serialize in the documented order of members with little work per delta.

use serde::Serialize;
use serde_json::Value;

/// The members with which every chunk and every completion begins.
#[derive(Serialize)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) service_tier: &'static str,
    pub(super) system_fingerprint: &'static str,
}

/// A chunk of a stream.
#[derive(Serialize)]
pub(super) struct Chunk<'a> {
    #[serde(flatten)]
    pub(super) head: &'a Head,
    /// One choice. Empty in the chunk that reports the usage.
    pub(super) choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Usage::is_absent")]
    pub(super) usage: Usage<'a>,
}

/// The usage of a chunk: "all other chunks will also include a usage field, but with a null value".
#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
pub(super) enum Usage<'a> {
    /// The request did not ask for usage.
    Absent,
    /// A later chunk reports the usage.
    Null,
    /// The token counts.
    Counts(&'a Value),
}

/// The only choice of an answer.
#[derive(Serialize)]
pub(super) struct Choice<'a> {
    pub(super) index: usize,
    pub(super) delta: Delta<'a>,
    pub(super) logprobs: Option<()>,
    pub(super) finish_reason: Option<&'static str>,
}

/// The fragment that a chunk adds to the message.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Delta<'a> {
    Opening { role: &'static str, content: &'static str, refusal: Option<()> },
    Content { content: &'a str },
    Reasoning { reasoning_content: &'a str },
    ToolCalls { tool_calls: [ToolCall<'a>; 1] },
    End {},
}

/// The start of a tool call, or a fragment of its arguments.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ToolCall<'a> {
    Opening { index: usize, id: &'a str, r#type: &'static str, function: NamedFunction<'a> },
    Arguments { index: usize, function: Arguments<'a> },
}

/// The name of a tool call whose arguments follow.
#[derive(Serialize)]
pub(super) struct NamedFunction<'a> {
    pub(super) name: &'a str,
    pub(super) arguments: &'static str,
}

/// A fragment of a tool call's arguments.
#[derive(Serialize)]
pub(super) struct Arguments<'a> {
    pub(super) arguments: &'a str,
}

impl Usage<'_> {
    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}
