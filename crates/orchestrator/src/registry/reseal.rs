//! Every sealed secret of the registry, sealed anew: all of them in one transaction, or none.

use sqlx::{AnyConnection, Row as _};

use super::access::with_deadline;
use super::meta::{DEPLOYMENT_ID, KEY_CHECK};
use super::{Registry, RegistryError, RegistryLock};
use crate::keys::{KeyError, Purpose};

/// A secret as the registry holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedSecret<'a> {
    /// What it is bound to.
    pub(crate) owner: &'a str,
    pub(crate) purpose: Purpose,
    pub(crate) text: &'a str,
}

/// Why nothing was sealed anew.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResealError {
    /// The registry failed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A secret could not be opened or sealed.
    #[error("a secret of {owner}: {error}")]
    Secret {
        /// Whose secret.
        owner: String,
        /// Why.
        error: KeyError,
    },
}

impl From<sqlx::Error> for ResealError {
    fn from(error: sqlx::Error) -> Self {
        Self::Registry(error.into())
    }
}

/// How many engines are read at a time.
const PAGE_SIZE: i64 = 500;

pub(super) const NEXT_ENGINES: &str = "SELECT engine_id, sealed_key, sealed_secrets_key, pending_key \
    FROM engines WHERE engine_id > $1 ORDER BY engine_id LIMIT $2";

impl Registry {
    /// The key check value; none if no orchestrator has used this registry yet.
    pub(crate) async fn key_check(&self) -> Result<Option<String>, RegistryError> {
        let query = sqlx::query("SELECT value FROM meta WHERE name = $1").bind(KEY_CHECK);
        Ok(with_deadline(query.fetch_optional(&self.reads)).await?.map(|row| row.try_get(0)).transpose()?)
    }

    /// Seals `key_check` and the secrets of all engines as `anew` does. Returns how many engines there are, and whether
    /// nothing of the old is left in the file.
    pub(crate) async fn reseal(
        &self,
        key_check: &str,
        anew: impl Fn(SealedSecret<'_>) -> Result<String, KeyError>,
    ) -> Result<(u64, bool), ResealError> {
        let mut transaction = self.begin().await?;
        let anew = |owner: &str, purpose, text: &str| {
            anew(SealedSecret { owner, purpose, text })
                .map_err(|error| ResealError::Secret { owner: owner.to_owned(), error })
        };
        with_deadline(
            sqlx::query("UPDATE meta SET value = $1 WHERE name = $2")
                .bind(anew(DEPLOYMENT_ID, Purpose::KeyCheck, key_check)?)
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
                    key: anew(&engine_id, Purpose::EngineKey, &key)?,
                    secrets_key: anew(&engine_id, Purpose::EngineSecrets, &secrets_key)?,
                    pending: pending.map(|key| anew(&engine_id, Purpose::EngineKey, &key)).transpose()?,
                };
                secrets.write(&mut transaction, &engine_id).await?;
                engines += 1;
                last = engine_id;
            }
        }
        with_deadline(transaction.commit()).await?;
        let wiped = self.wipe().await.is_ok();
        Ok((engines, wiped))
    }

    /// Replaced rows leave copies in a file's slack, which the old key still opens. All is written anew; where the
    /// disk has no room for that, the new seals hold all the same.
    async fn wipe(&self) -> Result<(), sqlx::Error> {
        let mut connection = self.writes.acquire().await?;
        let statements: &[&str] = match &self.lock {
            RegistryLock::File { .. } => &["VACUUM"],
            RegistryLock::Session(_) => {
                &["SET statement_timeout = 0", "VACUUM FULL engines", "VACUUM FULL meta"]
            }
        };
        for statement in statements {
            sqlx::raw_sql(*statement).execute(&mut *connection).await?;
        }
        Ok(())
    }
}

/// An engine's secrets, sealed anew.
struct ResealedSecrets {
    key: String,
    secrets_key: String,
    /// The key to come, where a rotation is under way.
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
