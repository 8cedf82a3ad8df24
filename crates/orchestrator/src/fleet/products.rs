//! Products: registered once and then identified by their key; policies are replaced as a whole.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use api::orchestrator::{
    ListProducts, PageLimit, PageOffset, Policy, ProductList, ProductSummary, RegisterProduct,
    RegisteredProduct, ReplacedPolicy,
};
use api::product_state::ProductState;
use api::{DisplayName, KeyHash, PlatformKey, ProductId, Slug, Timestamp};
use parking_lot::RwLock;
use serde_json::json;

use super::FleetError;
use super::idempotency::Call;
use super::policies::Policies;
use super::queries::DEFAULT_PAGE_SIZE;
use super::shared::Shared;
use crate::registry::{AuditEntry, CallMark, Event, Product, RegistryError, StoredKey};

/// Products read per query.
const PRODUCT_PAGE_SIZE: i64 = 1_000;

/// How long operator calls wait for a registry whose server is unreachable, and the pause between two attempts.
const REGISTRY_RETRY_TIMEOUT: Duration = Duration::from_secs(5);
const REGISTRY_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Products and the hashes of their keys, so that an admit costs one query. Only this process changes either.
#[derive(Default)]
pub(super) struct ProductCache {
    state: RwLock<CacheState>,
}

#[derive(Default)]
struct CacheState {
    by_id: HashMap<ProductId, Arc<Product>>,
    by_key: HashMap<KeyHash, CachedKey>,
    /// Whether all products are loaded: then a key that is not cached belongs to nobody, and no query is needed.
    is_complete: bool,
    /// The products whose keys are unknown, because a change of them was not confirmed.
    unknown: HashSet<ProductId>,
}

#[derive(Clone, Copy, Debug)]
struct CachedKey {
    product_id: ProductId,
    expires_at: Option<Timestamp>,
}

/// What the cache knows of a key.
enum Lookup {
    /// It belongs to this product, and has this hash.
    Known(KeyHash, Arc<Product>),
    /// It belongs to nobody.
    Nobody,
    /// The registry knows.
    Unknown,
}

impl ProductCache {
    fn get(&self, hash: KeyHash, now: Timestamp) -> Lookup {
        let state = self.state.read();
        let found = state.by_key.get_key_value(&hash);
        let found = found.filter(|(_, key)| key.expires_at.is_none_or(|expires_at| now < expires_at));
        let product = found.and_then(|(hash, key)| Some((*hash, state.by_id.get(&key.product_id)?)));
        match product {
            Some((hash, product)) => Lookup::Known(hash, Arc::clone(product)),
            None if state.is_complete && state.unknown.is_empty() => Lookup::Nobody,
            None => Lookup::Unknown,
        }
    }

    /// Caches `product`, unless a later view of it is cached: the first to read may be the last to arrive.
    fn insert_if_newer(&self, product: Arc<Product>) {
        let mut state = self.state.write();
        let known = state.by_id.entry(product.product_id).or_insert_with(|| Arc::clone(&product));
        if known.audit_seq < product.audit_seq {
            *known = product;
        }
    }

    /// Caches keys of products.
    fn insert_keys(&self, keys: impl IntoIterator<Item = StoredKey>) {
        let cached = |StoredKey { product_id, hash, summary }: StoredKey| {
            (hash, CachedKey { product_id, expires_at: summary.expires_at })
        };
        self.state.write().by_key.extend(keys.into_iter().map(cached));
    }

    /// Replaces the keys of a product.
    pub(super) fn replace_keys(&self, product_id: ProductId, keys: &[StoredKey]) {
        self.forget_keys(product_id);
        self.insert_keys(keys.iter().copied());
        self.state.write().unknown.remove(&product_id);
    }

    /// Forgets the keys of a product, which are looked up from then on until they are replaced.
    pub(super) fn forget_keys(&self, product_id: ProductId) {
        let mut state = self.state.write();
        state.unknown.insert(product_id);
        state.by_key.retain(|_, key| key.product_id != product_id);
    }

    fn set_complete(&self, is_complete: bool) {
        self.state.write().is_complete = is_complete;
    }
}

/// The products of the deployment.
pub(crate) struct Products {
    pub(super) shared: Arc<Shared>,
    policies: Arc<Policies>,
    pub(super) cache: ProductCache,
    /// Serializes changes of policies and of keys.
    pub(super) update_lock: Arc<tokio::sync::Mutex<()>>,
}

impl Products {
    pub(super) fn new(shared: Arc<Shared>, policies: Arc<Policies>) -> Self {
        Self { shared, policies, cache: ProductCache::default(), update_lock: Arc::default() }
    }

    /// Returns the product that has this platform key.
    pub(super) async fn with_key(&self, key: &str) -> Result<Option<Arc<Product>>, FleetError> {
        let (hash, now) = (KeyHash::of(key), self.shared.clock.now());
        let (found, product) = match self.cache.get(hash, now) {
            Lookup::Known(found, product) => (found, product),
            Lookup::Nobody => return Ok(None),
            Lookup::Unknown => {
                let registry = &self.shared.registry;
                let Some(key) = registry.platform_key(hash, now).await? else { return Ok(None) };
                let Some(product) = registry.product(key.product_id).await? else { return Ok(None) };
                (key.hash, Arc::new(product))
            }
        };
        // The lookup compared hashes as an index or a map does; this comparison takes the same time wherever they
        // differ.
        Ok(found.constant_time_eq(hash).then_some(product))
    }

    /// Loads all products and their keys, so that unknown keys cost no query from then on.
    pub(super) async fn load(&self) -> Result<(), RegistryError> {
        let (keys, has_all_keys) = self.shared.registry.all_platform_keys(self.shared.clock.now()).await?;
        self.cache.insert_keys(keys);
        let (mut offset, mut loaded) = (0, 0);
        loop {
            let (products, total) = self.shared.registry.products(PRODUCT_PAGE_SIZE, offset).await?;
            loaded += u64::try_from(products.len()).unwrap_or(u64::MAX);
            for product in products {
                self.cache.insert_if_newer(Arc::new(product));
            }
            offset += PRODUCT_PAGE_SIZE;
            if offset.unsigned_abs() >= total {
                // If a product's row cannot be read, its key is queried each time, and the failure is reported.
                self.cache.set_complete(loaded == total && has_all_keys);
                return Ok(());
            }
        }
    }

    /// `POST /products/register`.
    pub(crate) async fn register(
        self: &Arc<Self>,
        params: RegisterProduct,
        call: Option<Call>,
    ) -> Result<RegisteredProduct, FleetError> {
        let RegisterProduct { slug, display_name, policy, platform_api_key } = params;
        let key = match platform_api_key {
            Some(key) => key,
            None => PlatformKey::generate().map_err(FleetError::internal)?,
        };
        let products = Arc::clone(self);
        // In a task of its own: a caller who disconnects leaves no slug taken under a key that nobody has
        // received, except when the key is lost with the response. A caller that supplies its own key can repeat
        // the call.
        let registered = tokio::spawn(async move {
            let product = products.new_product(slug, display_name, policy, &key);
            let product_id = product.product_id;
            let answer = registered_product(product.clone(), key.clone());
            let call = call.map(|call| call.created(product_id, &answer)).transpose()?;
            let product = products.insert_product(product, call).await?.ok_or(FleetError::SlugExists)?;
            Ok::<_, FleetError>(registered_product(product, key))
        });
        registered.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }

    /// Registers a product under a key that the caller has generated and keeps. It may be called again: if the
    /// product exists with that key, nothing changes; if it exists with another key, the slug is taken.
    pub(super) async fn register_with_key(
        &self,
        slug: Slug,
        display_name: DisplayName,
        policy: Policy,
        key: &PlatformKey,
    ) -> Result<ProductId, FleetError> {
        let product = self.new_product(slug, display_name, policy, key);
        let product = self.insert_product(product, None).await?.ok_or(FleetError::SlugExists)?;
        Ok(product.product_id)
    }

    /// Returns a page of all products that are not deleted, without their keys.
    pub(crate) async fn list(&self, params: ListProducts) -> Result<ProductList, FleetError> {
        let limit = params.limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get);
        let offset = params.offset.map_or(0, PageOffset::get);
        let (products, total) = self.shared.registry.products(limit, offset).await?;
        Ok(ProductList { products: products.into_iter().map(summary).collect(), total })
    }

    /// Replaces a product's policy. Once this has returned, every call is judged by the new policy.
    pub(crate) async fn replace_policy(
        self: &Arc<Self>,
        product_id: ProductId,
        policy: Policy,
        call: Option<Call>,
    ) -> Result<ReplacedPolicy, FleetError> {
        let products = Arc::clone(self);
        // Replacements run in the order of the requests: a later one follows whatever a caller who has
        // disconnected left under way.
        let lock = Arc::clone(&self.update_lock).lock_owned().await;
        // In a task of its own: a caller who disconnects must not leave the registry and the products in memory
        // with different policies.
        let replaced = tokio::spawn(async move {
            let _product_lock = lock;
            let at = products.shared.clock.now();
            let entry = |before: &serde_json::Value, after: &Product| {
                let call = call.as_ref().map(|call| call.applied_with(&replaced_policy(after.clone(), at)));
                Ok(AuditEntry {
                    at,
                    event: Event::PolicyUpdate,
                    engine: None,
                    duration_ms: None,
                    detail: json!({"from": before, "to": policy}),
                    call: call.transpose()?,
                })
            };
            let product = match products.shared.registry.replace_policy(product_id, &policy, at, entry).await
            {
                Err(error @ RegistryError::Unreachable(_)) => {
                    products.reload_replaced_policy(product_id, at, error).await?
                }
                product => product?.ok_or(FleetError::ProductNotFound)?,
            };
            products.apply_product(&product);
            Ok::<_, FleetError>(replaced_policy(product, at))
        });
        replaced.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }

    /// The product after a policy replacement at `at` that was not confirmed: read again as soon as the registry
    /// is back, and applied from then on, even if the caller has been answered by then.
    async fn reload_replaced_policy(
        self: &Arc<Self>,
        product_id: ProductId,
        at: Timestamp,
        error: RegistryError,
    ) -> Result<Product, FleetError> {
        tracing::warn!(
            %product_id,
            "The registry is unreachable; whether a policy was replaced is read when it is back."
        );
        let task = tokio::spawn(load_when_available(Arc::downgrade(self), product_id));
        let loaded = tokio::select! {
            loaded = task => loaded.ok().flatten(),
            () = self.shared.clock.sleep(REGISTRY_RETRY_TIMEOUT) => None,
        };
        loaded.filter(|product| product.updated_at == Some(at)).ok_or_else(|| error.into())
    }

    /// Reads a product and its keys anew, because a change of them may have been committed without a confirmation.
    pub(super) async fn catch_up(&self, product_id: ProductId) -> Result<(), FleetError> {
        let _lock = self.update_lock.lock().await;
        let registry = &self.shared.registry;
        if let Some(product) = registry.product_after_pending_changes(product_id).await? {
            let keys = registry.platform_keys(product_id, self.shared.clock.now()).await?;
            self.cache.replace_keys(product_id, &keys);
            self.apply_product(&product);
            registry.notify_followers(product_id);
        }
        Ok(())
    }

    /// Caches the product and applies its policy.
    pub(super) fn apply_product(&self, product: &Product) {
        self.cache.insert_if_newer(Arc::new(product.clone()));
        self.policies.apply(product.product_id, product.audit_seq, &product.policy, product.state);
    }

    /// Reads a product as soon as the registry is back, because a change of it was not confirmed.
    pub(super) fn reload_later(self: &Arc<Self>, product_id: ProductId) {
        tokio::spawn(load_when_available(Arc::downgrade(self), product_id));
    }

    /// The products that are disabled or being deleted.
    pub(super) fn out_of_use(&self) -> Vec<Arc<Product>> {
        let state = self.cache.state.read();
        let out_of_use = |product: &&Arc<Product>| {
            matches!(product.state, ProductState::Disabled | ProductState::Deleting)
        };
        state.by_id.values().filter(out_of_use).cloned().collect()
    }

    fn new_product(
        &self,
        slug: Slug,
        display_name: DisplayName,
        policy: Policy,
        key: &PlatformKey,
    ) -> Product {
        Product {
            product_id: ProductId::new(),
            slug,
            display_name,
            policy,
            key_hash: key.hash(),
            created_at: self.shared.clock.now(),
            updated_at: None,
            audit_seq: 1,
            state: ProductState::Active,
            state_since: None,
            engines_to_delete: None,
        }
    }

    /// Registers a product, or finds it registered with the same key, and returns it as it is then. Returns `None`
    /// if another product has its slug.
    async fn insert_product(
        &self,
        product: Product,
        call: Option<CallMark>,
    ) -> Result<Option<Product>, FleetError> {
        let detail = json!({
            "slug": product.slug, "display_name": product.display_name, "policy": product.policy,
        });
        let entry = AuditEntry {
            at: product.created_at,
            event: Event::Register,
            engine: None,
            duration_ms: None,
            detail,
            call,
        };
        let started = self.shared.clock.monotonic();
        // No key is revoked between its lookup and its caching.
        let _lock = self.update_lock.lock().await;
        // If the result was not confirmed, the insert is repeated: the key identifies it as the same product.
        let registered = loop {
            match self.try_register(&product, &entry).await {
                Err(RegistryError::Unreachable(_))
                    if self.shared.clock.monotonic().saturating_sub(started) < REGISTRY_RETRY_TIMEOUT => {}
                registered => break registered?,
            }
            self.shared.clock.sleep(REGISTRY_RETRY_INTERVAL).await;
        };
        Ok(registered.map(|(product, key)| {
            self.cache.insert_keys([key]);
            self.apply_product(&product);
            product
        }))
    }

    async fn try_register(
        &self,
        product: &Product,
        entry: &AuditEntry,
    ) -> Result<Option<(Product, StoredKey)>, RegistryError> {
        let registry = &self.shared.registry;
        let is_new = registry.register(product, entry).await?;
        let existing =
            if is_new { Some(product.clone()) } else { registry.product_by_slug(&product.slug).await? };
        let key = registry.platform_key(product.key_hash, self.shared.clock.now()).await?;
        Ok(existing.zip(key).filter(|(existing, key)| key.product_id == existing.product_id))
    }
}

fn registered_product(product: Product, platform_api_key: PlatformKey) -> RegisteredProduct {
    let Product { product_id, slug, display_name, policy, created_at, .. } = product;
    RegisteredProduct { product_id, slug, display_name, policy, created_at, platform_api_key }
}

fn replaced_policy(product: Product, updated_at: Timestamp) -> ReplacedPolicy {
    let Product { product_id, slug, display_name, policy, .. } = product;
    ReplacedPolicy { product_id, slug, display_name, policy, updated_at }
}

/// A product as listings show it.
pub(super) fn summary(product: Product) -> ProductSummary {
    ProductSummary {
        product_id: product.product_id,
        slug: product.slug,
        display_name: product.display_name,
        policy: product.policy,
        created_at: product.created_at,
        updated_at: product.updated_at,
        state: product.state,
    }
}

/// Reads a product as soon as the registry is back, and applies what was read.
async fn load_when_available(products: Weak<Products>, product_id: ProductId) -> Option<Product> {
    loop {
        let clock = {
            let products = products.upgrade()?;
            match products.shared.registry.product_after_pending_changes(product_id).await {
                Ok(product) => {
                    let product = product?;
                    products.apply_product(&product);
                    products.shared.registry.notify_followers(product_id);
                    return Some(product);
                }
                Err(RegistryError::Unreachable(_)) => Arc::clone(&products.shared.clock),
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(%product_id, error, "A product's policy could not be read.");
                    return None;
                }
            }
        };
        clock.sleep(REGISTRY_RETRY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use api::PlatformKeyId;
    use api::product_keys::PlatformKeySummary;

    use super::*;

    fn view(audit_seq: i64, max_engines: Option<u64>) -> Product {
        Product {
            product_id: PRODUCT.parse().unwrap(),
            slug: Slug::new("demo").unwrap(),
            display_name: DisplayName::new("Demo").unwrap(),
            policy: Policy { max_engines, ..Policy::default() },
            key_hash: KeyHash::of("pk-svc-x"),
            created_at: Timestamp::from_unix_ms(0),
            updated_at: None,
            audit_seq,
            state: ProductState::Active,
            state_since: None,
            engines_to_delete: None,
        }
    }

    fn key(text: &str, expires_at: Option<i64>) -> StoredKey {
        let summary = PlatformKeySummary {
            key_id: PlatformKeyId::new(),
            registration: false,
            created_at: Timestamp::from_unix_ms(0),
            expires_at: expires_at.map(Timestamp::from_unix_ms),
        };
        StoredKey { product_id: PRODUCT.parse().unwrap(), hash: KeyHash::of(text), summary }
    }

    const PRODUCT: &str = "prod_0199a9f0000070008000000000000001";

    #[test]
    fn of_two_views_of_a_product_the_later_stays_whichever_comes_last() {
        let cache = ProductCache::default();
        cache.insert_keys([key("pk-svc-x", None)]);
        for (audit_seq, kept) in [(5_i64, 5_i64), (4, 5), (7, 7), (1, 7)] {
            cache.insert_if_newer(Arc::new(view(audit_seq, Some(audit_seq.unsigned_abs()))));
            let found = cache.get(KeyHash::of("pk-svc-x"), Timestamp::from_unix_ms(0));
            let Lookup::Known(_, found) = found else { panic!("the key is known") };
            assert_eq!((found.audit_seq, found.policy.max_engines), (kept, Some(kept.unsigned_abs())));
        }
    }

    #[test]
    fn a_key_is_known_until_it_expires_or_is_replaced_and_looked_up_while_it_is_uncertain() {
        let cache = ProductCache::default();
        let product_id = PRODUCT.parse().unwrap();
        cache.insert_if_newer(Arc::new(view(1, None)));
        let look = |text: &str, at: i64| match cache.get(KeyHash::of(text), Timestamp::from_unix_ms(at)) {
            Lookup::Known(..) => "known",
            Lookup::Nobody => "nobody",
            Lookup::Unknown => "unknown",
        };
        assert_eq!(look("old", 0), "unknown", "not all keys are loaded");
        cache.set_complete(true);
        cache.replace_keys(product_id, &[key("old", Some(10)), key("new", None)]);
        assert_eq!([look("old", 9), look("old", 10), look("new", 10)], ["known", "nobody", "known"]);
        cache.forget_keys(product_id);
        assert_eq!([look("old", 9), look("new", 9)], ["unknown", "unknown"]);
        cache.replace_keys(product_id, &[key("new", None)]);
        assert_eq!([look("old", 9), look("new", 9)], ["nobody", "known"]);
    }
}
