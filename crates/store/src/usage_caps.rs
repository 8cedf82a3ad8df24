//! What counts towards the caps on usage, and the caps about which clients were told. A sum grows in the transaction
//! that stores the result of the call; a mark is in the commit of the event that tells clients.

use api::Timestamp;
use api::usage_caps::{CapLevel, CapScope, CapUnit};
use rusqlite::{OptionalExtension as _, params};

use super::usage_rows::{QUARTER_MS, QUARTERS_PER_DAY, day_of};
use super::{Brain, StoreError, TaskRow, WriteTx};

/// A period over which a cap counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapPeriod {
    day: i64,
    task: i64,
}

impl CapPeriod {
    /// A period in which nothing is used.
    pub const OF_NO_TASK: Self = Self { day: 0, task: -1 };

    /// The day in UTC in which a time is.
    pub fn day_of(at: Timestamp) -> Self {
        Self { day: day_of(at), task: 0 }
    }

    /// All the time of a task.
    pub fn of_task(TaskRow(task): TaskRow) -> Self {
        Self { day: 0, task }
    }

    /// What the cap counts over.
    pub fn scope(self) -> CapScope {
        if self.task == 0 { CapScope::Day } else { CapScope::Task }
    }

    /// When the period ends, if it does.
    pub fn ends_at(self) -> Option<Timestamp> {
        let next = (self.day + 1).saturating_mul(QUARTERS_PER_DAY * QUARTER_MS);
        (self.task == 0).then(|| Timestamp::from_unix_ms(next))
    }
}

/// What was used in a period, in tokens and in billionths of a US dollar, and the highest caps about which clients were
/// told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapUse {
    /// What was used, by unit.
    used: [i64; 2],
    /// The caps about which clients were told, by unit: first at the warning, then when they were reached.
    marked: [[i64; 2]; 2],
}

const fn unit_index(unit: CapUnit) -> usize {
    match unit {
        CapUnit::Tokens => 0,
        CapUnit::Usd => 1,
    }
}

impl CapUse {
    /// What was used.
    pub fn used(&self, unit: CapUnit) -> i64 {
        let [tokens, cost] = self.used;
        match unit {
            CapUnit::Tokens => tokens,
            CapUnit::Usd => cost,
        }
    }

    /// Whether clients were told that this much of a cap of `limit`, or of a higher one, is used.
    pub fn is_marked(&self, unit: CapUnit, level: CapLevel, limit: i64) -> bool {
        let of_unit = self.marked.get(unit_index(unit)).copied().unwrap_or_default();
        let [warned, reached] = of_unit;
        limit
            <= match level {
                CapLevel::Warning => warned,
                CapLevel::Reached => reached,
            }
    }
}

/// The mark of a cap about which clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapMark {
    /// The period.
    pub period: CapPeriod,
    /// What the cap counts in.
    pub unit: CapUnit,
    /// How much of it is used.
    pub level: CapLevel,
    /// The cap, in tokens or in billionths of a US dollar.
    pub limit: i64,
}

impl WriteTx<'_> {
    /// Adds the tokens and the cost of a call to its day, and to its task if that exists.
    pub(super) fn add_cap_use(
        &self,
        at: Timestamp,
        task: Option<TaskRow>,
        tokens: i64,
        cost: i64,
    ) -> Result<(), StoreError> {
        const ADD: &str =
            "ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens, cost = cost + excluded.cost";
        if tokens == 0 && cost == 0 {
            return Ok(());
        }
        let sql = format!("INSERT INTO cap_use (day, task, tokens, cost) VALUES (?1, 0, ?2, ?3) {ADD}");
        self.execute(&sql, params![day_of(at), tokens, cost])?;
        let Some(TaskRow(task)) = task else { return Ok(()) };
        let sql = format!(
            "INSERT INTO cap_use (day, task, tokens, cost)
             SELECT 0, task, ?2, ?3 FROM tasks WHERE task = ?1 {ADD}"
        );
        self.execute(&sql, params![task, tokens, cost])
    }

    /// Notes that clients are told about a cap.
    pub(super) fn mark_cap(&self, mark: &CapMark) -> Result<(), StoreError> {
        let CapMark { period, unit, level, limit } = *mark;
        let column = match (unit, level) {
            (CapUnit::Tokens, CapLevel::Warning) => "tokens_warned",
            (CapUnit::Tokens, CapLevel::Reached) => "tokens_reached",
            (CapUnit::Usd, CapLevel::Warning) => "cost_warned",
            (CapUnit::Usd, CapLevel::Reached) => "cost_reached",
        };
        let sql = format!(
            "INSERT INTO cap_use (day, task, tokens, cost, {column}) VALUES (?1, ?2, 0, 0, ?3)
             ON CONFLICT DO UPDATE SET {column} = excluded.{column}"
        );
        self.execute(&sql, params![period.day, period.task, limit])
    }
}

impl Brain {
    /// What was used in a period.
    pub fn cap_use(&self, period: CapPeriod) -> Result<CapUse, StoreError> {
        self.read(|reader| {
            let mut query = reader.prepare_cached(
                "SELECT tokens, cost, tokens_warned, tokens_reached, cost_warned, cost_reached
                 FROM cap_use WHERE task = ?1 AND day = ?2",
            )?;
            let found = query.query_row(params![period.task, period.day], |row| {
                Ok(CapUse {
                    used: [row.get(0)?, row.get(1)?],
                    marked: [[row.get(2)?, row.get(3)?], [row.get(4)?, row.get(5)?]],
                })
            });
            Ok(found.optional()?.unwrap_or_default())
        })
    }
}

#[cfg(test)]
#[path = "../tests/unit/usage_caps.rs"]
mod tests;
