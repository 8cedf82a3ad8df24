//! Platform keys of products: the hash of each, and until when it works.
//!
//! The key that a product was registered with is in the product's row, where versions of this binary that know no
//! others find it. Once it is revoked, the row has a hash that no key has.

use api::product_keys::{MAX_PLATFORM_KEYS, PlatformKeySummary};
use api::product_state::ProductState;
use api::{KeyHash, PlatformKeyId, ProductId, Timestamp};
use sqlx::any::AnyRow;
use sqlx::{Any, Executor, Row as _};

use super::access::with_deadline;
use super::audit_log::{AuditEntry, ProductTx};
use super::{Registry, RegistryError};

/// A platform key that has not expired when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredKey {
    pub(crate) product_id: ProductId,
    pub(crate) hash: KeyHash,
    pub(crate) summary: PlatformKeySummary,
}

/// Why no key was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRefused {
    /// There is no such product.
    NoProduct,
    /// The product has as many keys as it may have.
    Limit,
    /// The product has no such key in force.
    NoKey,
}

/// The keys in force at `$1`, oldest first. The key of the registration is older than the others.
macro_rules! select_keys {
    ($products:literal, $keys:literal) => {
        concat!(
            "SELECT product_id, CAST(NULL AS TEXT), api_key_hash, created_at, key_expires_at FROM products \
             WHERE (key_expires_at IS NULL OR key_expires_at > $1)",
            $products,
            " UNION ALL \
             SELECT product_id, key_id, key_hash, created_at, expires_at FROM platform_keys \
             WHERE (expires_at IS NULL OR expires_at > $1)",
            $keys
        )
    };
}

pub(super) const ALL_KEYS: &str = select_keys!("", "");
pub(super) const KEYS_OF_PRODUCT: &str = select_keys!(" AND product_id = $2", " AND product_id = $2");
pub(super) const KEY_BY_HASH: &str = select_keys!(" AND api_key_hash = $2", " AND key_hash = $2");

impl Registry {
    /// Returns the keys of all products that are in force at `now`, and whether each row could be read.
    pub(crate) async fn all_platform_keys(
        &self,
        now: Timestamp,
    ) -> Result<(Vec<StoredKey>, bool), RegistryError> {
        let rows = with_deadline(sqlx::query(ALL_KEYS).bind(now.unix_ms()).fetch_all(&self.reads)).await?;
        let keys: Vec<_> = rows.iter().filter_map(|row| read_key(row).ok()).collect();
        let is_complete = keys.len() == rows.len();
        Ok((keys, is_complete))
    }

    /// Returns the key with this hash, if it is in force at `now`.
    pub(crate) async fn platform_key(
        &self,
        hash: KeyHash,
        now: Timestamp,
    ) -> Result<Option<StoredKey>, RegistryError> {
        let query = sqlx::query(KEY_BY_HASH).bind(now.unix_ms()).bind(hash.to_hex());
        with_deadline(query.fetch_optional(&self.reads)).await?.as_ref().map(read_key).transpose()
    }

    /// Returns a product's keys that are in force at `now`, oldest first.
    pub(crate) async fn platform_keys(
        &self,
        product_id: ProductId,
        now: Timestamp,
    ) -> Result<Vec<StoredKey>, RegistryError> {
        read_keys(&self.reads, product_id, now).await
    }

    /// Like [`Registry::platform_keys`], after all changes that began earlier have ended.
    pub(crate) async fn platform_keys_after_pending_changes(
        &self,
        product_id: ProductId,
        now: Timestamp,
    ) -> Result<Vec<StoredKey>, RegistryError> {
        read_keys(self.begin_product_tx(product_id, 0).await?.connection(), product_id, now).await
    }

    /// Adds a key of the product, made at the time of `entry`, with its audit row. The others expire at `others_expire_at`
    /// at the latest. Returns the keys that are then in force. `nobody` is the hash of no key.
    pub(crate) async fn add_platform_key(
        &self,
        key: StoredKey,
        others_expire_at: Option<Timestamp>,
        nobody: KeyHash,
        entry: &AuditEntry,
    ) -> Result<Result<Vec<StoredKey>, KeyRefused>, RegistryError> {
        let StoredKey { product_id, hash, summary } = key;
        let mut tx = match self.begin_product_tx(product_id, 1).await {
            Err(RegistryError::ProductGone) => return Ok(Err(KeyRefused::NoProduct)),
            tx => tx?,
        };
        tx.require_enabled()?;
        if let Some(at) = others_expire_at {
            let of_registration = sqlx::query(
                "UPDATE products SET key_expires_at = $1 \
                 WHERE product_id = $2 AND (key_expires_at IS NULL OR key_expires_at > $1)",
            );
            let of_others = sqlx::query(
                "UPDATE platform_keys SET expires_at = $1 \
                 WHERE product_id = $2 AND (expires_at IS NULL OR expires_at > $1)",
            );
            for update in [of_registration, of_others] {
                let update = update.bind(at.unix_ms()).bind(product_id.to_string());
                with_deadline(update.execute(tx.connection())).await?;
            }
        }
        forget_expired(&mut tx, product_id, nobody, entry.at).await?;
        let mut keys = read_keys(tx.connection(), product_id, entry.at).await?;
        if keys.len() >= MAX_PLATFORM_KEYS {
            return Ok(Err(KeyRefused::Limit));
        }
        let insert = sqlx::query(
            "INSERT INTO platform_keys (key_id, product_id, key_hash, created_at) VALUES ($1, $2, $3, $4)",
        )
        .bind(summary.key_id.to_string())
        .bind(product_id.to_string())
        .bind(hash.to_hex())
        .bind(summary.created_at.unix_ms());
        with_deadline(insert.execute(tx.connection())).await?;
        tx.append(entry).await?;
        tx.commit().await?;
        keys.push(key);
        Ok(Ok(keys))
    }

    /// Revokes a key of the product, with its audit row. Returns the keys that are then in force. `nobody` is the hash of
    /// no key.
    pub(crate) async fn revoke_platform_key(
        &self,
        product_id: ProductId,
        key_id: PlatformKeyId,
        nobody: KeyHash,
        entry: &AuditEntry,
    ) -> Result<Result<Vec<StoredKey>, KeyRefused>, RegistryError> {
        let mut tx = match self.begin_product_tx(product_id, 1).await {
            Err(RegistryError::ProductGone) => return Ok(Err(KeyRefused::NoProduct)),
            tx => tx?,
        };
        if tx.state()? == ProductState::Deleted {
            return Ok(Err(KeyRefused::NoProduct));
        }
        let mut keys = read_keys(tx.connection(), product_id, entry.at).await?;
        let Some(at) = keys.iter().position(|key| key.summary.key_id == key_id) else {
            return Ok(Err(KeyRefused::NoKey));
        };
        let revoked = keys.remove(at);
        let expire = if revoked.summary.registration {
            sqlx::query("UPDATE products SET key_expires_at = $1 WHERE product_id = $2")
        } else {
            sqlx::query("UPDATE platform_keys SET expires_at = $1 WHERE product_id = $2 AND key_id = $3")
        };
        let expire = expire.bind(entry.at.unix_ms()).bind(product_id.to_string());
        let expire = if revoked.summary.registration { expire } else { expire.bind(key_id.to_string()) };
        with_deadline(expire.execute(tx.connection())).await?;
        forget_expired(&mut tx, product_id, nobody, entry.at).await?;
        tx.append(entry).await?;
        tx.commit().await?;
        Ok(Ok(keys))
    }
}

async fn read_keys(
    connection: impl Executor<'_, Database = Any>,
    product_id: ProductId,
    now: Timestamp,
) -> Result<Vec<StoredKey>, RegistryError> {
    let query = sqlx::query(KEYS_OF_PRODUCT).bind(now.unix_ms()).bind(product_id.to_string());
    let rows = with_deadline(query.fetch_all(connection)).await?;
    let mut keys = rows.iter().map(read_key).collect::<Result<Vec<_>, _>>()?;
    // Ids created later sort later, and that of the registration is as old as the product.
    keys.sort_by_key(|key| key.summary.key_id);
    Ok(keys)
}

/// Removes the hashes of keys that work no more: so that no clock that is set back and no earlier version of this
/// binary brings one back.
async fn forget_expired(
    tx: &mut ProductTx,
    product_id: ProductId,
    nobody: KeyHash,
    now: Timestamp,
) -> Result<(), RegistryError> {
    let delete = sqlx::query("DELETE FROM platform_keys WHERE product_id = $1 AND expires_at <= $2")
        .bind(product_id.to_string())
        .bind(now.unix_ms());
    with_deadline(delete.execute(tx.connection())).await?;
    let replace =
        sqlx::query("UPDATE products SET api_key_hash = $3 WHERE product_id = $1 AND key_expires_at <= $2")
            .bind(product_id.to_string())
            .bind(now.unix_ms())
            .bind(nobody.to_hex());
    with_deadline(replace.execute(tx.connection())).await?;
    Ok(())
}

fn read_key(row: &AnyRow) -> Result<StoredKey, RegistryError> {
    let unreadable = |column| move || RegistryError::Unreadable { column };
    let product_id = row.try_get::<String, _>(0)?.parse().ok().ok_or_else(unreadable("product_id"))?;
    let key_id = match row.try_get::<Option<String>, _>(1)? {
        Some(key_id) => Some(key_id.parse().ok().ok_or_else(unreadable("key_id"))?),
        None => None,
    };
    let hash = KeyHash::from_hex(&row.try_get::<String, _>(2)?);
    Ok(StoredKey {
        product_id,
        hash: hash.ok().ok_or_else(unreadable("key_hash"))?,
        summary: PlatformKeySummary {
            key_id: key_id.unwrap_or_else(|| PlatformKeyId::of_registration(product_id)),
            registration: key_id.is_none(),
            created_at: Timestamp::from_unix_ms(row.try_get(3)?),
            expires_at: row.try_get::<Option<i64>, _>(4)?.map(Timestamp::from_unix_ms),
        },
    })
}
