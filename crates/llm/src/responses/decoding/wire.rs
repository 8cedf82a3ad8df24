//! The events of the stream, as they are sent.

use serde::Deserialize;
use serde_json::Value;

use crate::ModelError;
use crate::http::{
    TokenCount, index_field, malformed_event, none_if_malformed, optional_field, parse_untyped,
};

/// An event of the stream, with the fields of all types: an enum tagged by a field would be parsed twice. Rare
/// fields are boxed, because each event is moved around while it is parsed.
#[derive(Default, Deserialize)]
pub(super) struct WireEvent {
    #[serde(rename = "type")]
    pub(super) kind: EventKind,
    pub(super) output_index: Option<u64>,
    pub(super) delta: Option<String>,
    pub(super) item: Option<Box<Value>>,
    pub(super) response: Option<Box<FinalResponse>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(super) enum EventKind {
    #[serde(rename = "response.output_item.added")]
    ItemAdded,
    #[serde(rename = "response.reasoning_summary_part.added")]
    SummaryPartAdded,
    /// A summary of the reasoning or, from models with open weights, the reasoning itself.
    #[serde(rename = "response.reasoning_summary_text.delta", alias = "response.reasoning_text.delta")]
    ReasoningDelta,
    #[serde(rename = "response.output_text.delta")]
    TextDelta,
    #[serde(rename = "response.refusal.delta")]
    RefusalDelta,
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta,
    #[serde(rename = "response.output_item.done")]
    ItemDone,
    #[serde(rename = "response.completed")]
    Completed,
    #[serde(rename = "response.incomplete")]
    Incomplete,
    #[serde(rename = "response.failed")]
    Failed,
    #[serde(rename = "error")]
    Error,
    #[default]
    #[serde(other)]
    Other,
}

impl WireEvent {
    /// Parses an event. A malformed field is an error only if the event's type requires the field. Unlisted types,
    /// which the vendor may add at any time, may have any form.
    pub(super) fn parse(data: &str) -> Result<Self, ModelError> {
        serde_json::from_str(data).or_else(|fault| {
            let event = parse_untyped(data, &fault)?;
            let kind = optional_field(&event, "type").ok_or_else(|| malformed_event(&fault))?;
            if kind == EventKind::Other {
                return Ok(Self::default());
            }
            Ok(Self {
                kind,
                output_index: if kind.is_item_event() { index_field(&event, "output_index")? } else { None },
                delta: optional_field(&event, "delta"),
                item: optional_field(&event, "item"),
                response: optional_field(&event, "response"),
            })
        })
    }
}

/// The complete response in the final event.
#[derive(Deserialize)]
pub(super) struct FinalResponse {
    /// `LiteLLM` reports a truncated answer as completed too, and vLLM an aborted one: only this field tells how
    /// it ended.
    #[serde(default, deserialize_with = "none_if_malformed")]
    pub(super) status: Option<String>,
    #[serde(default, deserialize_with = "none_if_malformed")]
    pub(super) usage: Option<Usage>,
    pub(super) incomplete_details: Option<IncompleteDetails>,
    pub(super) output: Option<Vec<Value>>,
}

#[derive(Deserialize)]
pub(super) struct IncompleteDetails {
    pub(super) reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    pub(super) input_tokens: TokenCount,
    pub(super) output_tokens: TokenCount,
    #[serde(deserialize_with = "none_if_malformed")]
    pub(super) input_tokens_details: Option<InputDetails>,
    #[serde(deserialize_with = "none_if_malformed")]
    pub(super) output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct InputDetails {
    pub(super) cached_tokens: TokenCount,
    pub(super) cache_write_tokens: TokenCount,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct OutputDetails {
    pub(super) reasoning_tokens: TokenCount,
}

impl EventKind {
    pub(super) const fn is_item_event(self) -> bool {
        !matches!(self, Self::Completed | Self::Incomplete | Self::Failed | Self::Error | Self::Other)
    }
}
