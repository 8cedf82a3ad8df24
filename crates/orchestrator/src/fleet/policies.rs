//! The products' policies and states: which images they allow, which limits apply to engines in the absence of a
//! caller, and whether the product is in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::policy::{Policy, Seconds};
use api::product_state::ProductState;
use api::{EngineImage, ProductId};
use parking_lot::RwLock;

use super::FleetError;
use super::shared::Shared;
use super::supervision::Supervision;
use crate::registry::{EngineRow, Product};

/// What is known of a product, as it was when its audit log ended with row `audit_seq`.
struct KnownProduct {
    audit_seq: i64,
    policy: Arc<Policy>,
    state: ProductState,
}

pub(super) struct Policies {
    shared: Arc<Shared>,
    supervision: Arc<Supervision>,
    /// The image that the configuration names.
    configured_image: EngineImage,
    /// The deployment's image: that of engines that do not request one. It is the configured one, unless a rollout has
    /// led to another.
    default_image: RwLock<EngineImage>,
    /// Whether a rollout is under way: then it decides which version an engine is on.
    is_rolling_out: AtomicBool,
    /// Every product's policy, with the audit log position at which it was read: the later of two views wins.
    by_product: RwLock<HashMap<ProductId, KnownProduct>>,
}

impl Policies {
    pub(super) fn new(
        shared: Arc<Shared>,
        supervision: Arc<Supervision>,
        configured_image: EngineImage,
    ) -> Self {
        Self {
            shared,
            supervision,
            default_image: RwLock::new(configured_image.clone()),
            configured_image,
            is_rolling_out: AtomicBool::new(false),
            by_product: RwLock::default(),
        }
    }

    /// The policy of a product. A policy that is not known sets no limits.
    pub(super) fn get(&self, product_id: ProductId) -> Arc<Policy> {
        let by_product = self.by_product.read();
        by_product.get(&product_id).map(|known| Arc::clone(&known.policy)).unwrap_or_default()
    }

    /// Checks that the product is in use, as far as is known. Whoever changes something of it is checked again where
    /// that is committed.
    pub(super) fn check_in_use(&self, product_id: ProductId) -> Result<(), FleetError> {
        let state = self.by_product.read().get(&product_id).map(|known| known.state).unwrap_or_default();
        FleetError::check_in_use(state)
    }

    /// The products that may have engines of the deployment's image started, as far as is known.
    pub(super) fn products_in_use(&self) -> Vec<ProductId> {
        let default = self.default_image();
        let by_product = self.by_product.read();
        let in_use = by_product.iter().filter(|(_, known)| {
            known.state == ProductState::Active
                && !known.policy.is_suspended()
                && known.policy.allows(&default, &default)
        });
        in_use.map(|(product_id, _)| *product_id).collect()
    }

    /// Applies this policy to the product's engines, and this state to the product, from now on, unless later ones are
    /// known.
    pub(super) fn apply(&self, product_id: ProductId, audit_seq: i64, policy: &Policy, state: ProductState) {
        let mut by_product = self.by_product.write();
        let known = by_product.get(&product_id);
        if known.is_none_or(|known| known.audit_seq < audit_seq) {
            let policy = Arc::new(policy.clone());
            by_product.insert(product_id, KnownProduct { audit_seq, policy: Arc::clone(&policy), state });
            let threshold = policy.idle_sleep_threshold_s.as_ref().map(Seconds::duration);
            // Under the lock, so that of two concurrent policies the later one is applied last.
            self.supervision.set_idle_threshold(product_id, threshold);
        }
    }

    /// The deployment's image.
    pub(super) fn default_image(&self) -> EngineImage {
        self.default_image.read().clone()
    }

    /// The image that the configuration names.
    pub(super) const fn configured_image(&self) -> &EngineImage {
        &self.configured_image
    }

    pub(super) fn set_default_image(&self, image: EngineImage) {
        *self.default_image.write() = image;
    }

    /// Says whether a rollout is under way.
    pub(super) fn set_rolling_out(&self, is_rolling_out: bool) {
        self.is_rolling_out.store(is_rolling_out, Ordering::Relaxed);
    }

    /// Why `product` may not provision an engine with `image` (by default the deployment's); `None` if it may.
    pub(super) fn image_denied(&self, product: &Product, image: Option<&EngineImage>) -> Option<FleetError> {
        let default = self.default_image();
        let image = image.unwrap_or(&default);
        (!product.policy.allows(image, &default)).then(|| FleetError::image_denied(image))
    }

    /// The image of an engine's next launch: its own if it is pinned, else the deployment's, provided that it is
    /// compatible and the product's policy allows it. If the backend has no image other than the deployment's, an
    /// engine that kept its own could never be launched again, so all engines follow, across major versions too.
    pub(super) fn launch_image(&self, row: &EngineRow) -> EngineImage {
        let follows = self.follows_default_image(row.owner.product_id, &row.engine_version, row.pinned);
        if follows { self.default_image() } else { row.engine_version.clone() }
    }

    /// Whether the next launch of an engine on `image` uses the deployment's image. While a rollout is under way, that
    /// of another image does not.
    pub(super) fn follows_default_image(
        &self,
        product_id: ProductId,
        image: &EngineImage,
        pinned: bool,
    ) -> bool {
        if self.shared.backend.has_single_image() {
            return true;
        }
        let default = self.default_image();
        let is_compatible = default == *image
            || (default.major() == image.major() && !self.is_rolling_out.load(Ordering::Relaxed));
        is_compatible && !pinned && self.get(product_id).allows(&default, &default)
    }
}
