//! Engines: lookup, listing, and settling, which writes the next state with its audit row and ends the claim.

use api::orchestrator::EngineStatus;
use api::{EngineId, EngineImage, KeyHash, ProductId, Timestamp};
use backend::Instance;
use sqlx::Row as _;

use super::access::with_deadline;
use super::audit_log::{AuditEntry, ProductTx};
use super::backup_erasures::request_erasure;
use super::claims::PendingKey;
use super::row::{EngineRow, select_engines};
use super::usage::fold_usage;
use super::{AdmitView, Registry, RegistryError};
use crate::domain::EngineOwner;

/// The state in which an operation leaves the engine.
#[derive(Clone, Debug)]
pub(crate) enum NextState {
    /// Running as `instance`, last healthy at `health_at`.
    Running {
        instance: Instance,
        image: EngineImage,
        health_at: Timestamp,
        /// Whether it was started for a caller: its idle time begins at `health_at` then.
        on_demand: bool,
    },
    /// Without a process: `stopped` or `sleeping`.
    NotRunning(EngineStatus),
    /// Failed after `restarts` restarts; the next one is due at `restart_at`, or never.
    Failed { restart_at: Option<Timestamp>, restarts: i64 },
    /// Running with the key that had been pending.
    KeyRotated(PendingKey),
    /// As before: only the claim ends, and any pending key is dropped.
    Unchanged,
    /// Deleted.
    Removed,
}

/// One page of a listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) status: Option<EngineStatus>,
    pub(crate) limit: i64,
    pub(crate) offset: i64,
}

impl Registry {
    /// Returns the part of the engine of `owner` that the admit of a running engine needs. It is that admit's only
    /// query.
    pub(crate) async fn admit_view(&self, owner: &EngineOwner) -> Result<Option<AdmitView>, RegistryError> {
        self.while_leading(self.hot_read().admit_view(owner)).await
    }

    /// Returns the engine of `owner`.
    pub(crate) async fn engine(&self, owner: &EngineOwner) -> Result<Option<EngineRow>, RegistryError> {
        self.while_leading(self.hot_read().engine(owner)).await
    }

    /// Returns the engine with this id.
    pub(crate) async fn engine_by_id(&self, engine_id: EngineId) -> Result<Option<EngineRow>, RegistryError> {
        let row = with_deadline(
            sqlx::query(select_engines!("WHERE engine_id = $1"))
                .bind(engine_id.to_string())
                .fetch_optional(&self.reads),
        )
        .await?;
        row.as_ref().map(EngineRow::read).transpose()
    }

    /// Returns the engines of all products that run or are being changed. Unreadable rows are skipped.
    pub(crate) async fn running_engines(&self) -> Result<Vec<EngineRow>, RegistryError> {
        let query = sqlx::query(SELECT_RUNNING_OR_CLAIMED);
        self.unreadable_rows.read_engines(&with_deadline(query.fetch_all(&self.reads)).await?)
    }

    /// Returns the pending key of a rotation of this engine.
    pub(crate) async fn pending_key(&self, engine_id: EngineId) -> Result<Option<PendingKey>, RegistryError> {
        let row = with_deadline(
            sqlx::query("SELECT pending_key, pending_key_hash FROM engines WHERE engine_id = $1")
                .bind(engine_id.to_string())
                .fetch_optional(&self.reads),
        )
        .await?;
        let Some(row) = row else { return Ok(None) };
        let (sealed, hash): (Option<String>, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
        let Some((sealed, hash)) = sealed.zip(hash) else { return Ok(None) };
        let unreadable = |_| RegistryError::Unreadable { column: "pending_key_hash" };
        Ok(Some(PendingKey { sealed, hash: KeyHash::from_hex(&hash).map_err(unreadable)? }))
    }

    /// Returns a page of a product's engines, oldest first, and the total number of engines. Unreadable rows are
    /// left out of the page, but counted.
    pub(crate) async fn list(
        &self,
        product_id: ProductId,
        page: Page,
    ) -> Result<(Vec<EngineRow>, u64), RegistryError> {
        let (rows, total) = match page.status {
            None => (
                sqlx::query(select_engines!(
                    "WHERE product_id = $1 ORDER BY created_at, engine_id LIMIT $2 OFFSET $3"
                ))
                .bind(product_id.to_string()),
                sqlx::query("SELECT COUNT(*) FROM engines WHERE product_id = $1")
                    .bind(product_id.to_string()),
            ),
            Some(status) => (
                sqlx::query(select_engines!(
                    "WHERE product_id = $1 AND status = $2 \
                     ORDER BY created_at, engine_id LIMIT $3 OFFSET $4"
                ))
                .bind(product_id.to_string())
                .bind(status.as_str()),
                sqlx::query("SELECT COUNT(*) FROM engines WHERE product_id = $1 AND status = $2")
                    .bind(product_id.to_string())
                    .bind(status.as_str()),
            ),
        };
        // One transaction, so that the page and the total come from the same snapshot.
        let mut transaction = with_deadline(self.reads.begin()).await?;
        let rows =
            with_deadline(rows.bind(page.limit).bind(page.offset).fetch_all(&mut *transaction)).await?;
        let total: i64 = with_deadline(total.fetch_one(&mut *transaction)).await?.try_get(0)?;
        with_deadline(transaction.commit()).await?;
        Ok((self.unreadable_rows.read_engines(&rows)?, total.unsigned_abs()))
    }

    /// Ends the operation on `row` if the stored row is still the same: writes the next state and, if there is an
    /// `entry`, its audit row. Returns the new row; `None` if the engine was removed.
    pub(crate) async fn settle(
        &self,
        row: &EngineRow,
        next: NextState,
        entry: Option<&AuditEntry>,
    ) -> Result<Option<EngineRow>, RegistryError> {
        let mut tx = self.begin_product_tx(row.owner.product_id, i64::from(entry.is_some())).await?;
        let settled = settle_row(&mut tx, row, next).await?;
        if let Some(entry) = entry {
            tx.append(entry).await?;
        }
        tx.commit().await?;
        Ok(settled)
    }

    /// Settles several unclaimed engines of one product, each with its audit row. Returns the settled rows; an
    /// engine that has changed meanwhile is skipped.
    pub(crate) async fn settle_all(
        &self,
        product_id: ProductId,
        moves: &[EngineMove],
    ) -> Result<Vec<EngineRow>, RegistryError> {
        let mut settled = Vec::new();
        for batch in moves.chunks(MOVES_PER_TRANSACTION) {
            let mut tx =
                self.begin_product_tx(product_id, i64::try_from(batch.len()).unwrap_or(i64::MAX)).await?;
            self.lock_multi_engine(tx.connection()).await?;
            match settle_batch(&mut tx, batch).await {
                Ok(rows) => {
                    tx.commit().await?;
                    settled.extend(rows);
                }
                Err(RegistryError::ClaimLost { .. }) => {
                    drop(tx);
                    settled.extend(self.settle_each(batch).await?);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(settled)
    }

    async fn settle_each(&self, moves: &[EngineMove]) -> Result<Vec<EngineRow>, RegistryError> {
        let mut settled = Vec::new();
        for EngineMove { row, next, entry } in moves {
            match self.settle(row, next.clone(), Some(entry)).await {
                Ok(row) => settled.extend(row),
                Err(RegistryError::ClaimLost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(settled)
    }
}

/// Selects the engines that run or are claimed. There are two halves, each with an index of its own: most engines
/// neither run nor are claimed.
pub(super) const SELECT_RUNNING_OR_CLAIMED: &str = concat!(
    select_engines!("WHERE status = 'running' UNION ALL "),
    select_engines!("WHERE claim_kind IS NOT NULL AND status <> 'running'")
);

/// The change of one engine in [`Registry::settle_all`].
pub(crate) struct EngineMove {
    pub(crate) row: EngineRow,
    pub(crate) next: NextState,
    pub(crate) entry: AuditEntry,
}

/// The number of engines settled in one transaction: enough to share a commit, few enough not to keep other
/// writers waiting.
const MOVES_PER_TRANSACTION: usize = 100;

async fn settle_batch(tx: &mut ProductTx, moves: &[EngineMove]) -> Result<Vec<EngineRow>, RegistryError> {
    let mut settled = Vec::new();
    for EngineMove { row, next, entry } in moves {
        settled.extend(settle_row(tx, row, next.clone()).await?);
        tx.append(entry).await?;
    }
    Ok(settled)
}

/// A statement that settles a row: it ends the claim and drops any pending key. Parameters: the engine and its
/// generation, then those of `$set`.
macro_rules! settle {
    ($set:literal) => {
        concat!(
            "UPDATE engines SET generation = generation + 1, claim_kind = NULL, claim_owner = NULL, \
             claim_deadline = NULL, pending_key = NULL, pending_key_hash = NULL",
            $set,
            " WHERE engine_id = $1 AND generation = $2"
        )
    };
}

async fn settle_row(
    tx: &mut ProductTx,
    row: &EngineRow,
    next: NextState,
) -> Result<Option<EngineRow>, RegistryError> {
    let mut settled = row.clone();
    settled.claim = None;
    settled.generation += 1;
    let removed = matches!(next, NextState::Removed);
    let statement = |sql: &'static str| sqlx::query(sql).bind(row.engine_id.to_string()).bind(row.generation);
    let statement = match next {
        NextState::Running { instance, image, health_at, on_demand } => {
            settled.status = EngineStatus::Running;
            settled.restart_at = None;
            settled.last_health_at = Some(health_at);
            let statement = statement(settle!(
                ", status = 'running', instance = $3, engine_version = $4, last_health_at = $5, \
                 admitted_at = CASE WHEN $6 = 1 THEN $5 ELSE admitted_at END, \
                 failed_checks = 0, well_since = $5, restart_at = NULL"
            ))
            .bind(instance.as_str().to_owned())
            .bind(image.as_str().to_owned())
            .bind(health_at.unix_ms())
            .bind(i64::from(on_demand));
            (settled.instance, settled.engine_version) = (Some(instance), image);
            statement
        }
        NextState::NotRunning(status) => {
            (settled.status, settled.instance, settled.restart_at) = (status, None, None);
            statement(settle!(
                ", status = $3, instance = NULL, failed_checks = 0, well_since = NULL, restart_at = NULL"
            ))
            .bind(status.as_str())
        }
        NextState::Failed { restart_at, restarts } => {
            (settled.status, settled.instance) = (EngineStatus::Failed, None);
            (settled.restart_at, settled.restarts) = (restart_at, restarts);
            statement(settle!(
                ", status = 'failed', instance = NULL, failed_checks = 0, well_since = NULL, restart_at = $3, \
                 restarts = $4"
            ))
            .bind(restart_at.map(Timestamp::unix_ms))
            .bind(restarts)
        }
        NextState::KeyRotated(key) => {
            let statement = statement(settle!(", sealed_key = $3, key_hash = $4"))
                .bind(key.sealed.clone())
                .bind(key.hash.to_hex());
            (settled.sealed_key, settled.key_hash) = (key.sealed, key.hash);
            statement
        }
        NextState::Unchanged => statement(settle!("")),
        NextState::Removed => statement("DELETE FROM engines WHERE engine_id = $1 AND generation = $2"),
    };
    if with_deadline(statement.execute(tx.connection())).await?.rows_affected() == 0 {
        return Err(RegistryError::ClaimLost { engine_id: row.engine_id });
    }
    if removed {
        request_erasure(tx.connection(), row.engine_id).await?;
        fold_usage(tx.connection(), row.engine_id).await?;
    }
    Ok((!removed).then_some(settled))
}
