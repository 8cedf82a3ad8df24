//! The number of engines by product and state, as the registry had them at a recent scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use api::orchestrator::EngineStatus;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;

use super::labels::Label as _;
use crate::registry::ProductCounts;

/// How many products have a label of their own: those that were registered first. The engines of all others are
/// counted under [`OTHER`].
pub(super) const MAX_PRODUCTS: usize = 200;

/// The label of the products without one of their own. A product with this slug shares it.
pub(super) const OTHER: &str = "other";

/// The engines of a product by state.
type ByStatus = BTreeMap<EngineStatus, u64>;

/// The engines of each product by state.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineCounts(Arc<Mutex<BTreeMap<String, ByStatus>>>);

impl EngineCounts {
    /// Replaces the counts. `products` are sorted by their ids, and thus by the time of their registration.
    pub(super) fn set(&self, products: &[ProductCounts]) {
        let mut counts = BTreeMap::<_, ByStatus>::new();
        for (at, product) in products.iter().enumerate() {
            let label = if at < MAX_PRODUCTS { product.slug.as_str() } else { OTHER };
            let by_status = counts.entry(label.to_owned()).or_default();
            for (status, engines) in &product.by_status {
                *by_status.entry(*status).or_default() += engines;
            }
        }
        *self.0.lock() = counts;
    }
}

impl EncodeMetric for EngineCounts {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (product, by_status) in &*self.0.lock() {
            for status in EngineStatus::ALL {
                let labels = [("product", product.as_str()), (EngineStatus::NAME, status.value())];
                let engines = by_status.get(&status).copied().unwrap_or_default();
                encoder.encode_family(&labels)?.encode_gauge(&engines)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

#[cfg(test)]
#[path = "../../tests/unit/metrics/engine_counts.rs"]
mod tests;
