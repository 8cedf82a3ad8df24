//! The results as quantities of the report, and the requests to the API server as a table of their own.

use super::requests::{Kind, Requests};
use super::size::Measured;
use crate::report::{Budget, Quantity, Subject, Unit, align_columns};

/// The most by which what an engine costs may grow with the number of engines; the rest is noise.
const FLAT: Budget = Budget::AtMostTimesBaseline(1.25);
/// Within this time a restarted orchestrator has all of its engines again.
const ADOPTION_BUDGET: Budget = Budget::AtMost(10_000.0);

/// The results for all numbers of engines, in their order.
#[derive(Default)]
pub(super) struct Table {
    pub(super) sizes: Vec<Measured>,
}

impl Table {
    /// Returns the quantities. What should not depend on the number of engines has the first one beside it.
    pub(super) fn quantities(&self) -> Vec<Quantity> {
        let Some(first) = self.sizes.first() else { return Vec::new() };
        self.sizes.iter().flat_map(|size| quantities(size, first)).collect()
    }

    /// Renders the requests to the API server.
    pub(super) fn render_requests(&self) -> String {
        let header =
            ["engines", "requests to the API server", "number", "rate", "mean time"].map(str::to_owned);
        let mut rows = vec![header];
        for size in &self.sizes {
            let added = f64::from(size.added);
            rows.extend(request_rows(
                size.engines,
                "provisioning",
                &size.provision_requests,
                added,
                "engine",
            ));
            let seconds = size.window.as_secs_f64();
            rows.extend(request_rows(size.engines, "idle", &size.idle_requests, seconds, "second"));
        }
        align_columns(&rows, [false, true, false, true, false])
    }
}

fn request_rows(engines: u32, when: &str, requests: &Requests, divisor: f64, unit: &str) -> Vec<[String; 5]> {
    let row = |(name, kind): (&str, Kind)| {
        let rate = f64::from(kind.number) / divisor;
        [
            engines.to_string(),
            format!("{when}: {name}"),
            kind.number.to_string(),
            format!("{rate:.2} per {unit}"),
            format!("{:.1} ms", kind.mean_ms()),
        ]
    };
    requests.by_frequency().into_iter().map(row).collect()
}

fn quantities(size: &Measured, first: &Measured) -> Vec<Quantity> {
    let engines = size.engines;
    let is_first = engines == first.engines;
    let row = |name: &str, unit, samples: &[f64]| Quantity {
        name: name.to_owned(),
        unit,
        subject: Subject::new(format!("{engines} engines")).with(samples.iter().copied()),
        baselines: Vec::new(),
        budget: None,
    };
    let with_baseline = |quantity: Quantity, value: Option<f64>| {
        let plain = Subject::new("the same objects by plain calls").with(value);
        Quantity { baselines: vec![plain], ..quantity }
    };
    // For each engine, so that it should be what it is with few.
    let flat = |name: &str, unit, value: f64, of_first: f64| {
        let quantity = row(name, unit, &[value]);
        if is_first {
            return quantity;
        }
        let beside = Subject::comparison(format!("{} engines", first.engines)).with([of_first]);
        Quantity { baselines: vec![beside], budget: Some(FLAT), ..quantity }
    };
    let per_added = |size: &Measured| f64::from(size.provision_requests.total()) / f64::from(size.added);
    let per_second = |size: &Measured| f64::from(size.idle_requests.total()) / size.window.as_secs_f64();
    let median = |value: Option<f64>| value.into_iter().collect::<Vec<_>>();
    let [ready, adopted, checked] = &size.restarts_ms;
    vec![
        with_baseline(
            row("provisions", Unit::PerSecond, &[size.provisions_per_second]),
            Some(size.plain_per_second),
        ),
        with_baseline(row("a provision, p50", Unit::Milliseconds, &median(size.provision_ms)), size.plain_ms),
        Quantity {
            budget: Some(Budget::AtMost(0.0)),
            ..row("provisions failed", Unit::Failures, &[size.failures.into()])
        },
        flat("provision, processor time", Unit::Microseconds, size.provision_cpu_us, first.provision_cpu_us),
        flat("provision, API requests", Unit::Requests, per_added(size), per_added(first)),
        flat(
            "supervision of an engine, for 1 s",
            Unit::Microseconds,
            size.supervision_us,
            first.supervision_us,
        ),
        flat("memory of an engine", Unit::Kibibytes, size.memory_kib, first.memory_kib),
        row("idle, API requests in 1 s", Unit::Requests, &[per_second(size)]),
        row("restart until ready", Unit::Milliseconds, ready),
        Quantity {
            budget: Some(ADOPTION_BUDGET),
            ..row("restart until all are adopted", Unit::Milliseconds, adopted)
        },
        row("restart until each is checked", Unit::Milliseconds, checked),
        row("stop one", Unit::Milliseconds, &size.stops_ms),
        row("start one", Unit::Milliseconds, &size.starts_ms),
    ]
}
