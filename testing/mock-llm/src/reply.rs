//! What a test scripts: one answer of the model as ordered blocks, and how it is cut into deltas.
//!
//! A reply knows nothing of a wire; each wire renders it in its vendor's form and leaves out what
//! the vendor has no form for.

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
    /// Why the model stopped; by default [`Stop::ToolUse`] after a tool call, else [`Stop::EndTurn`].
    pub stop: Option<Stop>,
    /// How each block is cut into deltas when the answer is streamed.
    pub chunking: Chunking,
    /// Pause between two deltas of a stream.
    pub delay_ms: u64,
    /// Token counts; what is not set is estimated from the request and the blocks.
    pub usage: Usage,
    /// What goes wrong with this answer.
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
    /// Reasoning that the client may read. Sent only to a client that asked for thinking.
    Thinking {
        /// The reasoning.
        text: String,
    },
    /// Reasoning that the client must carry without reading it.
    RedactedThinking,
    /// Text for the user.
    Text {
        /// The text.
        text: String,
    },
    /// The last text of the user, for scripts that do not care what is said.
    Echo,
    /// A tool call.
    ToolUse {
        /// The call's id; by default one that this provider has not used before.
        #[serde(default)]
        id: Option<String>,
        /// The tool's name.
        name: String,
        /// The arguments.
        #[serde(default)]
        input: Value,
        /// The arguments' text as streamed, for a call cut off in the middle of its JSON. Gemini and Ollama, which
        /// send calls whole, leave such a call out.
        #[serde(default)]
        raw_input: Option<String>,
    },
}

/// Why the model stopped.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// It was done: `end_turn`, `stop`, `completed`, `STOP`.
    EndTurn,
    /// It waits for tool results: `tool_use`, `tool_calls`; elsewhere the same as the end of a turn.
    ToolUse,
    /// It was cut off by the output limit: `max_tokens`, `length`, `max_output_tokens`, `MAX_TOKENS`.
    MaxTokens,
    /// It declined: `refusal`, `content_filter`, `SAFETY`; Ollama has no word for it.
    Refusal,
}

/// How a block's text is cut into deltas. A delta never splits a character.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Chunking {
    /// This many characters per delta.
    Chars(usize),
    /// This many deltas per block, as even as possible; fewer when the block is shorter.
    Deltas(usize),
}

impl Default for Chunking {
    /// Four characters, about one token, which is what a vendor's stream looks like.
    fn default() -> Self {
        Self::Chars(4)
    }
}

/// Token counts of an answer, in Anthropic's sense: `input` does not include what the cache served.
/// The other wires add the three up for their count of the prompt.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    /// Uncached input tokens; by default a quarter of the request's bytes.
    pub input: Option<u64>,
    /// Output tokens, reasoning included; by default a quarter of the blocks' characters.
    pub output: Option<u64>,
    /// Input tokens read from the prompt cache.
    pub cache_read: u64,
    /// Input tokens written to the prompt cache.
    pub cache_write: u64,
    /// Reasoning tokens; by default a quarter of the thinking's characters.
    pub reasoning: Option<u64>,
    /// Whether none of it is told, as many servers do that speak Chat Completions.
    pub withheld: bool,
}

impl Reply {
    /// An answer without blocks, to be filled by the methods below.
    pub fn new() -> Self {
        Self::default()
    }

    /// An answer of one text.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self::new().text(text)
    }

    /// An answer that repeats the last text of the user.
    pub fn echo() -> Self {
        Self::new().block(Block::Echo)
    }

    /// An answer that is only a fault.
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

    /// Adds a tool call with an id of the provider's choice.
    #[must_use]
    pub fn tool_use(self, name: impl Into<String>, input: Value) -> Self {
        self.block(Block::ToolUse { id: None, name: name.into(), input, raw_input: None })
    }

    /// Adds a tool call with a given id.
    #[must_use]
    pub fn tool_use_with_id(self, id: impl Into<String>, name: impl Into<String>, input: Value) -> Self {
        self.block(Block::ToolUse { id: Some(id.into()), name: name.into(), input, raw_input: None })
    }

    /// Adds a tool call whose arguments break off: the text is streamed as it is.
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

    /// Cuts each block into deltas of this many characters.
    #[must_use]
    pub fn chars_per_delta(mut self, chars: usize) -> Self {
        self.chunking = Chunking::Chars(chars);
        self
    }

    /// Cuts each block into this many deltas.
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

    /// Makes the answer go wrong.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// Holds the answer after this many deltas until the gate is released. An answer with fewer
    /// deltas is held before its end mark, one that is not streamed before its first byte.
    #[must_use]
    pub fn hold(mut self, after_deltas: usize, gate: &Gate) -> Self {
        self.holds.push(Hold { after_deltas, gate: gate.clone() });
        self
    }

    /// The stop reason, derived when the script does not set it.
    pub(crate) fn stop_reason(&self) -> Stop {
        let calls_tool = self.blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        self.stop.unwrap_or(if calls_tool { Stop::ToolUse } else { Stop::EndTurn })
    }

    /// The token counts, estimated where the script does not set them. An answer costs at least one
    /// output token, as the vendors' do.
    pub(crate) fn token_counts(&self, request_bytes: usize) -> TokenCounts {
        let (thinking, rest) = self.blocks.iter().fold((0, 0), |(thinking, rest), block| match block {
            Block::Thinking { text } => (thinking + text.chars().count(), rest),
            Block::Text { text } => (thinking, rest + text.chars().count()),
            Block::ToolUse { input, raw_input, .. } => {
                let length = raw_input.as_ref().map_or_else(|| input.to_string().len(), String::len);
                (thinking, rest + length)
            }
            Block::RedactedThinking | Block::Echo => (thinking, rest),
        });
        TokenCounts {
            input: self.usage.input.unwrap_or_else(|| estimated_tokens(request_bytes)),
            output: self.usage.output.unwrap_or_else(|| estimated_tokens(thinking + rest).max(1)),
            cache_read: self.usage.cache_read,
            cache_write: self.usage.cache_write,
            reasoning: self.usage.reasoning.unwrap_or_else(|| estimated_tokens(thinking)),
        }
    }
}

/// The arguments of a tool call as text. A tool without arguments is called with an empty object.
pub(crate) fn arguments_text(input: &Value, raw_input: Option<&str>) -> String {
    match raw_input {
        Some(raw) => raw.to_owned(),
        None if input.is_null() => "{}".to_owned(),
        None => input.to_string(),
    }
}

/// Token counts with nothing left open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenCounts {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
    pub(crate) reasoning: u64,
}

/// The usual rule of thumb of four characters per token.
fn estimated_tokens(characters: usize) -> u64 {
    u64::try_from(characters / 4).unwrap_or(u64::MAX)
}
