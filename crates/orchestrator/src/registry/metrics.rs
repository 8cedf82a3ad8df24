//! A product's metrics: one query each.

use std::collections::BTreeMap;

use api::metrics::Metrics;
use api::orchestrator::EngineStatus;
use api::{ProductId, Timestamp};
use sqlx::Row as _;

use super::access::with_deadline;
use super::{Registry, RegistryError};

pub(super) const SELECT_STATUS_COUNTS: &str =
    "SELECT status, COUNT(*) FROM engines WHERE product_id = $1 GROUP BY status";

/// The hour has an upper bound too: after the wall clock was set back, rows that seem to lie in the future would
/// count for longer than an hour.
pub(super) const SELECT_METRICS: &str = "SELECT provisions, destroys, \
    (SELECT COUNT(*) FROM audit_log \
     WHERE product_id = $1 AND event = 'provision' AND at > $2 AND at <= $3), \
    (SELECT COUNT(*) FROM audit_log \
     WHERE product_id = $1 AND event = 'crash' AND at > $2 AND at <= $3), \
    (SELECT COUNT(*) FROM audit_log \
     WHERE product_id = $1 AND event = 'restart' AND at > $2 AND at <= $3), \
    (SELECT CAST(COALESCE(SUM(duration_ms), 0) AS BIGINT) FROM audit_log \
     WHERE product_id = $1 AND event = 'provision' AND at > $2 AND at <= $3) \
    FROM products WHERE product_id = $1";

const HOUR_MS: i64 = 3_600_000;

impl Registry {
    /// Returns the number of a product's engines in each state that this version knows.
    pub(crate) async fn count_by_status(
        &self,
        product_id: ProductId,
    ) -> Result<BTreeMap<EngineStatus, u64>, RegistryError> {
        let rows = with_deadline(
            sqlx::query(SELECT_STATUS_COUNTS).bind(product_id.to_string()).fetch_all(&self.reads),
        )
        .await?;
        let count = |row: &sqlx::any::AnyRow| {
            let Some(status) = EngineStatus::from_name(&row.try_get::<String, _>(0)?) else {
                // Logged where the rows themselves are read.
                return Ok(None);
            };
            Ok(Some((status, row.try_get::<i64, _>(1)?.unsigned_abs())))
        };
        rows.iter().filter_map(|row| count(row).transpose()).collect()
    }

    /// Returns a product's metrics as of `now`.
    pub(crate) async fn metrics(
        &self,
        product_id: ProductId,
        now: Timestamp,
    ) -> Result<Metrics, RegistryError> {
        let row = with_deadline(
            sqlx::query(SELECT_METRICS)
                .bind(product_id.to_string())
                .bind(now.unix_ms().saturating_sub(HOUR_MS))
                .bind(now.unix_ms())
                .fetch_optional(&self.reads),
        )
        .await?
        .ok_or(RegistryError::ProductGone)?;
        let counter = |at: usize| row.try_get::<i64, _>(at).map(i64::unsigned_abs);
        let (provisions_1h, boots_ms) = (counter(2)?, counter(5)?);
        Ok(Metrics {
            provisions_1h,
            crashes_1h: counter(3)?,
            restarts_1h: counter(4)?,
            // To the nearest millisecond.
            avg_boot_ms: (boots_ms + provisions_1h / 2).checked_div(provisions_1h).unwrap_or_default(),
            total_provisions: counter(0)?,
            total_destroys: counter(1)?,
        })
    }
}
