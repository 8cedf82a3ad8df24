//! What the provider remembers of the requests it received.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue};
use bytes::Bytes;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::protocol::IncomingRequest;

/// A wire protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
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
    /// The wire it came on.
    pub wire: Wire,
    /// The path it was sent to, without its query.
    pub path: String,
    /// The model it asks for, from its body or its path; empty when there is none.
    pub model: String,
    /// Its headers, names in lower case; of a repeated header the last one.
    pub headers: BTreeMap<String, String>,
    /// Its body, null when it is not JSON.
    pub body: Value,
    /// Its body byte for byte, for assertions about prefixes.
    #[serde(serialize_with = "as_text")]
    pub raw: Bytes,
}

/// A request that broke a rule of its wire.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedRequest {
    /// The wire, none for a path that no wire has.
    pub wire: Option<Wire>,
    /// The status it was answered with.
    pub status: u16,
    /// The message it was answered with.
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

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// The key it was sent with, from `x-api-key`, `x-goog-api-key` or `Authorization: Bearer`.
    pub fn api_key(&self) -> Option<&str> {
        let own = self.header("x-api-key").or_else(|| self.header("x-goog-api-key"));
        own.or_else(|| self.header("authorization")?.strip_prefix("Bearer "))
    }
}

fn as_text<S: Serializer>(raw: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(raw))
}
