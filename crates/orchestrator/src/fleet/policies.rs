//! Products' policies: what they forbid, and what holds for engines that nobody is just calling for.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use contract::policy::{Policy, Seconds};
use contract::{EngineImage, ProductId};

use super::{Fleet, FleetError};
use crate::registry::Product;

/// Every product's policy, with the place in its ledger at which it was seen: of two views the later one holds.
#[derive(Default)]
pub(super) struct PolicyCache {
    by_product: RwLock<HashMap<ProductId, (i64, Arc<Policy>)>>,
}

impl PolicyCache {
    /// Takes note of a product's policy, and lets `follow` do what follows from it, unless a later one is known.
    fn insert_if_newer(&self, product_id: ProductId, audit_seq: i64, policy: &Policy, follow: impl FnOnce()) {
        let mut by_product = self.by_product.write().unwrap_or_else(PoisonError::into_inner);
        let known = by_product.get(&product_id);
        if known.is_none_or(|(seen, _)| *seen < audit_seq) {
            by_product.insert(product_id, (audit_seq, Arc::new(policy.clone())));
            // Under the lock: of two policies at once the later one is followed last.
            follow();
        }
    }

    /// A product's policy. One that is not known sets no limits.
    pub(super) fn get(&self, product_id: ProductId) -> Arc<Policy> {
        let by_product = self.by_product.read().unwrap_or_else(PoisonError::into_inner);
        by_product.get(&product_id).map(|(_, policy)| Arc::clone(policy)).unwrap_or_default()
    }
}

/// Whether `product` may make a call that is not only a look.
pub(crate) fn check_not_suspended(product: &Product) -> Result<(), FleetError> {
    if product.policy.is_suspended() { Err(suspended_error()) } else { Ok(()) }
}

/// What a suspended product is answered.
pub(super) fn suspended_error() -> FleetError {
    FleetError::PolicyDenied("the product is suspended, and may only look".to_owned())
}

/// What a product is answered whose policy does not allow `image`.
pub(super) fn image_denied_error(image: &EngineImage) -> FleetError {
    FleetError::PolicyDenied(format!(
        "{image} is not among its allowed_engine_versions, which by default are the versions of the deployment's image"
    ))
}

impl Fleet {
    /// Why `product` may not provision an engine with `image`, by default the deployment's; none if it may.
    pub(super) fn image_denied(&self, product: &Product, image: Option<&EngineImage>) -> Option<FleetError> {
        let image = image.unwrap_or(&self.settings.engine_image);
        (!product.policy.allows(image, &self.settings.engine_image)).then(|| image_denied_error(image))
    }

    /// Lets a product's engines be judged by this policy from now on, unless a later one is known.
    pub(super) fn apply_policy(&self, product_id: ProductId, audit_seq: i64, policy: &Policy) {
        self.policies.insert_if_newer(product_id, audit_seq, policy, || {
            let threshold = policy.idle_sleep_threshold_s.as_ref().map(Seconds::duration);
            self.supervision.set_idle_threshold(product_id, threshold);
        });
    }
}
