//! The command: a run of the chaos harness, or of its saboteurs. See `README.md`.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use chaos::saboteurs::{self, NAMES};
use chaos::{Campaign, Feature, Mix, Report, Tally, Wire, unmet};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Parser)]
#[command(about = "Kills the engine at random instants under load and checks that no promise is broken")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Runs against an engine with each saboteur, and demands that each is caught.
    Saboteurs {
        /// One of them; by default all.
        #[arg(long)]
        only: Vec<String>,
    },
}

#[derive(Args)]
struct Options {
    /// The `roundhouse` binary; for saboteurs built with `--features sabotage`.
    #[arg(long, global = true, default_value = "target/release/roundhouse")]
    engine: PathBuf,
    /// How many times the engine is killed: by default 100 times, or with each saboteur at most 1,000 times.
    #[arg(long, global = true)]
    kills: Option<u64>,
    /// Where all choices come from.
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
    /// The wire to the provider.
    #[arg(long, global = true, value_enum, default_value_t = Wires::Both)]
    wire: Wires,
    /// When to stop killing, in seconds.
    #[arg(long, global = true, default_value_t = 600)]
    seconds: u64,
    /// How many tasks run side by side.
    #[arg(long, global = true, default_value_t = 4)]
    tasks: u64,
    /// The most turns of a task.
    #[arg(long, global = true, default_value_t = 6)]
    turns_per_task: u64,
    /// Leaves out parts of the contract.
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    without: Vec<Feature>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Wires {
    Anthropic,
    Openai,
    /// One after the other, half of the kills each.
    Both,
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

async fn run(Cli { command, options }: Cli) -> anyhow::Result<bool> {
    if !options.engine.is_file() {
        bail!(
            "there is no binary at {}: build it with `cargo build --release`, or name one with --engine",
            options.engine.display()
        );
    }
    match command {
        None => chaos(&options).await,
        Some(Command::Saboteurs { only }) => {
            let names = if only.is_empty() { NAMES.map(str::to_owned).to_vec() } else { only };
            sabotage(&options, &names).await
        }
    }
}

impl Options {
    fn campaign(&self, wire: Wire, kills: u64, limit: Duration) -> Campaign {
        Campaign {
            binary: self.engine.clone(),
            seed: self.seed,
            wire,
            kills,
            limit,
            mix: Mix::whole().without(&self.without),
            tasks: self.tasks,
            turns_per_task: self.turns_per_task,
            saboteur: None,
        }
    }
}

async fn chaos(options: &Options) -> anyhow::Result<bool> {
    let kills = options.kills.unwrap_or(100);
    let wires: &[Wire] = match options.wire {
        Wires::Anthropic => &[Wire::Anthropic],
        Wires::Openai => &[Wire::Openai],
        Wires::Both => &[Wire::Anthropic, Wire::Openai],
    };
    let parts = u64::try_from(wires.len())?;
    let begin = Instant::now();
    let total = Tally::default();
    for wire in wires {
        let limit = Duration::from_secs(options.seconds) / u32::try_from(parts)?;
        total.merge(&*options.campaign(*wire, kills.div_ceil(parts), limit).run().await?);
    }
    let mut out = io::stdout().lock();
    write!(out, "seed {}\n{}", options.seed, Report { tally: &total, took: begin.elapsed() })?;
    let unmet = unmet(&total, &Mix::whole().without(&options.without), kills);
    unmet.iter().try_for_each(|unmet| writeln!(out, "UNMET {unmet}"))?;
    Ok(unmet.is_empty() && total.violations().is_empty())
}

async fn sabotage(options: &Options, names: &[String]) -> anyhow::Result<bool> {
    let campaign = options.campaign(
        Wire::Anthropic,
        options.kills.unwrap_or(1_000),
        Duration::from_secs(options.seconds),
    );
    let caught = saboteurs::all(&campaign, names).await?;
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
