//! Products: the tenants.

use contract::orchestrator::Policy;
use contract::{DisplayName, KeyHash, ProductId, Slug, Timestamp};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::ledger::{self, Entry, NO_HASH};
use super::{Registry, RegistryError};

/// A product as the registry knows it.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) product_id: ProductId,
    pub(crate) slug: Slug,
    pub(crate) display_name: DisplayName,
    pub(crate) policy: Policy,
    pub(crate) key_hash: KeyHash,
    pub(crate) created_at: Timestamp,
}

macro_rules! select_product {
    ($rest:literal) => {
        concat!(
            "SELECT product_id, slug, display_name, policy, api_key_hash, created_at FROM products ",
            $rest
        )
    };
}

impl Registry {
    /// Registers `product` with its audit row. Returns whether its slug was free.
    pub(crate) async fn register(&self, product: &Product, entry: &Entry) -> Result<bool, RegistryError> {
        // The product's ledger begins with this row; there is no row of the product to take first.
        let (id, hash) = (1, entry.hash(product.product_id, 1, NO_HASH));
        let policy = serde_json::to_string(&product.policy)
            .map_err(|_| RegistryError::Unreadable { column: "policy" })?;
        let mut transaction = self.writes.begin().await?;
        let inserted = sqlx::query(
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
        .execute(&mut *transaction)
        .await?;
        if inserted.rows_affected() == 0 {
            return Ok(false);
        }
        ledger::insert(&mut transaction, product.product_id, id, entry, &hash).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// The product whose platform key has this hash.
    pub(crate) async fn product_by_key(&self, hash: KeyHash) -> Result<Option<Product>, RegistryError> {
        let query = sqlx::query(select_product!("WHERE api_key_hash = $1")).bind(hash.to_hex());
        query.fetch_optional(&self.reads).await?.as_ref().map(read).transpose()
    }

    /// The product with this slug.
    pub(crate) async fn product_by_slug(&self, slug: &Slug) -> Result<Option<Product>, RegistryError> {
        let query = sqlx::query(select_product!("WHERE slug = $1")).bind(slug.as_str().to_owned());
        query.fetch_optional(&self.reads).await?.as_ref().map(read).transpose()
    }
}

fn read(row: &AnyRow) -> Result<Product, RegistryError> {
    let text = |at: usize| row.try_get::<String, _>(at);
    let unreadable = |column| move || RegistryError::Unreadable { column };
    Ok(Product {
        product_id: text(0)?.parse().ok().ok_or_else(unreadable("product_id"))?,
        slug: Slug::new(text(1)?).ok().ok_or_else(unreadable("slug"))?,
        display_name: DisplayName::new(text(2)?).ok().ok_or_else(unreadable("display_name"))?,
        policy: serde_json::from_str(&text(3)?).ok().ok_or_else(unreadable("policy"))?,
        key_hash: KeyHash::from_hex(&text(4)?).ok().ok_or_else(unreadable("api_key_hash"))?,
        created_at: Timestamp::from_unix_ms(row.try_get(5)?),
    })
}
