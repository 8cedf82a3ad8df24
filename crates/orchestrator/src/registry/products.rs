//! Products: the tenants.

use api::orchestrator::Policy;
use api::product_state::ProductState;
use api::{DisplayName, KeyHash, ProductId, Slug, Timestamp, UserId};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::access::with_deadline;
use super::audit_log::{self, AuditEntry, ProductTx};
use super::hash_chain::GENESIS_HASH;
use super::idempotency;
use super::product_states::stored_state;
use super::stored_policy::StoredPolicy;
use super::{Registry, RegistryError};
use crate::domain::EngineOwner;

/// A product as the registry stores it.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) product_id: ProductId,
    pub(crate) slug: Slug,
    pub(crate) display_name: DisplayName,
    pub(crate) policy: Policy,
    /// The hash of the key that it was registered with, or of none if that works no more.
    pub(crate) key_hash: KeyHash,
    pub(crate) created_at: Timestamp,
    /// When its policy was last replaced; `None` if it never was.
    pub(crate) updated_at: Option<Timestamp>,
    /// The length of its audit log when this was read: of two views of a product, the one with the longer log is
    /// the later.
    pub(crate) audit_seq: i64,
    pub(crate) state: ProductState,
    /// Since when it has been in that state; `None` if it was never disabled.
    pub(crate) state_since: Option<Timestamp>,
    /// The number of engines when its deletion began.
    pub(crate) engines_to_delete: Option<i64>,
}

const COUNT_PRODUCTS: &str = "SELECT COUNT(*) FROM products WHERE state IS NULL OR state <> 'deleted'";

macro_rules! select_product {
    ($rest:literal) => {
        concat!(
            "SELECT product_id, COALESCE(former_slug, slug), display_name, policy, api_key_hash, created_at, \
             updated_at, audit_seq, state, state_since, engines_to_delete FROM products ",
            $rest
        )
    };
}

impl Product {
    /// The user of this product as the owner of an engine.
    pub(crate) fn engine_owner(&self, user_id: UserId) -> EngineOwner {
        EngineOwner { product_id: self.product_id, user_id }
    }
}

impl Registry {
    /// Registers `product` with its audit row. Returns whether its slug was free, and its key nobody's.
    pub(crate) async fn register(
        &self,
        product: &Product,
        entry: &AuditEntry,
    ) -> Result<bool, RegistryError> {
        // The product's audit log begins with this row; the product has no row yet that could be locked first.
        let (id, hash) = (1, entry.hash(product.product_id, 1, GENESIS_HASH));
        let policy = policy_json(&product.policy)?;
        let mut transaction = self.begin().await?;
        // The column's own constraint knows only the keys of registrations.
        let taken =
            sqlx::query("SELECT 1 FROM platform_keys WHERE key_hash = $1").bind(product.key_hash.to_hex());
        if with_deadline(taken.fetch_optional(&mut *transaction)).await?.is_some() {
            return Ok(false);
        }
        let inserted = with_deadline(
            sqlx::query(
                "INSERT INTO products \
             (product_id, slug, display_name, policy, api_key_hash, created_at, audit_seq, audit_hash) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (slug) DO NOTHING",
            )
            .bind(product.product_id.to_string())
            .bind(product.slug.as_str().to_owned())
            .bind(product.display_name.as_str().to_owned())
            .bind(policy)
            .bind(product.key_hash.to_hex())
            .bind(product.created_at.unix_ms())
            .bind(id)
            .bind(hash.clone())
            .execute(&mut *transaction),
        )
        .await?;
        if inserted.rows_affected() == 0 {
            return Ok(false);
        }
        audit_log::insert_entry(&mut transaction, product.product_id, id, entry, &hash).await?;
        if let Some(call) = &entry.call {
            idempotency::mark(&mut transaction, call, entry.at).await?;
        }
        with_deadline(transaction.commit()).await?;
        self.notifier.notify(product.product_id);
        Ok(true)
    }

    /// Returns the product with this id.
    pub(crate) async fn product(&self, product_id: ProductId) -> Result<Option<Product>, RegistryError> {
        let query = sqlx::query(select_product!("WHERE product_id = $1")).bind(product_id.to_string());
        let row = with_deadline(query.fetch_optional(&self.reads)).await?;
        row.as_ref().map(|row| self.read_product(row)).transpose()
    }

    /// Returns the product with this slug.
    pub(crate) async fn product_by_slug(&self, slug: &Slug) -> Result<Option<Product>, RegistryError> {
        let query = sqlx::query(select_product!("WHERE slug = $1")).bind(slug.as_str().to_owned());
        with_deadline(query.fetch_optional(&self.reads))
            .await?
            .as_ref()
            .map(|row| self.read_product(row))
            .transpose()
    }

    /// Returns a page of all products that are not deleted, oldest first, and their total number. Unreadable rows are
    /// left out of the page, but counted.
    pub(crate) async fn products(
        &self,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<Product>, u64), RegistryError> {
        // One transaction, so that the page and the total come from the same snapshot.
        let mut transaction = with_deadline(self.reads.begin()).await?;
        // Ids created later sort later.
        let rows = with_deadline(
            sqlx::query(select_product!(
                "WHERE state IS NULL OR state <> 'deleted' ORDER BY product_id LIMIT $1 OFFSET $2"
            ))
            .bind(limit)
            .bind(offset)
            .fetch_all(&mut *transaction),
        )
        .await?;
        let total = with_deadline(sqlx::query(COUNT_PRODUCTS).fetch_one(&mut *transaction)).await?;
        with_deadline(transaction.commit()).await?;
        let mut products = Vec::with_capacity(rows.len());
        for row in &rows {
            match self.read_product(row) {
                Err(RegistryError::Unreadable { column }) => {
                    self.unreadable_rows.log_once("product", &row.try_get::<String, _>(0)?, column);
                }
                product => products.push(product?),
            }
        }
        Ok((products, total.try_get::<i64, _>(0)?.unsigned_abs()))
    }

    /// Replaces a product's policy and writes the audit row that `entry` builds from the stored policy and the updated
    /// product. Returns the updated product; `None` if there is no such product.
    pub(crate) async fn replace_policy(
        &self,
        product_id: ProductId,
        policy: &Policy,
        at: Timestamp,
        entry: impl FnOnce(&Value, &Product) -> Result<AuditEntry, RegistryError>,
    ) -> Result<Option<Product>, RegistryError> {
        let mut tx = match self.begin_product_tx(product_id, 1).await {
            Err(RegistryError::ProductGone) => return Ok(None),
            tx => tx?,
        };
        if tx.state()? == ProductState::Deleted {
            return Ok(None);
        }
        let row = with_deadline(
            sqlx::query(select_product!("WHERE product_id = $1"))
                .bind(product_id.to_string())
                .fetch_one(tx.connection()),
        )
        .await?;
        let mut product = self.read_product(&row)?;
        // The policy as stored: the audit log also records what this version cannot read.
        let before: String = row.try_get(3)?;
        (product.policy, product.updated_at) = (policy.clone(), Some(at));
        let entry = entry(&serde_json::from_str(&before).unwrap_or(Value::String(before)), &product)?;
        with_deadline(
            sqlx::query("UPDATE products SET policy = $1, updated_at = $2 WHERE product_id = $3")
                .bind(policy_json(policy)?)
                .bind(at.unix_ms())
                .bind(product_id.to_string())
                .execute(tx.connection()),
        )
        .await?;
        tx.append(&entry).await?;
        tx.commit().await?;
        Ok(Some(product))
    }

    /// Returns a product after all transactions on it that began earlier have ended; `None` if there is no such
    /// product.
    pub(crate) async fn product_after_pending_changes(
        &self,
        product_id: ProductId,
    ) -> Result<Option<Product>, RegistryError> {
        let mut tx = match self.begin_product_tx(product_id, 0).await {
            Err(RegistryError::ProductGone) => return Ok(None),
            tx => tx?,
        };
        self.read_in(&mut tx, product_id).await.map(Some)
    }

    /// Reads the product of a transaction as it is in it.
    pub(super) async fn read_in(
        &self,
        tx: &mut ProductTx,
        product_id: ProductId,
    ) -> Result<Product, RegistryError> {
        let query = sqlx::query(select_product!("WHERE product_id = $1")).bind(product_id.to_string());
        let row = with_deadline(query.fetch_one(tx.connection())).await?;
        self.read_product(&row)
    }

    fn read_product(&self, row: &AnyRow) -> Result<Product, RegistryError> {
        let text = |at: usize| row.try_get::<String, _>(at);
        let unreadable = |column| move || RegistryError::Unreadable { column };
        let product_id = text(0)?;
        Ok(Product {
            product_id: product_id.parse().ok().ok_or_else(unreadable("product_id"))?,
            slug: Slug::new(text(1)?).ok().ok_or_else(unreadable("slug"))?,
            display_name: DisplayName::new(text(2)?).ok().ok_or_else(unreadable("display_name"))?,
            policy: self.stored_policy(&product_id, &text(3)?),
            key_hash: KeyHash::from_hex(&text(4)?).ok().ok_or_else(unreadable("api_key_hash"))?,
            created_at: Timestamp::from_unix_ms(row.try_get(5)?),
            updated_at: row.try_get::<Option<i64>, _>(6)?.map(Timestamp::from_unix_ms),
            audit_seq: row.try_get(7)?,
            state: stored_state(row.try_get(8)?)?,
            state_since: row.try_get::<Option<i64>, _>(9)?.map(Timestamp::from_unix_ms),
            engines_to_delete: row.try_get(10)?,
        })
    }

    /// Parses a stored policy as far as this version can read it, and logs the fields that it cannot read.
    pub(super) fn stored_policy(&self, product_id: &str, text: &str) -> Policy {
        let StoredPolicy { policy, unknown, unreadable } = StoredPolicy::read(text);
        for field in unknown {
            self.unreadable_rows.log_once("product (field ignored)", product_id, &format!("policy.{field}"));
        }
        for field in unreadable {
            self.unreadable_rows.log_once("product (suspended)", product_id, &format!("policy.{field}"));
        }
        policy
    }
}

fn policy_json(policy: &Policy) -> Result<String, RegistryError> {
    serde_json::to_string(policy).map_err(|_| RegistryError::Unreadable { column: "policy" })
}
