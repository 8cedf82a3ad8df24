//! What model calls and tools have used, summed up by quarter of an hour, task, model, agent and purpose. A row grows
//! in the transaction that stores the result of the call, so each call counts once, whenever the engine is killed.

use api::Timestamp;
use api::usage::UsagePurpose;
use llm::TokenUsage;
use rusqlite::{OptionalExtension as _, params};

use super::usage::{CallUsage, clamped_count};
use super::{Brain, StoreError, TaskRow, WriteTx};

/// The length of a quarter of an hour.
pub(super) const QUARTER_MS: i64 = 15 * 60 * 1000;
/// The quarters of a day.
pub(super) const QUARTERS_PER_DAY: i64 = 96;
/// The most rows that one commit of maintenance removes.
const MAX_REMOVED_ROWS: i64 = 5_000;
/// The most nanodollars that one call can cost: a million dollars.
const MAX_COST_NANO_USD: i64 = 1_000_000_000_000_000;

/// The use of a tool by a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolUsage {
    /// The provider's name of the model that called it.
    pub model: String,
    /// The sub-agent that called it, if it was none of the user's own agent.
    pub agent: Option<String>,
    /// The tool.
    pub tool: String,
    /// Whether it failed.
    pub is_failure: bool,
    /// How long it took.
    pub time_ms: u64,
}

/// The quarter of an hour since 1970 in which a time is.
pub(super) fn quarter_of(at: Timestamp) -> i64 {
    at.unix_ms().max(0) / QUARTER_MS
}

/// The columns that say what a row counts, and those that it sums up.
pub(super) const KEY_COLUMNS: &str = "quarter, task, model, agent, purpose, tool";
pub(super) const SUM_COLUMNS: &str =
    "calls, failed, input, output, cache_read, cache_write, reasoning, cost, unpriced, time_ms";
/// Adds a row to the one with the same key.
const ADD: &str = "ON CONFLICT DO UPDATE SET
    calls = calls + excluded.calls, failed = failed + excluded.failed, input = input + excluded.input,
    output = output + excluded.output, cache_read = cache_read + excluded.cache_read,
    cache_write = cache_write + excluded.cache_write, reasoning = reasoning + excluded.reasoning,
    cost = cost + excluded.cost, unpriced = unpriced + excluded.unpriced, time_ms = time_ms + excluded.time_ms";

impl WriteTx<'_> {
    /// Counts a call of a model.
    pub fn count_call(&self, at: Timestamp, call: &CallUsage) -> Result<(), StoreError> {
        let CallUsage { model, tokens, cost_usd, is_failure, purpose, task, agent } = call;
        let is_billed = *tokens != TokenUsage::default();
        let cost = cost_usd.map_or(0, nano_usd);
        self.add_cap_use(at, *task, clamped_count(tokens.input) + clamped_count(tokens.output), cost)?;
        self.count_call_of_day(at, call, cost)?;
        let sql = format!(
            "INSERT INTO usage ({KEY_COLUMNS}, {SUM_COLUMNS})
             VALUES (?1, COALESCE((SELECT task FROM tasks WHERE task = ?2), 0), ?3, ?4, ?5, '',
                     1, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 0) {ADD}"
        );
        self.execute(
            &sql,
            params![
                quarter_of(at),
                task.map(|TaskRow(task)| task),
                model,
                agent.as_deref().unwrap_or_default(),
                purpose.as_str(),
                is_failure,
                clamped_count(tokens.input),
                clamped_count(tokens.output),
                clamped_count(tokens.cache_read),
                clamped_count(tokens.cache_write),
                clamped_count(tokens.reasoning),
                cost,
                is_billed && cost_usd.is_none(),
            ],
        )
    }

    /// Counts the use of a tool in a turn of a task.
    pub fn count_tool(
        &self,
        TaskRow(task): TaskRow,
        at: Timestamp,
        usage: &ToolUsage,
    ) -> Result<(), StoreError> {
        let ToolUsage { model, agent, tool, is_failure, time_ms } = usage;
        self.count_tool_of_day(at)?;
        let sql = format!(
            "INSERT INTO usage ({KEY_COLUMNS}, {SUM_COLUMNS})
             VALUES (?1, COALESCE((SELECT task FROM tasks WHERE task = ?2), 0), ?3, ?4, ?5, ?6,
                     1, ?7, 0, 0, 0, 0, 0, 0, 0, ?8) {ADD}"
        );
        self.execute(
            &sql,
            params![
                quarter_of(at),
                task,
                model,
                agent.as_deref().unwrap_or_default(),
                UsagePurpose::Turn.as_str(),
                tool,
                is_failure,
                clamped_count(*time_ms),
            ],
        )
    }

    /// Removes some of the rows that end at or before `before`, and combines the oldest ones while there are more than
    /// `max_rows`. Returns whether more is left to do.
    pub fn trim_usage(&self, before: Timestamp, now: Timestamp, max_rows: i64) -> Result<bool, StoreError> {
        let end: Option<i64> = self
            .transaction
            .prepare_cached(
                "SELECT quarter FROM usage WHERE quarter < ?1 ORDER BY quarter LIMIT 1 OFFSET ?2",
            )?
            .query_row(params![quarter_of(before), MAX_REMOVED_ROWS], |row| row.get(0))
            .optional()?;
        // All rows of a quarter go together.
        let end = end.map_or(quarter_of(before), |quarter| (quarter + 1).min(quarter_of(before)));
        let removed =
            self.transaction.prepare_cached("DELETE FROM usage WHERE quarter < ?1")?.execute([end])?;
        if removed > 0 && end < quarter_of(before) {
            return Ok(true);
        }
        let has_too_many = "SELECT EXISTS (SELECT 1 FROM usage LIMIT 1 OFFSET ?1)";
        let has_too_many: bool = self.transaction.query_row(has_too_many, [max_rows], |row| row.get(0))?;
        if has_too_many { self.combine_oldest_day(now) } else { Ok(false) }
    }

    /// Combines the rows of the oldest day that has several of a kind: they lose their tasks and their times of the
    /// day. If there is none, the oldest day is removed. Returns whether there was one before yesterday.
    fn combine_oldest_day(&self, now: Timestamp) -> Result<bool, StoreError> {
        let yesterday = day_of(now) - 1;
        let oldest = |condition: &str| -> Result<Option<i64>, StoreError> {
            let sql = format!("SELECT MIN(quarter) FROM usage WHERE quarter < ?1 AND {condition}");
            let limit = yesterday * QUARTERS_PER_DAY;
            let quarter: Option<i64> = self.transaction.query_row(&sql, [limit], |row| row.get(0))?;
            Ok(quarter.map(|quarter| quarter / QUARTERS_PER_DAY * QUARTERS_PER_DAY))
        };
        if let Some(first) = oldest("(task <> 0 OR quarter % 96 <> 0)")? {
            let columns = SUM_COLUMNS.split(", ").map(|column| format!("SUM({column})"));
            let sums = columns.collect::<Vec<_>>().join(", ");
            let end = first + QUARTERS_PER_DAY;
            self.transaction.execute_batch("DROP TABLE IF EXISTS temp.combined_usage")?;
            let sql = format!(
                "CREATE TEMP TABLE combined_usage AS
                 SELECT {first}, 0, model, agent, purpose, tool, {sums} FROM usage
                 WHERE quarter >= {first} AND quarter < {end} GROUP BY model, agent, purpose, tool"
            );
            self.transaction.execute_batch(&sql)?;
            self.execute("DELETE FROM usage WHERE quarter >= ?1 AND quarter < ?2", [first, end])?;
            self.transaction.execute_batch(
                "INSERT INTO usage SELECT * FROM combined_usage; DROP TABLE temp.combined_usage",
            )?;
            return Ok(true);
        }
        let Some(first) = oldest("1")? else { return Ok(false) };
        self.execute("DELETE FROM usage WHERE quarter < ?1", [first + QUARTERS_PER_DAY])?;
        Ok(true)
    }
}

impl Brain {
    /// Whether there is usage from before `before`, or more than `max_rows` rows of it. Blocks.
    pub fn has_usage_to_trim(&self, before: Timestamp, max_rows: i64) -> Result<bool, StoreError> {
        self.read_long(|reader| {
            // Stops at the first row that is too many, and counts nothing beyond.
            let is_due = "SELECT EXISTS (SELECT 1 FROM usage WHERE quarter < ?1)
                          OR EXISTS (SELECT 1 FROM usage LIMIT 1 OFFSET ?2)";
            reader.query_row(is_due, params![quarter_of(before), max_rows], |row| row.get(0))
        })
    }
}

/// The day in UTC since 1970 of a time.
pub(super) fn day_of(at: Timestamp) -> i64 {
    quarter_of(at) / QUARTERS_PER_DAY
}

/// An amount of US dollars in billionths of a dollar.
#[expect(clippy::cast_possible_truncation, reason = "the conversion to an integer saturates")]
pub fn nano_usd(usd: f64) -> i64 {
    ((usd * 1e9).round() as i64).clamp(0, MAX_COST_NANO_USD)
}

/// Billionths of a US dollar in US dollars.
#[expect(clippy::cast_precision_loss, reason = "a double counts billionths of up to a million dollars")]
pub fn usd(nano_usd: i64) -> f64 {
    nano_usd as f64 / 1e9
}

#[cfg(test)]
#[path = "../tests/unit/usage_rows.rs"]
mod tests;
