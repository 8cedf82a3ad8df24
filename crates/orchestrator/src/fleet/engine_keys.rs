//! The engines' secrets: seals new ones for the registry, and unseals stored ones. And the confirmations of deletions.

use std::sync::Arc;

use api::{EngineId, EngineKey, ProductId};
use secrecy::SecretString;

use super::error::FleetError;
use crate::keys::{KeyError, MasterKey, Purpose, Vault};
use crate::registry::{EngineRow, PendingKey};

pub(super) struct EngineKeys {
    vault: Arc<Vault>,
}

impl EngineKeys {
    pub(super) const fn new(vault: Arc<Vault>) -> Self {
        Self { vault }
    }

    /// The key that the registry has for the engine of `row`.
    pub(super) fn key(&self, row: &EngineRow) -> Result<EngineKey, KeyError> {
        self.unseal(row.engine_id, &row.sealed_key)
    }

    /// Unseals a key of an engine.
    pub(super) fn unseal(&self, engine_id: EngineId, sealed_key: &str) -> Result<EngineKey, KeyError> {
        let mut key = self.vault.open(&engine_id.to_string(), Purpose::EngineKey, sealed_key)?;
        Ok(EngineKey::from_text(std::mem::take(&mut *key)))
    }

    /// Seals what a confirmation of the product's deletion says, so that nobody but this deployment makes one.
    pub(super) fn seal_confirmation(&self, product_id: ProductId, text: &str) -> Result<String, KeyError> {
        self.vault.seal(&product_id.to_string(), Purpose::ProductDeletion, text)
    }

    /// What a confirmation of the product's deletion says; `None` if it is none.
    pub(super) fn open_confirmation(&self, product_id: ProductId, sealed: &str) -> Option<String> {
        let text = self.vault.open(&product_id.to_string(), Purpose::ProductDeletion, sealed);
        text.ok().map(|text| text.to_string())
    }

    /// Generates a key of an engine. Returns it as it is and sealed.
    pub(super) fn generate(&self, engine_id: EngineId) -> Result<(EngineKey, PendingKey), FleetError> {
        let key = EngineKey::generate().map_err(FleetError::internal)?;
        let sealed = self.vault.seal(&engine_id.to_string(), Purpose::EngineKey, key.expose())?;
        let hash = key.hash();
        Ok((key, PendingKey { sealed, hash }))
    }

    /// Generates the key under which an engine encrypts its own credentials, and seals it.
    pub(super) fn generate_secrets_key(&self, engine_id: EngineId) -> Result<String, KeyError> {
        let secrets_key = MasterKey::generate()?.expose();
        self.vault.seal(&engine_id.to_string(), Purpose::EngineSecrets, &secrets_key)
    }

    /// Unseals the key under which an engine encrypts its own credentials.
    pub(super) fn secrets_key(
        &self,
        engine_id: EngineId,
        sealed_secrets_key: &str,
    ) -> Result<SecretString, KeyError> {
        let key = self.vault.open(&engine_id.to_string(), Purpose::EngineSecrets, sealed_secrets_key)?;
        Ok(SecretString::from(key.as_str()))
    }
}
