//! What the engines of each product have used, as it was collected since this process began.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use api::ProductId;
use api::usage_days::{FIRST_DELTA_BOUNDS_S, UsageCounts};
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::engine_counts::{MAX_PRODUCTS, OTHER};
use crate::registry::ProductCounts;

#[derive(Debug, Default)]
struct State {
    totals: BTreeMap<ProductId, UsageCounts>,
    /// The labels of the products that have one of their own.
    labels: BTreeMap<ProductId, String>,
}

/// The totals of each product.
#[derive(Clone, Debug, Default)]
pub(super) struct UsageTotals(Arc<Mutex<State>>);

impl UsageTotals {
    /// Adds what a product's engine has used.
    pub(super) fn add(&self, product_id: ProductId, added: UsageCounts) {
        let mut state = self.0.lock();
        let total = state.totals.entry(product_id).or_default();
        *total = total.plus(added);
    }

    /// Sets the labels. `products` are sorted by their ids, and thus by the time of their registration.
    pub(super) fn set_labels(&self, products: &[ProductCounts]) {
        let labels = products.iter().take(MAX_PRODUCTS);
        let labels = labels.map(|product| (product.product_id, product.slug.as_str().to_owned()));
        self.0.lock().labels = labels.collect();
    }

    /// The totals by label.
    fn by_label(&self) -> BTreeMap<String, UsageCounts> {
        let state = self.0.lock();
        let mut by_label = BTreeMap::<String, UsageCounts>::new();
        for (product_id, counts) in &state.totals {
            let label = state.labels.get(product_id).map_or(OTHER, String::as_str);
            let total = by_label.entry(label.to_owned()).or_default();
            *total = total.plus(*counts);
        }
        by_label
    }
}

/// What a family says of the totals.
#[derive(Clone, Copy, Debug)]
pub(super) enum UsageKind {
    Turns,
    /// The calls of models, by result.
    ModelCalls,
    /// The tokens, by kind.
    Tokens,
    CostUsd,
    UnpricedCalls,
    ToolCalls,
}

impl UsageKind {
    /// The values of a product, each with its second label.
    #[expect(clippy::cast_precision_loss, reason = "a double counts up to 2^53")]
    fn values(self, counts: &UsageCounts) -> Vec<(Option<(&'static str, &'static str)>, f64)> {
        match self {
            Self::Turns => vec![(None, counts.turns as f64)],
            Self::ModelCalls => {
                let answered = counts.calls.saturating_sub(counts.failed_calls);
                let result = |value, count: u64| (Some(("result", value)), count as f64);
                vec![result("answered", answered), result("failed", counts.failed_calls)]
            }
            Self::Tokens => {
                let kind = |value, count: u64| (Some(("kind", value)), count as f64);
                vec![
                    kind("input", counts.input_tokens.saturating_sub(counts.cache_read_tokens)),
                    kind("cached_input", counts.cache_read_tokens),
                    kind("output", counts.output_tokens),
                ]
            }
            Self::CostUsd => vec![(None, counts.cost_nano_usd as f64 / 1e9)],
            Self::UnpricedCalls => vec![(None, counts.unpriced_calls as f64)],
            Self::ToolCalls => vec![(None, counts.tool_calls as f64)],
        }
    }
}

/// A family of the totals.
#[derive(Clone, Debug)]
pub(super) struct UsageFamily(pub(super) UsageTotals, pub(super) UsageKind);

impl EncodeMetric for UsageFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (product, counts) in self.0.by_label() {
            for (label, value) in self.1.values(&counts) {
                let product = [("product", product.as_str())];
                let labels: Vec<_> = product.into_iter().chain(label).collect();
                encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// The turns by the time until their first text.
#[derive(Clone, Debug)]
pub(super) struct FirstDeltaFamily(pub(super) UsageTotals);

impl EncodeMetric for FirstDeltaFamily {
    #[expect(clippy::cast_precision_loss, reason = "a double counts up to 2^53")]
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (product, UsageCounts { first_deltas, .. }) in self.0.by_label() {
            let bounds = FIRST_DELTA_BOUNDS_S.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(first_deltas.turns).collect();
            let (seconds, turns) = (first_deltas.total_ms as f64 / 1e3, first_deltas.turns.iter().sum());
            let product = [("product", product.as_str())];
            let mut of_product = encoder.encode_family(&product)?;
            of_product.encode_histogram::<NoLabelSet>(seconds, turns, &buckets, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
#[path = "../../tests/unit/metrics/usage_totals.rs"]
mod tests;
