//! What a request may set for its own turn only: the model, the effort, instructions, the tools, budgets,
//! metadata and the form of the answer. What is absent is as it is for every other turn.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

use crate::response_format::ResponseFormat;
use crate::serde_helpers::BoundedInt;
use crate::text::{TextRule, ValidatedText};

/// The maximum number of entries of `allowed_tools`.
pub const MAX_ALLOWED_TOOLS: usize = 128;
/// The maximum number of entries of `metadata`.
pub const MAX_METADATA_ENTRIES: usize = 16;
/// The maximum length of a key of `metadata`, in characters.
pub const MAX_METADATA_KEY_CHARS: usize = 64;
/// The maximum length of a value of `metadata`, in characters.
pub const MAX_METADATA_VALUE_CHARS: usize = 512;

/// The rules of the texts that a request sets for its turn.
pub mod rule {
    use super::TextRule;

    /// Instructions for one turn.
    pub enum Instructions {}
    /// A tool's name, or a pattern of names.
    pub enum ToolPattern {}

    impl TextRule for Instructions {
        const NAME: &'static str = "TurnInstructions";
        const EXPECTED: &'static str = "1 to 16,384 bytes of UTF-8, not all of them blank";
        const MAX_BYTES: usize = 16 * 1024;
        fn is_valid(text: &str) -> bool {
            !text.trim().is_empty()
        }
    }

    impl TextRule for ToolPattern {
        const NAME: &'static str = "ToolPattern";
        const EXPECTED: &'static str =
            "a tool's name, or a pattern in which `*` stands for any characters: 1 to 256 bytes";
        const MAX_BYTES: usize = 256;
        fn is_valid(text: &str) -> bool {
            !text.chars().any(char::is_control)
        }
    }
}

/// Instructions for one turn: 1 to 16,384 bytes, not blank.
pub type Instructions = ValidatedText<rule::Instructions>;
/// A tool's name, or a pattern in which `*` stands for any characters.
pub type ToolPattern = ValidatedText<rule::ToolPattern>;

/// The most output tokens of a turn: at least as many as one answer needs.
pub type MaxOutputTokens = BoundedInt<256, { i64::MAX }>;
/// The most tokens of a turn, input and output.
pub type MaxTokens = BoundedInt<1, { i64::MAX }>;

/// How much a model is to think before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// Low effort.
    Low,
    /// Medium effort, the usual one.
    Medium,
    /// High effort.
    High,
    /// More than high effort.
    Xhigh,
    /// The maximum effort.
    Max,
}

/// What a request sets for its own turn, beyond the fields that every request has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TurnOverrides {
    /// The name of the model that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much the model thinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Instructions beside the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Instructions>,
    /// The only tools that may be called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<AllowedTools>,
    /// The most output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<MaxOutputTokens>,
    /// The most tokens, input and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<MaxTokens>,
    /// The most that the turn may cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<MaxCost>,
    /// The caller's own data about the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The form of the final answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
}

impl TurnOverrides {
    /// Whether the request set nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The error for an option that is out of bounds.
#[derive(Debug, thiserror::Error)]
#[error("must be {0}")]
pub struct InvalidOption(String);

impl InvalidOption {
    pub(crate) fn new(expected: impl Into<String>) -> Self {
        Self(expected.into())
    }
}

/// A list of tools' names and patterns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<ToolPattern>")]
pub struct AllowedTools(Vec<ToolPattern>);

impl AllowedTools {
    /// The names and patterns.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(ToolPattern::as_str)
    }

    /// Whether no tool is allowed.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<Vec<ToolPattern>> for AllowedTools {
    type Error = InvalidOption;

    fn try_from(patterns: Vec<ToolPattern>) -> Result<Self, InvalidOption> {
        if patterns.len() > MAX_ALLOWED_TOOLS {
            return Err(InvalidOption(format!("at most {MAX_ALLOWED_TOOLS} names and patterns")));
        }
        Ok(Self(patterns))
    }
}

impl utoipa::PartialSchema for AllowedTools {
    fn schema() -> RefOr<Schema> {
        utoipa::openapi::ArrayBuilder::new()
            .items(ToolPattern::schema())
            .max_items(Some(MAX_ALLOWED_TOOLS))
            .into()
    }
}

impl ToSchema for AllowedTools {
    fn name() -> Cow<'static, str> {
        "AllowedTools".into()
    }
}

/// An amount of US dollars above zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64")]
pub struct MaxCost(f64);

impl MaxCost {
    /// The amount.
    pub const fn usd(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for MaxCost {
    type Error = InvalidOption;

    fn try_from(usd: f64) -> Result<Self, InvalidOption> {
        if usd.is_finite() && usd > 0.0 {
            Ok(Self(usd))
        } else {
            Err(InvalidOption("a number of US dollars above 0".into()))
        }
    }
}

impl utoipa::PartialSchema for MaxCost {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::Number)
            .description(Some("A number of US dollars above 0."))
            .into()
    }
}

impl ToSchema for MaxCost {
    fn name() -> Cow<'static, str> {
        "MaxCost".into()
    }
}

/// The caller's own data about a turn: a small object of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Metadata(BTreeMap<String, String>);

impl TryFrom<BTreeMap<String, String>> for Metadata {
    type Error = InvalidOption;

    fn try_from(entries: BTreeMap<String, String>) -> Result<Self, InvalidOption> {
        if entries.len() > MAX_METADATA_ENTRIES {
            return Err(InvalidOption(format!("an object with at most {MAX_METADATA_ENTRIES} entries")));
        }
        let fits = |text: &str, max: usize| text.chars().nth(max).is_none();
        for (key, value) in &entries {
            if key.is_empty() || !fits(key, MAX_METADATA_KEY_CHARS) {
                return Err(InvalidOption(format!(
                    "an object whose keys have 1 to {MAX_METADATA_KEY_CHARS} characters"
                )));
            }
            if !fits(value, MAX_METADATA_VALUE_CHARS) {
                return Err(InvalidOption(format!(
                    "an object whose values have at most {MAX_METADATA_VALUE_CHARS} characters"
                )));
            }
        }
        Ok(Self(entries))
    }
}

impl utoipa::PartialSchema for Metadata {
    fn schema() -> RefOr<Schema> {
        let value = ObjectBuilder::new().schema_type(Type::String).max_length(Some(MAX_METADATA_VALUE_CHARS));
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .additional_properties(Some(AdditionalProperties::from(Schema::from(value.build()))))
            .max_properties(Some(MAX_METADATA_ENTRIES))
            .into()
    }
}

impl ToSchema for Metadata {
    fn name() -> Cow<'static, str> {
        "Metadata".into()
    }
}

#[cfg(test)]
#[path = "../tests/unit/turn_options.rs"]
mod tests;
