//! The audit log: every change and its audit row in one transaction, chained by hashes.

use std::sync::Arc;

pub(crate) use api::audit::AuditEvent as Event;
use api::product_state::ProductState;
use api::{EngineId, ProductId, Timestamp, UserId};
use serde_json::Value;
use sqlx::{Any, AnyConnection, Row as _, Transaction};
use tokio::sync::OwnedMutexGuard;

use super::access::with_deadline;
use super::hash_chain::ChainedRow;
use super::idempotency::{self, CallMark};
use super::notify::Notifier;
use super::product_states::stored_state;
use super::{Registry, RegistryError, RegistryLock};
use crate::domain::Actor;

/// An audit row to be written.
#[derive(Clone, Debug)]
pub(crate) struct AuditEntry {
    pub(crate) at: Timestamp,
    pub(crate) event: Event,
    /// The engine concerned, and its user.
    pub(crate) engine: Option<(EngineId, UserId)>,
    pub(crate) duration_ms: Option<i64>,
    /// A JSON object.
    pub(crate) detail: Value,
    /// The call with an `Idempotency-Key` whose change this records.
    pub(crate) call: Option<CallMark>,
}

impl AuditEntry {
    /// Names who asked for the change, if that does not follow from the event and its reason.
    #[must_use]
    pub(crate) fn by(mut self, actor: Actor) -> Self {
        if let (Value::Object(detail), Actor::Operator) = (&mut self.detail, actor) {
            detail.insert("actor".to_owned(), "admin".into());
        }
        self
    }

    /// Marks the call whose change this records, in the same transaction.
    #[must_use]
    pub(crate) fn of_call(self, call: Option<CallMark>) -> Self {
        Self { call, ..self }
    }

    /// Returns the hash of this entry as row `id` of `product_id`, following a row with the hash `before`.
    pub(crate) fn hash(&self, product_id: ProductId, id: i64, before: &str) -> String {
        let engine = self.engine.as_ref();
        let engine_id = engine.map(|(engine_id, _)| engine_id.to_string());
        let row = ChainedRow {
            product_id: &product_id.to_string(),
            id,
            at: self.at.unix_ms(),
            engine_id: engine_id.as_deref(),
            user_id: engine.map(|(_, user_id)| user_id.as_str()),
            event: self.event.as_str(),
            duration_ms: self.duration_ms,
            detail: &self.detail.to_string(),
        };
        row.hash(before)
    }
}

/// A transaction on one product: its engines and its audit log. Dropping it rolls it back.
pub(super) struct ProductTx {
    transaction: Transaction<'static, Any>,
    product_id: ProductId,
    /// The id of the row written last.
    last_id: i64,
    /// The number of rows still to be written.
    rows_left: i64,
    last_hash: String,
    /// The product's stored policy, which stays in force until the transaction ends.
    policy: String,
    /// The product's stored state, which stays in force, too.
    state: Option<String>,
    /// The number of written rows that count towards the product's lifetime metrics.
    provisions: i64,
    destroys: i64,
    /// Notifies those who wait for rows.
    notifier: Arc<Notifier>,
    /// Declared after the transaction, which is dropped first.
    _product_lock: OwnedMutexGuard<()>,
}

/// Locks a product's row, and with it everything of the product until the transaction ends.
const LOCK_PRODUCT: &str = "UPDATE products SET audit_seq = audit_seq + $1 WHERE product_id = $2 \
                    RETURNING audit_seq, audit_hash, policy, state";

/// The same under the condition that our epoch is in force: a new leader waits for the transactions that checked
/// it.
const LOCK_PRODUCT_FENCED: &str = "WITH held AS (SELECT 1 FROM meta WHERE name = 'epoch' AND value = $3 FOR SHARE) \
                           UPDATE products SET audit_seq = audit_seq + $1 \
                           WHERE product_id = $2 AND EXISTS (SELECT 1 FROM held) \
                           RETURNING audit_seq, audit_hash, policy, state";

impl Registry {
    /// Appends an audit row of its own, with which no other row changes.
    pub(crate) async fn append_audit(
        &self,
        product_id: ProductId,
        entry: &AuditEntry,
    ) -> Result<(), RegistryError> {
        let mut tx = self.begin_product_tx(product_id, 1).await?;
        tx.append(entry).await?;
        tx.commit().await
    }

    /// Begins a transaction on `product_id` that will write `rows` audit rows.
    pub(super) async fn begin_product_tx(
        &self,
        product_id: ProductId,
        rows: i64,
    ) -> Result<ProductTx, RegistryError> {
        // Waits no longer than for a statement.
        let product_lock = with_deadline(async { Ok(self.product_locks.lock(product_id).await) }).await?;
        let mut transaction = with_deadline(self.writes.begin()).await?;
        let query = match &self.lock {
            RegistryLock::File { .. } => sqlx::query(LOCK_PRODUCT),
            RegistryLock::Session(_) => sqlx::query(LOCK_PRODUCT_FENCED),
        };
        let mut query = query.bind(rows).bind(product_id.to_string());
        if let RegistryLock::Session(lock) = &self.lock {
            query = query.bind(lock.epoch().to_owned());
        }
        let Some(product) = with_deadline(query.fetch_optional(&mut *transaction)).await? else {
            self.check_epoch(&mut transaction).await?;
            return Err(RegistryError::ProductGone);
        };
        let last_id: i64 = product.try_get(0)?;
        let (hash, policy) = (product.try_get(1)?, product.try_get(2)?);
        let state = product.try_get(3)?;
        Ok(ProductTx {
            transaction,
            product_id,
            last_id: last_id - rows,
            rows_left: rows,
            last_hash: hash,
            policy,
            state,
            provisions: 0,
            destroys: 0,
            notifier: Arc::clone(&self.notifier),
            _product_lock: product_lock,
        })
    }
}

impl ProductTx {
    /// The product's stored policy.
    pub(super) fn policy(&self) -> &str {
        &self.policy
    }

    /// The id of the row written last.
    pub(super) const fn last_id(&self) -> i64 {
        self.last_id
    }

    /// The product's state.
    pub(super) fn state(&self) -> Result<ProductState, RegistryError> {
        stored_state(self.state.clone())
    }

    /// The connection for further statements of the transaction.
    pub(super) fn connection(&mut self) -> &mut AnyConnection {
        &mut self.transaction
    }

    /// Appends the next audit row.
    pub(super) async fn append(&mut self, entry: &AuditEntry) -> Result<(), RegistryError> {
        self.last_id += 1;
        self.rows_left -= 1;
        self.provisions += i64::from(entry.event == Event::Provision);
        self.destroys += i64::from(entry.event == Event::Destroy);
        self.last_hash = entry.hash(self.product_id, self.last_id, &self.last_hash);
        if let Some(call) = &entry.call {
            idempotency::mark(&mut self.transaction, call, entry.at).await?;
        }
        insert_entry(&mut self.transaction, self.product_id, self.last_id, entry, &self.last_hash).await
    }

    /// Commits the changes and their audit rows, and notifies those who wait for rows.
    pub(super) async fn commit(mut self) -> Result<(), RegistryError> {
        if self.rows_left != 0 {
            return Err(RegistryError::AuditIncomplete);
        }
        with_deadline(
            sqlx::query(
                "UPDATE products SET audit_hash = $1, provisions = provisions + $2, destroys = destroys + $3 \
             WHERE product_id = $4",
            )
            .bind(self.last_hash)
            .bind(self.provisions)
            .bind(self.destroys)
            .bind(self.product_id.to_string())
            .execute(&mut *self.transaction),
        )
        .await?;
        with_deadline(self.transaction.commit()).await?;
        // Directly after the commit, with no await between: a change whose future is dropped half-way was either
        // not committed or is announced.
        self.notifier.notify(self.product_id);
        Ok(())
    }
}

pub(super) async fn insert_entry(
    connection: &mut AnyConnection,
    product_id: ProductId,
    id: i64,
    entry: &AuditEntry,
    hash: &str,
) -> Result<(), RegistryError> {
    let engine = entry.engine.as_ref();
    with_deadline(
        sqlx::query(
            "INSERT INTO audit_log \
         (product_id, id, at, engine_id, user_id, event, duration_ms, detail, hash) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(product_id.to_string())
        .bind(id)
        .bind(entry.at.unix_ms())
        .bind(engine.map(|(engine_id, _)| engine_id.to_string()))
        .bind(engine.map(|(_, user_id)| user_id.as_str().to_owned()))
        .bind(entry.event.as_str())
        .bind(entry.duration_ms)
        .bind(entry.detail.to_string())
        .bind(hash.to_owned())
        .execute(connection),
    )
    .await?;
    Ok(())
}
