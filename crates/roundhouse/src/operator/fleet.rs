//! `roundhouse status` and `roundhouse metrics`: the engines of a product, as figures.

use api::metrics::{FleetHealth, FleetStatus, Metrics};

use super::engine::status_cell;
use super::output::{self, ReadOptions, View};
use super::session::{ProductOptions, ScopeOptions};
use super::watch;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, fields, table};

/// Arguments of `roundhouse status`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    scope: ScopeOptions,
}

/// Arguments of `roundhouse metrics`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct MetricsArgs {
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    product: ProductOptions,
}

pub(crate) fn status(args: StatusArgs) -> Result<(), Failure> {
    let StatusArgs { read, scope } = args;
    super::run(async {
        let (session, scope) = scope.open()?;
        let path = scope.path("status");
        watch::show(read, async || session.call(&Call::get(&path)).await, &status_text).await
    })
}

fn status_text(document: &Document, view: View) -> anyhow::Result<String> {
    let FleetStatus { total, by_status, health, unhealthy_count } = document.parse()?;
    let health = match health {
        FleetHealth::Ok => Cell::new("ok").styled(Style::Green),
        FleetHealth::Degraded => Cell::new("degraded").styled(Style::Yellow),
        FleetHealth::Critical => Cell::new("critical").styled(Style::Red),
    };
    let summary = [("Health", health), ("Engines", total.into()), ("Failed", unhealthy_count.into())];
    let summary = fields(&summary, view.canvas);
    if by_status.is_empty() {
        return Ok(summary);
    }
    let rows: Vec<_> =
        by_status.iter().map(|(status, count)| vec![status_cell(*status), count.into()]).collect();
    let states = table(&[Column::word("STATUS"), Column::number("ENGINES")], &rows, view.canvas);
    Ok(format!("{summary}\n\n{states}"))
}

pub(crate) fn metrics(args: MetricsArgs) -> Result<(), Failure> {
    let MetricsArgs { read, product } = args;
    super::run(async {
        let session = product.open()?;
        watch::show(read, async || session.call(&Call::get(&["metrics"])).await, &metrics_text).await
    })
}

fn metrics_text(document: &Document, view: View) -> anyhow::Result<String> {
    let metrics: Metrics = document.parse()?;
    let rows = [
        ("Provisions in the last hour", metrics.provisions_1h.to_string()),
        ("Crashes in the last hour", metrics.crashes_1h.to_string()),
        ("Restarts in the last hour", metrics.restarts_1h.to_string()),
        ("Average boot", format!("{} ms", metrics.avg_boot_ms)),
        ("Provisions in all", metrics.total_provisions.to_string()),
        ("Destroyed in all", metrics.total_destroys.to_string()),
    ];
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.into(), value.into()]).collect();
    Ok(table(&[Column::word("FIGURE"), Column::number("VALUE")], &rows, view.canvas))
}
