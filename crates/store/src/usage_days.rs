//! What this engine has used by day in UTC, which the orchestrator collects. A row grows in the transaction that stores
//! the result of a call or ends a turn, and it counts only what this engine did: nothing that was imported, and nothing
//! of an engine whose brain this was before.

use std::time::Duration;

use api::Timestamp;
use api::usage::Day;
use api::usage_days::{FirstDeltas, UsageCounts, UsageOfDay};
use llm::TokenUsage;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::usage::{CallUsage, clamped_count};
use super::usage_rows::day_of;
use super::{Brain, StoreError, WriteTx};

impl WriteTx<'_> {
    /// Adds a call of a model to its day.
    pub(super) fn count_call_of_day(
        &self,
        at: Timestamp,
        call: &CallUsage,
        cost_nano_usd: i64,
    ) -> Result<(), StoreError> {
        let tokens = &call.tokens;
        let is_unpriced = *tokens != TokenUsage::default() && call.cost_usd.is_none();
        self.execute(
            "INSERT INTO usage_days (day, calls, failed, input, output, cache_read, cost, unpriced)
             VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT DO UPDATE SET
                 calls = calls + 1, failed = failed + excluded.failed, input = input + excluded.input,
                 output = output + excluded.output, cache_read = cache_read + excluded.cache_read,
                 cost = cost + excluded.cost, unpriced = unpriced + excluded.unpriced",
            params![
                day_of(at),
                call.is_failure,
                clamped_count(tokens.input),
                clamped_count(tokens.output),
                clamped_count(tokens.cache_read),
                cost_nano_usd,
                is_unpriced,
            ],
        )
    }

    /// Adds a tool call to its day.
    pub(super) fn count_tool_of_day(&self, at: Timestamp) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO usage_days (day, tool_calls) VALUES (?1, 1)
             ON CONFLICT DO UPDATE SET tool_calls = tool_calls + 1",
            [day_of(at)],
        )
    }

    /// Adds a turn that has its first text to its day, on which something was counted before.
    pub(super) fn count_first_delta_of_day(&self, at: Timestamp, time: Duration) -> Result<(), StoreError> {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let bucket = i64::try_from(FirstDeltas::bucket_of(time)).unwrap_or(i64::MAX);
        self.execute(
            "INSERT INTO first_deltas (day, bucket, turns, total_ms) VALUES (?1, ?2, 1, ?3)
             ON CONFLICT DO UPDATE SET turns = turns + 1, total_ms = total_ms + excluded.total_ms",
            params![day_of(at), bucket, clamped_count(time_ms)],
        )
    }

    /// Names the engine whose use is counted from now on. What another engine has used with this brain, from whose
    /// backup it may come, was reported by that engine, and is removed.
    pub fn set_usage_owner(&self, engine_id: &str) -> Result<(), StoreError> {
        let owner = "SELECT engine_id FROM usage_days_owner";
        let owner: Option<String> = self.transaction.query_row(owner, [], |row| row.get(0)).optional()?;
        if owner.as_deref() == Some(engine_id) {
            return Ok(());
        }
        if owner.is_some() {
            self.execute("DELETE FROM usage_days", [])?;
        }
        self.execute("DELETE FROM usage_days_owner", [])?;
        self.execute("INSERT INTO usage_days_owner (engine_id) VALUES (?1)", [engine_id])
    }
}

impl Brain {
    /// What the engine has used from the day `from` on, oldest first: at most `limit` days. Blocks.
    pub fn usage_days(&self, from: Option<Day>, limit: usize) -> Result<Vec<UsageOfDay>, StoreError> {
        self.read_long(|reader| usage_days(reader, from.map_or(0, Day::unix_days), limit))
    }

    /// A number that changes whenever something is counted.
    pub fn usage_mark(&self) -> Result<u64, StoreError> {
        const SUM: &str = "SELECT COALESCE(SUM(turns + calls + tool_calls), 0) FROM usage_days";
        self.read(|reader| reader.prepare_cached(SUM)?.query_row([], |row| count(row, 0)))
    }
}

fn usage_days(reader: &Connection, from: i64, limit: usize) -> Result<Vec<UsageOfDay>, Error> {
    let mut query = reader.prepare(
        "SELECT day, turns, calls, failed, input, output, cache_read, cost, unpriced, tool_calls
         FROM usage_days WHERE day >= ?1 ORDER BY day LIMIT ?2",
    )?;
    let rows = query.query_map(params![from, i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
        let day = Day::from_unix_days(row.get(0)?);
        let counts = UsageCounts {
            turns: count(row, 1)?,
            calls: count(row, 2)?,
            failed_calls: count(row, 3)?,
            input_tokens: count(row, 4)?,
            output_tokens: count(row, 5)?,
            cache_read_tokens: count(row, 6)?,
            cost_nano_usd: count(row, 7)?,
            unpriced_calls: count(row, 8)?,
            tool_calls: count(row, 9)?,
            first_deltas: first_deltas(reader, day)?,
        };
        Ok(UsageOfDay { day, counts })
    })?;
    rows.collect()
}

fn first_deltas(reader: &Connection, day: Day) -> Result<FirstDeltas, Error> {
    let mut query =
        reader.prepare_cached("SELECT bucket, turns, total_ms FROM first_deltas WHERE day = ?1")?;
    let mut rows = query.query([day.unix_days()])?;
    let mut found = FirstDeltas::default();
    while let Some(row) = rows.next()? {
        let bucket = usize::try_from(row.get::<_, i64>(0)?).unwrap_or(usize::MAX);
        if let Some(turns) = found.turns.get_mut(bucket) {
            *turns = count(row, 1)?;
        }
        found.total_ms = found.total_ms.saturating_add(count(row, 2)?);
    }
    Ok(found)
}

fn count(row: &Row<'_>, column: usize) -> Result<u64, Error> {
    row.get::<_, i64>(column).map(|count| u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
#[path = "../tests/unit/usage_days.rs"]
mod tests;
