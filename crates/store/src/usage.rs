//! Token usage of model calls, stored in the transaction that stores the step, so that no budget misses a recorded
//! call. It is kept for a day, even if the task is deleted.

use std::time::Duration;

use api::Timestamp;
use api::usage::UsagePurpose;
use llm::TokenUsage;
use rusqlite::{Connection, Error, Row, params};

use super::steps::Step;
use super::{Brain, StoreError, TaskRow, WriteTx};

/// How long usage is kept: the longest period of a budget.
pub const USAGE_RETENTION: Duration = Duration::from_hours(24);

/// The usage of all calls of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelUsage {
    /// The provider's name of the model.
    pub model: String,
    /// The number of calls.
    pub calls: u64,
    /// The tokens used. `reasoning`, which is part of the output, is not stored.
    pub tokens: TokenUsage,
}

/// The usage of a model call, and what it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct CallUsage {
    /// The provider's name of the model.
    pub model: String,
    /// The tokens used; none if the call is not billed.
    pub tokens: TokenUsage,
    /// The cost in US dollars, if the prices of the model are known.
    pub cost_usd: Option<f64>,
    /// Whether the call gave no answer.
    pub is_failure: bool,
    /// What the model was called for.
    pub purpose: UsagePurpose,
    /// The task, if it was called for one.
    pub task: Option<TaskRow>,
    /// The sub-agent, if it was called for one.
    pub agent: Option<String>,
}

/// The model and the usage of a step that is a model call.
fn step_usage(step: &Step) -> Option<(&str, &TokenUsage)> {
    match step {
        Step::Answered { model, answer, .. } => Some((model, &answer.usage)),
        Step::Spent { model, tokens, .. } => Some((model, tokens)),
        Step::Delegated { did, .. } => step_usage(did),
        _ => None,
    }
}

impl WriteTx<'_> {
    /// Stores the usage of `step`, and deletes usage that no budget needs any more.
    pub(super) fn insert_step_usage(&self, at: Timestamp, step: &Step) -> Result<(), StoreError> {
        match step_usage(step) {
            Some((model, tokens)) => self.insert_usage_row(at, model, tokens),
            None => Ok(()),
        }
    }

    /// Stores the usage of a call that is not a step of a turn.
    pub fn insert_call_usage(&self, at: Timestamp, call: &CallUsage) -> Result<(), StoreError> {
        self.count_call(at, call)?;
        // A call that is not billed takes nothing of any budget.
        if call.tokens == TokenUsage::default() {
            return Ok(());
        }
        self.insert_usage_row(at, &call.model, &call.tokens)
    }

    fn insert_usage_row(&self, at: Timestamp, model: &str, tokens: &TokenUsage) -> Result<(), StoreError> {
        let retention_ms = i64::try_from(USAGE_RETENTION.as_millis()).unwrap_or(i64::MAX);
        self.execute("DELETE FROM spending WHERE at <= ?1", [at.unix_ms().saturating_sub(retention_ms)])?;
        self.execute(
            "INSERT INTO spending (at, model, input, output, cache_read, cache_write) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                at.unix_ms(),
                model,
                clamped_count(tokens.input),
                clamped_count(tokens.output),
                clamped_count(tokens.cache_read),
                clamped_count(tokens.cache_write)
            ],
        )
    }
}

impl Brain {
    /// The number of input and output tokens used by model calls of all tasks after `at`; at most the last day
    /// counts.
    pub fn tokens_since(&self, at: Timestamp) -> Result<u64, StoreError> {
        self.read(|reader| tokens_since(reader, at))
    }

    /// The time of the first recorded model call after `at`; at most the last day counts.
    pub fn first_usage_at(&self, at: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.read(|reader| first_usage_at(reader, at))
    }

    /// The usage of model calls after `at`, by model; at most the last day counts. Blocks.
    pub fn usage_since(&self, at: Timestamp) -> Result<Vec<ModelUsage>, StoreError> {
        self.read_long(|reader| usage_since(reader, at))
    }
}

/// Converts a count for SQLite. Providers are trusted, but not to the point where sums overflow.
pub(super) fn clamped_count(count: u64) -> i64 {
    const MAX_COUNT: u64 = 1 << 40;
    i64::try_from(count.min(MAX_COUNT)).unwrap_or(i64::MAX)
}

fn count_column(row: &Row<'_>, column: usize) -> Result<u64, Error> {
    row.get::<_, i64>(column).map(|count| u64::try_from(count).unwrap_or(0))
}

/// The range of times to consider: no budget covers more than a day, and a later time was recorded by a clock that
/// has been set back since.
fn time_bounds(after: Timestamp) -> [i64; 2] {
    let day_and_hour = Duration::from_hours(25);
    let max_span_ms = i64::try_from(day_and_hour.as_millis()).unwrap_or(i64::MAX);
    [after.unix_ms(), after.unix_ms().saturating_add(max_span_ms)]
}

/// The input and output tokens of the calls after `at`.
fn tokens_since(reader: &Connection, at: Timestamp) -> Result<u64, Error> {
    let mut query = reader
        .prepare_cached("SELECT COALESCE(SUM(input + output), 0) FROM spending WHERE at > ?1 AND at <= ?2")?;
    query.query_row(time_bounds(at), |row| count_column(row, 0))
}

/// The time of the first call after `at`.
fn first_usage_at(reader: &Connection, at: Timestamp) -> Result<Option<Timestamp>, Error> {
    let mut query = reader.prepare_cached("SELECT MIN(at) FROM spending WHERE at > ?1 AND at <= ?2")?;
    let first: Option<i64> = query.query_row(time_bounds(at), |row| row.get(0))?;
    Ok(first.map(Timestamp::from_unix_ms))
}

/// The usage of the calls after `at`, by model.
fn usage_since(reader: &Connection, at: Timestamp) -> Result<Vec<ModelUsage>, Error> {
    let mut query = reader.prepare(
        "SELECT model, COUNT(*), SUM(input), SUM(output), SUM(cache_read), SUM(cache_write)
         FROM spending WHERE at > ?1 AND at <= ?2 GROUP BY model ORDER BY model",
    )?;
    let rows = query.query_map(time_bounds(at), |row| {
        let tokens = TokenUsage {
            estimated: false,
            input: count_column(row, 2)?,
            output: count_column(row, 3)?,
            cache_read: count_column(row, 4)?,
            cache_write: count_column(row, 5)?,
            reasoning: 0,
        };
        Ok(ModelUsage { model: row.get(0)?, calls: count_column(row, 1)?, tokens })
    })?;
    rows.collect()
}

#[cfg(test)]
#[path = "../tests/unit/usage.rs"]
mod tests;
