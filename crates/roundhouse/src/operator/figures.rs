//! `roundhouse status` and `roundhouse metrics`: the engines of a product, as figures.

use api::metrics::{FleetHealth, FleetStatus, Metrics};
use api::orchestrator::EngineStatus;

use super::engine::status_cell;
use super::fleet::status::overview_text;
use super::output::{self, ReadOptions, View};
use super::session::{ProductOptions, Scope, ScopeOptions};
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
        let render = |document: &Document, view: View| match scope {
            Scope::Product => status_text(document, view),
            Scope::AllProducts => overview_text(document, view),
        };
        watch::show(read, async || session.call(&Call::get(&path)).await, &render).await
    })
}

fn status_text(document: &Document, view: View) -> anyhow::Result<String> {
    let status: FleetStatus = document.parse()?;
    let summary = fields(&summary(&status), view.canvas);
    Ok([Some(summary), states(&status, view)].into_iter().flatten().collect::<Vec<_>>().join("\n\n"))
}

/// How the engines are as a whole.
pub(super) fn summary(status: &FleetStatus) -> [(&'static str, Cell); 3] {
    let health = match status.health {
        FleetHealth::Ok => Cell::new("ok").styled(Style::Green),
        FleetHealth::Degraded => Cell::new("degraded").styled(Style::Yellow),
        FleetHealth::Critical => Cell::new("critical").styled(Style::Red),
    };
    [("Health", health), ("Engines", status.total.into()), ("Failed", status.unhealthy_count.into())]
}

/// How many engines are in which state, if there are any.
pub(super) fn states(status: &FleetStatus, view: View) -> Option<String> {
    let row = |(status, count): (&EngineStatus, &u64)| vec![status_cell(*status), count.into()];
    let rows: Vec<_> = status.by_status.iter().map(row).collect();
    let columns = [Column::word("STATUS"), Column::number("ENGINES")];
    (!rows.is_empty()).then(|| table(&columns, &rows, view.canvas))
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
