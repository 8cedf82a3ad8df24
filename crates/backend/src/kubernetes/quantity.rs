//! Quantities as Kubernetes writes them, and an engine's limits in them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::options::Requests;
use crate::ResourceLimits;

/// The limits where a product's policy sets none: MiB of memory, processors.
const DEFAULT_LIMITS: (u64, f64) = (1_024, 2.0);

const BYTES_PER_MIB: f64 = 1_048_576.0;

/// The suffixes of quantities with their factors.
const SUFFIXES: [(&str, f64); 11] = [
    ("Ki", 1_024.0),
    ("Mi", BYTES_PER_MIB),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
];

/// Returns the limits of an engine's container, and what the scheduler reserves for it.
pub(super) fn resources(limits: &ResourceLimits, requests: Requests) -> ResourceRequirements {
    let memory_mb = limits.memory_mb.unwrap_or(DEFAULT_LIMITS.0);
    let cpus = limits.cpus.unwrap_or(DEFAULT_LIMITS.1);
    ResourceRequirements {
        limits: Some(quantities(memory_mb, cpus)),
        requests: Some(quantities(
            requests.memory_mb.min(memory_mb),
            (f64::from(requests.cpu_millis) / 1_000.0).min(cpus),
        )),
        ..ResourceRequirements::default()
    }
}

fn quantities(memory_mb: u64, cpus: f64) -> BTreeMap<String, Quantity> {
    // A thousandth of a processor is the smallest share that Kubernetes knows.
    let millis = (cpus * 1_000.0).round().max(1.0);
    BTreeMap::from([
        ("memory".to_owned(), Quantity(format!("{memory_mb}Mi"))),
        ("cpu".to_owned(), Quantity(format!("{millis}m"))),
    ])
}

/// Returns the limits in force on a container. Kubernetes limits processes per node, not per Pod.
pub(super) fn limits_of(resources: &ResourceRequirements) -> ResourceLimits {
    let limit = |name: &str| parse(&resources.limits.as_ref()?.get(name)?.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a limit on memory is a positive number of MiB far below the largest integer"
    )]
    let memory_mb = limit("memory").map(|bytes| (bytes / BYTES_PER_MIB) as u64);
    ResourceLimits { memory_mb, cpus: limit("cpu"), pids: None }
}

/// Parses a quantity; `None` if it is not one.
pub fn parse(text: &str) -> Option<f64> {
    let suffix = SUFFIXES.iter().find(|(suffix, _)| text.ends_with(suffix));
    let (number, factor) =
        suffix.map_or((text, 1.0), |(suffix, factor)| (text.strip_suffix(suffix).unwrap_or(text), *factor));
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("1Gi", Some(1_073_741_824.0)),
            ("512Mi", Some(536_870_912.0)),
            ("1500m", Some(1.5)),
            ("2", Some(2.0)),
            ("1e3", Some(1_000.0)),
            ("1G", Some(1e9)),
            ("", None),
            ("much", None),
            ("-1", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn limits_are_written_and_read_and_bound_what_is_reserved() {
        let requests = Requests { memory_mb: 256, cpu_millis: 100 };
        let small = ResourceLimits { memory_mb: Some(128), cpus: Some(0.05), pids: Some(7) };
        let resources = super::resources(&small, requests);
        assert_eq!(resources.requests, resources.limits);
        assert_eq!(limits_of(&resources), ResourceLimits { pids: None, ..small });
        let default = super::resources(&ResourceLimits::default(), requests);
        let expected = ResourceLimits { memory_mb: Some(1_024), cpus: Some(2.0), pids: None };
        assert_eq!(limits_of(&default), expected);
        assert_eq!(default.requests.unwrap()["cpu"].0, "100m");
    }
}
