//! What engines have used by day in UTC, as the orchestrator collects it and as products and operators read it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::BoundedInt;
use crate::text::{DisplayName, Slug};
use crate::usage::Day;
use crate::{EngineId, ProductId, UserId};

/// The most days that one report of an engine has.
pub const MAX_DAYS_PER_REPORT: usize = 100;

/// The upper bounds, in seconds, by which turns are counted in [`FirstDeltas`]; longer ones are counted after the last.
pub const FIRST_DELTA_BOUNDS_S: [f64; 9] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// The turns of one engine and day by the time from their beginning until their first text, for a histogram. A turn that
/// was resumed before it had any is not among them, nor is one that ends without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FirstDeltas {
    /// The turns by time: the first number counts those of at most 0.1 s, the next ones those of more, up to 0.25, 0.5,
    /// 1, 2.5, 5, 10, 30 and 60 s, and the last one those of more than that.
    pub turns: [u64; FIRST_DELTA_BOUNDS_S.len() + 1],
    /// The sum of the times in milliseconds.
    pub total_ms: u64,
}

impl FirstDeltas {
    /// Which of the numbers counts a turn of this time.
    pub fn bucket_of(time: Duration) -> usize {
        FIRST_DELTA_BOUNDS_S.partition_point(|bound| *bound < time.as_secs_f64())
    }

    fn zip_with(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let mut turns = self.turns;
        for (count, other) in turns.iter_mut().zip(other.turns) {
            *count = combine(*count, other);
        }
        Self { turns, total_ms: combine(self.total_ms, other.total_ms) }
    }
}

/// The counts of one engine and day. Each only grows while the day is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageCounts {
    /// The turns that have ended.
    pub turns: u64,
    /// The calls of models, failed ones included.
    pub calls: u64,
    /// The calls that gave no answer.
    pub failed_calls: u64,
    /// All prompt tokens, including cached ones.
    pub input_tokens: u64,
    /// All output tokens, including reasoning.
    pub output_tokens: u64,
    /// Prompt tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// The cost of the calls whose price is known, in billionths of a US dollar.
    pub cost_nano_usd: u64,
    /// The calls whose price is not known.
    pub unpriced_calls: u64,
    /// The tool calls of the model that have run.
    pub tool_calls: u64,
    /// The turns by the time until their first text. Versions that do not measure it leave it out.
    #[serde(default)]
    pub first_deltas: FirstDeltas,
}

impl UsageCounts {
    /// Combines each count with the same one of `other`.
    #[must_use]
    pub fn zip_with(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            turns: combine(self.turns, other.turns),
            calls: combine(self.calls, other.calls),
            failed_calls: combine(self.failed_calls, other.failed_calls),
            input_tokens: combine(self.input_tokens, other.input_tokens),
            output_tokens: combine(self.output_tokens, other.output_tokens),
            cache_read_tokens: combine(self.cache_read_tokens, other.cache_read_tokens),
            cost_nano_usd: combine(self.cost_nano_usd, other.cost_nano_usd),
            unpriced_calls: combine(self.unpriced_calls, other.unpriced_calls),
            tool_calls: combine(self.tool_calls, other.tool_calls),
            first_deltas: self.first_deltas.zip_with(other.first_deltas, combine),
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip_with(other, u64::saturating_add)
    }
}

/// What an engine has used on one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageOfDay {
    /// The day in UTC.
    pub day: Day,
    /// What was used.
    pub counts: UsageCounts,
}

/// Result of the telemetry operation `usage_days`: what the engine itself has used, unlike `GET /usage` without what it
/// has imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageDays {
    /// The days from `from` on, oldest first: at most 100.
    pub days: Vec<UsageOfDay>,
}

/// Query of `GET /usage` and `GET /fleet/usage`, which group by different things.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReadUsage<Group: Default> {
    /// The first day in UTC; by default 29 days before the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Day>,
    /// The last day in UTC; by default today.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Day>,
    /// What the rows are grouped by; `day` by default.
    #[serde(default)]
    pub group_by: Group,
    /// The maximum number of rows; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 500>>,
    /// The `next` of the page before; by default the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// What the rows of `GET /usage` are grouped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProductUsageGroup {
    /// The day.
    #[default]
    Day,
    /// The engine, and thus the user.
    Engine,
}

/// What the rows of `GET /fleet/usage` are grouped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FleetUsageGroup {
    /// The day.
    #[default]
    Day,
    /// The product.
    Product,
}

/// The admits by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdmitCounts {
    /// Those that were answered with a running engine.
    pub admitted: u64,
    /// Those that were answered with a reason why there is no running engine.
    pub denied: u64,
    /// Those that a rule refused, such as a rate limit or a quota.
    pub refused: u64,
    /// Those that failed because of the orchestrator, its registry or its backend.
    pub failed: u64,
}

/// What engines have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageSums {
    /// The turns that have ended.
    pub turns: u64,
    /// The calls of models, failed ones included.
    pub calls: u64,
    /// The calls that gave no answer.
    pub failed_calls: u64,
    /// All prompt tokens, including cached ones.
    pub input_tokens: u64,
    /// All output tokens, including reasoning.
    pub output_tokens: u64,
    /// Prompt tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// The cost in US dollars of the calls whose price is known.
    pub cost_usd: f64,
    /// The calls whose price is not known, which `cost_usd` lacks.
    pub unpriced_calls: u64,
    /// The tool calls of the model that have run.
    pub tool_calls: u64,
}

impl From<UsageCounts> for UsageSums {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a double counts billionths of up to nine million dollars"
    )]
    fn from(counts: UsageCounts) -> Self {
        Self {
            turns: counts.turns,
            calls: counts.calls,
            failed_calls: counts.failed_calls,
            input_tokens: counts.input_tokens,
            output_tokens: counts.output_tokens,
            cache_read_tokens: counts.cache_read_tokens,
            cost_usd: counts.cost_nano_usd as f64 / 1e9,
            unpriced_calls: counts.unpriced_calls,
            tool_calls: counts.tool_calls,
        }
    }
}

/// A group of `GET /usage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProductUsageRow {
    /// The day; with `group_by=day`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<Day>,
    /// The engine; with `group_by=engine`. Null for the sum of all engines that were deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub engine_id: Option<Option<EngineId>>,
    /// The engine's user; with `group_by=engine`. Null for the sum of all engines that were deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub user_id: Option<Option<UserId>>,
    /// The engines that have used something that day; with `group_by=day`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_engines: Option<u64>,
    /// The admits; with `group_by=day`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admits: Option<AdmitCounts>,
    /// What was used.
    pub usage: UsageSums,
}

/// Response of `GET /usage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProductUsage {
    /// The first day.
    pub from: Day,
    /// The last day.
    pub to: Day,
    /// The rows, ordered by day or by engine.
    pub rows: Vec<ProductUsageRow>,
    /// The sum of all rows, those of other pages included.
    pub total: UsageSums,
    /// All admits of these days.
    pub total_admits: AdmitCounts,
    /// The `after` of the next page; null on the last one.
    pub next: Option<String>,
}

/// A group of `GET /fleet/usage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetUsageRow {
    /// The day; with `group_by=day`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<Day>,
    /// The product; with `group_by=product`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_id: Option<ProductId>,
    /// The product's slug; with `group_by=product`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slug: Option<Slug>,
    /// The product's name for people; with `group_by=product`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<DisplayName>,
    /// The engines that have used something that day; with `group_by=day`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_engines: Option<u64>,
    /// The admits.
    pub admits: AdmitCounts,
    /// What was used.
    pub usage: UsageSums,
}

/// Response of `GET /fleet/usage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetUsage {
    /// The first day.
    pub from: Day,
    /// The last day.
    pub to: Day,
    /// The rows, ordered by day or by product.
    pub rows: Vec<FleetUsageRow>,
    /// The sum of all rows, those of other pages included.
    pub total: UsageSums,
    /// All admits of these days.
    pub total_admits: AdmitCounts,
    /// The `after` of the next page; null on the last one.
    pub next: Option<String>,
}
