//! Re-encrypts every sealed secret of the registry with another master key, all in one transaction.

use sqlx::{AnyConnection, Row as _};

use super::access::with_deadline;
use super::meta::{DEPLOYMENT_ID, KEY_CHECK};
use super::{Registry, RegistryError, RegistryLock};
use crate::keys::{KeyError, Purpose};

/// A sealed secret as stored in the registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedSecret<'a> {
    /// The id to which the seal is bound.
    pub(crate) owner: &'a str,
    pub(crate) purpose: Purpose,
    pub(crate) text: &'a str,
}

/// Why the secrets could not be resealed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResealError {
    /// The registry failed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A secret could not be opened or sealed.
    #[error("a secret of {owner} cannot be resealed: {error}")]
    Secret {
        /// The id to which the secret is bound.
        owner: String,
        /// The error of opening or sealing it.
        error: KeyError,
    },
}

impl From<sqlx::Error> for ResealError {
    fn from(error: sqlx::Error) -> Self {
        Self::Registry(error.into())
    }
}

/// The number of engines read at a time.
const PAGE_SIZE: i64 = 500;

pub(super) const NEXT_ENGINES: &str = "SELECT engine_id, sealed_key, sealed_secrets_key, pending_key \
    FROM engines WHERE engine_id > $1 ORDER BY engine_id LIMIT $2";

pub(super) const NEXT_WEBHOOKS: &str = "SELECT webhook_id, sealed_secret, old_sealed_secret \
    FROM audit_webhooks WHERE webhook_id > $1 ORDER BY webhook_id LIMIT $2";

pub(super) const NEXT_CALLS: &str = "SELECT call_id, answer FROM idempotent_calls \
    WHERE call_id > $1 AND answer IS NOT NULL ORDER BY call_id LIMIT $2";

pub(super) const NEXT_WARM_ENGINES: &str = "SELECT engine_id, sealed_key, sealed_secrets_key FROM warm_engines \
    WHERE engine_id > $1 ORDER BY engine_id LIMIT $2";

impl Registry {
    /// Returns the key check value; `None` if no orchestrator has used this registry yet.
    pub(crate) async fn key_check(&self) -> Result<Option<String>, RegistryError> {
        let query = sqlx::query("SELECT value FROM meta WHERE name = $1").bind(KEY_CHECK);
        Ok(with_deadline(query.fetch_optional(&self.reads)).await?.map(|row| row.try_get(0)).transpose()?)
    }

    /// Reseals `key_check` and the secrets of all engines with `reseal`. Returns the number of engines, and
    /// whether all copies of the old seals were removed from the database's files.
    pub(crate) async fn reseal(
        &self,
        key_check: &str,
        reseal: impl Fn(SealedSecret<'_>) -> Result<String, KeyError>,
    ) -> Result<(u64, bool), ResealError> {
        let mut transaction = self.begin().await?;
        let reseal = |owner: &str, purpose, text: &str| {
            reseal(SealedSecret { owner, purpose, text })
                .map_err(|error| ResealError::Secret { owner: owner.to_owned(), error })
        };
        with_deadline(
            sqlx::query("UPDATE meta SET value = $1 WHERE name = $2")
                .bind(reseal(DEPLOYMENT_ID, Purpose::KeyCheck, key_check)?)
                .bind(KEY_CHECK)
                .execute(&mut *transaction),
        )
        .await?;
        let (mut engines, mut last) = (0, String::new());
        loop {
            let page = sqlx::query(NEXT_ENGINES).bind(last.clone()).bind(PAGE_SIZE);
            let page = with_deadline(page.fetch_all(&mut *transaction)).await?;
            if page.is_empty() {
                break;
            }
            for row in &page {
                let engine_id: String = row.try_get(0)?;
                let (key, secrets_key): (String, String) = (row.try_get(1)?, row.try_get(2)?);
                let pending: Option<String> = row.try_get(3)?;
                let secrets = ResealedSecrets {
                    key: reseal(&engine_id, Purpose::EngineKey, &key)?,
                    secrets_key: reseal(&engine_id, Purpose::EngineSecrets, &secrets_key)?,
                    pending: pending.map(|key| reseal(&engine_id, Purpose::EngineKey, &key)).transpose()?,
                };
                secrets.write(&mut transaction, &engine_id).await?;
                engines += 1;
                last = engine_id;
            }
        }
        reseal_warm_engines(&mut transaction, &reseal).await?;
        reseal_webhooks(&mut transaction, &reseal).await?;
        reseal_calls(&mut transaction, &reseal).await?;
        with_deadline(transaction.commit()).await?;
        let wiped = self.wipe().await.is_ok();
        Ok((engines, wiped))
    }

    /// Rewrites the files: replaced rows leave copies in unused space, which the old key still opens. If the disk
    /// has no room for this, the new seals are in force all the same.
    async fn wipe(&self) -> Result<(), sqlx::Error> {
        let mut connection = self.writes.acquire().await?;
        let statements: &[&str] = match &self.lock {
            RegistryLock::File { .. } => &["VACUUM"],
            RegistryLock::Session(_) => &[
                "SET statement_timeout = 0",
                "VACUUM FULL engines",
                "VACUUM FULL warm_engines",
                "VACUUM FULL audit_webhooks",
                "VACUUM FULL idempotent_calls",
                "VACUUM FULL meta",
            ],
        };
        for statement in statements {
            sqlx::raw_sql(*statement).execute(&mut *connection).await?;
        }
        Ok(())
    }
}

/// Reseals the keys of the warm engines.
async fn reseal_warm_engines(
    connection: &mut AnyConnection,
    reseal: &impl Fn(&str, Purpose, &str) -> Result<String, ResealError>,
) -> Result<(), ResealError> {
    let mut last = String::new();
    loop {
        let page = sqlx::query(NEXT_WARM_ENGINES).bind(last.clone()).bind(PAGE_SIZE);
        let page = with_deadline(page.fetch_all(&mut *connection)).await?;
        if page.is_empty() {
            return Ok(());
        }
        for row in &page {
            let (id, key, secrets_key): (String, String, String) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let write = sqlx::query(
                "UPDATE warm_engines SET sealed_key = $1, sealed_secrets_key = $2 WHERE engine_id = $3",
            )
            .bind(reseal(&id, Purpose::EngineKey, &key)?)
            .bind(reseal(&id, Purpose::EngineSecrets, &secrets_key)?)
            .bind(id.clone());
            with_deadline(write.execute(&mut *connection)).await?;
            last = id;
        }
    }
}

/// Reseals the secrets of all webhooks, of which each product has few.
async fn reseal_webhooks(
    connection: &mut AnyConnection,
    reseal: &impl Fn(&str, Purpose, &str) -> Result<String, ResealError>,
) -> Result<(), ResealError> {
    let mut last = String::new();
    loop {
        let page = sqlx::query(NEXT_WEBHOOKS).bind(last.clone()).bind(PAGE_SIZE);
        let page = with_deadline(page.fetch_all(&mut *connection)).await?;
        if page.is_empty() {
            return Ok(());
        }
        for row in &page {
            let (id, secret, old): (String, String, Option<String>) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let secret = reseal(&id, Purpose::WebhookSecret, &secret)?;
            let old = old.map(|old| reseal(&id, Purpose::WebhookSecret, &old)).transpose()?;
            let write = sqlx::query(
                "UPDATE audit_webhooks SET sealed_secret = $1, old_sealed_secret = $2 WHERE webhook_id = $3",
            );
            let write = write.bind(secret).bind(old).bind(id.clone());
            with_deadline(write.execute(&mut *connection)).await?;
            last = id;
        }
    }
}

/// Reseals the answers to calls with an `Idempotency-Key`.
async fn reseal_calls(
    connection: &mut AnyConnection,
    reseal: &impl Fn(&str, Purpose, &str) -> Result<String, ResealError>,
) -> Result<(), ResealError> {
    let mut last = String::new();
    loop {
        let page = sqlx::query(NEXT_CALLS).bind(last.clone()).bind(PAGE_SIZE);
        let page = with_deadline(page.fetch_all(&mut *connection)).await?;
        if page.is_empty() {
            return Ok(());
        }
        for row in &page {
            let (id, answer): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let answer = reseal(&id, Purpose::IdempotentAnswer, &answer)?;
            let write = sqlx::query("UPDATE idempotent_calls SET answer = $1 WHERE call_id = $2");
            with_deadline(write.bind(answer).bind(id.clone()).execute(&mut *connection)).await?;
            last = id;
        }
    }
}

/// An engine's resealed secrets.
struct ResealedSecrets {
    key: String,
    secrets_key: String,
    /// The next key, if a rotation is under way.
    pending: Option<String>,
}

impl ResealedSecrets {
    async fn write(self, connection: &mut AnyConnection, engine_id: &str) -> Result<(), sqlx::Error> {
        with_deadline(
            sqlx::query(
                "UPDATE engines SET sealed_key = $1, sealed_secrets_key = $2, pending_key = $3 \
             WHERE engine_id = $4",
            )
            .bind(self.key)
            .bind(self.secrets_key)
            .bind(self.pending)
            .bind(engine_id.to_owned())
            .execute(connection),
        )
        .await?;
        Ok(())
    }
}
