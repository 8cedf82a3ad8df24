use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;
use crate::metrics::labels::CheckResult;

fn exposed(metric: impl prometheus_client::registry::Metric) -> String {
    let mut registry = Registry::default();
    registry.register("m", "A metric", metric);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn a_bucket_holds_what_is_at_most_its_bound() {
    let histogram = Histogram::new(&[0.5, 1.0]);
    for milliseconds in [500, 501, 1_000, 1_001] {
        histogram.observe(Duration::from_millis(milliseconds));
    }
    let text = exposed(histogram);
    for line in ["m_bucket{le=\"0.5\"} 1", "m_bucket{le=\"1.0\"} 3", "m_bucket{le=\"+Inf\"} 4", "m_count 4"] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in: {text}");
    }
    assert!(text.contains("m_sum 3.002"), "{text}");
}

#[test]
fn every_pair_of_labels_has_its_own_place() {
    let pairs = ByLabels::<CheckResult, CheckResult, Histogram>::new(|| Histogram::new(&[]));
    for (at, a) in CheckResult::ALL.iter().enumerate() {
        for (and, b) in CheckResult::ALL.iter().enumerate() {
            for _ in 0..=(at * CheckResult::ALL.len() + and) {
                pairs.get(*a, *b).unwrap().observe(Duration::ZERO);
            }
        }
    }
    let counts: Vec<_> = pairs.metrics.iter().map(Histogram::count).collect();
    assert_eq!(counts, [1, 2, 3, 4]);
}

#[test]
fn a_call_that_was_never_made_is_not_exposed() {
    let histograms = SparseHistograms::<CheckResult>::new(&[]);
    histograms.observe(CheckResult::Healthy, Duration::ZERO);
    let text = exposed(histograms);
    assert!(text.contains("result=\"healthy\"") && !text.contains("unhealthy"), "{text}");
}
