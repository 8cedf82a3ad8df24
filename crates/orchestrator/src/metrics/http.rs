//! Requests by route and status class. The routes are those of the interface, known from the start; requests that
//! match none of them are counted as [`OTHER`], so a path never becomes a label.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;

use super::labels::{Label as _, StatusClass};
use super::primitives::{Bounds, ByLabel, Histogram};

/// The label of requests that match no route.
const OTHER: &str = "other";

/// The label's name.
const ROUTE: &str = "route";

/// The metrics of all routes.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes(Arc<OnceLock<BTreeMap<String, Route>>>);

#[derive(Debug)]
struct Route {
    answers: ByLabel<StatusClass, Counter>,
    duration: Histogram,
}

impl Routes {
    /// Sets the routes' templates. Only the first call has an effect.
    pub(super) fn set(&self, templates: impl IntoIterator<Item = String>, bounds: Bounds) {
        let templates = templates.into_iter().chain([OTHER.to_owned()]);
        let route = || Route { answers: ByLabel::new(Counter::default), duration: Histogram::new(bounds) };
        let _ = self.0.set(templates.map(|template| (template, route())).collect());
    }

    pub(super) fn record(&self, template: Option<&str>, class: StatusClass, duration: Duration) {
        let Some(routes) = self.0.get() else { return };
        let route = template.and_then(|template| routes.get(template)).or_else(|| routes.get(OTHER));
        if let Some(route) = route {
            route.duration.observe(duration);
            if let Some(answers) = route.answers.get(class) {
                answers.inc();
            }
        }
    }

    /// The routes that were called.
    fn called(&self) -> impl Iterator<Item = (&str, &Route)> {
        let is_called = |route: &Route| {
            let count = |class: &StatusClass| route.answers.get(*class).map_or(0, Counter::get);
            StatusClass::ALL.iter().any(|class| count(class) > 0)
        };
        let routes = self.0.get().into_iter().flatten();
        routes.filter(move |(_, route)| is_called(route)).map(|(template, route)| (template.as_str(), route))
    }
}

/// The answers of all routes that were called.
#[derive(Clone, Debug)]
pub(super) struct RouteAnswers(pub(super) Routes);

impl EncodeMetric for RouteAnswers {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (template, route) in self.0.called() {
            for class in StatusClass::ALL {
                let labels = [(ROUTE, template), (StatusClass::NAME, class.value())];
                if let Some(answers) = route.answers.get(*class) {
                    answers.encode(encoder.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// The durations of all routes that were called.
#[derive(Clone, Debug)]
pub(super) struct RouteDurations(pub(super) Routes);

impl EncodeMetric for RouteDurations {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (template, route) in self.0.called() {
            route.duration.encode(encoder.encode_family(&[(ROUTE, template)])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
