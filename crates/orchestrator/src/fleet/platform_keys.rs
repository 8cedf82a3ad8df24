//! Platform keys: a product gets another key beside those that it has, and each is revoked by its id.
//!
//! A change is committed before the keys in memory are replaced, and both happen before it is answered: a key that was
//! revoked is refused from then on. A standby that takes over reads the keys anew.

use std::sync::{Arc, Weak};
use std::time::Duration;

use api::product_keys::{
    CreatePlatformKey, CreatedPlatformKey, MAX_PLATFORM_KEYS, PlatformKeyList, PlatformKeySummary,
    RevokedPlatformKey,
};
use api::product_state::ProductState;
use api::{PlatformKey, PlatformKeyId, ProductId, Timestamp};
use serde_json::json;

use super::FleetError;
use super::idempotency::Call;
use super::products::Products;
use crate::domain::Actor;
use crate::registry::{AuditEntry, Event, KeyRefused, RegistryError, StoredKey};

/// The pause before keys are read again whose change was not confirmed.
const RELOAD_INTERVAL: Duration = Duration::from_millis(250);

/// The result of a change in the registry: the keys that are then in force.
type Changed = Result<Result<Vec<StoredKey>, KeyRefused>, RegistryError>;

impl Products {
    /// Lists the product's keys that are in force, oldest first.
    pub(crate) async fn platform_keys(&self, product_id: ProductId) -> Result<PlatformKeyList, FleetError> {
        let registry = &self.shared.registry;
        let product = registry.product(product_id).await?;
        product
            .filter(|product| product.state != ProductState::Deleted)
            .ok_or(FleetError::ProductNotFound)?;
        let keys = registry.platform_keys(product_id, self.shared.clock.now()).await?;
        Ok(PlatformKeyList { keys: keys.into_iter().map(|key| key.summary).collect() })
    }

    /// Makes another key of the product.
    pub(crate) async fn create_platform_key(
        self: &Arc<Self>,
        product_id: ProductId,
        params: CreatePlatformKey,
        call: Option<&Call>,
    ) -> Result<CreatedPlatformKey, FleetError> {
        let generate = || PlatformKey::generate().map_err(FleetError::internal);
        let (key, nobody) = (generate()?, generate()?.hash());
        let now = self.shared.clock.now();
        let expire_at = |seconds: i64| {
            Timestamp::from_unix_ms(now.unix_ms().saturating_add(seconds.saturating_mul(1_000)))
        };
        let others_expire_at = params.old_keys_expire_in_s.map(|seconds| expire_at(seconds.get()));
        let summary = PlatformKeySummary {
            key_id: PlatformKeyId::new(),
            registration: false,
            created_at: now,
            expires_at: None,
        };
        let stored = StoredKey { product_id, hash: key.hash(), summary };
        let detail = json!({"key_id": summary.key_id, "old_keys_expire_at": others_expire_at});
        let created = CreatedPlatformKey { platform_api_key: key, summary };
        let call = call.map(|call| call.applied_with(&created)).transpose()?;
        let entry = entry(now, Event::CreateKey, detail).of_call(call);
        self.change_keys(product_id, async move |products| {
            products.shared.registry.add_platform_key(stored, others_expire_at, nobody, &entry).await
        })
        .await?;
        Ok(created)
    }

    /// Revokes a key of the product.
    pub(crate) async fn revoke_platform_key(
        self: &Arc<Self>,
        product_id: ProductId,
        key_id: PlatformKeyId,
        call: Option<&Call>,
    ) -> Result<RevokedPlatformKey, FleetError> {
        let nobody = PlatformKey::generate().map_err(FleetError::internal)?.hash();
        let revoked_at = self.shared.clock.now();
        let revoked = RevokedPlatformKey { key_id, revoked_at };
        let call = call.map(|call| call.applied_with(&revoked)).transpose()?;
        let entry = entry(revoked_at, Event::RevokeKey, json!({"key_id": key_id})).of_call(call);
        self.change_keys(product_id, async move |products| {
            products.shared.registry.revoke_platform_key(product_id, key_id, nobody, &entry).await
        })
        .await?;
        Ok(revoked)
    }

    /// Changes the keys of a product in the registry, and then in memory.
    async fn change_keys<F>(
        self: &Arc<Self>,
        product_id: ProductId,
        change: impl FnOnce(Arc<Self>) -> F + Send + 'static,
    ) -> Result<(), FleetError>
    where
        F: Future<Output = Changed> + Send,
    {
        let products = Arc::clone(self);
        // In a task of its own: a caller who disconnects must not leave the registry and memory with different keys.
        let changed = tokio::spawn(async move {
            let _lock = products.update_lock.lock().await;
            match change(Arc::clone(&products)).await {
                Ok(Ok(keys)) => {
                    products.cache.replace_keys(product_id, &keys);
                    Ok(())
                }
                Ok(Err(KeyRefused::NoProduct)) => Err(FleetError::ProductNotFound),
                Ok(Err(KeyRefused::NoKey)) => Err(FleetError::KeyNotFound),
                Ok(Err(KeyRefused::Limit)) => Err(FleetError::KeyLimit { max: MAX_PLATFORM_KEYS }),
                Err(error) => {
                    if matches!(error, RegistryError::Unreachable(_)) {
                        // It may have been committed: until that is known, each key is looked up.
                        products.cache.forget_keys(product_id);
                        tokio::spawn(reload(Arc::downgrade(&products), product_id));
                    }
                    Err(error.into())
                }
            }
        });
        changed.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }
}

/// Reads the keys of a product as soon as the registry is back.
async fn reload(products: Weak<Products>, product_id: ProductId) {
    loop {
        let clock = {
            let Some(products) = products.upgrade() else { return };
            let _lock = products.update_lock.lock().await;
            let (registry, now) = (&products.shared.registry, products.shared.clock.now());
            match registry.platform_keys_after_pending_changes(product_id, now).await {
                Ok(keys) => {
                    products.cache.replace_keys(product_id, &keys);
                    registry.notify_followers(product_id);
                    return;
                }
                Err(RegistryError::Unreachable(_)) => Arc::clone(&products.shared.clock),
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(%product_id, error, "A product's keys could not be read; each is looked up.");
                    return;
                }
            }
        };
        clock.sleep(RELOAD_INTERVAL).await;
    }
}

fn entry(at: Timestamp, event: Event, detail: serde_json::Value) -> AuditEntry {
    AuditEntry { at, event, engine: None, duration_ms: None, detail, call: None }.by(Actor::Operator)
}
