//! The request to run a cassette again.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Cassette;
use crate::serde_helpers::BoundedInt;
use crate::text::{TextRule, ValidatedText};
use crate::turn_options::{Effort, Instructions, MaxTokens};

/// The rules of the texts of a run.
pub mod rule {
    use super::TextRule;

    /// A system prompt.
    pub enum SoulText {}

    impl TextRule for SoulText {
        const NAME: &'static str = "SoulText";
        const EXPECTED: &'static str = "1 to 262,144 bytes of UTF-8, not all of them blank";
        const MAX_BYTES: usize = 256 * 1024;
        fn is_valid(text: &str) -> bool {
            !text.trim().is_empty()
        }
    }
}

/// A system prompt: 1 to 262,144 bytes, not blank.
pub type SoulText = ValidatedText<rule::SoulText>;

/// Body of `POST /cassettes/run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunCassette {
    /// The cassette.
    pub cassette: Cassette,
    /// What is different from the recorded turn.
    #[serde(default)]
    pub with: ReplayWith,
}

/// What a run takes instead of what was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayWith {
    /// The name of a configured model. Without it: the model of the cassette if it is configured, else the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much the model thinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Another system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soul: Option<SoulText>,
    /// Instructions beside the user's last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Instructions>,
    /// Whether the soul and the tools are those that this engine's catalog has now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub catalog: bool,
    /// An agent of the catalog whose prompt and tools, and whose model if it has one, are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The most model calls; by default as many as the turn had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<BoundedInt<1, 100>>,
    /// The most tokens, input and output; 1,000,000 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<MaxTokens>,
}
