//! The `scripted` provider: answers from a file of rules, without network and cost.
//!
//! `roundhouse up` uses it if no key is set, and it is the test mode for products. It runs through the same
//! gateway and turns as any other provider. `docs/scripted-provider.md` describes the rules for their authors.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::CallId;
use api::content::MediaKind;
use api::event::BlockType;
use futures::StreamExt as _;
use regex_lite::{Captures, Regex};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Answer, Block, ChatModel, Content, EventStream, FinishReason, Message, ModelError, ModelErrorKind,
    Request, StreamEvent, TokenUsage, ToolUse, estimate,
};

/// The script that is used if `LLM_SCRIPT_PATH` is not set.
const BUILT_IN_SCRIPT: &str = include_str!("scripted.yaml");

/// A script that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("the script {file} (LLM_SCRIPT_PATH) cannot be read: {reason}")]
    Unreadable {
        /// The path of the script.
        file: PathBuf,
        /// The I/O error.
        reason: std::io::Error,
    },
    /// The file is not a valid script.
    #[error("the script {file} (LLM_SCRIPT_PATH) is not valid: {reason}")]
    Invalid {
        /// The path of the script.
        file: PathBuf,
        /// What is invalid, for a person.
        reason: String,
    },
}

/// A list of rules; the first one that matches determines the answer.
#[derive(Debug)]
pub struct Script {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    when: Regex,
    answers: Vec<ScriptedAnswer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptFile {
    rules: Vec<RuleEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    /// A regular expression that the user's message must match; absent: every message matches.
    #[serde(default)]
    when: String,
    /// The answers: the first one responds to the user's message, each next one to the results of the tools that
    /// the previous one called. The last answer repeats.
    answers: Vec<ScriptedAnswer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedAnswer {
    #[serde(default)]
    thinking: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    tools: Vec<ScriptedCall>,
    /// The delay before each word, in milliseconds.
    #[serde(default)]
    delay_ms: u64,
    /// A failure instead of the end of the answer.
    error: Option<ScriptedError>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedCall {
    tool: String,
    #[serde(default)]
    input: serde_json::Map<String, Value>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScriptedError {
    /// The key is refused.
    Auth,
    /// The request is refused.
    Refused,
    /// The account's quota is exhausted.
    Quota,
    /// The provider is overloaded.
    Busy,
    /// The stream breaks off.
    Broken,
}

impl Script {
    /// Loads a script from a file.
    pub fn load(file: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(file)
            .map_err(|reason| ScriptError::Unreadable { file: file.to_owned(), reason })?;
        Self::parse(&text).map_err(|reason| ScriptError::Invalid { file: file.to_owned(), reason })
    }

    /// Returns the built-in script, which demonstrates what an engine can do.
    pub fn built_in() -> Result<Self, ScriptError> {
        Self::parse(BUILT_IN_SCRIPT)
            .map_err(|reason| ScriptError::Invalid { file: "scripted.yaml".into(), reason })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: ScriptFile = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let rule = |(number, RuleEntry { when, answers }): (usize, RuleEntry)| {
            let when = Regex::new(&when).map_err(|error| format!("rule {number}: `when`: {error}"))?;
            if answers.is_empty() {
                return Err(format!("rule {number}: `answers` must have at least one entry"));
            }
            Ok(Rule { when, answers })
        };
        let rules = (1..).zip(file.rules).map(rule).collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }

    /// The answer to a conversation, with the rule's captures filled in.
    fn answer(&self, messages: &[Message]) -> ScriptedAnswer {
        let last_user = messages.iter().rposition(|message| matches!(message, Message::User { .. }));
        let (prompt, since) = match last_user.and_then(|at| messages.split_at_checked(at)) {
            Some((_, [Message::User { content }, since @ ..])) => (Content::text_of(content), since),
            _ => (String::new(), messages),
        };
        let step = since.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
        let result = since.iter().rev().find_map(|message| match message {
            Message::Results(replies) => replies.last().map(|reply| reply.text.as_str()),
            _ => None,
        });
        for rule in &self.rules {
            if let Some(captures) = rule.when.captures(&prompt)
                && let Some(answer) = rule.answers.get(step).or(rule.answers.last())
            {
                return answer.expand(&captures, result.unwrap_or_default());
            }
        }
        let text = "No rule of the script matches this message.".to_owned();
        ScriptedAnswer { text, ..ScriptedAnswer::default() }
    }
}

impl ScriptedAnswer {
    fn expand(&self, captures: &Captures<'_>, result: &str) -> Self {
        let fill = |text: &str| {
            let mut filled = String::new();
            captures.expand(text, &mut filled);
            filled.replace("{{result}}", result)
        };
        let mut answer = self.clone();
        answer.thinking = fill(&self.thinking);
        answer.text = fill(&self.text);
        for call in &mut answer.tools {
            for value in call.input.values_mut() {
                if let Value::String(text) = value {
                    *text = fill(text);
                }
            }
        }
        answer
    }
}

/// A model that answers according to a script.
pub struct ScriptedModel {
    model: String,
    script: Script,
}

impl ScriptedModel {
    /// Creates a model called `model` that follows `script`.
    pub fn new(model: String, script: Script) -> Self {
        Self { model, script }
    }
}

impl ChatModel for ScriptedModel {
    fn name(&self) -> &str {
        &self.model
    }

    fn supports_media(&self, _: MediaKind, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn supports_effort(&self) -> Result<(), String> {
        Err("the offline provider takes no effort; leave it out, or choose another model".to_owned())
    }

    // The rules are written for messages of a user.
    fn can_plan(&self) -> bool {
        false
    }

    fn stream(&self, request: &Request<'_>) -> EventStream {
        let answer = self.script.answer(request.messages);
        let pause = Duration::from_millis(answer.delay_ms);
        let events = to_stream_events(answer, prompt_tokens(request));
        let paced = futures::stream::iter(events).then(move |event| async move {
            if !pause.is_zero() && matches!(event, Ok(StreamEvent::Delta(_))) {
                tokio::time::sleep(pause).await;
            }
            event
        });
        paced.boxed()
    }
}

/// Nobody bills these tokens; about four bytes per token make the numbers plausible.
fn prompt_tokens(request: &Request<'_>) -> u64 {
    let bytes = request.messages.iter().map(|message| match message {
        Message::User { content } => content_bytes(content),
        Message::Assistant { blocks, .. } => blocks.iter().map(block_bytes).sum(),
        Message::Results(replies) => {
            replies.iter().map(|reply| reply.text.len() + content_bytes(&reply.remarks)).sum()
        }
    });
    tokens_for_bytes(request.system.len() + bytes.sum::<usize>())
}

fn content_bytes(contents: &[Content]) -> usize {
    let bytes = contents.iter().map(|content| match content {
        Content::Text { text } | Content::Note { text } => text.len(),
        Content::Media(media) => estimate::media_equivalent_bytes(media),
    });
    bytes.sum()
}

fn block_bytes(block: &Block) -> usize {
    match block {
        Block::Text { text, .. } => text.len(),
        Block::Thinking { thinking, .. } => thinking.len(),
        Block::RedactedThinking { data } => data.len(),
        Block::ToolUse(call) => call.name.len() + call.input.to_string().len(),
    }
}

fn tokens_for_bytes(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(4)).unwrap_or(u64::MAX)
}

fn to_stream_events(answer: ScriptedAnswer, input: u64) -> Vec<Result<StreamEvent, ModelError>> {
    let mut events = Vec::new();
    let mut blocks = Vec::new();
    for (kind, text) in [(BlockType::Thinking, answer.thinking), (BlockType::Text, answer.text)] {
        if text.is_empty() {
            continue;
        }
        events.push(Ok(StreamEvent::BlockStart(kind)));
        events.extend(text.split_inclusive(' ').map(|word| Ok(StreamEvent::Delta(word.to_owned()))));
        events.push(Ok(StreamEvent::BlockStop));
        blocks.push(match kind {
            BlockType::Thinking => Block::Thinking { thinking: text, signature: None },
            BlockType::Text | BlockType::ToolUse => Block::Text { text, signature: None },
        });
    }
    for ScriptedCall { tool, input } in answer.tools {
        events.extend([Ok(StreamEvent::BlockStart(BlockType::ToolUse)), Ok(StreamEvent::BlockStop)]);
        let call_id = CallId::new();
        let provider_id = format!("scripted-{call_id}");
        let input = Value::Object(input);
        blocks.push(Block::ToolUse(ToolUse {
            call_id,
            provider_id,
            name: tool,
            input,
            signature: None,
            broken: None,
        }));
    }
    let output = tokens_for_bytes(blocks.iter().map(block_bytes).sum());
    let done = StreamEvent::Done(Answer {
        blocks,
        usage: TokenUsage { input, output, ..TokenUsage::default() },
        stop: FinishReason::Done,
    });
    events.push(answer.error.map_or(Ok(done), |error| Err(to_model_error(error))));
    events
}

fn to_model_error(error: ScriptedError) -> ModelError {
    let (kind, message) = match error {
        ScriptedError::Auth => (ModelErrorKind::Auth, "the script refuses the key"),
        ScriptedError::Refused => (ModelErrorKind::Refused, "the script refuses the request"),
        ScriptedError::Quota => (ModelErrorKind::Quota, "the script's account has no credit"),
        ScriptedError::Busy => (ModelErrorKind::Busy, "the script is overloaded"),
        ScriptedError::Broken => (ModelErrorKind::Broken, "the script's stream broke off"),
    };
    ModelError::new(kind, message)
}

#[cfg(test)]
#[path = "../tests/unit/scripted.rs"]
mod tests;
