//! The command: a run of the chaos harness against engine or orchestrator, or of its saboteurs. See `README.md`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use chaos::fleet::{self, Backend, Database};
use chaos::mutations::{self, ENGINE_MUTATIONS, ORCHESTRATOR_MUTATIONS};
use chaos::{Campaign, Counters, Feature, FleetCampaign, Report, Wire, Workload, unmet_coverage};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Parser)]
#[command(
    about = "Kills engine or orchestrator at random instants under load and checks that no promise is broken",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Without a command: kills the engine.
    #[command(flatten)]
    engine: EngineOptions,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Runs against an engine with each saboteur, and demands that each is caught.
    Saboteurs {
        #[command(flatten)]
        engine: EngineOptions,
        #[command(flatten)]
        which: MutationFilter,
    },
    /// Kills the orchestrator.
    Fleet(FleetOptions),
    /// Runs against an orchestrator with each saboteur, and demands that each is caught.
    FleetSaboteurs {
        #[command(flatten)]
        fleet: FleetOptions,
        #[command(flatten)]
        which: MutationFilter,
    },
}

/// What all runs have.
#[derive(Args)]
struct Options {
    /// Where all choices come from.
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
    /// When to stop killing, in seconds.
    #[arg(long, global = true, default_value_t = 600)]
    seconds: u64,
}

#[derive(Args)]
struct MutationFilter {
    /// One saboteur; by default all.
    #[arg(long)]
    only: Vec<String>,
}

#[derive(Args)]
struct EngineOptions {
    /// The `roundhouse` binary; for saboteurs built with `--features sabotage`.
    #[arg(long, default_value = "target/release/roundhouse")]
    engine: PathBuf,
    /// How many times the engine is killed: by default 100 times, or with each saboteur at most 1,000 times.
    #[arg(long)]
    kills: Option<u64>,
    /// The wire to the provider.
    #[arg(long, value_enum, default_value_t = WireChoice::All)]
    wire: WireChoice,
    /// How many tasks run side by side.
    #[arg(long, default_value_t = 4)]
    tasks: u64,
    /// The most turns of a task.
    #[arg(long, default_value_t = 6)]
    turns_per_task: u64,
    /// Leaves out parts of the contract.
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<Feature>,
}

#[derive(Args)]
struct FleetOptions {
    /// The `roundhouse` binary; for saboteurs built with `--features sabotage`.
    #[arg(long, default_value = "target/release/roundhouse")]
    orchestrator: PathBuf,
    /// What runs the engines.
    #[arg(long, value_enum, default_value_t = Backend::Process)]
    backend: Backend,
    /// Where the registry is.
    #[arg(long, value_enum, default_value_t = Database::Sqlite)]
    database: Database,
    /// How many rounds, each with a kill: by default 100, or with each saboteur at most 300.
    #[arg(long)]
    rounds: Option<u64>,
    /// Leaves the deployment's folder where it is.
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum WireChoice {
    Anthropic,
    Openai,
    Responses,
    Gemini,
    Ollama,
    /// One after the other, the same number of kills each.
    All,
}

impl WireChoice {
    const fn wires(self) -> &'static [Wire] {
        match self {
            Self::Anthropic => &[Wire::Anthropic],
            Self::Openai => &[Wire::Openai],
            Self::Responses => &[Wire::Responses],
            Self::Gemini => &[Wire::Gemini],
            Self::Ollama => &[Wire::Ollama],
            Self::All => &Wire::ALL,
        }
    }
}

#[tokio::main(worker_threads = 4)]
async fn main() -> ExitCode {
    // Whoever ends the harness ends its engine and its folder with it.
    let outcome = tokio::select! {
        outcome = run(Cli::parse()) => outcome,
        signal = shutdown_signal() => Err(signal),
    };
    let outcome = match outcome {
        Ok(is_well) => is_well,
        Err(error) => {
            // Standard error may be closed; the exit code says the same.
            let _ = writeln!(io::stderr(), "{error:#}");
            false
        }
    };
    if outcome { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Waits until somebody wants the harness to end, and says so.
async fn shutdown_signal() -> anyhow::Error {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return anyhow!("signals cannot be heard");
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => anyhow!("interrupted"),
        _ = terminate.recv() => anyhow!("terminated"),
    }
}

async fn run(Cli { command, engine, options }: Cli) -> anyhow::Result<bool> {
    match command {
        None => run_engine_campaigns(&engine, &options).await,
        Some(Command::Saboteurs { engine, which }) => {
            let wire = engine.wire.wires().first().copied().unwrap_or(Wire::Anthropic);
            let campaign = engine.campaign(&options, wire, engine.kills.unwrap_or(1_000));
            run_mutations(&campaign.binary, &which.selected(ENGINE_MUTATIONS), async |mutation| {
                Campaign { mutation: Some(mutation), ..campaign.clone() }.run().await
            })
            .await
        }
        Some(Command::Fleet(fleet)) => run_fleet_campaign(&fleet, &options).await,
        Some(Command::FleetSaboteurs { fleet, which }) => {
            let campaign = fleet.campaign(&options, fleet.rounds.unwrap_or(300));
            run_mutations(&campaign.binary, &which.selected(ORCHESTRATOR_MUTATIONS), async |mutation| {
                FleetCampaign { mutation: Some(mutation), ..campaign.clone() }.run().await
            })
            .await
        }
    }
}

impl MutationFilter {
    fn selected<const N: usize>(&self, all: [&str; N]) -> Vec<String> {
        if self.only.is_empty() { all.map(str::to_owned).to_vec() } else { self.only.clone() }
    }
}

impl EngineOptions {
    fn campaign(&self, options: &Options, wire: Wire, kills: u64) -> Campaign {
        Campaign {
            binary: self.engine.clone(),
            seed: options.seed,
            wire,
            kills,
            time_limit: Duration::from_secs(options.seconds),
            workload: Workload::all_features().without(&self.without),
            tasks: self.tasks,
            turns_per_task: self.turns_per_task,
            mutation: None,
        }
    }
}

impl FleetOptions {
    fn campaign(&self, options: &Options, rounds: u64) -> FleetCampaign {
        FleetCampaign {
            binary: self.orchestrator.clone(),
            backend: self.backend,
            database: self.database,
            seed: options.seed,
            rounds,
            time_limit: Duration::from_secs(options.seconds),
            mutation: None,
            keep_folder: self.keep,
        }
    }
}

fn ensure_exists(binary: &Path) -> anyhow::Result<()> {
    if !binary.is_file() {
        bail!(
            "there is no binary at {}: build it with `cargo build --release`, or name another one",
            binary.display()
        );
    }
    Ok(())
}

async fn run_engine_campaigns(engine: &EngineOptions, options: &Options) -> anyhow::Result<bool> {
    ensure_exists(&engine.engine)?;
    let kills = engine.kills.unwrap_or(100);
    let wires = engine.wire.wires();
    let parts = u64::try_from(wires.len())?;
    let begin = Instant::now();
    let total = Counters::default();
    for wire in wires {
        let mut campaign = engine.campaign(options, *wire, kills.div_ceil(parts));
        campaign.time_limit /= u32::try_from(parts)?;
        total.merge(&*campaign.run().await?);
    }
    let unmet_coverage =
        unmet_coverage(&total, &Workload::all_features().without(&engine.without), wires, kills);
    print_report(options, &total, begin.elapsed(), &unmet_coverage)
}

async fn run_fleet_campaign(fleet: &FleetOptions, options: &Options) -> anyhow::Result<bool> {
    ensure_exists(&fleet.orchestrator)?;
    let rounds = fleet.rounds.unwrap_or(100);
    let begin = Instant::now();
    let campaign = fleet.campaign(options, rounds);
    let tally = campaign.run().await?;
    print_report(options, &tally, begin.elapsed(), &fleet::unmet_coverage(&tally, &campaign))
}

/// Prints the table of a run. Returns whether it is as it should be.
fn print_report(
    options: &Options,
    tally: &Counters,
    took: Duration,
    unmet_coverage: &[String],
) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    write!(out, "seed {}\n{}", options.seed, Report { counters: tally, elapsed: took })?;
    unmet_coverage.iter().try_for_each(|unmet_coverage| writeln!(out, "UNMET {unmet_coverage}"))?;
    Ok(unmet_coverage.is_empty() && tally.violations().is_empty())
}

async fn run_mutations(
    binary: &Path,
    names: &[String],
    run: impl AsyncFn(String) -> anyhow::Result<Arc<Counters>>,
) -> anyhow::Result<bool> {
    ensure_exists(binary)?;
    let caught = mutations::run_all(binary, names, run).await?;
    let mut out = io::stdout().lock();
    for one in &caught {
        let after = one
            .kills_until_caught
            .map_or_else(|| "NOT CAUGHT".to_owned(), |kills| format!("caught after {kills}"));
        writeln!(
            out,
            "{:24} {after} of {} kills, {:.1} s",
            one.mutation,
            one.total_kills,
            one.elapsed.as_secs_f64()
        )?;
        if let Some(found) = &one.first_violation {
            writeln!(out, "    {}", found.chars().take(300).collect::<String>())?;
        }
    }
    Ok(caught.iter().all(|one| one.kills_until_caught.is_some()))
}
