//! The two text formats that Prometheus and its relatives read.

use std::fmt::Write as _;

/// A text format of an exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextFormat {
    /// `OpenMetrics`, for scrapers that ask for it.
    OpenMetrics,
    /// Prometheus's own, which everything reads.
    Prometheus,
}

impl TextFormat {
    /// The best format for a scraper with this `Accept` header.
    pub(crate) fn negotiate(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The media type.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts a text in the `OpenMetrics` format to this one.
    pub(super) fn convert(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Prometheus => to_prometheus(&open_metrics),
        }
    }
}

/// The samples of both formats are the same. In Prometheus's own a counter's family has the name of its samples, and
/// there are neither units nor a mark at the end.
fn to_prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // Its type follows, on which the name depends.
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            // Writing to a `String` never fails.
            if let Some((_, help)) = help.take() {
                let _ = writeln!(text, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

#[cfg(test)]
#[path = "../../tests/unit/metrics/text.rs"]
mod tests;
