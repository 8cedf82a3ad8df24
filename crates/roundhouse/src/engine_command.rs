//! `roundhouse engine`: runs one user's engine, or does something with engines that run elsewhere.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Subcommand;
use engine::Engine;
use engine::config::Config;
use http_service::env::ProcessEnv;
use http_service::signals::ShutdownSignals;
use tokio_util::sync::CancellationToken;

use crate::error::Failure;
use crate::{catalog, engines_command, journal, operator, trace_export};

/// Labels by which an orchestrator recognizes its engines among all processes (the engine itself ignores them), or
/// a command that is about engines and runs none.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// The deployment that the engine belongs to.
    #[arg(long, hide = true)]
    deployment: Option<String>,
    /// The engine's id.
    #[arg(long, hide = true)]
    engine_id: Option<String>,
    /// The generation of the engine's row at its launch.
    #[arg(long, hide = true)]
    generation: Option<i64>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// A command that replaces running the engine.
#[derive(Subcommand)]
enum Command {
    /// Print the steps of a task's turns. The engine may be running.
    Journal(journal::Args),
    /// List the engines of a product, the oldest first.
    #[command(after_help = operator::EXIT_CODES)]
    List(operator::engine::ListArgs),
    /// Show what is known about a user's engine.
    #[command(after_help = operator::EXIT_CODES)]
    Get(operator::engine::OneArgs),
    /// Explain why an engine is in its state, and what happens next.
    #[command(after_help = operator::EXIT_CODES)]
    Explain(operator::engine::OneArgs),
    /// Print the end of an engine's log, and what it logs from then on.
    #[command(after_help = operator::EXIT_CODES)]
    Logs(operator::logs::Args),
    /// Show or change what an engine logs.
    #[command(after_help = operator::EXIT_CODES)]
    LogFilter {
        #[command(subcommand)]
        command: operator::log_filter::EngineCommand,
    },
    /// Make an engine for a user who has none.
    #[command(after_help = operator::EXIT_CODES)]
    Provision(operator::acts::ProvisionArgs),
    /// Start an engine that is stopped, sleeps or has failed.
    #[command(after_help = operator::EXIT_CODES)]
    Start(operator::acts::Args),
    /// Stop an engine. It stays stopped until it is started.
    #[command(after_help = operator::EXIT_CODES)]
    Stop(operator::acts::Args),
    /// Destroy an engine with everything that it keeps. Asks for the user's id.
    #[command(after_help = operator::EXIT_CODES)]
    Destroy(operator::acts::DestroyArgs),
    /// Give a running engine a new key. The old one is invalid at once.
    #[command(after_help = operator::EXIT_CODES)]
    RotateKey(operator::acts::Args),
    /// Send a message to a user's engine, which is woken, and print the answer as it comes. Ctrl-C cancels the turn.
    #[command(after_help = operator::EXIT_CODES)]
    ExecTurn(operator::exec_turn::Args),
    /// Print how many engines of each product are on which version: `roundhouse engines versions`.
    Versions(engines_command::AccessArgs),
    /// Move engines to another version: `roundhouse engines move`.
    Move(engines_command::MoveArgs),
    /// Unpack the catalog that ships into a folder. Entries of an earlier one that were edited or removed stay so.
    UnpackCatalog {
        /// The folder, which is made if it is missing.
        folder: PathBuf,
    },
}

/// Moves an engine launched by an orchestrator into a session of its own, so that neither a terminal's signals nor
/// the end of the orchestrator reach it, and lets the orchestrator have the processor first. Called before all
/// else, to keep the exposure short.
pub(crate) fn start_session() {
    let mut arguments = std::env::args_os().skip(1);
    let (command, label) = (arguments.next(), arguments.next());
    if command.is_some_and(|command| command == "engine")
        && label.is_some_and(|label| label == "--deployment")
    {
        // Many engines that boot at once must not hold up the admits of others.
        sandbox::lower_process_priority(sandbox::ENGINE_NICE);
        // A process group leader is separate already, and `setsid` refuses it.
        if rustix::process::setsid().is_ok() {
            sandbox::lower_session_priority(sandbox::ENGINE_NICE);
        }
    }
}

/// Runs an engine, or another command; the program began at `begun`.
pub(crate) fn run(args: Args, begun: Instant) -> Result<(), Failure> {
    match args.command {
        Some(Command::Journal(args)) => journal::run(args),
        Some(Command::List(args)) => operator::engine::list(args),
        Some(Command::Get(args)) => operator::engine::get(args),
        Some(Command::Explain(args)) => operator::engine::explain(args),
        Some(Command::Logs(args)) => operator::logs::run(args),
        Some(Command::LogFilter { command }) => operator::log_filter::run_engine(command),
        Some(Command::Provision(args)) => operator::acts::provision(args),
        Some(Command::Start(args)) => operator::acts::start(args),
        Some(Command::Stop(args)) => operator::acts::stop(args),
        Some(Command::Destroy(args)) => operator::acts::destroy(args),
        Some(Command::RotateKey(args)) => operator::acts::rotate_key(args),
        Some(Command::ExecTurn(args)) => operator::exec_turn::run(args),
        Some(Command::Versions(args)) => engines_command::run(engines_command::Args::versions(args)),
        Some(Command::Move(args)) => engines_command::run(engines_command::Args::moving(args)),
        Some(Command::UnpackCatalog { folder }) => catalog::unpack(&folder).map_err(Failure::usage),
        None => serve(&args, begun),
    }
}

fn serve(args: &Args, begun: Instant) -> Result<(), Failure> {
    let config = Config::from_env(&ProcessEnv).map_err(Failure::usage)?;
    http_service::logging::init_with_format(config.log_format, config.log_filter.clone());
    http_service::rlimits::raise_file_limit();
    let runtime = resources::threads::runtime().context("the runtime could not be started")?;
    let trace_settings = config.traces.clone();
    let result = runtime.block_on(async {
        let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
        if config.maintenance {
            let shutdown = CancellationToken::new();
            let served = engine::serve_maintenance(config, shutdown.clone());
            return Ok(signals.run_until_shutdown(served, &shutdown).await?);
        }
        let exporter = trace_export::start(trace_settings)?;
        let engine = Engine::start(config).await?;
        let address = engine.address().context("the engine's address is unknown")?;
        tracing::info!(
            %address,
            engine_id = args.engine_id.as_deref().unwrap_or("-"),
            generation = args.generation,
            deployment = args.deployment.as_deref().unwrap_or("-"),
            version = env!("CARGO_PKG_VERSION"),
            startup_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            "The engine is ready."
        );
        let shutdown = CancellationToken::new();
        signals
            .run_until_shutdown(engine.serve(shutdown.clone(), allocator::release_free_memory), &shutdown)
            .await;
        trace_export::end(exporter).await;
        tracing::info!("The engine has stopped.");
        Ok(())
    });
    // A blocked file read must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_millis(500));
    result
}
