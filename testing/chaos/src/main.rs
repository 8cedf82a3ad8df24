//! The command line: runs the chaos harness against the engine or the orchestrator, or against each mutant. See
//! `README.md`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use chaos::fleet::{self, Backend, ClockPlan, Database, DueMinute, Failover};
use chaos::mutants::{self, ENGINE_MUTANTS, ORCHESTRATOR_MUTANTS};
use chaos::{Campaign, Counters, Feature, FleetCampaign, Report, Wire, Workload, unmet_coverage};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Parser)]
#[command(
    about = "Kills the engine or the orchestrator at random instants under load and checks the guarantees",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Options of a run without a command, which kills the engine.
    #[command(flatten)]
    engine: EngineOptions,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Runs against an engine with each mutant, and requires that each is detected.
    Mutants {
        #[command(flatten)]
        engine: EngineOptions,
        #[command(flatten)]
        which: MutantFilter,
    },
    /// Kills the orchestrator under load.
    Fleet(FleetOptions),
    /// Kills the orchestrator and engines when the schedules of many users are due.
    DueMinute(DueMinuteOptions),
    /// Takes the active one of two orchestrators away again and again, under admits at a steady rate.
    Failover(FailoverOptions),
    /// Runs against an orchestrator with each mutant, and requires that each is detected.
    FleetMutants {
        #[command(flatten)]
        fleet: FleetOptions,
        #[command(flatten)]
        which: MutantFilter,
    },
}

/// The options of all runs.
#[derive(Args)]
struct Options {
    /// The seed of all random choices.
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
    /// The time limit for kills, in seconds.
    #[arg(long, global = true, default_value_t = 600)]
    seconds: u64,
}

#[derive(Args)]
struct MutantFilter {
    /// Run only this mutant; can be repeated.
    #[arg(long)]
    only: Vec<String>,
}

#[derive(Args)]
struct EngineOptions {
    /// The `roundhouse` binary; for mutants, the one that `.ci/mutants binary` builds.
    #[arg(long, default_value = "target/release/roundhouse")]
    engine: PathBuf,
    /// The number of kills; by default 100, or at most 1,000 with each mutant.
    #[arg(long)]
    kills: Option<u64>,
    /// The provider's wire protocol, or all of them in turn with the same number of kills each.
    #[arg(long, value_parser = WireChoice::parser(), default_value = "all")]
    wire: WireChoice,
    /// The number of concurrent tasks.
    #[arg(long, default_value_t = 4)]
    tasks: u64,
    /// The maximum number of turns of a task.
    #[arg(long, default_value_t = 6)]
    turns_per_task: u64,
    /// Leave out parts of the contract.
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<Feature>,
}

#[derive(Args)]
struct FleetOptions {
    /// The `roundhouse` binary; for mutants, the one that `.ci/mutants binary` builds.
    #[arg(long, default_value = "target/release/roundhouse")]
    orchestrator: PathBuf,
    /// The orchestrator's backend.
    #[arg(long, value_enum, default_value_t = Backend::Process)]
    backend: Backend,
    /// The database of the registry.
    #[arg(long, value_enum, default_value_t = Database::Sqlite)]
    database: Database,
    /// The number of rounds, each with a kill; by default 100, or at most 300 with each mutant.
    #[arg(long)]
    rounds: Option<u64>,
    /// Injure the Kubernetes cluster, too, which must be the run's own: kill and freeze parts of its control plane,
    /// and take its nodes away.
    #[arg(long)]
    cluster_faults: bool,
    /// Keep the deployment's folder.
    #[arg(long)]
    keep: bool,
}

#[derive(Args)]
struct DueMinuteOptions {
    /// The `roundhouse` binary.
    #[arg(long, default_value = "target/release/roundhouse")]
    orchestrator: PathBuf,
    /// The orchestrator's backend.
    #[arg(long, value_enum, default_value_t = Backend::Process)]
    backend: Backend,
    /// The database of the registry.
    #[arg(long, value_enum, default_value_t = Database::Sqlite)]
    database: Database,
    /// The number of users with a schedule.
    #[arg(long, default_value_t = 1_000)]
    users: usize,
    /// The number of kills.
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// What the wall clock of the fleet does. All but `steady` needs root, a C compiler, and processes or
    /// containers as the backend.
    #[arg(long, value_enum, default_value_t = ClockPlan::Steady)]
    clock: ClockPlan,
}

#[derive(Args)]
struct FailoverOptions {
    /// The `roundhouse` binary; for mutants, the one that `.ci/mutants binary` builds.
    #[arg(long, default_value = "target/release/roundhouse")]
    orchestrator: PathBuf,
    /// The orchestrators' backend.
    #[arg(long, value_enum, default_value_t = Backend::Process)]
    backend: Backend,
    /// How often the active orchestrator is taken away.
    #[arg(long, default_value_t = 100)]
    takeovers: u64,
    /// The number of users with a running engine.
    #[arg(long, default_value_t = 10)]
    users: usize,
    /// The number of admits per second.
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// The longest time without an admit that is allowed, in milliseconds.
    #[arg(long, default_value_t = 5_000)]
    max_gap_ms: u64,
    /// Require that a violation is found with each of these mutants.
    #[arg(long)]
    mutant: Vec<String>,
}

#[derive(Clone, Copy)]
enum WireChoice {
    One(Wire),
    /// All protocols in turn, with the same number of kills each.
    All,
}

impl WireChoice {
    /// Parses the name of a protocol, or `all`.
    fn parser() -> impl TypedValueParser<Value = Self> {
        let names = Wire::ALL.map(Wire::name);
        PossibleValuesParser::new(names.into_iter().chain(["all"])).map(|name| {
            let wire = Wire::ALL.into_iter().find(|wire| wire.name() == name);
            wire.map_or(Self::All, Self::One)
        })
    }

    const fn wires(&self) -> &[Wire] {
        match self {
            Self::One(wire) => std::slice::from_ref(wire),
            Self::All => &Wire::ALL,
        }
    }
}

#[tokio::main(worker_threads = 4)]
async fn main() -> ExitCode {
    // On a signal, the run's future is dropped, which also stops its engine and removes its folder.
    let result = tokio::select! {
        result = run(Cli::parse()) => result,
        signal = shutdown_signal() => Err(signal),
    };
    let is_success = match result {
        Ok(is_success) => is_success,
        Err(error) => {
            // Standard error may be closed; the exit code says the same.
            let _ = writeln!(io::stderr(), "{error:#}");
            false
        }
    };
    if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Waits for a signal to terminate, and returns it as an error.
async fn shutdown_signal() -> anyhow::Error {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return anyhow!("signal handlers cannot be installed");
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => anyhow!("interrupted"),
        _ = terminate.recv() => anyhow!("terminated"),
    }
}

async fn run(Cli { command, engine, options }: Cli) -> anyhow::Result<bool> {
    match command {
        None => run_engine_campaigns(&engine, &options).await,
        Some(Command::Mutants { engine, which }) => {
            let wire = engine.wire.wires().first().copied().unwrap_or(Wire::Anthropic);
            let campaign = engine.campaign(&options, wire, engine.kills.unwrap_or(1_000));
            run_mutants(&campaign.binary, &which.selected(ENGINE_MUTANTS), async |mutant| {
                Campaign { mutant: Some(mutant), ..campaign.clone() }.run().await
            })
            .await
        }
        Some(Command::Fleet(fleet)) => run_fleet_campaign(&fleet, &options).await,
        Some(Command::DueMinute(due)) => run_due_minute(&due, &options).await,
        Some(Command::Failover(failover)) => run_failover(&failover, &options).await,
        Some(Command::FleetMutants { fleet, which }) => {
            let campaign = fleet.campaign(&options, fleet.rounds.unwrap_or(300));
            run_mutants(&campaign.binary, &which.selected(ORCHESTRATOR_MUTANTS), async |mutant| {
                FleetCampaign { mutant: Some(mutant), ..campaign.clone() }.run().await
            })
            .await
        }
    }
}

impl MutantFilter {
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
            mutant: None,
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
            mutant: None,
            cluster_faults: self.cluster_faults,
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
    if fleet.cluster_faults && fleet.backend != Backend::Kubernetes {
        bail!("--cluster-faults needs --backend kubernetes");
    }
    let rounds = fleet.rounds.unwrap_or(100);
    let begin = Instant::now();
    let campaign = fleet.campaign(options, rounds);
    let counters = campaign.run().await?;
    print_report(options, &counters, begin.elapsed(), &fleet::unmet_coverage(&counters, &campaign))
}

async fn run_due_minute(due: &DueMinuteOptions, options: &Options) -> anyhow::Result<bool> {
    ensure_exists(&due.orchestrator)?;
    if due.clock != ClockPlan::Steady && due.backend == Backend::Kubernetes {
        bail!("the clock of Pods cannot be set: use `--backend process` or `--backend docker`");
    }
    let begin = Instant::now();
    let run = DueMinute {
        binary: due.orchestrator.clone(),
        backend: due.backend,
        database: due.database,
        seed: options.seed,
        users: due.users,
        kills: due.kills,
        clock: due.clock,
    };
    let counters = run.run().await?;
    print_report(options, &counters, begin.elapsed(), &run.unmet_coverage(&counters))
}

async fn run_failover(failover: &FailoverOptions, options: &Options) -> anyhow::Result<bool> {
    ensure_exists(&failover.orchestrator)?;
    let begin = Instant::now();
    let run = Failover {
        binary: failover.orchestrator.clone(),
        backend: failover.backend,
        seed: options.seed,
        takeovers: failover.takeovers,
        users: failover.users,
        rate: failover.rate,
        time_limit: Duration::from_secs(options.seconds),
        max_gap: Duration::from_millis(failover.max_gap_ms),
        mutant: None,
    };
    if !failover.mutant.is_empty() {
        return run_mutants(&run.binary, &failover.mutant, async |mutant| {
            Failover { mutant: Some(mutant), ..run.clone() }.run().await
        })
        .await;
    }
    let counters = run.run().await?;
    print_report(options, &counters, begin.elapsed(), &run.unmet_coverage(&counters))
}

/// Prints the table of a run. Returns whether its coverage is met and there are no violations.
fn print_report(
    options: &Options,
    counters: &Counters,
    elapsed: Duration,
    unmet_coverage: &[String],
) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    write!(out, "seed {}\n{}", options.seed, Report { counters, elapsed })?;
    unmet_coverage.iter().try_for_each(|line| writeln!(out, "UNMET {line}"))?;
    Ok(unmet_coverage.is_empty() && counters.violations().is_empty())
}

async fn run_mutants(
    binary: &Path,
    names: &[String],
    run: impl AsyncFn(String) -> anyhow::Result<Arc<Counters>>,
) -> anyhow::Result<bool> {
    ensure_exists(binary)?;
    let results = mutants::run_all(binary, names, run).await?;
    let mut out = io::stdout().lock();
    for result in &results {
        let after = result
            .kills_until_caught
            .map_or_else(|| "NOT CAUGHT".to_owned(), |kills| format!("caught after {kills}"));
        writeln!(
            out,
            "{:24} {after} of {} kills, {:.1} s",
            result.mutant,
            result.total_kills,
            result.elapsed.as_secs_f64()
        )?;
        if let Some(found) = &result.first_violation {
            writeln!(out, "    {}", found.chars().take(300).collect::<String>())?;
        }
    }
    Ok(results.iter().all(|result| result.kills_until_caught.is_some()))
}
