//! `roundhouse rekey`: every stored secret sealed under another master key, all of them or none.

use service::clock::Clock;
use service::env::{ConfigErrors, Env, EnvReader};
use service::lock::LockHolder;

use crate::config::DatabaseUrl;
use crate::keys::{KeyError, MasterKey, Purpose, Vault};
use crate::orchestrator::KEY_CHECK_TEXT;
use crate::registry::{
    DEPLOYMENT_ID, OpenRegistryError, Registry, RegistryError, ResealError, SealedSecret, registry_exists,
};

/// What is to be sealed anew, and under which keys.
#[derive(Clone, Debug)]
pub struct Rekey {
    /// Where the registry lives.
    pub database: DatabaseUrl,
    /// The key from now on.
    pub new: MasterKey,
    /// The key so far.
    pub old: MasterKey,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RekeyOutcome {
    /// The secrets of so many engines were sealed under the new key.
    Done {
        /// How many.
        engines: u64,
        /// Whether the file holds no copy any more that the old key opens.
        wiped: bool,
    },
    /// They were under it already.
    AlreadyDone,
}

/// Why nothing was changed. Its text is for the person who asked.
#[derive(Debug, thiserror::Error)]
pub enum RekeyError {
    /// There is no registry.
    #[error("there is no registry {database}: check ORCH_DATABASE_URL")]
    Missing {
        /// Where it should be.
        database: DatabaseUrl,
    },
    /// An orchestrator holds it.
    #[error("the registry {database} is in use: {holder} holds it. Stop that orchestrator first")]
    InUse {
        /// The registry.
        database: DatabaseUrl,
        /// Who has it.
        holder: LockHolder,
    },
    /// No orchestrator has used it yet.
    #[error("nothing is sealed in {database} yet: an orchestrator takes any master key")]
    Unused {
        /// The registry.
        database: DatabaseUrl,
    },
    /// Neither key is the one.
    #[error(
        "neither ORCH_MASTER_KEY_OLD nor ORCH_MASTER_KEY is the key under which {database} was sealed; nothing was \
         changed"
    )]
    WrongKey {
        /// The registry.
        database: DatabaseUrl,
    },
    /// The registry cannot be used.
    #[error("the registry {database} cannot be opened")]
    Registry {
        /// The registry.
        database: DatabaseUrl,
        /// What failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It failed half-way.
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
    /// Reads `ORCH_DATABASE_URL`, `ORCH_MASTER_KEY` and `ORCH_MASTER_KEY_OLD`.
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
        let rekey = database.zip(new).zip(old).map(|((database, new), old)| Self { database, new, old });
        reader.finish(rekey)
    }

    /// Seals everything under the new key, in one transaction. Done again, it finds that it is done.
    pub async fn run(&self, clock: &dyn Clock) -> Result<RekeyOutcome, RekeyError> {
        let database = &self.database;
        let refused = |error| match error {
            OpenRegistryError::Held(holder) => RekeyError::InUse { database: database.clone(), holder },
            error => RekeyError::Registry { database: database.clone(), source: error.into() },
        };
        // To open it would make one.
        if !registry_exists(database).await.map_err(refused)? {
            return Err(RekeyError::Missing { database: database.clone() });
        }
        let registry = Registry::open(database, clock.now()).await.map_err(refused)?;
        let done = self.reseal(&registry).await;
        registry.close().await;
        done
    }

    async fn reseal(&self, registry: &Registry) -> Result<RekeyOutcome, RekeyError> {
        let database = || self.database.clone();
        let Some(key_check) = registry.key_check().await? else {
            return Err(RekeyError::Unused { database: database() });
        };
        let (new, old) = (Vault::new(&self.new)?, Vault::new(&self.old)?);
        if verifies(&new, &key_check) {
            return Ok(RekeyOutcome::AlreadyDone);
        }
        if !verifies(&old, &key_check) {
            return Err(RekeyError::WrongKey { database: database() });
        }
        let anew = |sealed: SealedSecret<'_>| {
            let secret = old.open(sealed.owner, sealed.purpose, sealed.text)?;
            new.seal(sealed.owner, sealed.purpose, &secret)
        };
        let (engines, wiped) = registry.reseal(&key_check, anew).await?;
        Ok(RekeyOutcome::Done { engines, wiped })
    }
}

/// Whether `key_check` was sealed under the key of `vault`.
fn verifies(vault: &Vault, key_check: &str) -> bool {
    let song: Result<_, KeyError> = vault.open(DEPLOYMENT_ID, Purpose::KeyCheck, key_check);
    song.is_ok_and(|song| *song == KEY_CHECK_TEXT)
}

#[cfg(test)]
mod tests;
