//! Language models: the gateway (model choice, retries, health) and all providers behind one interface.
//!
//! A message is stored as the ordered blocks that the model returned, with thinking and signatures byte for byte,
//! because providers want them back unchanged. A provider consists of two pure halves, the request encoder and the
//! stream decoder, around one shared HTTP call; the `scripted` provider has no HTTP in the middle.

mod answer_tool;
mod anthropic;
mod base_url;
mod block_builder;
mod call_span;
mod classify;
pub mod config;
#[cfg(test)]
#[path = "../tests/unit/decoder_testing.rs"]
mod decoder_testing;
mod error;
pub mod estimate;
mod factory;
mod gateway;
mod gateway_file;
mod gemini;
mod health;
mod http;
mod key_policy;
mod media;
mod ollama;
mod openai;
mod price_list;
mod profile;
mod provider;
mod repair;
mod responses;
pub mod scripted;
mod tool_calls;
mod tool_schema;
mod usage_limits;

use std::collections::HashMap;

use api::content::MediaKind;
use api::event::BlockType;
use api::response_format::ResponseFormat;
pub use api::turn_options::Effort;
use api::{CallId, event};
use bytes::Bytes;
pub use error::{ModelError, ModelErrorKind, NotConfigured};
use futures::stream::BoxStream;
pub use gateway::{Budgets, Gateway, Prices, RetryPolicy, RetryState, Route, Routes};
pub use repair::{RepairedHistory, repair};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
pub use tool_schema::normalised as normalised_schema;
pub use usage_limits::UsageLimits;

/// One block of a model's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Output text.
    Text {
        /// The text.
        text: String,
        /// Data of the provider that must be sent back with the text, unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    /// Reasoning, with the provider's signature over it.
    Thinking {
        /// The reasoning text.
        thinking: String,
        /// The provider's proof that it wrote the reasoning, in the form in which its protocol needs it back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    /// Reasoning that the provider does not reveal.
    RedactedThinking {
        /// The provider's encrypted form of the reasoning.
        data: String,
    },
    /// A tool call.
    ToolUse(ToolUse),
}

/// A model's call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolUse {
    /// The engine's id of the call.
    pub call_id: CallId,
    /// The provider's id of the call, by which it matches the result.
    pub provider_id: String,
    /// The name of the tool.
    pub name: String,
    /// The input, a JSON object.
    pub input: Value,
    /// Data of the provider that must be sent back with the call, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Why the call can never run, for example because the answer was truncated inside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model finished, or waits for tool results.
    #[default]
    Done,
    /// The answer reached the output limit.
    Length,
    /// The conversation filled the context window.
    ContextFull,
    /// The model declined to answer, or a filter of the provider stopped it.
    Refusal,
    /// A reason that was written by a later version.
    #[serde(other)]
    Unknown,
}

/// A model's complete answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The blocks, in the order in which the model wrote them.
    pub blocks: Vec<Block>,
    /// The tokens that the call used.
    pub usage: TokenUsage,
    /// Why the answer ended.
    #[serde(default)]
    pub stop: FinishReason,
}

impl Answer {
    /// Returns the answer's text blocks, joined.
    pub fn text(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Returns an error if the model declined to answer and wrote no text.
    pub fn refusal(&self) -> Option<ModelError> {
        let declined = self.stop == FinishReason::Refusal && self.text().trim().is_empty();
        let message = "the model declined to answer this, or the provider's filter stopped it";
        declined.then(|| ModelError::new(ModelErrorKind::Refused, message))
    }

    /// Whether the answer has neither text nor a call although the model did not decline. Reasoning alone is no
    /// answer.
    pub fn is_empty(&self) -> bool {
        self.stop != FinishReason::Refusal && self.text().trim().is_empty() && self.calls().next().is_none()
    }

    /// The tool calls of the answer, in order.
    pub fn calls(&self) -> impl Iterator<Item = &ToolUse> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolUse(call) => Some(call),
            _ => None,
        })
    }
}

/// Token counts of one model call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// All tokens of the prompt, including cached ones.
    pub input: u64,
    /// All tokens that the model wrote, including reasoning.
    pub output: u64,
    /// Prompt tokens read from the provider's cache.
    pub cache_read: u64,
    /// Prompt tokens written to the provider's cache.
    pub cache_write: u64,
    /// Output tokens spent on reasoning.
    pub reasoning: u64,
    /// Whether the provider did not report the usage, so that the counts are the engine's own estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

impl TokenUsage {
    /// Returns the reported counts, with missing ones replaced by the estimates `prompt` and `answer` in tokens:
    /// the vendor bills a call whether or not it reports its usage.
    #[must_use]
    pub fn or_estimated(self, prompt: u64, answer: u64) -> Self {
        if self.input > 0 && (self.output > 0 || answer == 0) {
            return self;
        }
        let input = if self.input > 0 { self.input } else { prompt };
        let output = if self.output > 0 { self.output } else { answer };
        Self { input, output, estimated: true, ..self }
    }

    /// Adds the tokens of this call to a turn's usage.
    pub fn add_to(self, usage: &mut event::Usage) {
        usage.input_tokens += self.input;
        usage.output_tokens += self.output;
        usage.cache_read_tokens += self.cache_read;
        usage.cache_write_tokens += self.cache_write;
        usage.reasoning_tokens += self.reasoning;
    }
}

/// The outcome of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// The tool's output.
    pub output: String,
    /// Why the call failed; absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The duration of the call, in milliseconds.
    pub duration_ms: u64,
    /// Pictures and documents that belong to the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Content>,
}

impl ToolOutcome {
    /// An outcome with this output, or this error.
    pub const fn new(output: String, error: Option<String>, duration_ms: u64) -> Self {
        Self { output, error, duration_ms, media: Vec::new() }
    }

    /// Drops the bytes of media, which are loaded from the store when they are needed.
    #[must_use]
    pub fn without_data(self) -> Self {
        Self { media: self.media.into_iter().map(Content::without_data).collect(), ..self }
    }
}

/// Content of a user's message: text, an image, a document or audio.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// An image, a document or audio.
    Media(Media),
    /// A note that the engine attached to a message: when it was sent, recalled memory, a plan. It stays there
    /// word for word, so that the beginning of the conversation does not change and stays cached.
    Note {
        /// The text of the note.
        text: String,
    },
}

impl Content {
    /// Drops the bytes of media, which are loaded from the store when they are needed.
    #[must_use]
    pub fn without_data(self) -> Self {
        match self {
            Self::Media(media) => {
                let text = media.text.map(|text| MediaText { data: None, ..text });
                Self::Media(Media { data: None, text, ..media })
            }
            content @ (Self::Text { .. } | Self::Note { .. }) => content,
        }
    }

    /// Whether this is a document or a recording: what it says may be the words of somebody other than the user.
    pub fn may_be_others_words(&self) -> bool {
        match self {
            Self::Media(media) => match media.kind {
                MediaKind::Document | MediaKind::Audio => true,
                MediaKind::Image => false,
            },
            Self::Text { .. } | Self::Note { .. } => false,
        }
    }

    /// Returns the text items of `contents`, joined by blank lines. Media and notes are left out.
    pub fn text_of(contents: &[Self]) -> String {
        let texts = contents.iter().filter_map(|content| match content {
            Self::Text { text } => Some(text.as_str()),
            Self::Media(_) | Self::Note { .. } => None,
        });
        texts.collect::<Vec<_>>().join("\n\n")
    }
}

/// An image, a document or audio. Its bytes are stored once, under their hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Media {
    /// Whether it is an image, a document or audio.
    pub kind: MediaKind,
    /// The media type, such as `image/png`.
    pub media_type: String,
    /// The file name, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The SHA-256 of the bytes, in lower-case hexadecimal digits.
    pub hash: String,
    /// The estimated number of tokens, computed while the bytes were at hand; absent from journals that are older
    /// than the estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The text that was extracted from a document, for models that do not take the document itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<MediaText>,
    /// The bytes, if they have been loaded from the store.
    #[serde(skip)]
    pub data: Option<Bytes>,
}

impl Media {
    /// The hashes of what a model may be sent of it: of the bytes, if any vendor takes them, and of the text.
    pub fn sendable_hashes(&self) -> impl Iterator<Item = &str> {
        self.hashes_if(is_sendable_media(self.kind, &self.media_type))
    }

    /// The hashes of what a model is sent of it, given whether it takes the bytes. The text may have the same hash.
    pub fn hashes_if(&self, takes_bytes: bool) -> impl Iterator<Item = &str> {
        let bytes = takes_bytes.then_some(&self.hash);
        // What no vendor takes and has no text is reported as such.
        bytes.into_iter().chain(self.text.as_ref().map(|text| &text.hash)).map(String::as_str)
    }

    /// Whether some model is sent an image or a file rather than text.
    pub fn is_sent_as_file(&self) -> bool {
        self.media_type != media::PLAIN_TEXT && is_sendable_media(self.kind, &self.media_type)
    }

    /// What stands in place of a file for a provider that refused it: its text, or a note.
    pub fn without_file(&self) -> Content {
        match &self.text {
            Some(text) => Content::Media(Self {
                media_type: media::PLAIN_TEXT.to_owned(),
                hash: text.hash.clone(),
                tokens: text.tokens.or(self.tokens),
                text: None,
                data: text.data.clone(),
                ..self.clone()
            }),
            None => self.left_out("because the model's provider refused it"),
        }
    }

    /// A note that this was left out, and why.
    pub fn left_out(&self, why: &str) -> Content {
        let name = self.name.as_deref().filter(|name| !media::is_blank(name));
        let reason = format!("is left out {why}");
        Content::Note { text: media::placeholder_text(self.kind, name, &reason) }
    }
}

/// Whether some vendor's models take media of this kind and type as they are.
pub fn is_sendable_media(kind: MediaKind, media_type: &str) -> bool {
    media::is_taken_by_some(kind, media_type)
}

/// The text of a document. It is stored like the document, under its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaText {
    /// The SHA-256 of the text in UTF-8, in lower-case hexadecimal digits.
    pub hash: String,
    /// The estimated number of tokens of the text; absent from journals that are older than this count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The text, if it has been loaded from the store.
    #[serde(skip)]
    pub data: Option<Bytes>,
}

/// One message of a conversation, as it is sent to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// A message of the user.
    User {
        /// The texts, media and notes of the message; never empty.
        content: Vec<Content>,
    },
    /// An answer of the model.
    Assistant {
        /// The vendor's name of the model that wrote the answer. Reasoning is sent back only to the same model.
        model: String,
        /// The blocks of the answer.
        blocks: Vec<Block>,
    },
    /// The results of all calls of the preceding message, in the order of the calls.
    Results(Vec<ToolReply>),
}

impl Message {
    /// Creates a user's message that consists of one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { content: vec![Content::Text { text: text.into() }] }
    }
}

/// A tool's result, as it is sent to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolReply {
    /// The provider's id of the call.
    pub provider_id: String,
    /// The text for the model.
    pub text: String,
    /// The media of the result, then what the user added when they answered the tool's question, in order.
    pub remarks: Vec<Content>,
    /// Whether the tool failed.
    pub is_error: bool,
}

/// A tool, as it is described to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// The name of the tool.
    pub name: String,
    /// What the tool does and when to use it.
    pub description: String,
    /// The JSON Schema of the input.
    pub input_schema: Value,
}

/// A tool declaration with its schema already serialized, because it is part of every request.
#[derive(Clone, Debug)]
pub struct ToolDeclaration {
    /// The name of the tool.
    pub name: String,
    /// What the tool does and when to use it.
    pub description: String,
    /// The JSON Schema of the input, as serialized JSON.
    pub input_schema: Box<RawValue>,
}

impl From<ToolSpec> for ToolDeclaration {
    fn from(ToolSpec { name, description, input_schema }: ToolSpec) -> Self {
        // Serializing a JSON value cannot fail.
        let input_schema = to_raw_value(&input_schema).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self { name, description, input_schema }
    }
}

/// A request to a model.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The system prompt.
    pub system: &'a str,
    /// The conversation so far.
    pub messages: &'a [Message],
    /// The tools that the model may call.
    pub tools: &'a [ToolDeclaration],
    /// Whether the model may think before it answers.
    pub thinking: bool,
    /// How much it thinks, instead of what is configured. A model that takes no effort ignores it: see
    /// [`ChatModel::supports_effort`].
    pub effort: Option<Effort>,
    /// The output limit in tokens, if it is lower than the model's own.
    pub max_output: Option<u64>,
    /// Whether the model may call tools. They are declared either way, so that the beginning of the prompt stays
    /// cached.
    pub allow_tool_calls: bool,
    /// The form of the final answer, if it is to be JSON. If the model may not call tools, this answer is the final
    /// one.
    pub output: Option<&'a ResponseFormat>,
    /// A key shared by all requests that begin with the same prompt; it helps providers find their cache entry.
    pub cache_key: &'a str,
}

impl Request<'_> {
    /// Returns the bytes of the messages' media by hash, as far as they have been loaded.
    fn attachments(&self) -> HashMap<&str, Bytes> {
        let contents = self.messages.iter().flat_map(|message| -> Box<dyn Iterator<Item = &Content>> {
            match message {
                Message::User { content } => Box::new(content.iter()),
                Message::Results(replies) => Box::new(replies.iter().flat_map(|reply| &reply.remarks)),
                Message::Assistant { .. } => Box::new(std::iter::empty()),
            }
        });
        let attached = contents.filter_map(|content| match content {
            Content::Media(media) => Some((media.hash.as_str(), media.data.clone()?)),
            Content::Text { .. } | Content::Note { .. } => None,
        });
        attached.collect()
    }
}

/// An event of a streamed answer.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// A block begins.
    BlockStart(BlockType),
    /// More text of the open block. Only text and thinking are streamed; a tool call appears once it is complete.
    Delta(String),
    /// The open block ends.
    BlockStop,
    /// The answer is complete. This is the last event.
    Done(Answer),
}

/// A streamed answer. It ends with [`StreamEvent::Done`] or an error.
pub type EventStream = BoxStream<'static, Result<StreamEvent, ModelError>>;

/// A language model.
pub trait ChatModel: Send + Sync {
    /// The vendor's name of the model, as it appears in `usage` and in [`Message::Assistant`].
    fn name(&self) -> &str;

    /// Checks whether the model accepts media of this kind and type.
    ///
    /// # Errors
    /// Returns a message for the user that says why the media are not accepted, and which are.
    fn supports_media(&self, kind: MediaKind, media_type: &str) -> Result<(), String>;

    /// Checks whether a caller may choose the model's effort.
    ///
    /// # Errors
    /// Returns a message for the user that says why not.
    fn supports_effort(&self) -> Result<(), String>;

    /// Whether the model can plan if the configuration names no planner.
    fn can_plan(&self) -> bool {
        true
    }

    /// Streams the answer to `request`. Nothing is sent before the stream is first polled; dropping it cancels the
    /// call.
    fn stream(&self, request: &Request<'_>) -> EventStream;
}

/// The error of a call in whose middle the answer was truncated, as the model reads it.
const TRUNCATED_CALL_MESSAGE: &str = "the answer was cut off inside this call, so it was not run";

/// Parses a tool call's streamed input. Input that is not a JSON object becomes an empty object, so that the
/// history stays valid; the second value then says why the call cannot run.
fn parse_tool_input(text: &str) -> (Value, Option<String>) {
    let empty = || Value::Object(serde_json::Map::new());
    if text.trim().is_empty() {
        return (empty(), None);
    }
    match serde_json::from_str(text) {
        Ok(input @ Value::Object(_)) => (input, None),
        Ok(_) => (empty(), Some("the call's input was not a JSON object, so it was not run".into())),
        Err(error) => {
            (empty(), Some(format!("the call's input was not valid JSON ({error}), so it was not run")))
        }
    }
}
