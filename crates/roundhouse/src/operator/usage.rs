//! `roundhouse usage`: what a product's engines, or those of all products, have used.

use api::usage::Day;
use api::usage_days::{AdmitCounts, FleetUsage, ProductUsage, UsageSums};
use clap::ValueEnum;

use super::output::{self, ReadOptions, View};
use super::session::{Scope, ScopeOptions};
use super::watch;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::table::{Cell, Column, table};

/// Arguments of `roundhouse usage`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    /// The first day in UTC, such as 2026-11-01; by default 29 days before the last one.
    #[arg(long, value_name = "DAY")]
    from: Option<Day>,
    /// The last day in UTC; by default today.
    #[arg(long, value_name = "DAY")]
    to: Option<Day>,
    /// What a row is: a day, a user's engine, or with all products a product.
    #[arg(long, value_enum, default_value_t = GroupBy::Day)]
    by: GroupBy,
    /// The most rows, 1 to 500.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u16).range(1..=500), default_value_t = 100)]
    limit: u16,
    /// Show the rows after a page that ended with this.
    #[arg(long, value_name = "NEXT")]
    after: Option<String>,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    scope: ScopeOptions,
}

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GroupBy {
    Day,
    Engine,
    Product,
}

impl GroupBy {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Engine => "engine",
            Self::Product => "product",
        }
    }
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let Args { from, to, by, limit, after, read, scope } = args;
    super::run(async {
        let (session, scope) = scope.open()?;
        let path = scope.path("usage");
        let call = Call::get(&path).with("from", from).with("to", to).with("group_by", Some(by.as_str()));
        let call = call.with("limit", Some(limit)).with("after", after);
        let render = |document: &Document, view: View| match scope {
            Scope::Product => product_text(document, view),
            Scope::AllProducts => fleet_text(document, view),
        };
        watch::show(read, async || session.call(&call).await, &render).await
    })
}

fn product_text(document: &Document, view: View) -> anyhow::Result<String> {
    let ProductUsage { rows, total, total_admits, next, .. } = document.parse()?;
    let lines = rows.iter().map(|row| {
        let group = match (&row.day, &row.user_id) {
            (Some(day), _) => day.to_string(),
            (None, Some(Some(user_id))) => user_id.as_str().to_owned(),
            (None, _) => "(deleted)".to_owned(),
        };
        line(&group, row.active_engines, row.admits.as_ref(), &row.usage)
    });
    Ok(text(lines.collect(), (&total, &total_admits), next.as_deref(), view))
}

fn fleet_text(document: &Document, view: View) -> anyhow::Result<String> {
    let FleetUsage { rows, total, total_admits, next, .. } = document.parse()?;
    let lines = rows.iter().map(|row| {
        let day = row.day.map(|day| day.to_string());
        let group = day.or_else(|| row.slug.as_ref().map(|slug| slug.as_str().to_owned()));
        line(&group.unwrap_or_default(), row.active_engines, Some(&row.admits), &row.usage)
    });
    Ok(text(lines.collect(), (&total, &total_admits), next.as_deref(), view))
}

fn line(group: &str, engines: Option<u64>, admits: Option<&AdmitCounts>, usage: &UsageSums) -> Vec<Cell> {
    let number = |count: Option<u64>| count.map_or_else(|| "-".into(), Cell::from);
    vec![
        Cell::new(group),
        number(engines),
        number(admits.map(|admits| admits.admitted)),
        usage.turns.into(),
        usage.calls.into(),
        usage.input_tokens.into(),
        usage.output_tokens.into(),
        Cell::new(&format!("{:.2}", usage.cost_usd)),
        usage.unpriced_calls.into(),
        usage.tool_calls.into(),
    ]
}

fn text(
    mut lines: Vec<Vec<Cell>>,
    (total, admits): (&UsageSums, &AdmitCounts),
    next: Option<&str>,
    view: View,
) -> String {
    let columns = [
        Column::text("OF"),
        Column::number("ACTIVE"),
        Column::number("ADMITS"),
        Column::number("TURNS"),
        Column::number("CALLS"),
        Column::number("INPUT"),
        Column::number("OUTPUT"),
        Column::number("COST $"),
        Column::number("UNPRICED"),
        Column::number("TOOLS"),
    ];
    lines.push(line("total", None, Some(admits), total));
    let shown = table(&columns, &lines, view.canvas);
    match next {
        Some(next) => format!("{shown}\n\nThere are more: --after {next}"),
        None => shown,
    }
}
