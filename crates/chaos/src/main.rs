//! The command: a run of the chaos harness against engine or orchestrator, or of its saboteurs. See `README.md`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use chaos::fleet::{self, Backend, Database};
use chaos::saboteurs::{self, ENGINE, ORCHESTRATOR};
use chaos::{Campaign, Feature, FleetCampaign, Mix, Report, Tally, Wire, unmet};
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
        which: Which,
    },
    /// Kills the orchestrator.
    Fleet(FleetOptions),
    /// Runs against an orchestrator with each saboteur, and demands that each is caught.
    FleetSaboteurs {
        #[command(flatten)]
        fleet: FleetOptions,
        #[command(flatten)]
        which: Which,
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
struct Which {
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
    #[arg(long, value_enum, default_value_t = Wires::All)]
    wire: Wires,
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
enum Wires {
    Anthropic,
    Openai,
    Responses,
    Gemini,
    Ollama,
    /// One after the other, the same number of kills each.
    All,
}

impl Wires {
    const fn each(self) -> &'static [Wire] {
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
        signal = told_to_end() => Err(signal),
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
async fn told_to_end() -> anyhow::Error {
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
        None => chaos(&engine, &options).await,
        Some(Command::Saboteurs { engine, which }) => {
            let wire = engine.wire.each().first().copied().unwrap_or(Wire::Anthropic);
            let campaign = engine.campaign(&options, wire, engine.kills.unwrap_or(1_000));
            sabotage(&campaign.binary, &which.names(ENGINE), async |saboteur| {
                Campaign { saboteur: Some(saboteur), ..campaign.clone() }.run().await
            })
            .await
        }
        Some(Command::Fleet(fleet)) => kill_orchestrators(&fleet, &options).await,
        Some(Command::FleetSaboteurs { fleet, which }) => {
            let campaign = fleet.campaign(&options, fleet.rounds.unwrap_or(300));
            sabotage(&campaign.binary, &which.names(ORCHESTRATOR), async |saboteur| {
                FleetCampaign { saboteur: Some(saboteur), ..campaign.clone() }.run().await
            })
            .await
        }
    }
}

impl Which {
    fn names<const N: usize>(&self, all: [&str; N]) -> Vec<String> {
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
            limit: Duration::from_secs(options.seconds),
            mix: Mix::whole().without(&self.without),
            tasks: self.tasks,
            turns_per_task: self.turns_per_task,
            saboteur: None,
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
            limit: Duration::from_secs(options.seconds),
            saboteur: None,
            keep: self.keep,
        }
    }
}

fn there_is(binary: &Path) -> anyhow::Result<()> {
    if !binary.is_file() {
        bail!(
            "there is no binary at {}: build it with `cargo build --release`, or name another one",
            binary.display()
        );
    }
    Ok(())
}

async fn chaos(engine: &EngineOptions, options: &Options) -> anyhow::Result<bool> {
    there_is(&engine.engine)?;
    let kills = engine.kills.unwrap_or(100);
    let wires = engine.wire.each();
    let parts = u64::try_from(wires.len())?;
    let begin = Instant::now();
    let total = Tally::default();
    for wire in wires {
        let mut campaign = engine.campaign(options, *wire, kills.div_ceil(parts));
        campaign.limit /= u32::try_from(parts)?;
        total.merge(&*campaign.run().await?);
    }
    let unmet = unmet(&total, &Mix::whole().without(&engine.without), wires, kills);
    print(options, &total, begin.elapsed(), &unmet)
}

async fn kill_orchestrators(fleet: &FleetOptions, options: &Options) -> anyhow::Result<bool> {
    there_is(&fleet.orchestrator)?;
    let rounds = fleet.rounds.unwrap_or(100);
    let begin = Instant::now();
    let campaign = fleet.campaign(options, rounds);
    let tally = campaign.run().await?;
    print(options, &tally, begin.elapsed(), &fleet::unmet(&tally, &campaign))
}

/// Prints the table of a run. Returns whether it is as it should be.
fn print(options: &Options, tally: &Tally, took: Duration, unmet: &[String]) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    write!(out, "seed {}\n{}", options.seed, Report { tally, took })?;
    unmet.iter().try_for_each(|unmet| writeln!(out, "UNMET {unmet}"))?;
    Ok(unmet.is_empty() && tally.violations().is_empty())
}

async fn sabotage(
    binary: &Path,
    names: &[String],
    run: impl AsyncFn(String) -> anyhow::Result<Arc<Tally>>,
) -> anyhow::Result<bool> {
    there_is(binary)?;
    let caught = saboteurs::all(binary, names, run).await?;
    let mut out = io::stdout().lock();
    for one in &caught {
        let after =
            one.kills.map_or_else(|| "NOT CAUGHT".to_owned(), |kills| format!("caught after {kills}"));
        writeln!(out, "{:24} {after} of {} kills, {:.1} s", one.saboteur, one.of, one.took.as_secs_f64())?;
        if let Some(found) = &one.found {
            writeln!(out, "    {}", found.chars().take(300).collect::<String>())?;
        }
    }
    Ok(caught.iter().all(|one| one.kills.is_some()))
}
