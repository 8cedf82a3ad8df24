//! Products: registered once, then known by their key; their policies, replaced whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use contract::orchestrator::{
    ListProducts, PageLimit, PageOffset, Policy, ProductList, ProductSummary, RegisterProduct,
    RegisteredProduct, ReplacedPolicy,
};
use contract::{DisplayName, KeyHash, PlatformKey, ProductId, Slug, Timestamp};
use serde_json::json;

use super::endpoints::DEFAULT_PAGE_SIZE;
use super::{Fleet, FleetError};
use crate::registry::{AuditEntry, Event, Product, RegistryError};

/// How many products are read in one query.
const PRODUCT_PAGE_SIZE: i64 = 1_000;

/// How long the operator's calls wait for a registry whose server is away, and the pause between two tries.
const REGISTRY_RETRY_TIMEOUT: Duration = Duration::from_secs(5);
const REGISTRY_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Products by the hash of their key, so that an admit costs one query. Keys never change, and this process
/// alone changes products.
#[derive(Default)]
pub(super) struct ProductCache {
    by_key: RwLock<HashMap<KeyHash, Arc<Product>>>,
    /// Whether all products are in it: then a key that is not there is nobody's, and no query says so again.
    complete: AtomicBool,
}

impl ProductCache {
    fn get(&self, hash: KeyHash) -> Option<Arc<Product>> {
        self.by_key.read().unwrap_or_else(PoisonError::into_inner).get(&hash).cloned()
    }

    /// Keeps `product`, unless a later view of it is there: whoever read it first may be the last to come.
    fn insert_if_newer(&self, product: Arc<Product>) {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        let known = by_key.entry(product.key_hash).or_insert_with(|| Arc::clone(&product));
        if known.audit_seq < product.audit_seq {
            *known = product;
        }
    }
}

impl Fleet {
    /// The product that has this platform key.
    pub(crate) async fn authenticate(&self, key: &str) -> Result<Option<Arc<Product>>, FleetError> {
        let hash = KeyHash::of(key);
        let product = if let Some(product) = self.products.get(hash) {
            product
        } else if self.products.complete.load(Ordering::Acquire) {
            return Ok(None);
        } else {
            let Some(product) = self.registry.product_by_key(hash).await? else { return Ok(None) };
            let product = Arc::new(product);
            self.products.insert_if_newer(Arc::clone(&product));
            product
        };
        // The look-up compared hashes as an index or a map does; this one takes the same time wherever they
        // differ.
        Ok(product.key_hash.constant_time_eq(hash).then_some(product))
    }

    /// Reads all products, so that unknown keys cost no query from then on.
    pub(super) async fn load_products(&self) -> Result<(), RegistryError> {
        let (mut offset, mut loaded) = (0, 0);
        loop {
            let (products, total) = self.registry.products(PRODUCT_PAGE_SIZE, offset).await?;
            loaded += u64::try_from(products.len()).unwrap_or(u64::MAX);
            for product in products {
                self.products.insert_if_newer(Arc::new(product));
            }
            offset += PRODUCT_PAGE_SIZE;
            if offset.unsigned_abs() >= total {
                // The key of one that cannot be read is looked for each time, and that it cannot be read is said.
                self.products.complete.store(loaded == total, Ordering::Release);
                return Ok(());
            }
        }
    }

    /// `POST /products/register`.
    pub(crate) async fn register(
        self: &Arc<Self>,
        ask: RegisterProduct,
    ) -> Result<RegisteredProduct, FleetError> {
        let RegisterProduct { slug, display_name, policy, platform_api_key } = ask;
        let key = match platform_api_key {
            Some(key) => key,
            None => PlatformKey::generate().map_err(FleetError::internal)?,
        };
        let fleet = Arc::clone(self);
        // On its own from here: a caller who hangs up leaves no slug taken under a key that nobody has been given, unless
        // it was lost with the answer. Who brings the key can ask again.
        let registered = tokio::spawn(async move {
            let product = fleet.new_product(slug, display_name, policy, &key);
            let product = fleet.insert_product(product).await?.ok_or(FleetError::SlugExists)?;
            Ok::<_, FleetError>(RegisteredProduct {
                product_id: product.product_id,
                slug: product.slug,
                display_name: product.display_name,
                policy: product.policy,
                created_at: product.created_at,
                platform_api_key: key,
            })
        });
        registered.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }

    /// Registers a product under a key that the caller made and keeps, and may be called again: if the product
    /// is there with that key, nothing changes. If it is there with another key, the slug is taken.
    pub async fn register_with_key(
        &self,
        slug: Slug,
        display_name: DisplayName,
        policy: Policy,
        key: &PlatformKey,
    ) -> Result<ProductId, FleetError> {
        let product = self.new_product(slug, display_name, policy, key);
        let product = self.insert_product(product).await?.ok_or(FleetError::SlugExists)?;
        Ok(product.product_id)
    }

    /// A page of all products, without their keys.
    pub(crate) async fn list_products(&self, ask: ListProducts) -> Result<ProductList, FleetError> {
        let limit = ask.limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get);
        let offset = ask.offset.map_or(0, PageOffset::get);
        let (products, total) = self.registry.products(limit, offset).await?;
        let products = products.into_iter().map(|product| ProductSummary {
            product_id: product.product_id,
            slug: product.slug,
            display_name: product.display_name,
            policy: product.policy,
            created_at: product.created_at,
            updated_at: product.updated_at,
        });
        Ok(ProductList { products: products.collect(), total })
    }

    /// Replaces a product's policy. Once this has returned, every call is judged by the new one.
    pub(crate) async fn replace_policy(
        self: &Arc<Self>,
        product_id: ProductId,
        policy: Policy,
    ) -> Result<ReplacedPolicy, FleetError> {
        let fleet = Arc::clone(self);
        // In the order in which they were asked for: what is asked for later comes after what a caller who has hung
        // up left under way.
        let turn = Arc::clone(&self.policy_update_lock).lock_owned().await;
        // On its own from here: a caller who hangs up must not leave the registry with one policy and the
        // products in memory with another.
        let replaced = tokio::spawn(async move {
            let _product_lock = turn;
            let at = fleet.now();
            let entry = |before: &serde_json::Value| AuditEntry {
                at,
                event: Event::PolicyUpdate,
                engine: None,
                duration_ms: None,
                detail: json!({"from": before, "to": policy}),
            };
            let product = match fleet.registry.replace_policy(product_id, &policy, entry).await {
                Err(away @ RegistryError::Unreachable(_)) => {
                    fleet.reload_replaced_policy(product_id, at, away).await?
                }
                product => product?.ok_or(FleetError::ProductNotFound)?,
            };
            fleet.apply_product(&product);
            let Product { slug, display_name, policy, .. } = product;
            Ok::<_, FleetError>(ReplacedPolicy { product_id, slug, display_name, policy, updated_at: at })
        });
        replaced.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }

    /// The product after its policy was to be replaced `at` that time and nobody heard whether it was: read again as soon
    /// as the registry is back, and in force from then on, also if the caller has been sent away by then.
    async fn reload_replaced_policy(
        self: &Arc<Self>,
        product_id: ProductId,
        at: Timestamp,
        away: RegistryError,
    ) -> Result<Product, FleetError> {
        tracing::warn!(product.id = %product_id, "The registry is away; whether a policy was replaced is read when it is back.");
        let reading = tokio::spawn(load_when_available(Arc::downgrade(self), product_id));
        let read = tokio::select! {
            read = reading => read.ok().flatten(),
            () = self.clock.sleep(REGISTRY_RETRY_TIMEOUT) => None,
        };
        read.filter(|product| product.updated_at == Some(at)).ok_or_else(|| away.into())
    }

    /// Lets a product be known as it is, and judged by its policy.
    fn apply_product(&self, product: &Product) {
        self.products.insert_if_newer(Arc::new(product.clone()));
        self.apply_policy(product.product_id, product.audit_seq, &product.policy);
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
            created_at: self.now(),
            updated_at: None,
            audit_seq: 1,
        }
    }

    /// Registers a product, or finds it registered with the same key: the product as it is then. None if another one has
    /// its slug.
    async fn insert_product(&self, product: Product) -> Result<Option<Product>, FleetError> {
        let detail = json!({
            "slug": product.slug, "display_name": product.display_name, "policy": product.policy,
        });
        let entry = AuditEntry {
            at: product.created_at,
            event: Event::Register,
            engine: None,
            duration_ms: None,
            detail,
        };
        let begun = self.clock.monotonic();
        // If nobody heard whether it was done, it is done again: it is the same product by its key.
        let product = loop {
            match self.try_register(&product, &entry).await {
                Err(RegistryError::Unreachable(_))
                    if self.clock.monotonic().saturating_sub(begun) < REGISTRY_RETRY_TIMEOUT => {}
                registered => break registered?,
            }
            self.clock.sleep(REGISTRY_RETRY_INTERVAL).await;
        };
        if let Some(product) = &product {
            self.apply_product(product);
        }
        Ok(product)
    }

    async fn try_register(
        &self,
        product: &Product,
        entry: &AuditEntry,
    ) -> Result<Option<Product>, RegistryError> {
        if self.registry.register(product, entry).await? {
            return Ok(Some(product.clone()));
        }
        let there = self.registry.product_by_slug(&product.slug).await?;
        Ok(there.filter(|there| there.key_hash.constant_time_eq(product.key_hash)))
    }
}

/// Reads a product as soon as the registry is back, and lets it be known as it is then.
async fn load_when_available(fleet: Weak<Fleet>, product_id: ProductId) -> Option<Product> {
    loop {
        let clock = {
            let fleet = fleet.upgrade()?;
            match fleet.registry.product_after_pending_changes(product_id).await {
                Ok(product) => {
                    let product = product?;
                    fleet.apply_product(&product);
                    fleet.registry.notify_followers(product_id);
                    return Some(product);
                }
                Err(RegistryError::Unreachable(_)) => Arc::clone(&fleet.clock),
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(product.id = %product_id, error, "A product's policy could not be read.");
                    return None;
                }
            }
        };
        clock.sleep(REGISTRY_RETRY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use contract::Timestamp;

    use super::*;

    #[test]
    fn of_two_views_of_a_product_the_later_stays_whichever_comes_last() {
        let view = |audit_seq, max_engines| Product {
            product_id: ProductId::new(),
            slug: Slug::new("demo").unwrap(),
            display_name: DisplayName::new("Demo").unwrap(),
            policy: Policy { max_engines, ..Policy::default() },
            key_hash: KeyHash::of("pk-svc-x"),
            created_at: Timestamp::from_unix_ms(0),
            updated_at: None,
            audit_seq,
        };
        let cache = ProductCache::default();
        for (audit_seq, kept) in [(5_i64, 5_i64), (4, 5), (7, 7), (1, 7)] {
            cache.insert_if_newer(Arc::new(view(audit_seq, Some(audit_seq.unsigned_abs()))));
            let found = cache.get(KeyHash::of("pk-svc-x")).unwrap();
            assert_eq!((found.audit_seq, found.policy.max_engines), (kept, Some(kept.unsigned_abs())));
        }
    }
}
