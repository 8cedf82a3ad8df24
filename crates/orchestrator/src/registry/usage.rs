//! What engines have used by day, as they reported it. Each count is the sum of one engine and day, so a report that is
//! stored twice changes nothing. When an engine is removed, its counts are added to those of its product's removed
//! engines in the same transaction, and nothing remains that names it or its user.

use api::usage::Day;
use api::usage_days::{FirstDeltas, UsageCounts, UsageOfDay};
use api::{EngineId, ProductId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};

use super::access::with_deadline;
use super::row::EngineRow;
use super::{Registry, RegistryError};
use crate::domain::usage::DayUsage;

/// The columns with counts, in the order of [`read_counts`].
macro_rules! usage_count_columns {
    () => {
        "turns, calls, failed_calls, input_tokens, output_tokens, cache_read_tokens, cost_nano_usd, unpriced_calls, \
         tool_calls"
    };
}

/// Adds the counts of a removed engine to those of its product's other removed engines.
const FOLD: &str = concat!(
    "INSERT INTO usage_days (product_id, day, engine_id, engines, ",
    usage_count_columns!(),
    ") SELECT product_id, day, '', engines, ",
    usage_count_columns!(),
    " FROM usage_days WHERE engine_id = $1 \
     ON CONFLICT (product_id, day, engine_id) DO UPDATE SET \
     engines = usage_days.engines + excluded.engines, turns = usage_days.turns + excluded.turns, \
     calls = usage_days.calls + excluded.calls, failed_calls = usage_days.failed_calls + excluded.failed_calls, \
     input_tokens = usage_days.input_tokens + excluded.input_tokens, \
     output_tokens = usage_days.output_tokens + excluded.output_tokens, \
     cache_read_tokens = usage_days.cache_read_tokens + excluded.cache_read_tokens, \
     cost_nano_usd = usage_days.cost_nano_usd + excluded.cost_nano_usd, \
     unpriced_calls = usage_days.unpriced_calls + excluded.unpriced_calls, \
     tool_calls = usage_days.tool_calls + excluded.tool_calls"
);

/// Replaces the counts of an engine and day.
const REPLACE: &str = concat!(
    "INSERT INTO usage_days (product_id, day, engine_id, engines, reported, ",
    usage_count_columns!(),
    ") VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
     ON CONFLICT (product_id, day, engine_id) DO UPDATE SET \
     reported = excluded.reported, turns = excluded.turns, calls = excluded.calls, \
     failed_calls = excluded.failed_calls, input_tokens = excluded.input_tokens, \
     output_tokens = excluded.output_tokens, cache_read_tokens = excluded.cache_read_tokens, \
     cost_nano_usd = excluded.cost_nano_usd, unpriced_calls = excluded.unpriced_calls, \
     tool_calls = excluded.tool_calls"
);

/// Removes rows of days before `$1`, at most `$2` at once.
const PRUNE_USAGE: &str = "DELETE FROM usage_days WHERE (product_id, day, engine_id) IN \
     (SELECT product_id, day, engine_id FROM usage_days WHERE day < $1 ORDER BY day LIMIT $2)";
/// Removes the admits of days before `$1`, at most `$2` rows at once.
const PRUNE_ADMITS: &str = "DELETE FROM admit_days WHERE (product_id, day, run_id) IN \
     (SELECT product_id, day, run_id FROM admit_days WHERE day < $1 ORDER BY day LIMIT $2)";

impl Registry {
    /// Returns the last day of which an engine has reported something.
    pub(crate) async fn last_usage_day(&self, engine_id: EngineId) -> Result<Option<Day>, RegistryError> {
        let query = sqlx::query("SELECT MAX(day) FROM usage_days WHERE engine_id = $1");
        let row = with_deadline(query.bind(engine_id.to_string()).fetch_one(&self.reads)).await?;
        Ok(row.try_get::<Option<i64>, _>(0)?.map(Day::from_unix_days))
    }

    /// Stores what the engine of `row` reports to have used, unless it was removed. Returns what that adds. Callers store
    /// one report of an engine at a time, in the order in which the engine has made them.
    pub(crate) async fn save_usage(
        &self,
        row: &EngineRow,
        days: &[UsageOfDay],
    ) -> Result<UsageCounts, RegistryError> {
        let product_id = row.owner.product_id;
        // Under the product's lock, as its removal.
        let mut tx = self.begin_product_tx(product_id, 0).await?;
        let exists =
            sqlx::query("SELECT 1 FROM engines WHERE engine_id = $1").bind(row.engine_id.to_string());
        if with_deadline(exists.fetch_optional(tx.connection())).await?.is_none() {
            return Ok(UsageCounts::default());
        }
        let mut added = UsageCounts::default();
        for UsageOfDay { day, counts } in days {
            let mut usage = stored(tx.connection(), product_id, *day, row.engine_id).await?;
            if usage.reported == *counts {
                continue;
            }
            added = added.plus(usage.apply(*counts));
            replace(tx.connection(), product_id, *day, row.engine_id, &usage).await?;
        }
        tx.commit().await?;
        Ok(added)
    }

    /// Removes what was used before `day`, and the admits before it: at most `limit` rows of each. Returns whether there
    /// may be more.
    pub(crate) async fn prune_usage(&self, day: Day, limit: u64) -> Result<bool, RegistryError> {
        let bound = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut has_more = false;
        for statement in [PRUNE_USAGE, PRUNE_ADMITS] {
            let mut transaction = self.begin().await?;
            let statement = sqlx::query(statement).bind(day.unix_days()).bind(bound);
            let removed = with_deadline(statement.execute(&mut *transaction)).await?.rows_affected();
            with_deadline(transaction.commit()).await?;
            has_more |= removed >= limit;
        }
        Ok(has_more)
    }
}

/// Adds what an engine has used, which is removed in the same transaction, to the sum of its product's removed engines.
pub(super) async fn fold_usage(
    connection: &mut AnyConnection,
    engine_id: EngineId,
) -> Result<(), RegistryError> {
    for statement in [FOLD, "DELETE FROM usage_days WHERE engine_id = $1"] {
        let statement = sqlx::query(statement).bind(engine_id.to_string());
        with_deadline(statement.execute(&mut *connection)).await?;
    }
    Ok(())
}

async fn stored(
    connection: &mut AnyConnection,
    product_id: ProductId,
    day: Day,
    engine_id: EngineId,
) -> Result<DayUsage, RegistryError> {
    const SELECT: &str = concat!(
        "SELECT reported, ",
        usage_count_columns!(),
        " FROM usage_days WHERE product_id = $1 AND day = $2 AND engine_id = $3"
    );
    let query =
        sqlx::query(SELECT).bind(product_id.to_string()).bind(day.unix_days()).bind(engine_id.to_string());
    let Some(row) = with_deadline(query.fetch_optional(connection)).await? else {
        return Ok(DayUsage::default());
    };
    let reported: Option<String> = row.try_get(0)?;
    let reported = reported.map(|text| serde_json::from_str(&text)).transpose();
    let reported = reported.map_err(|_| RegistryError::Unreadable { column: "reported" })?;
    Ok(DayUsage { total: read_counts(&row, 1)?, reported: reported.unwrap_or_default() })
}

async fn replace(
    connection: &mut AnyConnection,
    product_id: ProductId,
    day: Day,
    engine_id: EngineId,
    usage: &DayUsage,
) -> Result<(), RegistryError> {
    let reported = serde_json::to_string(&usage.reported)
        .map_err(|_| RegistryError::Unreadable { column: "reported" })?;
    let statement = sqlx::query(REPLACE)
        .bind(product_id.to_string())
        .bind(day.unix_days())
        .bind(engine_id.to_string())
        .bind(reported);
    let UsageCounts {
        turns,
        calls,
        failed_calls,
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cost_nano_usd,
        unpriced_calls,
        tool_calls,
        // For metrics, which need no sum.
        first_deltas: _,
    } = usage.total;
    let counts = [
        turns,
        calls,
        failed_calls,
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cost_nano_usd,
        unpriced_calls,
        tool_calls,
    ];
    let bind =
        |statement: sqlx::query::Query<'static, sqlx::Any, _>, count| statement.bind(stored_count(count));
    let statement = counts.into_iter().fold(statement, bind);
    with_deadline(statement.execute(connection)).await?;
    Ok(())
}

/// A count as it is stored. An engine that reports more than can be summed up is not believed.
pub(super) fn stored_count(count: u64) -> i64 {
    const MAX_COUNT: u64 = 1 << 53;
    i64::try_from(count.min(MAX_COUNT)).unwrap_or(i64::MAX)
}

/// Reads the counts from the column `first` on.
pub(super) fn read_counts(row: &AnyRow, first: usize) -> Result<UsageCounts, RegistryError> {
    let count = |at: usize| -> Result<u64, RegistryError> {
        Ok(u64::try_from(row.try_get::<i64, _>(first + at)?).unwrap_or(0))
    };
    Ok(UsageCounts {
        turns: count(0)?,
        calls: count(1)?,
        failed_calls: count(2)?,
        input_tokens: count(3)?,
        output_tokens: count(4)?,
        cache_read_tokens: count(5)?,
        cost_nano_usd: count(6)?,
        unpriced_calls: count(7)?,
        tool_calls: count(8)?,
        first_deltas: FirstDeltas::default(),
    })
}
