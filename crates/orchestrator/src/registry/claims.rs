//! Claims: an operation marks an engine's row as its own by compare-and-swap on the generation, and gives the engine a
//! place if it launches it.

use api::orchestrator::EngineStatus;
use api::{EngineId, EngineImage, KeyHash, Timestamp};
use backend::Placement;
use sqlx::Row as _;

use super::access::with_deadline;
use super::audit_log::ProductTx;
use super::idempotency::{self, ClaimingCall};
use super::ports::{Placements, PortAllocator};
use super::row::{EngineRow, PlacedEngine};
use super::warm_engines::WarmOffer;
use super::{Registry, RegistryError};
use crate::domain::EngineOwner;
use crate::domain::lifecycle::Change;

/// The generation of an engine's first launch, also of one that is launched before anybody asks for it.
pub(crate) const FIRST_GENERATION: i64 = 1;

/// An engine to be provisioned.
pub(crate) struct NewEngine {
    pub(crate) engine_id: EngineId,
    pub(crate) owner: EngineOwner,
    pub(crate) key_hash: KeyHash,
    pub(crate) sealed_key: String,
    pub(crate) sealed_secrets_key: String,
    pub(crate) engine_version: EngineImage,
    pub(crate) pinned: bool,
    pub(crate) created_at: Timestamp,
    /// The warm engines of which it takes one instead of being a new one; `None` if there are none.
    pub(crate) warm: Option<WarmOffer>,
}

/// The next key of an engine, sealed, with its hash.
#[derive(Clone, Debug)]
pub(crate) struct PendingKey {
    pub(crate) sealed: String,
    pub(crate) hash: KeyHash,
}

/// A claim to be made: the operation, its owner and its deadline.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) change: Change,
    /// The next key; only for a rotation.
    pub(crate) pending: Option<PendingKey>,
    /// The image of a move to another version, which the product's policy must allow; otherwise `None`.
    pub(crate) image: Option<EngineImage>,
    /// The deployment's image: a policy without a list of versions allows only images of this name.
    pub(crate) default_image: EngineImage,
    /// Whether the engine is launched without its agent: then neither its product's state nor a suspension forbids it.
    pub(crate) for_maintenance: bool,
    /// The orchestrator process that makes the claim.
    pub(crate) owner: String,
    pub(crate) deadline: Timestamp,
    /// The call with an `Idempotency-Key` that the claim is made for.
    pub(crate) call: Option<ClaimingCall>,
}

/// Why a claim was refused. The row is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimRefused {
    /// The row has changed since the caller read it.
    Stale,
    /// The product has as many engines as its policy allows.
    Quota {
        /// The limit of the policy.
        max_engines: u64,
    },
    /// The product is suspended.
    Suspended,
    /// The product's policy does not allow the engine's image.
    ImageNotAllowed,
    /// No port is available.
    NoPort,
}

/// The result of a claim: what was claimed, or why it was refused.
type ClaimResult<T> = Result<Result<T, ClaimRefused>, RegistryError>;

impl Registry {
    /// Inserts and claims the row of a new engine: policy check, row and placement in one transaction. If a warm engine
    /// is like it, the row is that engine's, and names its instance.
    pub(crate) async fn claim_new_engine(
        &self,
        engine: &NewEngine,
        claim: &Claim,
        placements: &Placements,
    ) -> ClaimResult<PlacedEngine> {
        let mut tx = self.begin_product_tx(engine.owner.product_id, 0).await?;
        if let Some(refused) = self.refuse_new_engine(&mut tx, engine, claim).await? {
            return Ok(Err(refused));
        }
        let mut row = EngineRow {
            engine_id: engine.engine_id,
            owner: engine.owner.clone(),
            status: EngineStatus::Provisioning,
            prior_status: None,
            key_hash: engine.key_hash,
            sealed_key: engine.sealed_key.clone(),
            sealed_secrets_key: engine.sealed_secrets_key.clone(),
            engine_version: engine.engine_version.clone(),
            pinned: engine.pinned,
            port: None,
            instance: None,
            created_at: engine.created_at,
            last_health_at: None,
            generation: FIRST_GENERATION,
            claim: Some(claim.change),
            restarts: 0,
            restart_at: None,
        };
        let warm = self.take_warm_engine(&mut tx, engine).await?;
        let placement = match warm.as_ref().map(|warm| placements.placement_of(warm.port)) {
            Some(Some(placement)) => placement,
            // Without a port, it is of no use to a backend whose engines have ports of the host.
            Some(None) => return Ok(Err(ClaimRefused::Stale)),
            None => {
                placements.lock(self, tx.connection()).await?;
                match placements.place(tx.connection(), None).await? {
                    Some(placement) => placement,
                    None => return Ok(Err(ClaimRefused::NoPort)),
                }
            }
        };
        row.port = placement.host_port();
        if let Some(warm) = warm {
            (row.engine_id, row.instance, row.key_hash) = (warm.engine_id, warm.instance, warm.key_hash);
            (row.sealed_key, row.sealed_secrets_key) = (warm.sealed_key, warm.sealed_secrets_key);
        }
        insert_claimed(&mut tx, &row, claim).await?;
        note_call(&mut tx, &row, claim).await?;
        tx.commit().await?;
        Ok(Ok(row.placed(placement)))
    }

    /// Returns why the product may not have this new engine; `None` if it may.
    async fn refuse_new_engine(
        &self,
        tx: &mut ProductTx,
        engine: &NewEngine,
        claim: &Claim,
    ) -> Result<Option<ClaimRefused>, RegistryError> {
        // Checked here, under the lock of the product's row: the caller may have waited since its first check, and
        // neither a disabled product nor a replaced policy must let anybody through any more.
        tx.require_enabled()?;
        let policy = self.stored_policy(&engine.owner.product_id.to_string(), tx.policy());
        if policy.is_suspended() {
            return Ok(Some(ClaimRefused::Suspended));
        }
        if !policy.allows(&engine.engine_version, &claim.default_image) {
            return Ok(Some(ClaimRefused::ImageNotAllowed));
        }
        let existing = with_deadline(
            sqlx::query("SELECT 1 FROM engines WHERE product_id = $1 AND user_id = $2")
                .bind(engine.owner.product_id.to_string())
                .bind(engine.owner.user_id.as_str().to_owned())
                .fetch_optional(tx.connection()),
        )
        .await?;
        if existing.is_some() {
            return Ok(Some(ClaimRefused::Stale));
        }
        if let Some(max_engines) = policy.max_engines {
            let count = with_deadline(
                sqlx::query("SELECT COUNT(*) FROM engines WHERE product_id = $1")
                    .bind(engine.owner.product_id.to_string())
                    .fetch_one(tx.connection()),
            )
            .await?;
            if count.try_get::<i64, _>(0)?.unsigned_abs() >= max_engines {
                return Ok(Some(ClaimRefused::Quota { max_engines }));
            }
        }
        Ok(None)
    }

    /// Leases another port for `engine`, which is claimed, because another program holds its own.
    pub(crate) async fn lease_another_port(
        &self,
        engine: &mut PlacedEngine,
        ports: &PortAllocator,
    ) -> ClaimResult<()> {
        let row = &engine.row;
        let mut tx = self.begin_product_tx(row.owner.product_id, 0).await?;
        self.lock_multi_engine(tx.connection()).await?;
        // Its own port stays leased during the search, and so cannot be chosen again.
        let Some(port) = ports.lease(tx.connection(), None).await? else {
            return Ok(Err(ClaimRefused::NoPort));
        };
        let update = sqlx::query("UPDATE engines SET port = $1 WHERE engine_id = $2 AND generation = $3")
            .bind(i64::from(port))
            .bind(row.engine_id.to_string())
            .bind(row.generation);
        if with_deadline(update.execute(tx.connection())).await?.rows_affected() == 0 {
            return Ok(Err(ClaimRefused::Stale));
        }
        tx.commit().await?;
        engine.place(Placement::HostPort(port));
        Ok(Ok(()))
    }

    /// Claims the engine of `seen` for an operation if its row is unchanged since `seen` was read.
    pub(crate) async fn claim(&self, seen: &EngineRow, claim: &Claim) -> ClaimResult<EngineRow> {
        let mut tx = self.begin_product_tx(seen.owner.product_id, 0).await?;
        let claimed = self.claim_row(&mut tx, seen, claim).await?;
        if claimed.is_ok() {
            tx.commit().await?;
        }
        Ok(claimed)
    }

    /// Claims the engine of `seen` like [`Registry::claim`], and places it.
    pub(crate) async fn claim_and_place(
        &self,
        seen: &EngineRow,
        claim: &Claim,
        placements: &Placements,
    ) -> ClaimResult<PlacedEngine> {
        let mut tx = self.begin_product_tx(seen.owner.product_id, 0).await?;
        placements.lock(self, tx.connection()).await?;
        let row = match self.claim_row(&mut tx, seen, claim).await? {
            Ok(row) => row,
            Err(refused) => return Ok(Err(refused)),
        };
        let Some(placement) = placements.place(tx.connection(), row.port).await? else {
            return Ok(Err(ClaimRefused::NoPort));
        };
        if let Some(port) = placement.host_port().filter(|port| row.port != Some(*port)) {
            with_deadline(
                sqlx::query("UPDATE engines SET port = $1 WHERE engine_id = $2")
                    .bind(i64::from(port))
                    .bind(row.engine_id.to_string())
                    .execute(tx.connection()),
            )
            .await?;
        }
        tx.commit().await?;
        Ok(Ok(row.placed(placement)))
    }

    /// Claims the row in `tx`, which is not committed if the claim is refused.
    async fn claim_row(&self, tx: &mut ProductTx, seen: &EngineRow, claim: &Claim) -> ClaimResult<EngineRow> {
        let starts_agent = claim.change.starts_engine() && !claim.for_maintenance;
        if starts_agent || claim.change == Change::Rotate {
            tx.require_enabled()?;
        }
        if starts_agent && matches!(claim.change, Change::Start | Change::Wake) {
            let policy = self.stored_policy(&seen.owner.product_id.to_string(), tx.policy());
            if policy.is_suspended() {
                return Ok(Err(ClaimRefused::Suspended));
            }
            if claim.image.as_ref().is_some_and(|image| !policy.allows(image, &claim.default_image)) {
                return Ok(Err(ClaimRefused::ImageNotAllowed));
            }
        }
        let pending = claim.pending.as_ref();
        let claimed = with_deadline(
            sqlx::query(claim_sql(claim.change))
                .bind(claim.change.as_str())
                .bind(claim.owner.clone())
                .bind(claim.deadline.unix_ms())
                .bind(seen.engine_id.to_string())
                .bind(seen.generation)
                .bind(pending.map(|pending| pending.sealed.clone()))
                .bind(pending.map(|pending| pending.hash.to_hex()))
                .fetch_optional(tx.connection()),
        )
        .await?;
        let Some(claimed) = claimed else { return Ok(Err(ClaimRefused::Stale)) };
        let last_port: Option<i64> = claimed.try_get(0)?;
        let mut row = seen.clone();
        row.generation += 1;
        row.claim = Some(claim.change);
        row.restarts = claimed.try_get(1)?;
        row.port = last_port.and_then(|port| u16::try_from(port).ok());
        if claim.change == Change::Destroy {
            row.prior_status = seen.settled_status();
            row.status = EngineStatus::Destroying;
        }
        note_call(tx, &row, claim).await?;
        Ok(Ok(row))
    }
}

/// Notes for the call that the claim is made for that it claims the engine of `row`.
async fn note_call(tx: &mut ProductTx, row: &EngineRow, claim: &Claim) -> Result<(), RegistryError> {
    match &claim.call {
        Some(call) => idempotency::note_claim(tx.connection(), call, row.claimed()).await,
        None => Ok(()),
    }
}

/// Returns the statement that claims an engine for `change`. Parameters: the claim's kind, owner and deadline, the
/// engine, the generation that the caller read, and the pending key with its hash.
const fn claim_sql(change: Change) -> &'static str {
    macro_rules! claim {
        ($set:literal, $condition:literal) => {
            concat!(
                "UPDATE engines SET claim_kind = $1, claim_owner = $2, claim_deadline = $3, \
                 generation = generation + 1, pending_key = $6, pending_key_hash = $7",
                $set,
                " WHERE engine_id = $4 AND generation = $5",
                $condition,
                " RETURNING port, restarts"
            )
        };
    }
    match change {
        // Takes over any operation under way.
        Change::Destroy => claim!(
            ", status = 'destroying', prior_status = CASE WHEN status IN ('provisioning', 'destroying') \
             THEN prior_status ELSE status END",
            ""
        ),
        // Counted before the attempt, so that one that brings the orchestrator down counts too.
        Change::Restart => claim!(", restarts = restarts + 1", " AND claim_kind IS NULL"),
        Change::Start => claim!(", restarts = 0", " AND claim_kind IS NULL"),
        Change::Provision | Change::Wake | Change::Stop | Change::Sleep | Change::Rotate => {
            claim!("", " AND claim_kind IS NULL")
        }
    }
}

/// Inserts the row of a new engine, claimed and with its port, if it has one.
async fn insert_claimed(tx: &mut ProductTx, row: &EngineRow, claim: &Claim) -> Result<(), RegistryError> {
    with_deadline(
        sqlx::query(
            "INSERT INTO engines \
         (engine_id, product_id, user_id, status, key_hash, sealed_key, sealed_secrets_key, \
          engine_version, pinned, port, created_at, generation, claim_kind, claim_owner, claim_deadline, instance) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
        )
        .bind(row.engine_id.to_string())
        .bind(row.owner.product_id.to_string())
        .bind(row.owner.user_id.as_str().to_owned())
        .bind(row.status.as_str())
        .bind(row.key_hash.to_hex())
        .bind(row.sealed_key.clone())
        .bind(row.sealed_secrets_key.clone())
        .bind(row.engine_version.as_str().to_owned())
        .bind(i64::from(row.pinned))
        .bind(row.port.map(i64::from))
        .bind(row.created_at.unix_ms())
        .bind(row.generation)
        .bind(claim.change.as_str())
        .bind(claim.owner.clone())
        .bind(claim.deadline.unix_ms())
        .bind(row.instance.as_ref().map(|instance| instance.as_str().to_owned()))
        .execute(tx.connection()),
    )
    .await?;
    Ok(())
}
