//! Turn cassettes: a recorded turn as one document, and what is different when it is run again.
//!
//! A cassette holds what the model was sent and what came back: the conversation, the answers, and the results of the
//! tools. So the turn can be run again with another model, while its tools do nothing.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::content::ContentBlock;
use crate::event::{HitlKind, StopReason};
use crate::response_format::ResponseFormat;
use crate::turn_options::{Effort, InvalidOption};
use crate::turns::TurnState;
use crate::{TaskId, Timestamp, TurnId};

mod report;
mod run;

pub use report::{
    CallDifference, CallPairing, CassetteReport, CassetteScores, DiffOp, DiffPart, ExpectationResult,
    MissingCall, ReplayEnd, ReplayState, ReplayedCall, ReplayedStep, StepCounts, TextReport, UsageComparison,
};
pub use run::{ReplayWith, RunCassette, SoulText, rule};

/// What `format` of a cassette says.
pub const CASSETTE_FORMAT: &str = "roundhouse.cassette";
/// The version of the format that this version writes and reads.
pub const CASSETTE_VERSION: u32 = 1;
/// How much of a document's format and version is read.
const MAX_HEAD_BYTES: usize = 100;
/// The maximum size of a cassette, in bytes of JSON.
pub const MAX_CASSETTE_BYTES: usize = 24 << 20;
/// The maximum number of model steps.
pub const MAX_STEPS: usize = 1_000;
/// The maximum number of recorded tool calls.
pub const MAX_CALLS: usize = 4_000;
/// The maximum number of tools.
pub const MAX_TOOLS: usize = 1_000;
/// The maximum number of rules.
pub const MAX_EXPECTATIONS: usize = 100;
/// The maximum length of the text or the pattern of a rule, in bytes.
pub const MAX_RULE_BYTES: usize = 4 << 10;

/// A recorded turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
// The derived function is called by the implementation below.
#[serde(remote = "Self")]
pub struct Cassette {
    /// `roundhouse.cassette`.
    pub format: String,
    /// 1.
    pub version: u32,
    /// The task of the turn.
    pub task_id: TaskId,
    /// The turn.
    pub turn_id: TurnId,
    /// When the turn began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// What of the document is not as it was in the turn, and why. Nothing is made up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<CassetteGap>,
    /// What the model was sent first.
    pub prompt: CassettePrompt,
    /// The model's answers, in order, each with the results of its calls.
    pub steps: Vec<CassetteStep>,
    /// How the turn ended.
    pub outcome: CassetteOutcome,
    /// Rules for the answer of a run, which people add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expectation>,
}

/// A part of a cassette that is not as it was in the turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CassetteGap {
    /// The part.
    pub part: CassettePartName,
    /// What is different, and why.
    pub reason: String,
}

/// The parts of a cassette.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CassettePartName {
    /// The system prompt.
    System,
    /// The declarations of the tools.
    Tools,
    /// The conversation.
    Messages,
    /// Attached files.
    Files,
}

/// What the model is sent before its first answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CassettePrompt {
    /// The system prompt.
    pub system: String,
    /// The tools that the model may call.
    #[serde(default)]
    pub tools: Vec<CassetteTool>,
    /// The names of the tools that the model has to search for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searchable_tools: Vec<String>,
    /// The conversation up to the message that the turn answers. Reasoning is left out: it is bound to its model.
    pub messages: Vec<CassetteMessage>,
    /// The options of the turn.
    pub options: CassetteOptions,
}

/// The declaration of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CassetteTool {
    /// The tool's name.
    pub name: String,
    /// What it does.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of its input.
    pub input_schema: Value,
}

/// The options of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CassetteOptions {
    /// The most model calls.
    pub max_turns: u64,
    /// Whether the model may think.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thinking: bool,
    /// How much it thinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// The form of the final answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
}

/// A message of the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum CassetteMessage {
    /// The user's.
    User {
        /// Its texts, the engine's notes, and its files.
        content: Vec<CassettePart>,
    },
    /// The model's.
    Assistant {
        /// Its texts and calls.
        content: Vec<AssistantPart>,
    },
    /// The results of the calls of the message before, in their order.
    Tool {
        /// A result for each call.
        results: Vec<CassetteResult>,
    },
}

/// A part of a user's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CassettePart {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// A note of the engine, such as the time or recalled memory.
    Note {
        /// The text.
        text: String,
    },
    /// An image, a document or audio.
    File {
        /// The file, with its bytes.
        file: ContentBlock,
        /// The text of a document, for models that do not take the file as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AssistantPart {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// A call of a tool.
    ToolUse {
        /// The id of the call, which its result has too.
        id: String,
        /// The tool's name.
        tool: String,
        /// The input.
        input: Value,
    },
}

/// The result of an earlier call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CassetteResult {
    /// The id of the call.
    pub id: String,
    /// The result.
    #[serde(flatten)]
    pub result: CallResult,
}

/// A result as the model read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallResult {
    /// The output or the error, with the notes that hooks and the engine added.
    pub text: String,
    /// Whether the call failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// What a person added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached: Vec<CassettePart>,
}

/// An answer of the model, and what followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CassetteStep {
    /// The vendor's name of the model.
    pub model: String,
    /// The text of the answer.
    #[serde(default)]
    pub text: String,
    /// Its tool calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CassetteCall>,
    /// The tokens that it used.
    #[serde(default)]
    pub usage: CassetteUsage,
    /// What the user sent meanwhile; the model received it with the results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steered: Vec<String>,
}

/// The tokens of model calls, and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CassetteUsage {
    /// The tokens of the prompts.
    #[serde(default)]
    pub input_tokens: u64,
    /// The tokens of the answers.
    #[serde(default)]
    pub output_tokens: u64,
    /// The cost in US dollars; null if the price of any call is unknown.
    #[serde(default)]
    pub cost_usd: Option<f64>,
}

/// A recorded tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CassetteCall {
    /// The tool's name.
    pub tool: String,
    /// The input that the model gave.
    pub input: Value,
    /// The input that ran instead, if a person or a hook has changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_input: Option<Value>,
    /// The result. For `run_agent` it is the answer of the sub-agent; what that did itself is not recorded.
    pub result: CallResult,
    /// How long the tool took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// What a person was asked about it, and what they answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub person: Vec<PersonAnswer>,
}

/// What a person was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PersonAnswer {
    /// Whether they were asked for an approval or by the tool.
    pub kind: HitlKind,
    /// The question.
    pub question: String,
    /// The answer; null if there was none.
    pub answer: Option<String>,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CassetteOutcome {
    /// `completed`, `failed` or `cancelled`.
    pub state: TurnState,
    /// Why a completed turn ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The text of the last answer.
    #[serde(default)]
    pub text: String,
    /// Why the turn failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A rule for the run of a cassette.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Expectation {
    /// The final text contains this text.
    Contains {
        /// The text.
        text: RuleText,
    },
    /// The final text does not contain this text.
    Lacks {
        /// The text.
        text: RuleText,
    },
    /// A regular expression matches somewhere in the final text.
    Matches {
        /// The expression.
        pattern: RuleText,
    },
    /// The final text is JSON and equal to this value.
    JsonEquals {
        /// The value.
        value: Value,
    },
    /// The tool is called.
    Calls {
        /// The tool's name.
        tool: RuleText,
    },
    /// The tool is not called.
    NeverCalls {
        /// The tool's name.
        tool: RuleText,
    },
}

/// A text of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct RuleText(String);

impl RuleText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RuleText {
    type Error = InvalidOption;

    fn try_from(text: String) -> Result<Self, InvalidOption> {
        if text.is_empty() || text.len() > MAX_RULE_BYTES {
            return Err(InvalidOption::new(format!("a text of 1 to {MAX_RULE_BYTES} bytes")));
        }
        Ok(Self(text))
    }
}

impl utoipa::PartialSchema for RuleText {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .min_length(Some(1))
            .max_length(Some(MAX_RULE_BYTES))
            .into()
    }
}

impl ToSchema for RuleText {
    fn name() -> Cow<'static, str> {
        "RuleText".into()
    }
}

/// What says whether a document is a cassette that this version can read. Whatever it holds is not taken in.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    format: Option<&'a RawValue>,
    #[serde(borrow, default)]
    version: Option<&'a RawValue>,
}

impl Head<'_> {
    fn is_cassette(&self) -> bool {
        let format = self.format.map(RawValue::get).filter(|format| format.len() <= MAX_HEAD_BYTES);
        let format = format.and_then(|format| serde_json::from_str::<String>(format).ok());
        format.is_some_and(|format| format == CASSETTE_FORMAT)
    }

    /// The version as it is written.
    fn version(&self) -> &str {
        self.version.map_or("null", RawValue::get)
    }
}

impl Serialize for Cassette {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Cassette {
    /// The format and the version are read first, so that the message about another version does not name a field
    /// that this version misses.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let document = Box::<RawValue>::deserialize(deserializer)?;
        Self::parse(document.get()).map_err(|reason| D::Error::custom(InvalidOption::new(reason)))
    }
}

impl Cassette {
    /// Parses a cassette. The error says what it must be.
    fn parse(document: &str) -> Result<Self, String> {
        if document.len() > MAX_CASSETTE_BYTES {
            return Err(format!("at most {MAX_CASSETTE_BYTES} bytes of JSON"));
        }
        let cause = |error: serde_json::Error| format!("a cassette: {error} of the cassette");
        let head: Head<'_> = serde_json::from_str(document).map_err(cause)?;
        if !head.is_cassette() {
            return Err(format!("a cassette: its `format` must be `{CASSETTE_FORMAT}`"));
        }
        if head.version().parse() != Ok(CASSETTE_VERSION) {
            let version: String = head.version().chars().take(MAX_HEAD_BYTES).collect();
            return Err(format!(
                "a cassette of version {CASSETTE_VERSION}; its `version` is {version}: export it again, or use \
                 an engine of the version that wrote it"
            ));
        }
        let mut deserializer = serde_json::Deserializer::from_str(document);
        let cassette = Self::deserialize(&mut deserializer).map_err(cause)?;
        cassette.check_counts()?;
        Ok(cassette)
    }

    fn check_counts(&self) -> Result<(), String> {
        let calls = self.steps.iter().map(|step| step.calls.len()).sum();
        let tools = self.prompt.tools.len().saturating_add(self.prompt.searchable_tools.len());
        let counts = [
            ("`steps`", self.steps.len(), MAX_STEPS),
            ("`calls`", calls, MAX_CALLS),
            ("`prompt.tools`", tools, MAX_TOOLS),
            ("`expect`", self.expect.len(), MAX_EXPECTATIONS),
        ];
        match counts.into_iter().find(|(_, count, max)| count > max) {
            Some((field, count, max)) => {
                Err(format!("a cassette with at most {max} {field}; it has {count}"))
            }
            None if self.prompt.messages.is_empty() => Err("a cassette with `prompt.messages`".to_owned()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/cassettes.rs"]
mod tests;
