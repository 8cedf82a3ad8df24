//! The records of received and refused requests.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue};
use bytes::Bytes;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::protocol::IncomingRequest;

/// Declares the wires and the list of all of them together, so that none can be missing from it.
macro_rules! wires {
    ($($(#[$attribute:meta])* $wire:ident,)+) => {
        /// A wire protocol.
        #[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Wire {
            $($(#[$attribute])* $wire,)+
        }

        impl Wire {
            /// All wires.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$wire),+];

            /// The number of wires. A list of this length that lacks a wire does not compile.
            pub const COUNT: usize = [$(Self::$wire),+].len();
        }
    };
}

wires! {
    /// Anthropic Messages.
    AnthropicMessages,
    /// OpenAI Chat Completions.
    OpenAiChat,
    /// OpenAI Responses.
    OpenAiResponses,
    /// Gemini `generateContent` and `streamGenerateContent`.
    Gemini,
    /// Ollama's own chat.
    Ollama,
}

/// A request to one of the wires, refused or not.
#[derive(Clone, Debug, Serialize)]
pub struct CapturedRequest {
    /// The wire on which it arrived.
    pub wire: Wire,
    /// The path without the query.
    pub path: String,
    /// The requested model, from the body or the path. Empty if there is none.
    pub model: String,
    /// The headers, with names in lower case. Of a repeated header, the last value.
    pub headers: BTreeMap<String, String>,
    /// The body, or null if it is not JSON.
    pub body: Value,
    /// The exact bytes of the body, for assertions about prefixes.
    #[serde(serialize_with = "as_text")]
    pub raw: Bytes,
}

/// A request that violated a rule of its wire.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedRequest {
    /// The wire. `None` for a path that belongs to no wire.
    pub wire: Option<Wire>,
    /// The HTTP status of the response.
    pub status: u16,
    /// The message of the response.
    pub reason: String,
}

impl CapturedRequest {
    pub(crate) fn new(wire: Wire, request: &IncomingRequest) -> Self {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let header =
            |(name, value): (&HeaderName, &HeaderValue)| (name.as_str().to_owned(), text(value.as_bytes()));
        Self {
            wire,
            path: request.uri.path().to_owned(),
            model: request.model().to_owned(),
            headers: request.headers.iter().map(header).collect(),
            body: request.body.clone(),
            raw: request.raw.clone(),
        }
    }

    /// Returns the value of a header. The name is case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// Returns the API key, from `x-api-key`, `x-goog-api-key` or `Authorization: Bearer`.
    pub fn api_key(&self) -> Option<&str> {
        let vendor_header = self.header("x-api-key").or_else(|| self.header("x-goog-api-key"));
        vendor_header.or_else(|| self.header("authorization")?.strip_prefix("Bearer "))
    }
}

fn as_text<S: Serializer>(raw: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(raw))
}
