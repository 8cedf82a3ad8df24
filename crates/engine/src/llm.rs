//! Language models: the gateway (which model, retries, health) and the providers behind one interface.
//!
//! A message is kept as the ordered blocks that the model gave, thinking and signatures byte for byte, so that
//! what is sent back is what came. A provider is two pure halves, what it sends and how it reads the answer's
//! stream, around one shared HTTP call; the `scripted` provider has no HTTP in the middle.

mod anthropic;
mod base_url;
mod block_builder;
mod classify;
pub mod config;
#[cfg(test)]
mod decoder_testing;
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
mod profile;
mod provider;
mod repair;
mod responses;
pub mod scripted;
mod tool_calls;
mod tool_schema;

use std::collections::HashMap;

use bytes::Bytes;
use contract::content::MediaKind;
use contract::event::BlockType;
use contract::{CallId, event};
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

pub use gateway::{Budgets, Gateway, Prices, RetryPolicy, RetryState, Route, Routes};
pub use repair::{RepairedHistory, repair};
pub(crate) use tool_calls::is_tool_name;
pub(crate) use tool_schema::normalised as normalised_schema;

/// One block of a model's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Output text.
    Text {
        /// The text.
        text: String,
        /// What the provider wants back with it, as it came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    /// Reasoning, with the provider's signature over it.
    Thinking {
        /// The reasoning.
        thinking: String,
        /// The provider's proof that it wrote it, in whatever form its protocol needs it back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    /// Reasoning that the provider shows to nobody.
    RedactedThinking {
        /// The provider's sealed form.
        data: String,
    },
    /// A tool call.
    ToolUse(ToolUse),
}

/// A model's call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolUse {
    /// Our id of the call.
    pub call_id: CallId,
    /// The provider's id of the call, by which it knows the result.
    pub provider_id: String,
    /// The tool.
    pub name: String,
    /// Its input, a JSON object.
    pub input: Value,
    /// What the provider wants back with it, as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Why the call can never run, such as an answer that was cut off in its middle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model was done, or waits for results of tools.
    #[default]
    Done,
    /// It reached the most that it may write.
    Length,
    /// It filled the context window.
    ContextFull,
    /// It declined to answer, or a filter of the provider stopped it.
    Refusal,
    /// In a way that a later version knows.
    #[serde(other)]
    Unknown,
}

/// A model's whole answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// What it said, in its order.
    pub blocks: Vec<Block>,
    /// What it cost.
    pub usage: TokenUsage,
    /// Why it ended.
    #[serde(default)]
    pub stop: FinishReason,
}

impl Answer {
    /// The answer's text: its text blocks, joined.
    pub fn text(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Why it is no answer: the model declined to give one.
    pub fn refusal(&self) -> Option<ModelError> {
        let declined = self.stop == FinishReason::Refusal && self.text().trim().is_empty();
        let message = "the model declined to answer this, or the provider's filter stopped it";
        declined.then(|| ModelError::new(ModelErrorKind::Refused, message))
    }

    /// Whether it has neither text nor a call, without the model having declined. Reasoning alone answers nobody.
    pub fn is_empty(&self) -> bool {
        self.stop != FinishReason::Refusal && self.text().trim().is_empty() && self.calls().next().is_none()
    }

    /// The calls that it makes, in its order.
    pub fn calls(&self) -> impl Iterator<Item = &ToolUse> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolUse(call) => Some(call),
            _ => None,
        })
    }
}

/// Tokens of one model call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// All of the prompt, cached parts included.
    pub input: u64,
    /// All that the model wrote, reasoning included.
    pub output: u64,
    /// Prompt tokens read from the provider's cache.
    pub cache_read: u64,
    /// Prompt tokens written to the provider's cache.
    pub cache_write: u64,
    /// Output tokens spent on reasoning.
    pub reasoning: u64,
    /// Whether the provider told nothing of it, so that this is the engine's own estimate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

impl TokenUsage {
    /// The same where the provider told it; else an estimate, of a prompt of so many tokens and what came of an answer:
    /// the vendor bills it whether or not it says so.
    #[must_use]
    pub fn or_estimated(self, prompt: u64, answer: u64) -> Self {
        if self.input > 0 && (self.output > 0 || answer == 0) {
            return self;
        }
        let told = |told: u64, estimate: u64| if told > 0 { told } else { estimate };
        Self { input: told(self.input, prompt), output: told(self.output, answer), estimated: true, ..self }
    }

    /// Adds another call's tokens to a turn's usage.
    pub fn add_to(self, usage: &mut event::Usage) {
        usage.input_tokens += self.input;
        usage.output_tokens += self.output;
        usage.cache_read_tokens += self.cache_read;
        usage.cache_write_tokens += self.cache_write;
        usage.reasoning_tokens += self.reasoning;
    }
}

/// What came of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// What the tool gave.
    pub output: String,
    /// Why it failed; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long it took.
    pub duration_ms: u64,
}

/// Something a person gave: a text, an image or a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// An image or a document.
    Media(Media),
    /// What the engine put beside a message: when it was sent, what was recalled for it, a plan for it. It stays
    /// there word for word, so that the conversation keeps its beginning.
    Note {
        /// The text.
        text: String,
    },
}

impl Content {
    /// The same once it is stored: bytes are read from there when they are needed.
    pub(crate) fn without_data(self) -> Self {
        match self {
            Self::Media(media) => Self::Media(Media { data: None, ..media }),
            content @ (Self::Text { .. } | Self::Note { .. }) => content,
        }
    }

    /// Whether it is a document, which somebody else may have written.
    pub(crate) fn is_document(&self) -> bool {
        matches!(self, Self::Media(media) if media.kind == MediaKind::Document)
    }

    /// The text of `contents`: what is a text, joined by empty lines.
    pub fn text_of(contents: &[Self]) -> String {
        let texts = contents.iter().filter_map(|content| match content {
            Self::Text { text } => Some(text.as_str()),
            Self::Media(_) | Self::Note { .. } => None,
        });
        texts.collect::<Vec<_>>().join("\n\n")
    }
}

/// An image or a document. Its bytes are stored once, under their hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Media {
    /// What it is shown as.
    pub kind: MediaKind,
    /// Its type, such as `image/png`.
    pub media_type: String,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The SHA-256 of its bytes, in lower-case hexadecimal digits.
    pub hash: String,
    /// About how many tokens it is, as it was estimated when its bytes were at hand; absent of those from before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Its bytes, where they have been read from the store.
    #[serde(skip)]
    pub data: Option<Bytes>,
}

/// One message of a conversation, as a model is sent it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// From the user.
    User {
        /// What the user wrote and attached; never empty.
        content: Vec<Content>,
    },
    /// From the model.
    Assistant {
        /// The model that said it: another one is not shown its reasoning.
        model: String,
        /// What it said.
        blocks: Vec<Block>,
    },
    /// The results of all the calls of the message before, in the order of the calls.
    Results(Vec<ToolReply>),
}

impl Message {
    /// A text from the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { content: vec![Content::Text { text: text.into() }] }
    }
}

/// A tool's result, as a model is sent it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolReply {
    /// The provider's id of the call.
    pub provider_id: String,
    /// What the model is told.
    pub text: String,
    /// What a person added when they were asked, in the order in which they did.
    pub remarks: Vec<Content>,
    /// Whether the tool failed.
    pub is_error: bool,
}

/// A tool, as a model is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// The JSON Schema of its input.
    pub input_schema: Value,
}

/// A tool as requests tell of it: its schema is written out, for it goes with each of them.
#[derive(Clone, Debug)]
pub struct ToolDeclaration {
    /// Its name.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// The JSON Schema of its input, as JSON.
    pub input_schema: Box<RawValue>,
}

impl From<ToolSpec> for ToolDeclaration {
    fn from(ToolSpec { name, description, input_schema }: ToolSpec) -> Self {
        // A JSON value can always be written.
        let input_schema = to_raw_value(&input_schema).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self { name, description, input_schema }
    }
}

/// What a model is asked.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Who the model is to be.
    pub system: &'a str,
    /// The conversation so far.
    pub messages: &'a [Message],
    /// The tools it may call.
    pub tools: &'a [ToolDeclaration],
    /// Whether it may think before it answers.
    pub thinking: bool,
    /// The most tokens that the answer may have, where that is less than the model's own bound.
    pub max_output: Option<u64>,
    /// Whether it may call tools at all; they are told either way, so that the prompt keeps its beginning.
    pub allow_tool_calls: bool,
    /// The same for all requests that share a beginning: helps providers to find it in their caches.
    pub cache_key: &'a str,
}

impl Request<'_> {
    /// What is attached to the messages and has been read, by hash.
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

/// A part of a streamed answer.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// A block begins.
    BlockStart(BlockType),
    /// More text of the open block (text and thinking only: a tool call is told when it is whole).
    Delta(String),
    /// The open block ends.
    BlockStop,
    /// The answer is whole. Nothing follows.
    Done(Answer),
}

/// A streamed answer. It ends with [`StreamEvent::Done`] or an error.
pub type EventStream = BoxStream<'static, Result<StreamEvent, ModelError>>;

/// A language model.
pub trait ChatModel: Send + Sync {
    /// The vendor's name of the model, as `usage` tells it and as messages are marked with it.
    fn name(&self) -> &str;

    /// Whether the model takes such media.
    ///
    /// # Errors
    /// Why it does not and what it takes, for a person.
    fn supports_media(&self, kind: MediaKind, media_type: &str) -> Result<(), String>;

    /// Whether it can plan where no configuration names a planner.
    fn can_plan(&self) -> bool {
        true
    }

    /// Asks the model. Nothing is sent before the stream is polled, and dropping it breaks the call off.
    fn stream(&self, request: &Request<'_>) -> EventStream;
}

/// Why a call of a model failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// What kind of failure it is: decides what happens next.
    pub kind: ModelErrorKind,
    /// What went wrong, for a person. Never holds a key.
    pub message: String,
    /// When the provider wants to be asked again.
    pub retry_after: Option<std::time::Duration>,
    /// What the failed call cost, as far as the provider had told.
    pub usage: TokenUsage,
    /// How many bytes of an answer had come before it.
    pub received_bytes: usize,
}

/// Kinds of failures of a model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelErrorKind {
    /// No usable provider is configured.
    NotConfigured,
    /// The provider refused the key (401, 403).
    Auth,
    /// The provider does not have the model, or not for this account (404).
    NoSuchModel,
    /// The provider refused the request (400, 413, 422): the same one will be refused again.
    Refused,
    /// The conversation is too long for the model.
    TooLong,
    /// The provider takes something in the history for invalid, such as reasoning that it did not sign.
    BrokenHistory,
    /// The account's quota is used up: waiting does not help.
    Quota,
    /// The answer had neither text nor a call, which says nothing of the provider: another one may say something.
    Empty,
    /// Overloaded, rate limited or failing (408, 409, 429, 5xx): may pass.
    Busy,
    /// The provider could not be reached, fell silent, or its stream broke off.
    Broken,
}

impl ModelError {
    /// A failure of `kind`, without a wish for when to be asked again.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
            usage: TokenUsage::default(),
            received_bytes: 0,
        }
    }

    /// The answer ended before it was whole.
    pub fn ended_early() -> Self {
        Self::new(ModelErrorKind::Broken, "the provider's answer ended before it was whole")
    }

    /// Whether the failure is one of this request, so that it says nothing about the provider.
    pub const fn is_request_error(&self) -> bool {
        use ModelErrorKind::{BrokenHistory, Empty, Refused, TooLong};
        matches!(self.kind, Refused | TooLong | BrokenHistory | Empty)
    }
}

/// What the model is told of a call that its answer was cut off in.
const TRUNCATED_CALL_MESSAGE: &str = "the answer was cut off inside this call, so it was not run";

/// A tool call's input as it was streamed. Input that is not a JSON object becomes an empty one, so that the
/// history stays valid, with the reason why the call cannot run.
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
