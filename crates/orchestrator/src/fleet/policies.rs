//! The products' policies: what they forbid, and which limits apply to engines in the absence of a caller.

use std::collections::HashMap;
use std::sync::Arc;

use api::policy::{Policy, Seconds};
use api::{EngineImage, ProductId};
use parking_lot::RwLock;

use super::{Fleet, FleetError};
use crate::registry::Product;

/// Every product's policy, with the audit log position at which it was read: the later of two views wins.
#[derive(Default)]
pub(super) struct PolicyCache {
    by_product: RwLock<HashMap<ProductId, (i64, Arc<Policy>)>>,
}

impl PolicyCache {
    /// Stores a product's policy and runs `follow` to apply its consequences, unless a later policy is known.
    fn insert_if_newer(&self, product_id: ProductId, audit_seq: i64, policy: &Policy, follow: impl FnOnce()) {
        let mut by_product = self.by_product.write();
        let known = by_product.get(&product_id);
        if known.is_none_or(|(seen, _)| *seen < audit_seq) {
            by_product.insert(product_id, (audit_seq, Arc::new(policy.clone())));
            // Under the lock, so that of two concurrent policies the later one is applied last.
            follow();
        }
    }

    /// The policy of a product. A policy that is not known sets no limits.
    pub(super) fn get(&self, product_id: ProductId) -> Arc<Policy> {
        let by_product = self.by_product.read();
        by_product.get(&product_id).map(|(_, policy)| Arc::clone(policy)).unwrap_or_default()
    }
}

/// Checks that `product` may make a call that does more than read.
pub(crate) fn check_not_suspended(product: &Product) -> Result<(), FleetError> {
    if product.policy.is_suspended() { Err(suspended_error()) } else { Ok(()) }
}

/// The error for calls of a suspended product.
pub(super) fn suspended_error() -> FleetError {
    FleetError::PolicyDenied("the product is suspended; it may only read".to_owned())
}

/// The error for a product whose policy does not allow `image`.
pub(super) fn image_denied_error(image: &EngineImage) -> FleetError {
    FleetError::PolicyDenied(format!(
        "{image} is not among its allowed_engine_versions, which by default are the versions of the deployment's image"
    ))
}

impl Fleet {
    /// Why `product` may not provision an engine with `image` (by default the deployment's); `None` if it may.
    pub(super) fn image_denied(&self, product: &Product, image: Option<&EngineImage>) -> Option<FleetError> {
        let image = image.unwrap_or(&self.settings.engine_image);
        (!product.policy.allows(image, &self.settings.engine_image)).then(|| image_denied_error(image))
    }

    /// Applies this policy to the product's engines from now on, unless a later one is known.
    pub(super) fn apply_policy(&self, product_id: ProductId, audit_seq: i64, policy: &Policy) {
        self.policies.insert_if_newer(product_id, audit_seq, policy, || {
            let threshold = policy.idle_sleep_threshold_s.as_ref().map(Seconds::duration);
            self.supervision.set_idle_threshold(product_id, threshold);
        });
    }
}
