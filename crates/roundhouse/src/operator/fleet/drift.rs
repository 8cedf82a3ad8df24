//! `roundhouse fleet drift`: what differs between the registry and what exists of engines, and its repair.

use std::collections::BTreeMap;

use api::drift::{
    Difference, Drift, DriftKind, DriftRepair, DriftRepairs, RepairDrift, RepairOutcome, RepairResult,
};
use api::{EngineId, ProductId};
use clap::Subcommand;
use reqwest::Method;

use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::operator::confirm::{Expected, confirm};
use crate::operator::output::{self, OutputOptions, ReadOptions, View};
use crate::operator::session::Session;
use crate::operator::watch;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, table};

/// What a person types before data is removed for good.
const REMOVES_DATA: &str = "remove data";

/// How much is shown of the reason of a failure, in characters.
const MAX_REASON_CHARS: usize = 300;

/// Arguments of `roundhouse fleet drift`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(clap::Args)]
struct ListArgs {
    /// Only differences of this kind.
    #[arg(long, value_parser = parse_kind)]
    kind: Option<DriftKind>,
    /// Only differences of engines of this product.
    #[arg(long, value_name = "ID")]
    product: Option<ProductId>,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    access: AccessOptions,
}

#[derive(Subcommand)]
enum Command {
    /// Repair differences, after asking. Data is removed only if `--kind data_without_engine` names it.
    Repair(RepairArgs),
}

#[derive(clap::Args)]
#[group(id = "which", args = ["kind", "engine", "all"], required = true, multiple = true)]
struct RepairArgs {
    /// Differences of these kinds, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = parse_kind)]
    kind: Vec<DriftKind>,
    /// Differences of this engine.
    #[arg(long, value_name = "ENGINE")]
    engine: Option<EngineId>,
    /// All differences, but no data is removed.
    #[arg(long, conflicts_with_all = ["kind", "engine"])]
    all: bool,
    /// Only say what would be done.
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    access: AccessOptions,
}

fn parse_kind(text: &str) -> Result<DriftKind, String> {
    let names = || DriftKind::ALL.map(DriftKind::as_str).join(", ");
    DriftKind::from_name(text).ok_or_else(|| format!("must be one of {}", names()))
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        None => list(args.list).await,
        Some(Command::Repair(args)) => repair(args).await,
    }
}

async fn list(args: ListArgs) -> Result<(), Failure> {
    let ListArgs { kind, product, read, access } = args;
    let session = Session::operator(access)?;
    let call =
        Call::get(&["fleet", "drift"]).with("kind", kind.map(DriftKind::as_str)).with("product_id", product);
    watch::show(read, async || session.call(&call).await, &drift_text).await
}

fn drift_text(document: &Document, view: View) -> anyhow::Result<String> {
    let Drift { differences, total, truncated, data_compared } = document.parse()?;
    let shown = differences.len();
    let rows: Vec<_> = differences.iter().map(|difference| row(difference, plan(difference))).collect();
    let text = if rows.is_empty() {
        "Nothing differs.".to_owned()
    } else {
        table(&columns("REPAIR"), &rows, view.canvas)
    };
    let notes = [
        truncated.then(|| format!("{shown} of {total} are shown")),
        (!data_compared)
            .then(|| "The backend cannot list the engines' data: it was not compared.".to_owned()),
    ];
    Ok([Some(text)].into_iter().chain(notes).flatten().collect::<Vec<_>>().join("\n"))
}

fn columns(last: &'static str) -> [Column; 6] {
    [
        Column::word("KIND"),
        Column::word("ENGINE"),
        Column::word("PRODUCT"),
        Column::text("USER"),
        Column::text("SEEN"),
        Column::text(last),
    ]
}

fn row(difference: &Difference, last: Cell) -> Vec<Cell> {
    let Difference { kind, engine_id, product_id, user_id, seen, .. } = difference;
    vec![
        kind.as_str().into(),
        engine_id.into(),
        product_id.map_or_else(|| "-".into(), Cell::from),
        user_id.as_ref().map_or_else(|| "-".into(), |user_id| Cell::new(user_id.as_str())),
        Cell::new(seen),
        last,
    ]
}

/// What a repair would do, or what a person is to do.
fn plan(difference: &Difference) -> Cell {
    match (difference.repair, &difference.advice) {
        (Some(repair), _) => repair.as_str().into(),
        (None, Some(advice)) => Cell::new(&format!("none: {advice}")),
        (None, None) => "none".into(),
    }
}

async fn repair(args: RepairArgs) -> Result<(), Failure> {
    let RepairArgs { kind, engine, all: _, dry_run, yes, output, access } = args;
    let session = Session::operator(access)?;
    let kinds = (!kind.is_empty()).then_some(kind);
    let call = async |dry_run| {
        let request = RepairDrift { dry_run: Some(dry_run), kinds: kinds.clone(), engine_id: engine };
        let body = serde_json::to_value(request)?;
        session.call(&Call::new(Method::POST, &["fleet", "drift", "repair"]).json(&body)).await
    };
    // Before a person is asked: so that they know what they confirm, and nobody confirms what cannot be done.
    let planned = call(true).await?;
    let repairs: DriftRepairs = planned.parse()?;
    let would: Vec<_> =
        repairs.results.iter().filter(|result| result.outcome == RepairOutcome::WouldRepair).collect();
    if dry_run || would.is_empty() {
        return output::print(&planned, output, &results_text);
    }
    if !yes && !output.json {
        output::note(&results_text(&planned, View::of_output())?);
    }
    let removes_data = would.iter().any(|result| result.difference.repair == Some(DriftRepair::RemoveData));
    let expected = if removes_data { Expected::Name(REMOVES_DATA) } else { Expected::Yes };
    confirm(&question(&would), expected, yes).await?;
    let done = call(false).await?;
    output::print(&done, output, &results_text)?;
    let DriftRepairs { results, .. } = done.parse()?;
    let failed = results.iter().filter(|result| result.outcome == RepairOutcome::Failed).count();
    if failed > 0 { Err(anyhow::anyhow!("{failed} differences were not repaired").into()) } else { Ok(()) }
}

fn question(would: &[&RepairResult]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for result in would {
        *counts.entry(result.difference.repair.map_or("none", DriftRepair::as_str)).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(repair, count)| format!("{repair} {count}")).collect();
    let data = counts.iter().any(|count| count.starts_with(DriftRepair::RemoveData.as_str()));
    let loss = if data { " What is removed of data is lost for good." } else { "" };
    format!("This repairs {} differences: {}.{loss}", would.len(), counts.join(", "))
}

fn results_text(document: &Document, view: View) -> anyhow::Result<String> {
    let DriftRepairs { results, total, truncated, .. } = document.parse()?;
    if results.is_empty() {
        return Ok("Nothing differs.".to_owned());
    }
    let rows: Vec<_> = results.iter().map(|result| row(&result.difference, outcome(result))).collect();
    let note =
        truncated.then(|| format!("{} of {total} are shown; repeat the command for the others", rows.len()));
    let text = table(&columns("RESULT"), &rows, view.canvas);
    Ok([Some(text), note].into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

fn outcome(result: &RepairResult) -> Cell {
    let repair = result.difference.repair.map_or("none", DriftRepair::as_str);
    match (result.outcome, &result.error) {
        (RepairOutcome::Repaired, _) => Cell::new(&format!("repaired: {repair}")).styled(Style::Green),
        (RepairOutcome::WouldRepair, _) => Cell::new(&format!("would be repaired: {repair}")),
        (RepairOutcome::NoRepair, _) => plan(&result.difference),
        (RepairOutcome::NeedsKind, _) => {
            Cell::new("only with --kind data_without_engine: its data would be removed")
        }
        (RepairOutcome::Gone, _) => "gone, or being changed".into(),
        (RepairOutcome::Failed, error) => {
            let why = error.as_ref().map(|error| format!(": {} ({})", error.message, error.code));
            Cell::excerpt(&format!("failed{}", why.unwrap_or_default()), MAX_REASON_CHARS).styled(Style::Red)
        }
    }
}
