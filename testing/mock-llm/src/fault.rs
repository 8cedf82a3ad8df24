//! Scripted faults of an answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A fault of one answer. `deltas` counts the fragments of text, thinking and tool arguments. A fault after the
/// last one occurs before the end mark. An answer that is not streamed breaks in the middle of its body instead.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// The request is refused with the vendor's status and body.
    Refuse {
        /// The reason for the refusal.
        refusal: Refusal,
    },
    /// The connection is dropped before the end of the HTTP body.
    CutAfter {
        /// The number of deltas that are sent first.
        deltas: usize,
    },
    /// The stream reports an error and ends. If the answer is not streamed, the request is refused with the error.
    ErrorEventAfter {
        /// The number of deltas that are sent first.
        deltas: usize,
        /// The error. By default [`Refusal::Overloaded`].
        #[serde(default)]
        refusal: Option<Refusal>,
    },
    /// Nothing more is sent, and the connection stays open until the client disconnects.
    HangAfter {
        /// The number of deltas that are sent first.
        deltas: usize,
    },
    /// The HTTP body is complete, but the stream lacks its last event (`message_stop`, `[DONE]`,
    /// `response.completed`, the chunk with the `finishReason`, the line with `done`).
    NoEndMark,
    /// The status line and headers are delayed.
    SlowHeaders {
        /// The delay in milliseconds.
        delay_ms: u64,
    },
}

/// A scripted refusal of a request. Each wire renders it as its vendor does.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case", deny_unknown_fields)]
pub enum Refusal {
    /// 429, with `Retry-After` if a delay is given.
    RateLimited {
        /// The value of the header, in seconds.
        #[serde(default)]
        retry_after_s: Option<u64>,
    },
    /// Anthropic 529 `overloaded_error`, the others 503.
    Overloaded,
    /// 500.
    ServerError,
    /// 401; Gemini 400 `API_KEY_INVALID`.
    Unauthorized,
    /// 403, the key may not use the model.
    Forbidden,
    /// 404, the model does not exist.
    UnknownModel,
    /// 400, the context window is exceeded.
    PromptTooLong,
    /// The account has no credit left: Anthropic 400, OpenAI 429 `insufficient_quota`, Gemini 429
    /// `RESOURCE_EXHAUSTED` without a violated quota, Ollama's cloud 429.
    QuotaExhausted,
    /// 400, the history is inconsistent: a signature or encrypted content that cannot be verified, or a tool
    /// result without its call.
    BrokenHistory,
    /// Any other error.
    Other {
        /// The HTTP status.
        status: u16,
        /// The vendor's error type.
        error_type: String,
        /// The error message.
        message: String,
        /// Additional response headers, for example `x-should-retry`.
        #[serde(default)]
        headers: BTreeMap<String, String>,
    },
}

impl Fault {
    /// Refuses the request.
    pub fn refuse(refusal: Refusal) -> Self {
        Self::Refuse { refusal }
    }

    /// Drops the connection after this many deltas.
    pub fn cut_after(deltas: usize) -> Self {
        Self::CutAfter { deltas }
    }

    /// Reports an error within the stream after this many deltas.
    pub fn error_event_after(deltas: usize) -> Self {
        Self::ErrorEventAfter { deltas, refusal: None }
    }

    /// Reports this error within the stream after this many deltas.
    pub fn error_event_with(deltas: usize, refusal: Refusal) -> Self {
        Self::ErrorEventAfter { deltas, refusal: Some(refusal) }
    }

    /// Sends nothing more after this many deltas.
    pub fn hang_after(deltas: usize) -> Self {
        Self::HangAfter { deltas }
    }
}
