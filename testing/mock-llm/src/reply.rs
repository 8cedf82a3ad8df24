//! A scripted reply: one answer of the model as ordered blocks, and how it is split into deltas.
//!
//! A reply is independent of the wire. Each wire renders it in its vendor's format, and leaves out what the format
//! cannot express.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fault::Fault;
use crate::gate::Gate;

/// One scripted answer. Also the JSON body of `POST /control/replies` (without gates).
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reply {
    /// The content, in the order in which the model produces it.
    pub blocks: Vec<Block>,
    /// The stop reason. By default [`Stop::ToolUse`] if there is a tool call, otherwise [`Stop::EndTurn`].
    pub stop: Option<Stop>,
    /// How each block is split into deltas if the answer is streamed.
    pub chunking: Chunking,
    /// The pause between two deltas of a stream, in milliseconds.
    pub delay_ms: u64,
    /// The token counts. Those that are not set are estimated from the request and the blocks.
    pub usage: Usage,
    /// The fault of this answer, if any.
    pub fault: Option<Fault>,
    #[serde(skip)]
    pub(crate) holds: Vec<Hold>,
}

/// A gate and the number of deltas that are sent before it.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) after_deltas: usize,
    pub(crate) gate: Gate,
}

/// One block of an answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Block {
    /// Readable reasoning. Sent only if the request asked for thinking.
    Thinking {
        /// The reasoning.
        text: String,
    },
    /// Opaque reasoning, which the client must send back unchanged.
    RedactedThinking,
    /// Text for the user.
    Text {
        /// The text.
        text: String,
    },
    /// The user's last text, for scripts in which the content does not matter.
    Echo,
    /// A tool call.
    ToolUse {
        /// The call's id. By default one that this provider has not used before.
        #[serde(default)]
        id: Option<String>,
        /// The tool's name.
        name: String,
        /// The arguments.
        #[serde(default)]
        input: Value,
        /// The text of the arguments as streamed, for a call that is truncated in the middle of its JSON. Gemini
        /// and Ollama, which send only complete calls, leave it out.
        #[serde(default)]
        raw_input: Option<String>,
    },
}

/// The reason why the model stopped, with the vendors' names for it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The answer is complete: `end_turn`, `stop`, `completed`, `STOP`.
    EndTurn,
    /// The model waits for tool results: `tool_use`, `tool_calls`. Elsewhere the same as [`Self::EndTurn`].
    ToolUse,
    /// The output limit was reached: `max_tokens`, `length`, `max_output_tokens`, `MAX_TOKENS`.
    MaxTokens,
    /// The model declined: `refusal`, `content_filter`, `SAFETY`. Ollama has no name for it and reports `stop`.
    Refusal,
}

/// How a block's text is split into deltas. A delta never splits a character.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Chunking {
    /// This many characters per delta.
    Chars(usize),
    /// This many deltas per block, as even as possible. Fewer if the block has fewer characters.
    Deltas(usize),
}

impl Default for Chunking {
    /// Four characters, about one token, as in the vendors' streams.
    fn default() -> Self {
        Self::Chars(4)
    }
}

/// Token counts of an answer, as Anthropic defines them: `input` does not include tokens from the cache. The other
/// wires report the sum of the three input counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    /// Uncached input tokens. By default a quarter of the request's bytes.
    pub input: Option<u64>,
    /// Output tokens, including reasoning. By default a quarter of the blocks' characters.
    pub output: Option<u64>,
    /// Input tokens read from the prompt cache.
    pub cache_read: u64,
    /// Input tokens written to the prompt cache.
    pub cache_write: u64,
    /// Reasoning tokens. By default a quarter of the thinking's characters.
    pub reasoning: Option<u64>,
    /// Whether no counts are reported in streams, as by many servers that are compatible with Chat Completions.
    pub withheld: bool,
}

impl Reply {
    /// Creates an answer without blocks, for the methods below to fill.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an answer of one text.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self::new().text(text)
    }

    /// Creates an answer that repeats the user's last text.
    pub fn echo() -> Self {
        Self::new().block(Block::Echo)
    }

    /// Creates an echo with a fault, for tests in which only the fault matters.
    pub fn from_fault(fault: Fault) -> Self {
        Self::echo().fault(fault)
    }

    /// Adds a block.
    #[must_use]
    pub fn block(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }

    /// Adds readable thinking.
    #[must_use]
    pub fn thinking(self, text: impl Into<String>) -> Self {
        self.block(Block::Thinking { text: text.into() })
    }

    /// Adds redacted thinking.
    #[must_use]
    pub fn redacted_thinking(self) -> Self {
        self.block(Block::RedactedThinking)
    }

    /// Adds text.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.block(Block::Text { text: text.into() })
    }

    /// Adds a tool call with a generated id.
    #[must_use]
    pub fn tool_use(self, name: impl Into<String>, input: Value) -> Self {
        self.block(Block::ToolUse { id: None, name: name.into(), input, raw_input: None })
    }

    /// Adds a tool call with a given id.
    #[must_use]
    pub fn tool_use_with_id(self, id: impl Into<String>, name: impl Into<String>, input: Value) -> Self {
        self.block(Block::ToolUse { id: Some(id.into()), name: name.into(), input, raw_input: None })
    }

    /// Adds a tool call with truncated arguments, whose text is streamed as it is.
    #[must_use]
    pub fn truncated_tool_use(self, name: impl Into<String>, raw_input: impl Into<String>) -> Self {
        self.block(Block::ToolUse {
            id: None,
            name: name.into(),
            input: Value::Null,
            raw_input: Some(raw_input.into()),
        })
    }

    /// Sets the stop reason.
    #[must_use]
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Splits each block into deltas of this many characters.
    #[must_use]
    pub fn chars_per_delta(mut self, chars: usize) -> Self {
        self.chunking = Chunking::Chars(chars);
        self
    }

    /// Splits each block into this many deltas.
    #[must_use]
    pub fn deltas(mut self, deltas: usize) -> Self {
        self.chunking = Chunking::Deltas(deltas);
        self
    }

    /// Pauses between two deltas.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Sets the token counts.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = usage;
        self
    }

    /// Sets the fault of the answer.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// Holds the answer after this many deltas until the gate is released. An answer with fewer deltas is held
    /// before its end mark; one that is not streamed is held before its first byte.
    #[must_use]
    pub fn hold(mut self, after_deltas: usize, gate: &Gate) -> Self {
        self.holds.push(Hold { after_deltas, gate: gate.clone() });
        self
    }

    /// The stop reason, derived from the blocks if the script does not set it.
    pub(crate) fn stop_reason(&self) -> Stop {
        let calls_tool = self.blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        self.stop.unwrap_or(if calls_tool { Stop::ToolUse } else { Stop::EndTurn })
    }

    /// The token counts, estimated if the script does not set them. As with the vendors, an answer has at least
    /// one output token.
    pub(crate) fn token_counts(&self, request_bytes: usize) -> TokenCounts {
        let (thinking, other) = self.blocks.iter().fold((0, 0), |(thinking, other), block| match block {
            Block::Thinking { text } => (thinking + text.chars().count(), other),
            Block::Text { text } => (thinking, other + text.chars().count()),
            Block::ToolUse { input, raw_input, .. } => {
                let length = raw_input.as_ref().map_or_else(|| input.to_string().len(), String::len);
                (thinking, other + length)
            }
            Block::RedactedThinking | Block::Echo => (thinking, other),
        });
        TokenCounts {
            input: self.usage.input.unwrap_or_else(|| estimated_tokens(request_bytes)),
            output: self.usage.output.unwrap_or_else(|| estimated_tokens(thinking + other).max(1)),
            cache_read: self.usage.cache_read,
            cache_write: self.usage.cache_write,
            reasoning: self.usage.reasoning.unwrap_or_else(|| estimated_tokens(thinking)),
        }
    }
}

/// The arguments of a tool call as text. Without arguments, an empty object.
pub(crate) fn arguments_text(input: &Value, raw_input: Option<&str>) -> String {
    match raw_input {
        Some(raw) => raw.to_owned(),
        None if input.is_null() => "{}".to_owned(),
        None => input.to_string(),
    }
}

/// Token counts in which every count is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenCounts {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
    pub(crate) reasoning: u64,
}

/// Estimates four characters per token, the usual rule of thumb.
fn estimated_tokens(characters: usize) -> u64 {
    u64::try_from(characters / 4).unwrap_or(u64::MAX)
}
