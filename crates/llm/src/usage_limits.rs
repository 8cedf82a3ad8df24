//! Caps on what an agent may use, as the operator and the product set them.

/// The most that an agent may use. An absent cap is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UsageLimits {
    /// The tokens of a day in UTC.
    pub tokens_per_day: Option<u64>,
    /// The tokens of a task.
    pub tokens_per_task: Option<u64>,
    /// The US dollars of a day in UTC.
    pub usd_per_day: Option<f64>,
    /// The US dollars of a task.
    pub usd_per_task: Option<f64>,
}

impl UsageLimits {
    /// What a cap in tokens must be, for a person.
    pub const EXPECTED_TOKENS: &str =
        "a whole number of tokens from 1 to 9007199254740992, or absent for no cap";
    /// What a cap in US dollars must be, for a person.
    pub const EXPECTED_USD: &str = "US dollars from 0.000001 to 1000000, or absent for no cap";

    /// Whether a cap in tokens is valid. Every JSON reader, and SQLite, represents the largest one exactly.
    pub fn is_valid_tokens(tokens: &u64) -> bool {
        (1..=1 << 53).contains(tokens)
    }

    /// Whether a cap in US dollars is valid.
    pub fn is_valid_usd(usd: &f64) -> bool {
        (0.000_001..=1_000_000.0).contains(usd)
    }

    /// The lower one of each cap.
    #[must_use]
    pub fn lowest(self, other: Self) -> Self {
        let usd = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::min);
        let tokens = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            tokens_per_day: tokens(self.tokens_per_day, other.tokens_per_day),
            tokens_per_task: tokens(self.tokens_per_task, other.tokens_per_task),
            usd_per_day: usd(self.usd_per_day, other.usd_per_day),
            usd_per_task: usd(self.usd_per_task, other.usd_per_task),
        }
    }
}
