//! What was measured, beside its floors and its budget: as a table for people and as JSON.

use serde::Serialize;

use crate::stats::{Spread, spread};

/// One quantity: ours and its floors, one sample per round each.
#[derive(Clone, Debug)]
pub(crate) struct Quantity {
    /// What was measured, such as `start`.
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) subject: Subject,
    /// The floors, or what ours stands beside. The budget is judged against the first of them.
    pub(crate) baselines: Vec<Subject>,
    pub(crate) budget: Option<Budget>,
}

/// Something that was measured, and its samples.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) samples: Vec<f64>,
    /// What ours is compared with and may be better than, unlike a floor.
    is_comparison: bool,
}

impl Subject {
    /// A subject without samples yet.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), samples: Vec::new(), is_comparison: false }
    }

    /// One of ours under other conditions, to compare with: it stands where a floor does and is none.
    pub(crate) fn comparison(name: impl Into<String>) -> Self {
        Self { is_comparison: true, ..Self::new(name) }
    }

    /// As a budget names it.
    fn budget_label(&self) -> &str {
        if self.is_comparison { &self.name } else { "floor" }
    }

    /// As its line names it.
    fn line_label(&self) -> String {
        format!("{}: {}", if self.is_comparison { "beside" } else { "floor" }, self.name)
    }
}

/// What a number counts, which also says whether more of it is better.
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
    /// Of one core.
    #[serde(rename = "%")]
    Percent,
    /// How often something went wrong.
    #[serde(rename = "failures")]
    Failures,
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
        }
    }

    /// Whether `one` is better than `other`.
    fn is_better(self, one: f64, other: f64) -> bool {
        match self {
            Self::PerSecond | Self::MegabytesPerSecond => one > other,
            Self::Milliseconds
            | Self::Microseconds
            | Self::Mebibytes
            | Self::Kibibytes
            | Self::Percent
            | Self::Failures => one < other,
        }
    }
}

/// What the median must keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Budget {
    AtMost(f64),
    AtLeast(f64),
    AboveBaseline(f64),
    AtMostTimesBaseline(f64),
    AtLeastTimesBaseline(f64),
}

impl Budget {
    /// `other` is what it compares with.
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

    /// None where there is no floor to compare with.
    fn is_met(self, ours: f64, floor: Option<f64>) -> Option<bool> {
        Some(match self {
            Self::AtMost(bound) => ours <= bound,
            Self::AtLeast(bound) => ours >= bound,
            Self::AboveBaseline(bound) => ours <= floor? + bound,
            Self::AtMostTimesBaseline(factor) => ours <= floor? * factor,
            Self::AtLeastTimesBaseline(factor) => ours >= floor? * factor,
        })
    }
}

/// What the median says of the budget and the floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// Ours is better than its floor, so the floor is not as good as it can be written.
    FloorIsWrong,
}

impl Verdict {
    const fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::FloorIsWrong => "FLOOR IS WRONG",
        }
    }
}

impl Quantity {
    /// Adds a round's samples: ours, and that of the first floor or of what ours stands beside.
    pub(crate) fn add(&mut self, ours: impl Into<Option<f64>>, other: impl Into<Option<f64>>) {
        self.subject.samples.extend(ours.into());
        if let Some(floor) = self.baselines.first_mut() {
            floor.samples.extend(other.into());
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        let ours = spread(&self.subject.samples)?.median;
        let median = |floor: &Subject| spread(&floor.samples).map(|spread| spread.median);
        let real = self.baselines.iter().filter(|floor| !floor.is_comparison);
        if real.filter_map(median).any(|floor| self.unit.is_better(ours, floor)) {
            return Some(Verdict::FloorIsWrong);
        }
        let met = self.budget?.is_met(ours, self.baselines.iter().find_map(median))?;
        Some(if met { Verdict::Met } else { Verdict::Missed })
    }

    fn budget_text(&self) -> Option<String> {
        let other = self.baselines.first().map_or("floor", Subject::budget_label);
        self.budget.map(|budget| budget.text(self.unit, other))
    }
}

const COLUMN_HEADERS: [&str; 8] = ["what", "measured", "median", "min", "max", "ratio", "budget", ""];
/// Texts stand to the left, numbers to the right.
const LEFT_ALIGNED: [bool; 8] = [true, true, false, false, false, false, true, true];

/// The table: for each quantity a line for ours and one for each floor, with ours as a multiple of it.
pub(crate) fn render_table(quantities: &[Quantity]) -> String {
    let mut rows = vec![COLUMN_HEADERS.map(str::to_owned)];
    for quantity in quantities {
        rows.extend(render_rows(quantity));
    }
    align_columns(&rows, LEFT_ALIGNED)
}

/// Rows with their columns below each other, to the left or to the right.
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
    for floor in &quantity.baselines {
        let floor_spread = spread(&floor.samples);
        let ratio = ours
            .zip(floor_spread)
            .map_or_else(String::new, |(ours, floor)| format!("{:.2}", ours.median / floor.median));
        lines.push(line("", &floor.line_label(), floor_spread, ratio, String::new(), ""));
    }
    lines
}

/// A number with about three digits that matter, and thousands apart.
fn format_number(value: f64) -> String {
    if value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 1_000.0 {
        return format!("{value:.1}");
    }
    let whole = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        let behind = whole.len() - index;
        if index > 0 && behind.is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The same as JSON, with every sample.
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
        let floors = quantity.baselines.iter().map(|floor| {
            let ratio = ours.zip(median(floor)).map(|(ours, floor)| ours / floor);
            subject(floor, ratio)
        });
        serde_json::json!({
            "what": quantity.name,
            "unit": quantity.unit,
            "ours": subject(&quantity.subject, None),
            "floors": floors.collect::<Vec<_>>(),
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
