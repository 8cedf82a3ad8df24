//! Measures Roundhouse beside its floors: `bench start`, `bench idle`, … Each command alternates ours with the
//! least that does the same, checks that both were right, and prints what came of it beside the budget.

mod bare_containers;
mod baselines;
mod binary;
mod client;
mod context;
mod engine;
mod health_monitor;
mod load;
mod measure;
mod orchestrator;
mod paced_provider;
mod postgres;
mod probe;
mod process;
mod provider;
mod registry;
mod report;
mod retrieval;
mod service;
mod stats;
mod streamed;
mod turns;
mod usage;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::context::{BenchContext, Size};
use crate::measure::Measurement;
use crate::report::Quantity;

/// The floors must have the allocator that the binary has.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures Roundhouse beside its floors.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(flatten)]
    measure: Option<Measure>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Args)]
struct Measure {
    /// What to measure.
    #[arg(value_enum)]
    what: Measurement,
    /// The binary to measure; `roundhouse` beside this program by default.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Another build of the binary, whose turns are measured in turn with those of the first (`turn` and `deltas`
    /// alone). It is left out, with the reason, where it does no turn, such as of a protocol that it does not speak.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// How many rounds of ours and of the floor.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// How many seconds an idle process is left alone before its memory is read.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=600))]
    wait_s: u16,
    /// Measure in the full size what is otherwise measured in a smaller one.
    #[arg(long)]
    full: bool,
    /// Print JSON with every sample instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// How well and how fast memory finds what it was told, beside plain full-text indexes. Needs no binary.
    Retrieval(retrieval::Retrieval),
    /// Be a floor's server.
    #[command(hide = true)]
    Floor(baselines::BaselineArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match (cli.command, cli.measure) {
        (Some(Command::Floor(floor)), _) => baselines::run(&floor),
        (Some(Command::Retrieval(retrieval)), _) => retrieval.run(),
        (None, Some(measure)) => run(&measure),
        (None, None) => Err(anyhow::anyhow!("say what to measure: see --help")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody there to read it changes nothing.
            let _ = writeln!(std::io::stderr(), "bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(measure: &Measure) -> anyhow::Result<()> {
    let binary = binary::resolve(measure.binary.as_deref())?;
    let wait = Duration::from_secs(measure.wait_s.into());
    let size = if measure.full { Size::Full } else { Size::Bounded };
    let bench = BenchContext::new(&binary, measure.beside.as_deref(), measure.rounds.into(), wait, size)?;
    if cfg!(debug_assertions) {
        writeln!(
            std::io::stderr(),
            "bench: this is a debug build; its floors are no floors (use --release)"
        )?;
    }
    // One thread: the others are for what is measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (quantities, failures) = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("signals cannot be listened for")?;
        tokio::select! {
            measured = measure_each(measure.what, &bench) => Ok(measured),
            _ = terminate.recv() => bail!("ended from outside"),
            _ = tokio::signal::ctrl_c() => bail!("ended from outside"),
        }
    })?;
    if measure.json {
        let json = report::render_json(&quantities, bench.rounds)?;
        writeln!(std::io::stdout().lock(), "{json}")?;
    } else if !quantities.is_empty() {
        write!(std::io::stdout().lock(), "{}", report::render_table(&quantities))?;
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Measures each, and goes on after one that fails.
async fn measure_each(what: Measurement, bench: &BenchContext) -> (Vec<Quantity>, Vec<String>) {
    let (mut quantities, mut failures) = (Vec::new(), Vec::new());
    for what in what.expand() {
        match what.measure(bench).await {
            Ok(measured) => quantities.extend(measured),
            Err(error) => failures.push(format!("{what:?} could not be measured: {error:#}")),
        }
    }
    (quantities, failures)
}
