//! What the agent has used: tokens, costs and the time of tools, by day, task, model, agent and purpose.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};

use crate::TaskId;
use crate::serde_helpers::BoundedInt;

/// The most tools that one row names.
pub const MAX_TOOLS_PER_ROW: usize = 50;

/// A day of the calendar, written as `2026-11-26`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(Date);

impl Day {
    const EPOCH: Date = jiff::civil::date(1970, 1, 1);

    /// The day `days` days after 1970-01-01; the last day that can be written if it is later.
    pub fn from_unix_days(days: i64) -> Self {
        let span = jiff::Span::new().try_days(days);
        Self(span.and_then(|span| Self::EPOCH.checked_add(span)).unwrap_or(Date::MAX))
    }

    /// The number of days since 1970-01-01.
    pub fn unix_days(self) -> i64 {
        i64::from((self.0 - Self::EPOCH).get_days())
    }
}

/// The error for a text that is no day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a day such as 2026-11-26")]
pub struct NoDay;

impl FromStr for Day {
    type Err = NoDay;

    fn from_str(text: &str) -> Result<Self, NoDay> {
        // Longer forms name a time too, and would be accepted.
        let is_plain = text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        let date = is_plain.then(|| text.parse().ok()).flatten();
        date.filter(|date: &Date| date.year() >= 1970).map(Self).ok_or(NoDay)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Day {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Day {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl utoipa::PartialSchema for Day {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Date)))
            .examples(["2026-11-26"])
            .into()
    }
}

impl ToSchema for Day {
    fn name() -> Cow<'static, str> {
        "Day".into()
    }
}

/// What a model was called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsagePurpose {
    /// An answer of a turn or of its sub-agents.
    Turn,
    /// The plan of a turn.
    Planning,
    /// The summary of a conversation that is too long.
    Compaction,
    /// The title of a conversation.
    Title,
    /// A learning batch.
    Learning,
    /// A skill that was called without a turn.
    Skill,
    /// The run of a cassette.
    Replay,
}

impl UsagePurpose {
    /// All purposes.
    pub const ALL: [Self; 7] = [
        Self::Turn,
        Self::Planning,
        Self::Compaction,
        Self::Title,
        Self::Learning,
        Self::Skill,
        Self::Replay,
    ];

    /// The purpose as the API and the brain write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Planning => "planning",
            Self::Compaction => "compaction",
            Self::Title => "title",
            Self::Learning => "learning",
            Self::Skill => "skill",
            Self::Replay => "replay",
        }
    }
}

/// Query of `GET /usage`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReadUsage {
    /// The first day; by default the first one that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Day>,
    /// The last day; by default today.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Day>,
    /// How far the days are ahead of UTC, in minutes: a multiple of 15. 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc_offset_minutes: Option<BoundedInt<-840, 840>>,
    /// What the rows are grouped by, separated by commas: `day`, `task`, `model`, `agent`, `purpose`. `day` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_by: Option<String>,
    /// Only the usage of this task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The maximum number of rows; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 500>>,
    /// The `next` of the page before; by default the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// What rows are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsageDimension {
    /// The day.
    Day,
    /// The task.
    Task,
    /// The model.
    Model,
    /// The agent.
    Agent,
    /// What the model was called for.
    Purpose,
}

impl UsageDimension {
    /// All dimensions, in the order of the rows.
    pub const ALL: [Self; 5] = [Self::Day, Self::Task, Self::Model, Self::Agent, Self::Purpose];

    /// The name of the dimension on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Task => "task",
            Self::Model => "model",
            Self::Agent => "agent",
            Self::Purpose => "purpose",
        }
    }
}

/// Response of `GET /usage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageReport {
    /// The rows, ordered by day, task, model, agent and purpose.
    pub rows: Vec<UsageRow>,
    /// The sum of all rows, those of other pages included.
    pub total: UsageFigures,
    /// The `after` of the next page; null on the last one.
    pub next: Option<String>,
}

/// The usage of one group. It has the members by which the rows are grouped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageRow {
    /// The day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<Day>,
    /// The task; null for what belongs to none: learning, skills without a turn, tasks that were deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub task_id: Option<Option<TaskId>>,
    /// The vendor's name of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The sub-agent; null for the user's own agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub agent: Option<Option<String>>,
    /// What the model was called for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// What was used.
    pub usage: UsageFigures,
}

/// What was used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageFigures {
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
    /// Prompt tokens written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Output tokens spent on reasoning.
    pub reasoning_tokens: u64,
    /// The part of the prompt tokens that was read from the cache, from 0 to 1; null without prompt tokens.
    pub cache_share: Option<f64>,
    /// The cost in US dollars of the calls whose price is known; null if none is.
    pub cost_usd: Option<f64>,
    /// The calls whose price is not known, which `cost_usd` lacks.
    pub unpriced_calls: u64,
    /// The tool calls of the model that have run.
    pub tool_calls: u64,
    /// How long they took, in milliseconds.
    pub tool_time_ms: u64,
    /// The tools, the one that took longest first; at most 50.
    pub tools: Vec<ToolFigures>,
}

/// The use of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolFigures {
    /// The tool.
    pub tool: String,
    /// The calls.
    pub calls: u64,
    /// The calls that failed.
    pub failed_calls: u64,
    /// How long they took, in milliseconds.
    pub time_ms: u64,
}

/// Response of `GET /tasks/{task_id}/usage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskUsage {
    /// The task.
    pub task_id: TaskId,
    /// What it has used, its sub-agents included.
    pub usage: UsageFigures,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_a_date_and_nothing_else() {
        for text in ["2026-11-26", "1970-01-01", "2024-02-29"] {
            let day: Day = text.parse().unwrap();
            assert_eq!(day.to_string(), text);
            assert_eq!(Day::from_unix_days(day.unix_days()), day);
        }
        assert_eq!("1970-01-02".parse::<Day>().unwrap().unix_days(), 1);
        let wrong = ["", "2026-11-31", "2026-1-1", "20261126", "1969-12-31", "2026-11-26T00", "0000000000"];
        for text in wrong {
            assert_eq!(text.parse::<Day>(), Err(NoDay), "{text}");
        }
        assert_eq!(Day::from_unix_days(i64::MAX).to_string(), "9999-12-31");
    }
}
