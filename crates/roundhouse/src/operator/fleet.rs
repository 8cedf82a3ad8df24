//! `roundhouse fleet`: the engines of all products, as the operator of a deployment sees them and acts on them.

mod drain;
mod drift;
mod engines;
mod maintenance;
mod start_failed;
pub(super) mod status;

use clap::Subcommand;

use super::{events, log_filter, output};
use crate::error::Failure;

/// Arguments of `roundhouse fleet`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show how the engines of all products are, what limits them, and whether the deployment is drained.
    Status(status::Args),
    /// List the engines of all products, the one that was provisioned first first.
    Engines(engines::Args),
    /// Empty the deployment before the maintenance of its host: all engines sleep, and none is started.
    Drain {
        #[command(subcommand)]
        command: drain::Command,
    },
    /// Show what differs between the registry and what exists of engines, or repair it.
    Drift(drift::Args),
    /// Show or change what the orchestrator logs.
    LogFilter {
        #[command(subcommand)]
        command: log_filter::FleetCommand,
    },
    /// Let nothing change an engine for a while. Those that run are used as ever.
    Maintenance {
        #[command(subcommand)]
        command: maintenance::Command,
    },
    /// Start engines that have failed, also those that have no automatic restarts left.
    StartFailed(start_failed::Args),
    /// Print what happens to the engines of all products, and follow it.
    Events(events::FleetArgs),
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        match args.command {
            Command::Status(args) => status::show(args).await,
            Command::Engines(args) => engines::list(args).await,
            Command::Drain { command } => drain::run(command).await,
            Command::Drift(args) => drift::run(args).await,
            Command::LogFilter { command } => log_filter::run_fleet(command).await,
            Command::Maintenance { command } => maintenance::run(command).await,
            Command::StartFailed(args) => start_failed::run(args).await,
            Command::Events(args) => events::print_of_all(args).await,
        }
    })
}
