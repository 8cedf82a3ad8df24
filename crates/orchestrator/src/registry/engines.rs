//! Engines: looked up, listed, claimed, settled.

use contract::orchestrator::EngineStatus;
use contract::{EngineId, EngineImage, KeyHash, ProductId, Timestamp};
use sqlx::Row as _;

use super::ledger::{Entry, Ledger};
use super::ports::PortRule;
use super::row::{EngineRow, select_engines};
use super::{Registry, RegistryError, Seat};
use crate::backend::Instance;
use crate::fleet::lifecycle::Change;

/// An engine to be provisioned.
pub(crate) struct NewEngine {
    pub(crate) engine_id: EngineId,
    pub(crate) seat: Seat,
    pub(crate) key_hash: KeyHash,
    pub(crate) sealed_key: String,
    pub(crate) sealed_secrets_key: String,
    pub(crate) engine_version: EngineImage,
    pub(crate) pinned: bool,
    pub(crate) created_at: Timestamp,
}

/// Who claims, and until when.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) change: Change,
    /// The orchestrator process.
    pub(crate) owner: String,
    pub(crate) deadline: Timestamp,
}

/// Why a claim was not made. The row is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The row is not as the caller saw it.
    Stale,
    /// The product has as many engines as it may.
    Quota,
    /// No port could be had.
    NoPort,
}

/// A claim made: the row under it.
pub(crate) type Claimed = Result<EngineRow, Refused>;

/// The state that a change ends in.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// Running as `instance`, last seen well at `health_at`.
    Running { instance: Instance, image: EngineImage, health_at: Timestamp },
    /// At rest, with no process.
    AtRest(EngineStatus),
    /// As before: only the claim ends.
    Unchanged,
    /// No more.
    Gone,
}

/// One page of a listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) status: Option<EngineStatus>,
    pub(crate) limit: i64,
    pub(crate) offset: i64,
}

impl Registry {
    /// The engine at `seat`. The one query of an admit.
    #[expect(clippy::unused_async, reason = "only SQLite, on this machine, answers without being waited for")]
    pub(crate) async fn engine(&self, seat: &Seat) -> Result<Option<EngineRow>, RegistryError> {
        self.point_reads.engine(seat)
    }

    /// The engine with this id.
    pub(crate) async fn engine_by_id(&self, engine_id: EngineId) -> Result<Option<EngineRow>, RegistryError> {
        let row = sqlx::query(select_engines!("WHERE engine_id = $1"))
            .bind(engine_id.to_string())
            .fetch_optional(&self.reads)
            .await?;
        row.as_ref().map(EngineRow::read).transpose()
    }

    /// The engines that run or are being changed, of all products.
    pub(crate) async fn running_engines(&self) -> Result<Vec<EngineRow>, RegistryError> {
        let query = sqlx::query(select_engines!("WHERE status = 'running' OR claim_kind IS NOT NULL"));
        query.fetch_all(&self.reads).await?.iter().map(EngineRow::read).collect()
    }

    /// One page of a product's engines, oldest first, and how many there are in all.
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
        // One transaction: the page and the total are of the same moment.
        let mut transaction = self.reads.begin().await?;
        let rows = rows.bind(page.limit).bind(page.offset).fetch_all(&mut *transaction).await?;
        let total: i64 = total.fetch_one(&mut *transaction).await?.try_get(0)?;
        transaction.commit().await?;
        let engines = rows.iter().map(EngineRow::read).collect::<Result<_, _>>()?;
        Ok((engines, total.unsigned_abs()))
    }

    /// Claims a seat for a new engine: row, quota and port in one transaction.
    pub(crate) async fn claim_seat(
        &self,
        engine: &NewEngine,
        claim: &Claim,
        max_engines: Option<u64>,
        ports: &PortRule,
    ) -> Result<Claimed, RegistryError> {
        let mut ledger = self.ledger(engine.seat.product_id, 0).await?;
        let counts = sqlx::query(
            "SELECT COUNT(*), COUNT(CASE WHEN user_id = $2 THEN 1 END) FROM engines WHERE product_id = $1",
        )
        .bind(engine.seat.product_id.to_string())
        .bind(engine.seat.user_id.as_str().to_owned())
        .fetch_one(ledger.connection())
        .await?;
        let (engines, at_seat): (i64, i64) = (counts.try_get(0)?, counts.try_get(1)?);
        if at_seat > 0 {
            return Ok(Err(Refused::Stale));
        }
        if max_engines.is_some_and(|max| engines.unsigned_abs() >= max) {
            return Ok(Err(Refused::Quota));
        }
        let Some(port) = ports.lease(ledger.connection(), None).await? else {
            return Ok(Err(Refused::NoPort));
        };
        let row = EngineRow {
            engine_id: engine.engine_id,
            seat: engine.seat.clone(),
            status: EngineStatus::Provisioning,
            prior_status: None,
            key_hash: engine.key_hash,
            sealed_key: engine.sealed_key.clone(),
            sealed_secrets_key: engine.sealed_secrets_key.clone(),
            engine_version: engine.engine_version.clone(),
            pinned: engine.pinned,
            port: Some(port),
            instance: None,
            created_at: engine.created_at,
            last_health_at: None,
            generation: 1,
            claim: Some(claim.change),
        };
        sqlx::query(
            "INSERT INTO engines \
             (engine_id, product_id, user_id, status, key_hash, sealed_key, sealed_secrets_key, \
              engine_version, pinned, port, created_at, generation, claim_kind, claim_owner, claim_deadline) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
        )
        .bind(row.engine_id.to_string())
        .bind(row.seat.product_id.to_string())
        .bind(row.seat.user_id.as_str().to_owned())
        .bind(row.status.as_str())
        .bind(row.key_hash.to_hex())
        .bind(row.sealed_key.clone())
        .bind(row.sealed_secrets_key.clone())
        .bind(row.engine_version.as_str().to_owned())
        .bind(i64::from(row.pinned))
        .bind(i64::from(port))
        .bind(row.created_at.unix_ms())
        .bind(row.generation)
        .bind(claim.change.as_str())
        .bind(claim.owner.clone())
        .bind(claim.deadline.unix_ms())
        .execute(ledger.connection())
        .await?;
        ledger.commit().await?;
        Ok(Ok(row))
    }

    /// Claims `seen` for a change, if it is still as it was seen; with a port if `ports` are given.
    pub(crate) async fn claim(
        &self,
        seen: &EngineRow,
        claim: &Claim,
        ports: Option<&PortRule>,
    ) -> Result<Claimed, RegistryError> {
        let mut ledger = self.ledger(seen.seat.product_id, 0).await?;
        let destroying = claim.change == Change::Destroy;
        let statement = if destroying {
            // Takes over whatever is under way.
            "UPDATE engines SET claim_kind = $1, claim_owner = $2, claim_deadline = $3, \
             generation = generation + 1, status = 'destroying', \
             prior_status = CASE WHEN status IN ('provisioning', 'destroying') THEN prior_status \
                            ELSE status END \
             WHERE engine_id = $4 AND generation = $5 RETURNING port"
        } else {
            "UPDATE engines SET claim_kind = $1, claim_owner = $2, claim_deadline = $3, \
             generation = generation + 1 \
             WHERE engine_id = $4 AND generation = $5 AND claim_kind IS NULL RETURNING port"
        };
        let claimed = sqlx::query(statement)
            .bind(claim.change.as_str())
            .bind(claim.owner.clone())
            .bind(claim.deadline.unix_ms())
            .bind(seen.engine_id.to_string())
            .bind(seen.generation)
            .fetch_optional(ledger.connection())
            .await?;
        let Some(claimed) = claimed else { return Ok(Err(Refused::Stale)) };
        let last: Option<i64> = claimed.try_get(0)?;
        let mut row = seen.clone();
        row.generation += 1;
        row.claim = Some(claim.change);
        row.port = last.and_then(|port| u16::try_from(port).ok());
        if destroying {
            row.prior_status = seen.settled_status();
            row.status = EngineStatus::Destroying;
        }
        if let Some(ports) = ports {
            let Some(port) = ports.lease(ledger.connection(), row.port).await? else {
                return Ok(Err(Refused::NoPort));
            };
            if row.port != Some(port) {
                sqlx::query("UPDATE engines SET port = $1 WHERE engine_id = $2")
                    .bind(i64::from(port))
                    .bind(row.engine_id.to_string())
                    .execute(ledger.connection())
                    .await?;
                row.port = Some(port);
            }
        }
        ledger.commit().await?;
        Ok(Ok(row))
    }

    /// Ends the change on `row`, if it is still as `row` has it: the next state and, where the change is one
    /// for the ledger, its audit row. Returns the row as it is then, if there is one.
    pub(crate) async fn settle(
        &self,
        row: &EngineRow,
        next: Next,
        entry: Option<&Entry>,
    ) -> Result<Option<EngineRow>, RegistryError> {
        let mut ledger = self.ledger(row.seat.product_id, i64::from(entry.is_some())).await?;
        let settled = settle_row(&mut ledger, row, next).await?;
        if let Some(entry) = entry {
            ledger.append(entry).await?;
        }
        ledger.commit().await?;
        Ok(settled)
    }

    /// Moves engines of one product, none of them under a claim, to `status`, each with its audit row. Those
    /// that have changed meanwhile are left out.
    pub(crate) async fn settle_all(
        &self,
        product_id: ProductId,
        status: EngineStatus,
        moves: &[(EngineRow, Entry)],
    ) -> Result<(), RegistryError> {
        for batch in moves.chunks(MOVES_PER_TRANSACTION) {
            let mut ledger = self.ledger(product_id, i64::try_from(batch.len()).unwrap_or(i64::MAX)).await?;
            match settle_batch(&mut ledger, status, batch).await {
                Ok(()) => ledger.commit().await?,
                Err(RegistryError::ClaimLost { .. }) => {
                    drop(ledger);
                    self.settle_each(status, batch).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn settle_each(
        &self,
        status: EngineStatus,
        moves: &[(EngineRow, Entry)],
    ) -> Result<(), RegistryError> {
        for (row, entry) in moves {
            match self.settle(row, Next::AtRest(status), Some(entry)).await {
                Ok(_) | Err(RegistryError::ClaimLost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Drops the claims that other processes left behind on settled engines. Those on engines that were being
    /// provisioned or destroyed stay: someone has to finish these.
    pub(crate) async fn void_claims(&self, owner: &str) -> Result<(), RegistryError> {
        // One statement over all products: nothing else runs yet whose order with it could matter.
        sqlx::query(
            "UPDATE engines SET claim_kind = NULL, claim_owner = NULL, claim_deadline = NULL, \
             generation = generation + 1 \
             WHERE claim_owner <> $1 AND status NOT IN ('provisioning', 'destroying')",
        )
        .bind(owner.to_owned())
        .execute(&self.writes)
        .await?;
        Ok(())
    }
}

/// Moves in one transaction: enough to share a commit, few enough not to keep other writers waiting.
const MOVES_PER_TRANSACTION: usize = 100;

async fn settle_batch(
    ledger: &mut Ledger,
    status: EngineStatus,
    moves: &[(EngineRow, Entry)],
) -> Result<(), RegistryError> {
    for (row, entry) in moves {
        settle_row(ledger, row, Next::AtRest(status)).await?;
        ledger.append(entry).await?;
    }
    Ok(())
}

async fn settle_row(
    ledger: &mut Ledger,
    row: &EngineRow,
    next: Next,
) -> Result<Option<EngineRow>, RegistryError> {
    let mut settled = row.clone();
    settled.claim = None;
    settled.generation += 1;
    let mut gone = false;
    match next {
        Next::Running { instance, image, health_at } => {
            settled.status = EngineStatus::Running;
            settled.instance = Some(instance);
            settled.engine_version = image;
            settled.last_health_at = Some(health_at);
        }
        Next::AtRest(status) => {
            settled.status = status;
            settled.instance = None;
        }
        Next::Unchanged => {}
        Next::Gone => gone = true,
    }
    let statement = if gone {
        sqlx::query("DELETE FROM engines WHERE engine_id = $1 AND generation = $2")
    } else {
        sqlx::query(
            "UPDATE engines SET status = $3, instance = $4, engine_version = $5, last_health_at = $6, \
             generation = generation + 1, claim_kind = NULL, claim_owner = NULL, claim_deadline = NULL \
             WHERE engine_id = $1 AND generation = $2",
        )
    };
    let mut statement = statement.bind(row.engine_id.to_string()).bind(row.generation);
    if !gone {
        statement = statement
            .bind(settled.status.as_str())
            .bind(settled.instance.as_ref().map(|instance| instance.as_str().to_owned()))
            .bind(settled.engine_version.as_str().to_owned())
            .bind(settled.last_health_at.map(Timestamp::unix_ms));
    }
    if statement.execute(ledger.connection()).await?.rows_affected() == 0 {
        return Err(RegistryError::ClaimLost { engine_id: row.engine_id });
    }
    Ok((!gone).then_some(settled))
}
