//! `roundhouse rekey`: re-encrypts every stored secret under another master key, in one transaction.

use backup::{BackupError, Store, Target};
use http_service::clock::Clock;
use http_service::env::{ConfigErrors, Env, EnvReader};
use http_service::lock::LockHolder;

use crate::config::{DatabaseUrl, read_target};
use crate::keys::{KeyError, MasterKey, Purpose, Vault};
use crate::orchestrator::KEY_CHECK_TEXT;
use crate::registry::{
    DEPLOYMENT_ID, OpenRegistryError, Registry, RegistryError, ResealError, SealedSecret, registry_exists,
};

/// The registry whose secrets are re-encrypted, with the old and the new key.
#[derive(Clone, Debug)]
pub struct Rekey {
    /// The registry's database.
    pub database: DatabaseUrl,
    /// The new master key.
    pub new: MasterKey,
    /// The master key so far.
    pub old: MasterKey,
    /// The backups, whose root key is encrypted, too.
    pub backups: RekeyedBackups,
}

/// The backups of a deployment that gets another master key.
#[derive(Clone, Debug)]
pub enum RekeyedBackups {
    /// None are named. Refused if the deployment has made some.
    Unnamed,
    /// They stay as they are: only the old key opens them.
    Left,
    /// Those in this store.
    In(Target),
}

/// The result of a successful run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RekeyOutcome {
    /// The engines' secrets were encrypted under the new key.
    Done {
        /// The number of engines.
        engines: u64,
        /// Whether the database file contains no more copies that the old key opens.
        wiped: bool,
    },
    /// The secrets were encrypted under the new key already.
    AlreadyDone,
}

/// Why nothing was changed. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum RekeyError {
    /// There is no registry.
    #[error("there is no registry {database}: check ORCH_DATABASE_URL")]
    Missing {
        /// The database that should contain it.
        database: DatabaseUrl,
    },
    /// An orchestrator holds it.
    #[error("the registry {database} is in use: {holder} holds it. Stop that orchestrator first")]
    InUse {
        /// The registry.
        database: DatabaseUrl,
        /// The holder of the lock.
        holder: LockHolder,
    },
    /// No orchestrator has used it yet.
    #[error("{database} contains no encrypted secrets yet: the first orchestrator accepts any master key")]
    Unused {
        /// The registry.
        database: DatabaseUrl,
    },
    /// Neither key is the one that encrypted the registry's secrets.
    #[error(
        "neither ORCH_MASTER_KEY_OLD nor ORCH_MASTER_KEY is the key that encrypted the secrets of {database}; \
         nothing was changed"
    )]
    WrongKey {
        /// The registry.
        database: DatabaseUrl,
    },
    /// The deployment has backups, and they are not named.
    #[error(
        "this deployment makes backups, which only the old key would open: set ORCH_BACKUP_URL to where they are, so \
         that the new key opens them, or to `none` to leave them as they are; nothing was changed"
    )]
    BackupsUnnamed,
    /// The backups could not be encrypted under the new key.
    #[error(
        "the registry's secrets are encrypted under the new key, but its backups are not: run this again"
    )]
    Backups(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The registry cannot be used.
    #[error("the registry {database} cannot be opened")]
    Registry {
        /// The registry.
        database: DatabaseUrl,
        /// The underlying error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The transaction failed and was rolled back.
    #[error("nothing was changed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<RegistryError> for RekeyError {
    fn from(error: RegistryError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<KeyError> for RekeyError {
    fn from(error: KeyError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<ResealError> for RekeyError {
    fn from(error: ResealError) -> Self {
        Self::Failed(error.into())
    }
}

impl Rekey {
    /// Reads `ORCH_DATABASE_URL`, `ORCH_MASTER_KEY`, `ORCH_MASTER_KEY_OLD` and `ORCH_BACKUP_URL`.
    pub fn from_env(env: &dyn Env) -> Result<Self, ConfigErrors> {
        const KEY_FORMAT: &str = "32 bytes in URL-safe base64 without padding (43 characters)";
        let mut reader = EnvReader::new(env);
        let database = DatabaseUrl::read(&mut reader);
        let new = reader.required_secret(
            "ORCH_MASTER_KEY",
            &format!("the new key: {KEY_FORMAT}"),
            MasterKey::parse,
        );
        let old = reader.required_secret(
            "ORCH_MASTER_KEY_OLD",
            &format!("the key so far: {KEY_FORMAT}"),
            MasterKey::parse,
        );
        let backups = match reader.text("ORCH_BACKUP_URL").as_deref() {
            None => RekeyedBackups::Unnamed,
            Some("none") => RekeyedBackups::Left,
            Some(_) => read_target(&mut reader, env).map_or(RekeyedBackups::Unnamed, RekeyedBackups::In),
        };
        let required = database.zip(new).zip(old);
        let rekey = required.map(|((database, new), old)| Self { database, new, old, backups });
        reader.finish(rekey)
    }

    /// Encrypts everything under the new key in one transaction. A second run returns
    /// [`RekeyOutcome::AlreadyDone`].
    pub async fn run(&self, clock: &dyn Clock) -> Result<RekeyOutcome, RekeyError> {
        let database = &self.database;
        let open_error = |error| match error {
            OpenRegistryError::Held(holder) => RekeyError::InUse { database: database.clone(), holder },
            error => RekeyError::Registry { database: database.clone(), source: error.into() },
        };
        // Opening a missing registry would create it.
        if !registry_exists(database).await.map_err(open_error)? {
            return Err(RekeyError::Missing { database: database.clone() });
        }
        let registry = Registry::open(database, clock.now()).await.map_err(open_error)?;
        let outcome = self.reseal(&registry).await;
        registry.close().await;
        let outcome = outcome?;
        if let RekeyedBackups::In(target) = &self.backups {
            let failed = |error: Box<dyn std::error::Error + Send + Sync>| RekeyError::Backups(error);
            match Store::reseal(target, &self.old, &self.new).await.map_err(|error| failed(error.into()))? {
                // None were made yet.
                Ok(_) | Err(BackupError::NotFound) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(outcome)
    }

    async fn reseal(&self, registry: &Registry) -> Result<RekeyOutcome, RekeyError> {
        let database = || self.database.clone();
        let Some(key_check) = registry.key_check().await? else {
            return Err(RekeyError::Unused { database: database() });
        };
        if matches!(self.backups, RekeyedBackups::Unnamed) && registry.makes_backups().await? {
            return Err(RekeyError::BackupsUnnamed);
        }
        let (new, old) = (Vault::new(&self.new)?, Vault::new(&self.old)?);
        if verifies(&new, &key_check) {
            return Ok(RekeyOutcome::AlreadyDone);
        }
        if !verifies(&old, &key_check) {
            return Err(RekeyError::WrongKey { database: database() });
        }
        let reseal = |sealed: SealedSecret<'_>| {
            let secret = old.open(sealed.owner, sealed.purpose, sealed.text)?;
            new.seal(sealed.owner, sealed.purpose, &secret)
        };
        let (engines, wiped) = registry.reseal(&key_check, reseal).await?;
        Ok(RekeyOutcome::Done { engines, wiped })
    }
}

/// Whether the key of `vault` encrypted `key_check`.
fn verifies(vault: &Vault, key_check: &str) -> bool {
    let text: Result<_, KeyError> = vault.open(DEPLOYMENT_ID, Purpose::KeyCheck, key_check);
    text.is_ok_and(|text| *text == KEY_CHECK_TEXT)
}

#[cfg(test)]
#[path = "../tests/unit/rekey.rs"]
mod tests;
