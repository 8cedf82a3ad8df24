//! The states of products: disabled, being deleted, deleted.
//!
//! A state is read and checked under the lock of the product's row, like everything else of a product: whatever is
//! claimed after a product was disabled is refused, whoever asked for it before.

use api::product_state::ProductState;
use api::{KeyHash, ProductId};
use sqlx::Row as _;

use super::access::with_deadline;
use super::audit_log::{AuditEntry, ProductTx};
use super::products::Product;
use super::row::{EngineRow, select_engines};
use super::{Registry, RegistryError};
use crate::domain::product_life::{ProductAct, ProductRefusal, ProductStep, decide};

/// The result of an act: the product as it is then, and whether the act has changed it.
type Acted = Result<(Product, bool), ProductRefusal>;

/// What belongs to a product besides its engines, which take their own rows with them. Its audit log stays.
const OWNED: [&str; 6] = [
    "DELETE FROM platform_keys WHERE product_id = $1",
    "DELETE FROM product_origins WHERE product_id = $1",
    "DELETE FROM audit_dead_letters WHERE webhook_id IN (SELECT webhook_id FROM audit_webhooks WHERE product_id = $1)",
    "DELETE FROM audit_webhooks WHERE product_id = $1",
    "DELETE FROM rollout_engines WHERE product_id = $1",
    "DELETE FROM idempotent_calls WHERE product_id = $1",
];

/// How many engines a product has, and how many of them run or are being changed.
pub(super) const COUNT_OF_PRODUCT: &str = "SELECT \
     (SELECT COUNT(*) FROM engines WHERE product_id = $1), \
     (SELECT COUNT(*) FROM engines WHERE product_id = $1 AND status = 'running') \
     + (SELECT COUNT(*) FROM engines WHERE product_id = $1 AND claim_kind IS NOT NULL AND status <> 'running')";

/// The engines of a product that run or are being changed.
pub(super) const AWAKE_OF_PRODUCT: &str = concat!(
    select_engines!("WHERE product_id = $1 AND status = 'running' UNION ALL "),
    select_engines!("WHERE product_id = $1 AND claim_kind IS NOT NULL AND status <> 'running'")
);

/// A page of a product's engines, after the id `$2`.
const PAGE_OF_PRODUCT: &str =
    select_engines!("WHERE product_id = $1 AND engine_id > $2 ORDER BY engine_id LIMIT $3");

/// Reads a stored state.
pub(super) fn stored_state(state: Option<String>) -> Result<ProductState, RegistryError> {
    let Some(state) = state else { return Ok(ProductState::Active) };
    ProductState::from_name(&state).ok_or(RegistryError::Unreadable { column: "state" })
}

impl Registry {
    /// Disables, enables or begins to delete a product, with the audit row `entry`. A repeated act changes nothing.
    pub(crate) async fn act_on_product(
        &self,
        product_id: ProductId,
        act: ProductAct,
        entry: &AuditEntry,
    ) -> Result<Acted, RegistryError> {
        let mut tx = match self.begin_product_tx(product_id, 1).await {
            Err(RegistryError::ProductGone) => return Ok(Err(ProductRefusal::NotFound)),
            tx => tx?,
        };
        let to = match decide(tx.state()?, act) {
            ProductStep::Refuse(refusal) => return Ok(Err(refusal)),
            ProductStep::Already => {
                drop(tx);
                let product = self.product(product_id).await?.ok_or(RegistryError::ProductGone)?;
                return Ok(Ok((product, false)));
            }
            ProductStep::To(to) => to,
        };
        let engines = match to {
            ProductState::Deleting => Some(count_engines(&mut tx, product_id).await?),
            ProductState::Active | ProductState::Disabled | ProductState::Deleted => None,
        };
        let stored = (to != ProductState::Active).then(|| to.as_str());
        let update = sqlx::query(
            "UPDATE products SET state = $2, state_since = $3, engines_to_delete = $4 WHERE product_id = $1",
        )
        .bind(product_id.to_string())
        .bind(stored)
        .bind(entry.at.unix_ms())
        .bind(engines);
        with_deadline(update.execute(tx.connection())).await?;
        tx.append(entry).await?;
        let product = self.read_in(&mut tx, product_id).await?;
        tx.commit().await?;
        Ok(Ok((product, true)))
    }

    /// Ends the deletion of a product that has no engine any more: removes what belongs to it, and frees its slug.
    /// Returns the product as it is then; `None` if it still has engines, or is not being deleted. `nobody` is the
    /// hash of no key.
    pub(crate) async fn finish_product_deletion(
        &self,
        product_id: ProductId,
        nobody: KeyHash,
        entry: &AuditEntry,
    ) -> Result<Option<Product>, RegistryError> {
        let mut tx = self.begin_product_tx(product_id, 1).await?;
        if decide(tx.state()?, ProductAct::FinishDeletion) != ProductStep::To(ProductState::Deleted)
            || count_engines(&mut tx, product_id).await? > 0
            || count_warm_engines(&mut tx, product_id).await? > 0
        {
            return Ok(None);
        }
        for delete in OWNED {
            with_deadline(sqlx::query(delete).bind(product_id.to_string()).execute(tx.connection())).await?;
        }
        let update = sqlx::query(
            "UPDATE products SET state = $2, state_since = $3, former_slug = slug, slug = $4, api_key_hash = $5, \
             key_expires_at = $3, policy = '{}' WHERE product_id = $1",
        )
        .bind(product_id.to_string())
        .bind(ProductState::Deleted.as_str())
        .bind(entry.at.unix_ms())
        .bind(tombstone_slug(product_id))
        .bind(nobody.to_hex());
        with_deadline(update.execute(tx.connection())).await?;
        tx.append(entry).await?;
        let product = self.read_in(&mut tx, product_id).await?;
        tx.commit().await?;
        Ok(Some(product))
    }

    /// Returns the number of a product's engines, and of those that run or are being changed.
    pub(crate) async fn count_engines_of(&self, product_id: ProductId) -> Result<(u64, u64), RegistryError> {
        let query = sqlx::query(COUNT_OF_PRODUCT).bind(product_id.to_string());
        let row = with_deadline(query.fetch_one(&self.reads)).await?;
        let (engines, awake): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        Ok((engines.unsigned_abs(), awake.unsigned_abs()))
    }

    /// Returns the engines of a product that run or are being changed. Unreadable rows are skipped.
    pub(crate) async fn awake_engines_of(
        &self,
        product_id: ProductId,
    ) -> Result<Vec<EngineRow>, RegistryError> {
        let query = sqlx::query(AWAKE_OF_PRODUCT).bind(product_id.to_string());
        self.unreadable_rows.read_engines(&with_deadline(query.fetch_all(&self.reads)).await?)
    }

    /// Returns at most `limit` engines of a product after the id `after`, and the id after which the next page begins.
    /// Unreadable rows are left out.
    pub(crate) async fn engines_of(
        &self,
        product_id: ProductId,
        after: &str,
        limit: i64,
    ) -> Result<(Vec<EngineRow>, Option<String>), RegistryError> {
        let query =
            sqlx::query(PAGE_OF_PRODUCT).bind(product_id.to_string()).bind(after.to_owned()).bind(limit);
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        let is_full = i64::try_from(rows.len()).is_ok_and(|found| found == limit);
        let next = rows.last().filter(|_| is_full).map(|row| row.try_get::<String, _>(0)).transpose()?;
        Ok((self.unreadable_rows.read_engines(&rows)?, next))
    }
}

impl ProductTx {
    /// Fails if the product is disabled, being deleted or deleted. It stays enabled until the transaction ends.
    pub(super) fn require_enabled(&self) -> Result<(), RegistryError> {
        match self.state()? {
            ProductState::Active => Ok(()),
            state => Err(RegistryError::ProductDisabled { state }),
        }
    }
}

async fn count_engines(tx: &mut ProductTx, product_id: ProductId) -> Result<i64, RegistryError> {
    let count =
        sqlx::query("SELECT COUNT(*) FROM engines WHERE product_id = $1").bind(product_id.to_string());
    Ok(with_deadline(count.fetch_one(tx.connection())).await?.try_get(0)?)
}

/// The warm pool ends them once the product is out of use.
async fn count_warm_engines(tx: &mut ProductTx, product_id: ProductId) -> Result<i64, RegistryError> {
    let count =
        sqlx::query("SELECT COUNT(*) FROM warm_engines WHERE product_id = $1").bind(product_id.to_string());
    Ok(with_deadline(count.fetch_one(tx.connection())).await?.try_get(0)?)
}

/// The slug of a deleted product's row: no other product has one of this form, and earlier versions can read it.
fn tombstone_slug(product_id: ProductId) -> String {
    format!("deleted-{}", product_id.to_string().replace('_', "-"))
}
