//! Renders the results, with their baselines and budgets, as a table and as JSON.

use serde::Serialize;

use crate::stats::{Spread, spread};

/// A measured quantity: the samples of Roundhouse and of its baselines, one per round.
#[derive(Clone, Debug)]
pub(crate) struct Quantity {
    /// The quantity's name, such as `start`.
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) subject: Subject,
    /// The baselines or comparisons. A relative budget refers to the first of them that has samples.
    pub(crate) baselines: Vec<Subject>,
    pub(crate) budget: Option<Budget>,
}

/// A measured program and its samples.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) samples: Vec<f64>,
    /// Whether this is a comparison. Unlike a baseline, it may be slower than Roundhouse.
    is_comparison: bool,
}

impl Subject {
    /// Creates a subject without samples.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), samples: Vec::new(), is_comparison: false }
    }

    /// Creates a comparison, such as Roundhouse under other conditions.
    pub(crate) fn comparison(name: impl Into<String>) -> Self {
        Self { is_comparison: true, ..Self::new(name) }
    }

    /// Adds samples.
    pub(crate) fn with(mut self, samples: impl IntoIterator<Item = f64>) -> Self {
        self.samples.extend(samples);
        self
    }

    /// Returns the subject's name in a budget.
    fn budget_label(&self) -> &str {
        if self.is_comparison { &self.name } else { "baseline" }
    }

    /// Returns the subject's label in the table.
    fn line_label(&self) -> String {
        format!("{}: {}", if self.is_comparison { "beside" } else { "baseline" }, self.name)
    }
}

/// The unit of a quantity, which also determines whether higher values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "MiB")]
    Mebibytes,
    #[serde(rename = "KiB")]
    Kibibytes,
    #[serde(rename = "/s")]
    PerSecond,
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    /// Percent of one core.
    #[serde(rename = "%")]
    Percent,
    /// A number of failures.
    #[serde(rename = "failures")]
    Failures,
    /// A number of requests.
    #[serde(rename = "requests")]
    Requests,
}

impl Unit {
    const fn symbol(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Microseconds => "µs",
            Self::Mebibytes => "MiB",
            Self::Kibibytes => "KiB",
            Self::PerSecond => "/s",
            Self::MegabytesPerSecond => "MB/s",
            Self::Percent => "%",
            Self::Failures => "failures",
            Self::Requests => "requests",
        }
    }

    /// Returns whether `one` is better than `other`.
    fn is_better(self, one: f64, other: f64) -> bool {
        match self {
            Self::PerSecond | Self::MegabytesPerSecond => one > other,
            Self::Milliseconds
            | Self::Microseconds
            | Self::Mebibytes
            | Self::Kibibytes
            | Self::Percent
            | Self::Failures
            | Self::Requests => one < other,
        }
    }
}

/// The limit for the median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Budget {
    AtMost(f64),
    AtLeast(f64),
    AboveBaseline(f64),
    AtMostTimesBaseline(f64),
    AtLeastTimesBaseline(f64),
}

impl Budget {
    /// Formats the budget; `other` names the baseline or comparison.
    fn text(self, unit: Unit, other: &str) -> String {
        let symbol = unit.symbol();
        match self {
            Self::AtMost(bound) => format!("≤ {} {symbol}", format_number(bound)),
            Self::AtLeast(bound) => format!("≥ {} {symbol}", format_number(bound)),
            Self::AboveBaseline(bound) => format!("≤ {other} + {} {symbol}", format_number(bound)),
            Self::AtMostTimesBaseline(factor) => format!("≤ {factor} × {other}"),
            Self::AtLeastTimesBaseline(factor) => format!("≥ {factor} × {other}"),
        }
    }

    /// Returns whether the budget is met; `None` if it is relative and there is no baseline.
    fn is_met(self, ours: f64, baseline: Option<f64>) -> Option<bool> {
        Some(match self {
            Self::AtMost(bound) => ours <= bound,
            Self::AtLeast(bound) => ours >= bound,
            Self::AboveBaseline(bound) => ours <= baseline? + bound,
            Self::AtMostTimesBaseline(factor) => ours <= baseline? * factor,
            Self::AtLeastTimesBaseline(factor) => ours >= baseline? * factor,
        })
    }
}

/// The median compared with the budget and the baselines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// Roundhouse is better than a baseline, so the baseline could be written better.
    FloorIsWrong,
}

impl Verdict {
    const fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::FloorIsWrong => "BASELINE IS WRONG",
        }
    }
}

impl Quantity {
    /// Adds the samples of a round: that of Roundhouse, and that of the first baseline or comparison.
    pub(crate) fn add(&mut self, ours: impl Into<Option<f64>>, other: impl Into<Option<f64>>) {
        self.subject.samples.extend(ours.into());
        if let Some(baseline) = self.baselines.first_mut() {
            baseline.samples.extend(other.into());
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        let ours = spread(&self.subject.samples)?.median;
        let median = |baseline: &Subject| spread(&baseline.samples).map(|spread| spread.median);
        let real = self.baselines.iter().filter(|baseline| !baseline.is_comparison);
        if real.filter_map(median).any(|baseline| self.unit.is_better(ours, baseline)) {
            return Some(Verdict::FloorIsWrong);
        }
        let met = self.budget?.is_met(ours, self.baselines.iter().find_map(median))?;
        Some(if met { Verdict::Met } else { Verdict::Missed })
    }

    fn budget_text(&self) -> Option<String> {
        let other = self.baselines.first().map_or("baseline", Subject::budget_label);
        self.budget.map(|budget| budget.text(self.unit, other))
    }
}

const COLUMN_HEADERS: [&str; 8] = ["what", "measured", "median", "min", "max", "ratio", "budget", ""];
/// Texts are aligned left, numbers right.
const LEFT_ALIGNED: [bool; 8] = [true, true, false, false, false, false, true, true];

/// Renders the table: for each quantity a line for Roundhouse and one for each baseline, with the ratio of the
/// medians.
pub(crate) fn render_table(quantities: &[Quantity]) -> String {
    let mut rows = vec![COLUMN_HEADERS.map(str::to_owned)];
    for quantity in quantities {
        rows.extend(render_rows(quantity));
    }
    align_columns(&rows, LEFT_ALIGNED)
}

/// Renders rows as a table, with each column aligned left or right.
pub(crate) fn align_columns<const COLUMNS: usize>(
    rows: &[[String; COLUMNS]],
    left: [bool; COLUMNS],
) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut table = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, width), left) in row.iter().zip(widths).zip(left) {
            let padding = " ".repeat(width - cell.chars().count());
            let (before, after) = if left { ("", padding.as_str()) } else { (padding.as_str(), "") };
            line.extend([before, cell, after, "  "]);
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

fn render_rows(quantity: &Quantity) -> Vec<[String; 8]> {
    let unit = quantity.unit.symbol();
    let ours = spread(&quantity.subject.samples);
    let line = |what: &str, name: &str, spread: Option<Spread>, ratio, budget, verdict: &str| {
        let cell = |pick: fn(Spread) -> f64| {
            spread.map_or_else(|| "-".to_owned(), |spread| format_number(pick(spread)))
        };
        let median = format!("{} {unit}", cell(|spread| spread.median));
        let (min, max) = (cell(|spread| spread.min), cell(|spread| spread.max));
        [what.to_owned(), name.to_owned(), median, min, max, ratio, budget, verdict.to_owned()]
    };
    let budget = quantity.budget_text().unwrap_or_default();
    let verdict = quantity.verdict().map_or("", Verdict::text);
    let mut lines = vec![line(&quantity.name, &quantity.subject.name, ours, String::new(), budget, verdict)];
    for baseline in &quantity.baselines {
        let baseline_spread = spread(&baseline.samples);
        let ratio = ours
            .zip(baseline_spread)
            .map_or_else(String::new, |(ours, baseline)| format!("{:.2}", ours.median / baseline.median));
        lines.push(line("", &baseline.line_label(), baseline_spread, ratio, String::new(), ""));
    }
    lines
}

/// Formats a number with about three significant digits and thousands separators.
fn format_number(value: f64) -> String {
    if value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 1_000.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let remaining = digits.len() - index;
        if index > 0 && remaining.is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Renders the results as JSON, with every sample.
pub(crate) fn render_json(quantities: &[Quantity], rounds: usize) -> serde_json::Result<String> {
    let quantities = quantities.iter().map(|quantity| {
        let median = |subject: &Subject| spread(&subject.samples).map(|spread| spread.median);
        let ours = median(&quantity.subject);
        let subject = |subject: &Subject, ratio: Option<f64>| {
            serde_json::json!({
                "name": subject.name, "spread": spread(&subject.samples), "samples": subject.samples,
                "ratio": ratio, "beside": subject.is_comparison,
            })
        };
        let baselines = quantity.baselines.iter().map(|baseline| {
            let ratio = ours.zip(median(baseline)).map(|(ours, baseline)| ours / baseline);
            subject(baseline, ratio)
        });
        serde_json::json!({
            "what": quantity.name,
            "unit": quantity.unit,
            "ours": subject(&quantity.subject, None),
            "floors": baselines.collect::<Vec<_>>(),
            "budget": quantity.budget_text(),
            "verdict": quantity.verdict(),
        })
    });
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let report = serde_json::json!({
        "rounds": rounds, "cores": cores, "quantities": quantities.collect::<Vec<_>>(),
    });
    serde_json::to_string_pretty(&report)
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
