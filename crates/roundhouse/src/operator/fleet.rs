//! `roundhouse status` and `roundhouse metrics`: the engines of a product, as figures.

use std::collections::BTreeMap;

use api::ProductId;
use api::metrics::{FleetHealth, FleetStatus, Metrics};
use api::orchestrator::EngineStatus;
use serde::Deserialize;

use super::engine::status_cell;
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
        let render = |document: &Document, view: View| {
            let status = status_text(document, view)?;
            match scope {
                Scope::Product => Ok(status),
                Scope::AllProducts => Ok(format!("{status}\n\n{}", products_text(document, view)?)),
            }
        };
        watch::show(read, async || session.call(&Call::get(&path)).await, &render).await
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

/// The engines of each product, in the status across all products.
#[derive(Deserialize)]
struct Products {
    #[serde(default)]
    products: Vec<ProductStatus>,
}

#[derive(Deserialize)]
struct ProductStatus {
    product_id: ProductId,
    slug: String,
    total: u64,
    by_status: BTreeMap<EngineStatus, u64>,
}

fn products_text(document: &Document, view: View) -> anyhow::Result<String> {
    let Products { products } = document.parse()?;
    let row = |product: &ProductStatus| {
        let states = product.by_status.iter().map(|(status, count)| format!("{count} {}", status.as_str()));
        vec![
            Cell::new(&product.slug),
            product.product_id.into(),
            product.total.into(),
            Cell::new(&states.collect::<Vec<_>>().join(", ")),
        ]
    };
    let columns =
        [Column::text("PRODUCT"), Column::word("ID"), Column::number("ENGINES"), Column::text("STATES")];
    Ok(table(&columns, &products.iter().map(row).collect::<Vec<_>>(), view.canvas))
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
