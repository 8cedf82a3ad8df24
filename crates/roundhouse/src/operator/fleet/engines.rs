//! `roundhouse fleet engines`: the engines of all products, and which of them are in trouble.

use api::fleet::{FleetEngine, FleetEngineList};
use api::orchestrator::EngineStatus;
use api::{EngineId, ProductId};

use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::operator::engine::{parse_status, status_cell};
use crate::operator::output::{ReadOptions, View};
use crate::operator::session::Session;
use crate::operator::{times, watch};
use crate::terminal::table::{Cell, Column, table};

/// Arguments of `roundhouse fleet engines`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only engines in one of these states, separated by commas: provisioning, running, sleeping, stopped, failed or
    /// destroying.
    #[arg(long, value_delimiter = ',', value_parser = parse_status)]
    status: Vec<EngineStatus>,
    /// Only engines of this product.
    #[arg(long, value_name = "ID")]
    product: Option<ProductId>,
    /// Only engines that run, or last ran, this image.
    #[arg(long, value_name = "IMAGE")]
    version: Option<String>,
    /// Only engines of users whose id begins with this.
    #[arg(long, value_name = "PREFIX")]
    user: Option<String>,
    /// The number of rows at most; 100 by default.
    #[arg(long)]
    limit: Option<i64>,
    /// Only engines after this one: where the page before says so.
    #[arg(long, value_name = "ENGINE")]
    after: Option<EngineId>,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    access: AccessOptions,
}

pub(super) async fn list(args: Args) -> Result<(), Failure> {
    let Args { status, product, version, user, limit, after, read, access } = args;
    let session = Session::operator(access)?;
    let states: Vec<_> = status.into_iter().map(EngineStatus::as_str).collect();
    let call = Call::get(&["fleet", "engines"])
        .with("status", (!states.is_empty()).then(|| states.join(",")))
        .with("product_id", product)
        .with("engine_version", version)
        .with("user_prefix", user)
        .with("limit", limit)
        .with("after", after);
    watch::show(read, async || session.call(&call).await, &list_text).await
}

fn list_text(document: &Document, view: View) -> anyhow::Result<String> {
    let FleetEngineList { engines, next } = document.parse()?;
    if engines.is_empty() {
        return Ok("There is no such engine.".to_owned());
    }
    let row = |engine: &FleetEngine| {
        vec![
            engine.product_id.into(),
            Cell::new(engine.summary.user_id.as_str()),
            status_cell(engine.summary.status),
            engine.since.map_or_else(|| "-".into(), |since| view.ago(since).into()),
            Cell::from(&engine.summary.engine_version),
            notes(engine, view).into(),
        ]
    };
    let columns = [
        Column::word("PRODUCT"),
        Column::text("USER"),
        Column::word("STATUS"),
        Column::word("SINCE"),
        Column::word("VERSION"),
        Column::text("NOTES"),
    ];
    let rows: Vec<_> = engines.iter().map(row).collect();
    let note = next.map(|next| format!("--after {next} shows more"));
    Ok([Some(table(&columns, &rows, view.canvas)), note].into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// What is not as usual.
fn notes(engine: &FleetEngine, view: View) -> String {
    let count = |count: u64, what: &str| (count > 0).then(|| format!("{what} {count}"));
    let notes = [
        count(engine.failed_checks, "failed checks"),
        count(engine.restarts, "restarts"),
        engine.restart_at.map(|at| format!("next restart {}", times::until(at, view.now))),
        engine.pinned.then(|| "pinned".to_owned()),
    ];
    let notes: Vec<_> = notes.into_iter().flatten().collect();
    if notes.is_empty() { "-".to_owned() } else { notes.join(", ") }
}
