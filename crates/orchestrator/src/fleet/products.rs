//! Products: registered once, then known by their key; their policies, replaced whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use contract::orchestrator::{
    ListProducts, PageLimit, PageOffset, Policy, ProductList, ProductSummary, RegisterProduct,
    RegisteredProduct, ReplacedPolicy,
};
use contract::{DisplayName, KeyHash, PlatformKey, ProductId, Slug};
use serde_json::json;

use super::calls::PAGE;
use super::{Fleet, FleetError};
use crate::registry::{Entry, Event, Product, RegistryError};

/// How many products are read in one query.
const PRODUCTS_AT_ONCE: i64 = 1_000;

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
    fn put(&self, product: Arc<Product>) {
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
            self.products.put(Arc::clone(&product));
            product
        };
        // The look-up compared hashes as an index or a map does; this one takes the same time wherever they
        // differ.
        Ok(product.key_hash.is(hash).then_some(product))
    }

    /// Reads all products, so that unknown keys cost no query from then on.
    pub(super) async fn load_products(&self) -> Result<(), RegistryError> {
        let (mut offset, mut loaded) = (0, 0);
        loop {
            let (products, total) = self.registry.products(PRODUCTS_AT_ONCE, offset).await?;
            loaded += u64::try_from(products.len()).unwrap_or(u64::MAX);
            for product in products {
                self.products.put(Arc::new(product));
            }
            offset += PRODUCTS_AT_ONCE;
            if offset.unsigned_abs() >= total {
                // The key of one that cannot be read is looked for each time, and that it cannot be read is said.
                self.products.complete.store(loaded == total, Ordering::Release);
                return Ok(());
            }
        }
    }

    /// `POST /products/register`.
    pub(crate) async fn register(&self, ask: RegisterProduct) -> Result<RegisteredProduct, FleetError> {
        let key = PlatformKey::generate().map_err(FleetError::internal)?;
        let RegisterProduct { slug, display_name, policy } = ask;
        let product = self.new_product(slug, display_name, policy, &key);
        if !self.insert(&product).await? {
            return Err(FleetError::SlugExists);
        }
        Ok(RegisteredProduct {
            product_id: product.product_id,
            slug: product.slug,
            display_name: product.display_name,
            policy: product.policy,
            created_at: product.created_at,
            platform_api_key: key,
        })
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
        if self.insert(&product).await? {
            return Ok(product.product_id);
        }
        match self.registry.product_by_slug(&product.slug).await? {
            Some(there) if there.key_hash.matches(key.expose()) => {
                let product_id = there.product_id;
                self.products.put(Arc::new(there));
                Ok(product_id)
            }
            _ => Err(FleetError::SlugExists),
        }
    }

    /// A page of all products, without their keys.
    pub(crate) async fn list_products(&self, ask: ListProducts) -> Result<ProductList, FleetError> {
        let limit = ask.limit.map_or(PAGE, PageLimit::get);
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
        let turn = Arc::clone(&self.policy_turns).lock_owned().await;
        // On its own from here: a caller who hangs up must not leave the registry with one policy and the
        // products in memory with another.
        let replaced = tokio::spawn(async move {
            let _turn = turn;
            let at = fleet.now();
            let entry = |before: &serde_json::Value| Entry {
                at,
                event: Event::PolicyUpdate,
                engine: None,
                duration_ms: None,
                detail: json!({"from": before, "to": policy}),
            };
            let product = fleet.registry.replace_policy(product_id, &policy, entry).await?;
            let product = Arc::new(product.ok_or(FleetError::ProductNotFound)?);
            fleet.products.put(Arc::clone(&product));
            fleet.follow_policy(product_id, product.audit_seq, &product.policy);
            Ok::<_, FleetError>(ReplacedPolicy {
                product_id,
                slug: product.slug.clone(),
                display_name: product.display_name.clone(),
                policy: product.policy.clone(),
                updated_at: at,
            })
        });
        replaced.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
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

    async fn insert(&self, product: &Product) -> Result<bool, FleetError> {
        let detail = json!({
            "slug": product.slug, "display_name": product.display_name, "policy": product.policy,
        });
        let entry =
            Entry { at: product.created_at, event: Event::Register, engine: None, duration_ms: None, detail };
        let registered = self.registry.register(product, &entry).await?;
        if registered {
            self.products.put(Arc::new(product.clone()));
            self.follow_policy(product.product_id, product.audit_seq, &product.policy);
        }
        Ok(registered)
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
            cache.put(Arc::new(view(audit_seq, Some(audit_seq.unsigned_abs()))));
            let found = cache.get(KeyHash::of("pk-svc-x")).unwrap();
            assert_eq!((found.audit_seq, found.policy.max_engines), (kept, Some(kept.unsigned_abs())));
        }
    }
}
