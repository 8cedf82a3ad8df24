//! When sleeping engines are to be woken for their schedules. An engine says so before it sleeps; it is stored under
//! the claim of that sleep, so the next orchestrator knows it too.

use api::{EngineId, Timestamp};
use sqlx::Row as _;

use super::access::with_deadline;
use super::row::EngineRow;
use super::{Registry, RegistryError};
use crate::domain::EngineOwner;

/// Selects the sleeping engines that are to be woken until a time, the earliest first.
/// At most `$3` of a product, so that one with many delays no other.
pub(super) const SELECT_WAKES: &str = "SELECT engine_id, product_id, user_id, wake_at FROM ( \
         SELECT engine_id, product_id, user_id, wake_at, \
             ROW_NUMBER() OVER (PARTITION BY product_id ORDER BY wake_at) AS place \
         FROM engines WHERE wake_at IS NOT NULL AND status = 'sleeping' AND wake_at <= $1 \
     ) AS due WHERE place <= $3 ORDER BY wake_at LIMIT $2";

/// A sleeping engine that is to be woken.
#[derive(Clone, Debug)]
pub(crate) struct ScheduledWake {
    pub(crate) engine_id: EngineId,
    pub(crate) owner: EngineOwner,
    pub(crate) at: Timestamp,
}

impl Registry {
    /// Returns the sleeping engines that are to be woken until `until`, the earliest first: at most `limit`, and
    /// `limit_per_product` of a product. Unreadable rows are skipped.
    pub(crate) async fn scheduled_wakes(
        &self,
        until: Timestamp,
        limit: i64,
        limit_per_product: i64,
    ) -> Result<Vec<ScheduledWake>, RegistryError> {
        let query = sqlx::query(SELECT_WAKES).bind(until.unix_ms()).bind(limit).bind(limit_per_product);
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        let read = |row: &sqlx::any::AnyRow| {
            let text = |at: usize| row.try_get::<String, _>(at).ok();
            Some(ScheduledWake {
                engine_id: text(0)?.parse().ok()?,
                owner: EngineOwner {
                    product_id: text(1)?.parse().ok()?,
                    user_id: api::UserId::new(text(2)?).ok()?,
                },
                at: Timestamp::from_unix_ms(row.try_get(3).ok()?),
            })
        };
        Ok(rows.iter().filter_map(read).collect())
    }

    /// Stores when the engine of `row`, which is claimed for a sleep, is to be woken.
    pub(crate) async fn set_wake(&self, row: &EngineRow, at: Option<Timestamp>) -> Result<(), RegistryError> {
        let mut tx = self.begin_product_tx(row.owner.product_id, 0).await?;
        let update = sqlx::query(
            "UPDATE engines SET wake_at = $1, wake_asked = $3 WHERE engine_id = $2 AND generation = $3",
        )
        .bind(at.map(Timestamp::unix_ms))
        .bind(row.engine_id.to_string())
        .bind(row.generation);
        let updated = with_deadline(update.execute(tx.connection())).await?.rows_affected();
        tx.commit().await?;
        if updated == 0 { Err(RegistryError::ClaimLost { engine_id: row.engine_id }) } else { Ok(()) }
    }

    /// Lets an engine whose sleep was interrupted be woken at `at` if it was not asked in that sleep: then nobody
    /// knows when its schedules are due.
    pub(crate) async fn set_wake_unless_asked(
        &self,
        row: &EngineRow,
        at: Timestamp,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin_product_tx(row.owner.product_id, 0).await?;
        let update = sqlx::query(
            "UPDATE engines SET wake_at = $1 \
             WHERE engine_id = $2 AND generation = $3 AND COALESCE(wake_asked, -1) <> $3",
        )
        .bind(at.unix_ms())
        .bind(row.engine_id.to_string())
        .bind(row.generation);
        with_deadline(update.execute(tx.connection())).await?;
        tx.commit().await
    }

    /// Postpones a wake that failed, unless the engine was changed meanwhile.
    pub(crate) async fn postpone_wake(
        &self,
        wake: &ScheduledWake,
        until: Timestamp,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin_product_tx(wake.owner.product_id, 0).await?;
        let update = sqlx::query(
            "UPDATE engines SET wake_at = $1 \
             WHERE engine_id = $2 AND wake_at = $3 AND status = 'sleeping'",
        )
        .bind(until.unix_ms())
        .bind(wake.engine_id.to_string())
        .bind(wake.at.unix_ms());
        with_deadline(update.execute(tx.connection())).await?;
        tx.commit().await
    }
}
