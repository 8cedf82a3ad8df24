//! The properties of a model that a provider's protocol depends on, apart from its address.

use serde::{Deserialize, Serialize};

/// A model's properties, as the protocols need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelProfile {
    /// The vendor's name of the model.
    pub(super) model: String,
    /// The context window in tokens, including the answer.
    pub(super) context_window: u64,
    /// The output limit in tokens.
    pub(super) max_output: u64,
    /// How the model is asked to think.
    pub(super) thinking: Thinking,
}

/// How a model is asked to think before it answers, if it is to think at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// No request: the model cannot think, or decides for itself.
    Off,
    /// A budget of this many tokens.
    Budget(u64),
    /// The model decides how much to think, guided by this effort.
    Adaptive(Effort),
    /// A fixed effort.
    Effort(Effort),
}

/// The reasoning effort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Effort {
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

#[cfg(test)]
impl ModelProfile {
    /// A model for tests, with a thinking budget.
    pub(super) fn for_tests(model: &str) -> Self {
        let thinking = Thinking::Budget(16_000);
        Self { model: model.to_owned(), context_window: 200_000, max_output: 32_000, thinking }
    }
}
