//! Products: registered once, then known by their key.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use contract::orchestrator::{Policy, RegisterProduct, RegisteredProduct};
use contract::{DisplayName, KeyHash, PlatformKey, ProductId, Slug};
use serde_json::json;

use super::{Fleet, FleetError};
use crate::registry::{Entry, Event, Product};

/// Products by the hash of their key, so that an admit costs one query. Keys never change, and this process
/// alone changes products.
#[derive(Default)]
pub(super) struct ProductCache {
    by_key: RwLock<HashMap<KeyHash, Arc<Product>>>,
}

impl ProductCache {
    fn get(&self, hash: KeyHash) -> Option<Arc<Product>> {
        self.by_key.read().unwrap_or_else(PoisonError::into_inner).get(&hash).cloned()
    }

    fn put(&self, product: Arc<Product>) {
        self.by_key.write().unwrap_or_else(PoisonError::into_inner).insert(product.key_hash, product);
    }
}

impl Fleet {
    /// The product that has this platform key.
    pub(crate) async fn authenticate(&self, key: &str) -> Result<Option<Arc<Product>>, FleetError> {
        let hash = KeyHash::of(key);
        let product = if let Some(product) = self.products.get(hash) {
            product
        } else {
            let Some(product) = self.registry.product_by_key(hash).await? else { return Ok(None) };
            let product = Arc::new(product);
            self.products.put(Arc::clone(&product));
            product
        };
        // The look-up compared hashes as an index or a map does; this one takes the same time wherever they
        // differ.
        Ok(product.key_hash.matches(key).then_some(product))
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
            Some(there) if there.key_hash.matches(key.expose()) => Ok(there.product_id),
            _ => Err(FleetError::SlugExists),
        }
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
        }
    }

    async fn insert(&self, product: &Product) -> Result<bool, FleetError> {
        let detail = json!({
            "slug": product.slug, "display_name": product.display_name, "policy": product.policy,
        });
        let entry =
            Entry { at: product.created_at, event: Event::Register, engine: None, duration_ms: None, detail };
        Ok(self.registry.register(product, &entry).await?)
    }
}
