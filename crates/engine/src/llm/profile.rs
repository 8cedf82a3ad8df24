//! What a provider has to know of the model that it speaks to, beside where it is.

use serde::{Deserialize, Serialize};

/// A model, as a provider's protocol needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelProfile {
    /// The vendor's name of it.
    pub(super) model: String,
    /// How many tokens a conversation with it may have, the answer included.
    pub(super) context_window: u64,
    /// The most tokens that an answer may have.
    pub(super) max_output: u64,
    /// How it is asked to think.
    pub(super) thinking: Thinking,
}

/// How a model is asked to think before it answers, where it is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// It cannot, or decides for itself.
    Off,
    /// It may spend so many tokens.
    Budget(u64),
    /// It decides how much, with this effort in mind.
    Adaptive(Effort),
    /// With this effort.
    Effort(Effort),
}

/// How hard a model is to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Effort {
    /// A little.
    Low,
    /// As much as is usual.
    Medium,
    /// Much.
    High,
    /// More than that.
    Xhigh,
    /// As much as it can.
    Max,
}

#[cfg(test)]
impl ModelProfile {
    /// A model for tests, which thinks within a budget.
    pub(super) fn for_tests(model: &str) -> Self {
        let thinking = Thinking::Budget(16_000);
        Self { model: model.to_owned(), context_window: 200_000, max_output: 32_000, thinking }
    }
}
