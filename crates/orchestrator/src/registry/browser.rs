//! Browser tokens (all but their secrets), and the origins of the products' pages.

use api::browser::{BrowserAccess, MAX_TOKENS, Origins, REVOCATION_SLACK_MS, TokenSummary};
use api::{EngineId, ProductId, TaskId, Timestamp, TokenId};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::access::with_deadline;
use super::audit_log::AuditEntry;
use super::row::EngineRow;
use super::{Registry, RegistryError};

/// Why a token was not minted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MintRefused {
    /// The engine is gone or has another key by now.
    Stale,
    /// It has as many tokens as it may have; the first one expires at this time.
    Limit { first_expiry: Timestamp },
}

macro_rules! select_tokens {
    ($rest:literal) => {
        concat!(
            "SELECT token_id, engine_id, scopes, task_id, issued_at, expires_at, revoked_at FROM browser_tokens ",
            $rest
        )
    };
}

impl Registry {
    /// Stores a token of the engine of `row`, minted now under its key, with its audit row. Removes those of the
    /// engine that are void.
    pub(crate) async fn insert_token(
        &self,
        row: &EngineRow,
        token: &TokenSummary,
        entry: &AuditEntry,
    ) -> Result<Result<(), MintRefused>, RegistryError> {
        let mut tx = self.begin_product_tx(row.owner.product_id, 1).await?;
        tx.require_enabled()?;
        let (engine_id, key_hash) = (row.engine_id.to_string(), row.key_hash.to_hex());
        let current = sqlx::query("SELECT 1 FROM engines WHERE engine_id = $1 AND key_hash = $2")
            .bind(engine_id.clone())
            .bind(key_hash.clone());
        if with_deadline(current.fetch_optional(tx.connection())).await?.is_none() {
            return Ok(Err(MintRefused::Stale));
        }
        // A revoked one is kept for some time after its expiry, as the engine does.
        let remove = sqlx::query(
            "DELETE FROM browser_tokens WHERE engine_id = $1 AND (key_hash <> $2 \
             OR expires_at <= $3 AND (revoked_at IS NULL OR expires_at <= $4))",
        )
        .bind(engine_id.clone())
        .bind(key_hash.clone())
        .bind(entry.at.unix_ms())
        .bind(entry.at.unix_ms().saturating_sub(REVOCATION_SLACK_MS));
        with_deadline(remove.execute(tx.connection())).await?;
        let count = sqlx::query("SELECT COUNT(*), MIN(expires_at) FROM browser_tokens WHERE engine_id = $1")
            .bind(engine_id.clone());
        let counted = with_deadline(count.fetch_one(tx.connection())).await?;
        if usize::try_from(counted.try_get::<i64, _>(0)?).unwrap_or(usize::MAX) >= MAX_TOKENS {
            let first_expiry = Timestamp::from_unix_ms(counted.try_get(1)?);
            return Ok(Err(MintRefused::Limit { first_expiry }));
        }
        let scopes = serde_json::to_string(&token.scopes)
            .map_err(|_| RegistryError::Unreadable { column: "scopes" })?;
        let insert = sqlx::query(
            "INSERT INTO browser_tokens \
             (token_id, engine_id, key_hash, scopes, task_id, issued_at, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(token.token_id.to_string())
        .bind(engine_id)
        .bind(key_hash)
        .bind(scopes)
        .bind(token.task_id.as_ref().map(stored_task))
        .bind(token.issued_at.unix_ms())
        .bind(token.expires_at.unix_ms());
        with_deadline(insert.execute(tx.connection())).await?;
        tx.append(entry).await?;
        tx.commit().await?;
        Ok(Ok(()))
    }

    /// Returns the tokens of an engine that are not void at `now`, newest first.
    pub(crate) async fn tokens(
        &self,
        row: &EngineRow,
        now: Timestamp,
        before: Option<TokenId>,
        limit: i64,
    ) -> Result<Vec<TokenSummary>, RegistryError> {
        let query = sqlx::query(select_tokens!(
            "WHERE engine_id = $1 AND key_hash = $2 AND expires_at > $3 \
             AND ($4 = '' OR token_id < $4) ORDER BY token_id DESC LIMIT $5"
        ))
        .bind(row.engine_id.to_string())
        .bind(row.key_hash.to_hex())
        .bind(now.unix_ms())
        .bind(before.map(|before| before.to_string()).unwrap_or_default())
        .bind(limit);
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(read_token).collect()
    }

    /// Returns a token of an engine; `None` if there is none, or it is void because of its key.
    pub(crate) async fn token(
        &self,
        row: &EngineRow,
        token_id: TokenId,
    ) -> Result<Option<TokenSummary>, RegistryError> {
        let query = sqlx::query(select_tokens!("WHERE engine_id = $1 AND key_hash = $2 AND token_id = $3"))
            .bind(row.engine_id.to_string())
            .bind(row.key_hash.to_hex())
            .bind(token_id.to_string());
        with_deadline(query.fetch_optional(&self.reads)).await?.as_ref().map(read_token).transpose()
    }

    /// Revokes a token, with its audit row. Returns whether it was in force.
    pub(crate) async fn revoke_token(
        &self,
        row: &EngineRow,
        token_id: TokenId,
        entry: &AuditEntry,
    ) -> Result<bool, RegistryError> {
        let mut tx = self.begin_product_tx(row.owner.product_id, 1).await?;
        let update = sqlx::query(
            "UPDATE browser_tokens SET revoked_at = $1 \
             WHERE token_id = $2 AND engine_id = $3 AND revoked_at IS NULL",
        )
        .bind(entry.at.unix_ms())
        .bind(token_id.to_string())
        .bind(row.engine_id.to_string());
        if with_deadline(update.execute(tx.connection())).await?.rows_affected() == 0 {
            return Ok(false);
        }
        tx.append(entry).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Returns what an engine has to know about browsers.
    pub(crate) async fn browser_access(
        &self,
        engine_id: EngineId,
        product_id: ProductId,
        now: Timestamp,
    ) -> Result<BrowserAccess, RegistryError> {
        // The revision is read first: what is read after it is at least as new.
        let revision = self.last_audit_id(product_id).await?;
        let origins = self.origins(product_id).await?;
        let query = sqlx::query(
            "SELECT token_id FROM browser_tokens \
             WHERE engine_id = $1 AND revoked_at IS NOT NULL AND expires_at > $2 ORDER BY token_id",
        )
        .bind(engine_id.to_string())
        .bind(now.unix_ms().saturating_sub(REVOCATION_SLACK_MS));
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        let unreadable = |_| RegistryError::Unreadable { column: "token_id" };
        let revoked = rows
            .iter()
            .map(|row| row.try_get::<String, _>(0)?.parse().map_err(unreadable))
            .collect::<Result<_, _>>()?;
        Ok(BrowserAccess { revision, origins, revoked })
    }

    /// Returns the origins of a product's pages.
    pub(crate) async fn origins(&self, product_id: ProductId) -> Result<Origins, RegistryError> {
        let query = sqlx::query("SELECT origins FROM product_origins WHERE product_id = $1")
            .bind(product_id.to_string());
        let row = with_deadline(query.fetch_optional(&self.reads)).await?;
        row.map_or_else(|| Ok(Origins::default()), |row| read_origins(&row.try_get::<String, _>(0)?))
    }

    /// Returns the origins of all products that have some.
    pub(crate) async fn all_origins(&self) -> Result<Vec<(ProductId, Origins)>, RegistryError> {
        let query = sqlx::query("SELECT product_id, origins FROM product_origins");
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        let unreadable = |_| RegistryError::Unreadable { column: "product_id" };
        let read = |row: &AnyRow| {
            let product_id = row.try_get::<String, _>(0)?.parse().map_err(unreadable)?;
            Ok((product_id, read_origins(&row.try_get::<String, _>(1)?)?))
        };
        rows.iter().map(read).collect()
    }

    /// Replaces the origins of a product's pages, with the audit row.
    pub(crate) async fn set_origins(
        &self,
        product_id: ProductId,
        origins: &Origins,
        entry: &AuditEntry,
    ) -> Result<(), RegistryError> {
        let origins =
            serde_json::to_string(origins).map_err(|_| RegistryError::Unreadable { column: "origins" })?;
        let mut tx = self.begin_product_tx(product_id, 1).await?;
        tx.require_enabled()?;
        let upsert = sqlx::query(
            "INSERT INTO product_origins (product_id, origins) VALUES ($1, $2) \
             ON CONFLICT (product_id) DO UPDATE SET origins = excluded.origins",
        )
        .bind(product_id.to_string())
        .bind(origins);
        with_deadline(upsert.execute(tx.connection())).await?;
        tx.append(entry).await?;
        tx.commit().await
    }

    /// Returns the engines that run or are being changed, and have something to know about browsers: those of
    /// `product_id`, or of all products. Unreadable ids are skipped.
    pub(crate) async fn engines_with_browser_access(
        &self,
        product_id: Option<ProductId>,
    ) -> Result<Vec<EngineId>, RegistryError> {
        let query = sqlx::query(
            "SELECT engine_id FROM engines e \
             WHERE (e.status = 'running' OR e.claim_kind IS NOT NULL) AND ($1 = '' OR e.product_id = $1) \
             AND (EXISTS (SELECT 1 FROM product_origins o WHERE o.product_id = e.product_id) \
                  OR EXISTS (SELECT 1 FROM browser_tokens t \
                             WHERE t.engine_id = e.engine_id AND t.revoked_at IS NOT NULL))",
        )
        .bind(product_id.map(|product_id| product_id.to_string()).unwrap_or_default());
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        Ok(rows.iter().filter_map(|row| row.try_get::<String, _>(0).ok()?.parse().ok()).collect())
    }
}

fn read_origins(text: &str) -> Result<Origins, RegistryError> {
    serde_json::from_str(text).map_err(|_| RegistryError::Unreadable { column: "origins" })
}

/// The task as it is stored: JSON, because PostgreSQL's texts cannot contain NUL.
fn stored_task(task: &TaskId) -> String {
    serde_json::Value::from(task.as_str()).to_string()
}

fn read_token(row: &AnyRow) -> Result<TokenSummary, RegistryError> {
    let unreadable = |column| move || RegistryError::Unreadable { column };
    let text = |at: usize| row.try_get::<String, _>(at);
    let time = |at: usize| Ok::<_, RegistryError>(Timestamp::from_unix_ms(row.try_get(at)?));
    let task = row.try_get::<Option<String>, _>(3)?;
    let task = task.map(|text| serde_json::from_str(&text).ok().ok_or_else(unreadable("task_id")));
    Ok(TokenSummary {
        token_id: text(0)?.parse().ok().ok_or_else(unreadable("token_id"))?,
        engine_id: text(1)?.parse().ok().ok_or_else(unreadable("engine_id"))?,
        scopes: serde_json::from_str(&text(2)?).ok().ok_or_else(unreadable("scopes"))?,
        task_id: task.transpose()?,
        issued_at: time(4)?,
        expires_at: time(5)?,
        revoked_at: row.try_get::<Option<i64>, _>(6)?.map(Timestamp::from_unix_ms),
    })
}
