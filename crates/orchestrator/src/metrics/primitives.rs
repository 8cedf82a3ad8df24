//! Metrics that are recorded without a lock: a histogram of durations, and a fixed table of metrics by label.
//!
//! Those of `prometheus-client` take a lock, for an observation or for the lookup of a label's metric. Here every
//! label has a closed set of values, so each metric exists from the start and is found by its place.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::labels::Label;

/// The upper bounds of a histogram's buckets, in seconds. The last bucket, which has none, is added.
pub(super) type Bounds = &'static [f64];

/// A histogram of durations.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    bounds: Bounds,
    /// The observations in each bucket, not cumulated; one more than there are bounds.
    buckets: Arc<[AtomicU64]>,
    sum_ns: Arc<AtomicU64>,
}

impl Histogram {
    pub(super) fn new(bounds: Bounds) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum_ns: Arc::default() }
    }

    pub(super) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let sum = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64();
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<_> =
            bounds.zip(self.buckets.iter()).map(|(to, count)| (to, count.load(Ordering::Relaxed))).collect();
        // Of the same reading, so that it equals the last bucket.
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

/// Seconds that only grow.
#[derive(Clone, Debug, Default)]
pub(super) struct SecondsCounter(Arc<AtomicU64>);

impl SecondsCounter {
    /// Sets the total.
    pub(super) fn set(&self, total: Duration) {
        let nanoseconds = u64::try_from(total.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_max(nanoseconds, Ordering::Relaxed);
    }
}

impl EncodeMetric for SecondsCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let seconds = Duration::from_nanos(self.0.load(Ordering::Relaxed)).as_secs_f64();
        encoder.encode_counter::<NoLabelSet, _, f64>(&seconds, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// A metric for each value of a label.
#[derive(Clone, Debug)]
pub(super) struct ByLabel<L, M> {
    metrics: Arc<[M]>,
    label: PhantomData<L>,
}

impl<L: Label, M> ByLabel<L, M> {
    pub(super) fn new(metric: impl Fn() -> M) -> Self {
        Self { metrics: L::ALL.iter().map(|_| metric()).collect(), label: PhantomData }
    }

    /// The metric of this value. Every value has one.
    pub(super) fn get(&self, value: L) -> Option<&M> {
        self.metrics.get(place(value)?)
    }
}

impl<L: Label, M: EncodeMetric> EncodeMetric for ByLabel<L, M>
where
    M: TypedMetric,
{
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (value, metric) in L::ALL.iter().zip(self.metrics.iter()) {
            metric.encode(encoder.encode_family(&[(L::NAME, value.value())])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// A metric for each pair of values of two labels.
#[derive(Clone, Debug)]
pub(super) struct ByLabels<A, B, M> {
    metrics: Arc<[M]>,
    labels: PhantomData<(A, B)>,
}

impl<A: Label, B: Label, M> ByLabels<A, B, M> {
    pub(super) fn new(metric: impl Fn() -> M) -> Self {
        let pairs = A::ALL.len() * B::ALL.len();
        Self { metrics: (0..pairs).map(|_| metric()).collect(), labels: PhantomData }
    }

    /// The metric of this pair. Every pair has one.
    pub(super) fn get(&self, a: A, b: B) -> Option<&M> {
        self.metrics.get(place(a)? * B::ALL.len() + place(b)?)
    }
}

impl<A: Label, B: Label, M: EncodeMetric + TypedMetric> EncodeMetric for ByLabels<A, B, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let pairs = A::ALL.iter().flat_map(|a| B::ALL.iter().map(move |b| (a, b)));
        for ((a, b), metric) in pairs.zip(self.metrics.iter()) {
            let labels = [(A::NAME, a.value()), (B::NAME, b.value())];
            metric.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// Histograms by label of which only those with observations are exposed, for labels with many values.
#[derive(Clone, Debug)]
pub(super) struct SparseHistograms<L>(ByLabel<L, Histogram>);

impl<L: Label> SparseHistograms<L> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self(ByLabel::new(|| Histogram::new(bounds)))
    }

    pub(super) fn observe(&self, value: L, duration: Duration) {
        if let Some(histogram) = self.0.get(value) {
            histogram.observe(duration);
        }
    }
}

impl<L: Label> EncodeMetric for SparseHistograms<L> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (value, histogram) in L::ALL.iter().zip(self.0.metrics.iter()) {
            if histogram.count() > 0 {
                histogram.encode(encoder.encode_family(&[(L::NAME, value.value())])?)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

fn place<L: Label>(value: L) -> Option<usize> {
    L::ALL.iter().position(|other| *other == value)
}

#[cfg(test)]
#[path = "../../tests/unit/metrics/primitives.rs"]
mod tests;
