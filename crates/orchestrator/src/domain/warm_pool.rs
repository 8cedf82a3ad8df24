//! The warm pool: which engines are booted ahead, and which of them are ended.
//!
//! It is pure: [`plan`] compares the warm engines with what each product should have, and the fleet acts.

use std::collections::HashMap;

use api::policy::{BaseUrl, Cpus, Policy};
use api::serde_helpers::BoundedInt;
use api::{EngineId, ProductId};
use serde_json::json;

/// The state of a warm engine. An engine that is claimed is none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarmState {
    /// It is being launched.
    Booting,
    /// It runs and may be claimed.
    Ready,
    /// It is being removed.
    Ending,
}

impl WarmState {
    /// All states.
    pub(crate) const ALL: [Self; 3] = [Self::Booting, Self::Ready, Self::Ending];

    /// The name of the state in the registry.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Booting => "booting",
            Self::Ready => "ready",
            Self::Ending => "ending",
        }
    }

    /// Parses what [`WarmState::as_str`] returns.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// What an engine of a product is launched with beside its image, as text. A warm engine is claimed only if a launch at
/// that moment would be given the same. `origins` is what the registry stores for the product, and `environment` stands
/// for everything that all engines of the deployment have in common.
pub(crate) fn launch_settings(policy: &Policy, origins: Option<&str>, environment: &str) -> String {
    let settings = json!({
        "memory_mb": policy.engine_memory_mb.map(BoundedInt::get),
        "cpus": policy.engine_cpus.as_ref().map(Cpus::get),
        "pids": policy.engine_pids.map(BoundedInt::get),
        "oauth_redirect_base_url": policy.oauth_redirect_base_url.as_ref().map(BaseUrl::as_str),
        "origins": origins.unwrap_or("[]"),
        "environment": environment,
    });
    settings.to_string()
}

/// How the pool may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolMode {
    /// It is kept at its size.
    Fill,
    /// The deployment is under maintenance: nothing is changed.
    Hold,
    /// The deployment is drained: it is emptied.
    Empty,
}

/// How large the pool may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Warm engines of each product.
    pub per_product: usize,
    /// Warm engines of all products.
    pub total: usize,
}

/// A warm engine as the plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarmView {
    pub(crate) engine_id: EngineId,
    pub(crate) product_id: ProductId,
    pub(crate) state: WarmState,
    /// Whether a task of this process is at it: boots it, or removes it.
    pub(crate) attended: bool,
    /// Whether it can be claimed, if it is ready: it runs, and a launch would be given the same.
    pub(crate) usable: bool,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolPlan {
    /// Products for each of which an engine is booted, the most urgent first. A product may occur more than once.
    pub(crate) boot: Vec<ProductId>,
    /// Engines that are removed.
    pub(crate) end: Vec<EngineId>,
}

/// Decides what is to be done. `products` are those that may have warm engines, the most urgent first, and `engines` are
/// all warm ones.
pub(crate) fn plan(mode: PoolMode, size: PoolSize, products: &[ProductId], engines: &[WarmView]) -> PoolPlan {
    let mut plan = PoolPlan::default();
    let wanted = if mode == PoolMode::Empty { 0 } else { size.per_product };
    let rank: HashMap<_, _> = products.iter().enumerate().map(|(rank, product)| (*product, rank)).collect();
    // Those of the most urgent products are kept, and of one product those that can be claimed already.
    let mut candidates: Vec<_> = engines.iter().collect();
    candidates.sort_by_key(|engine| {
        let rank = rank.get(&engine.product_id).copied().unwrap_or(usize::MAX);
        (rank, engine.state != WarmState::Ready, engine.engine_id)
    });
    let mut kept = HashMap::<ProductId, usize>::new();
    let mut total = 0;
    for engine in candidates {
        let of_product = kept.entry(engine.product_id).or_default();
        let has_room = rank.contains_key(&engine.product_id) && *of_product < wanted && total < size.total;
        match (engine.state, engine.attended) {
            // Whoever boots it is told by its next state; it occupies the host meanwhile.
            (WarmState::Booting, true) => {
                *of_product += 1;
                total += 1;
            }
            (WarmState::Ending, true) => {}
            (WarmState::Ready, _) if mode == PoolMode::Hold || (engine.usable && has_room) => {
                *of_product += 1;
                total += 1;
            }
            // It is not wanted, or nobody boots or removes it any more.
            (WarmState::Ready, _) | (WarmState::Booting | WarmState::Ending, false) => {
                plan.end.push(engine.engine_id);
            }
        }
    }
    if mode == PoolMode::Fill {
        // One for each product before a second one for any.
        for round in 1..=wanted {
            for product in products {
                let of_product = kept.entry(*product).or_default();
                if *of_product < round && total < size.total {
                    *of_product += 1;
                    total += 1;
                    plan.boot.push(*product);
                }
            }
        }
    }
    plan
}

#[cfg(test)]
#[path = "../../tests/unit/domain/warm_pool.rs"]
mod tests;
