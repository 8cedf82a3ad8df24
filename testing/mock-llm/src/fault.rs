//! What can go wrong with an answer on request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A fault of one answer. `deltas` counts the fragments of text, thinking and tool arguments; a
/// fault that lies behind the last one strikes before the end mark. An answer that is not streamed
/// breaks in the middle of its body instead.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// The request is refused with the vendor's status and body.
    Refuse {
        /// The reason for the refusal.
        refusal: Refusal,
    },
    /// The connection is dropped without the end of the HTTP body.
    CutAfter {
        /// Deltas that are sent before.
        deltas: usize,
    },
    /// The stream says that it failed and ends. Not streamed: refused with that.
    ErrorEventAfter {
        /// Deltas that are sent before.
        deltas: usize,
        /// Why; by default the provider is overloaded.
        #[serde(default)]
        refusal: Option<Refusal>,
    },
    /// Nothing more comes, and the connection stays open until the client leaves.
    HangAfter {
        /// Deltas that are sent before.
        deltas: usize,
    },
    /// The HTTP body ends well but the stream lacks its last event (`message_stop`, `[DONE]`,
    /// `response.completed`, the chunk with the `finishReason`, the line with `done`).
    NoEndMark,
    /// The status line and headers come late.
    SlowHeaders {
        /// How late.
        delay_ms: u64,
    },
}

/// A refusal by the provider itself, in each wire's own words.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case", deny_unknown_fields)]
pub enum Refusal {
    /// 429, with `Retry-After` when given.
    RateLimited {
        /// The header's value in seconds.
        #[serde(default)]
        retry_after_s: Option<u64>,
    },
    /// Anthropic 529 `overloaded_error`, the others 503.
    Overloaded,
    /// 500.
    ServerError,
    /// 401; Gemini 400 `API_KEY_INVALID`.
    Unauthorized,
    /// 403, what the key may not use.
    Forbidden,
    /// 404, the model does not exist.
    UnknownModel,
    /// 400, the context window is exceeded.
    PromptTooLong,
    /// The account has no money left: Anthropic 400, OpenAI 429 `insufficient_quota`, Gemini 429
    /// `RESOURCE_EXHAUSTED` without a violated quota, Ollama's cloud 429.
    QuotaExhausted,
    /// 400, the history does not hold together: a signature or an encrypted content that does not verify, a
    /// tool's result without its call.
    BrokenHistory,
    /// Anything else.
    Other {
        /// The HTTP status.
        status: u16,
        /// The vendor's error type.
        error_type: String,
        /// The message.
        message: String,
        /// More headers, for example `x-should-retry`.
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

    /// Goes silent after this many deltas.
    pub fn hang_after(deltas: usize) -> Self {
        Self::HangAfter { deltas }
    }
}
