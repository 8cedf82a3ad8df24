//! Measures Roundhouse against baselines: `bench start`, `bench idle`, … Each command alternates Roundhouse with a
//! minimal program that does the same work, checks the answers of both, and prints the results with the budget.

mod bare_containers;
mod bare_pods;
mod baselines;
mod binary;
mod client;
mod context;
mod engine;
mod front;
mod health_monitor;
mod kubernetes;
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

/// The baselines must use the same allocator as the binary under test.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures Roundhouse against baselines.
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
    /// Another build of the binary, whose turns are measured alternately with those of the first (`turn` and
    /// `deltas` only). It is left out, with the reason, if its first turn fails, such as for a protocol that it
    /// does not speak.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// The number of rounds of Roundhouse and of the baseline.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// How many seconds a process idles before its memory is read.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=600))]
    wait_s: u16,
    /// Use the full sizes instead of smaller ones.
    #[arg(long)]
    full: bool,
    /// Print JSON with every sample instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Very many engines on a Kubernetes cluster with simulated nodes: provisioning, supervision, requests to the API
    /// server, a killed orchestrator.
    Kubernetes(kubernetes::Kubernetes),
    /// Quality and latency of memory search, compared with plain full-text indexes. Needs no binary.
    Retrieval(retrieval::Retrieval),
    /// Search a brain and print the memory that it took.
    #[command(hide = true)]
    SearchMemory(retrieval::SearchMemory),
    /// Run a baseline server.
    #[command(hide = true)]
    Floor(baselines::BaselineArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match (cli.command, cli.measure) {
        (Some(Command::Floor(baseline)), _) => baselines::run(&baseline),
        (Some(Command::Kubernetes(kubernetes)), _) => kubernetes.run(),
        (Some(Command::Retrieval(retrieval)), _) => retrieval.run(),
        (Some(Command::SearchMemory(search)), _) => search.run(),
        (None, Some(measure)) => run(&measure),
        (None, None) => Err(anyhow::anyhow!("name a measurement: see --help")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed standard error changes nothing.
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
            "bench: this is a debug build; its baselines are not valid (use --release)"
        )?;
    }
    let (quantities, failures) = run_until_signal(measure_each(measure.what, &bench))?;
    print_report(&quantities, bench.rounds, measure.json)?;
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Runs `work`. A signal drops it, and with it what it has started.
fn run_until_signal<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    // One thread; the other cores are for the measured programs.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("signal handlers cannot be installed")?;
        tokio::select! {
            done = work => Ok(done),
            _ = terminate.recv() => bail!("terminated by a signal"),
            _ = tokio::signal::ctrl_c() => bail!("terminated by a signal"),
        }
    })
}

/// Prints the results as a table, or as JSON with every sample.
fn print_report(quantities: &[Quantity], rounds: usize, json: bool) -> anyhow::Result<()> {
    if json {
        writeln!(std::io::stdout().lock(), "{}", report::render_json(quantities, rounds)?)?;
    } else if !quantities.is_empty() {
        write!(std::io::stdout().lock(), "{}", report::render_table(quantities))?;
    }
    Ok(())
}

/// Runs each measurement, and continues after one that fails.
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
