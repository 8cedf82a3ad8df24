//! `roundhouse`: the one binary. Each command is the entry point of a library.

mod acp;
mod audit_command;
mod catalog;
mod chat;
mod client;
mod connection;
mod doctor_command;
mod engine_access;
mod engine_command;
mod engines_command;
mod error;
mod journal;
mod orchestrator_command;
mod rekey_command;
mod remote;
mod replay;
mod terminal;
mod turn_reader;
mod up;

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};

/// mimalloc without transparent huge pages (a feature of the dependency): the allocator with which an idle engine
/// uses least memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One private, durable AI agent per user of your product.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole fleet on this machine: orchestrator, a `demo` product, and an engine per user.
    Up(up::Args),
    /// Talk to a user's engine in the terminal.
    Chat(chat::Args),
    /// Let a code editor use a user's engine: the Agent Client Protocol over standard input and output.
    Acp(acp::Args),
    /// Connect tool servers to a user's engine, list the connections, remove them.
    Connection(connection::Args),
    /// Run a recorded turn again, on another model if wanted, and show what is different. Tools return what was
    /// recorded; nothing acts.
    Replay(replay::Args),
    /// Run the orchestrator, configured by `ORCH_…` variables.
    Orchestrator(orchestrator_command::Args),
    /// Verify the audit log.
    Audit(audit_command::Args),
    /// Show which versions a fleet's engines are on, and move them to another one.
    Engines(engines_command::Args),
    /// Look for problems that no orchestrator repairs by itself: folders that belong to no engine, services of
    /// this host that containers can reach. Reads `ORCH_DATABASE_URL`, `ORCH_DATA_ROOT_PATH` and `ORCH_BACKEND`;
    /// changes nothing.
    Doctor,
    /// Seal the registry's secrets with another master key: the new one in `ORCH_MASTER_KEY`, the old one in
    /// `ORCH_MASTER_KEY_OLD`. The orchestrator must be stopped.
    Rekey,
    /// Run one engine, configured by the variables of the container contract, or read its journal.
    Engine(engine_command::Args),
}

fn main() -> ExitCode {
    let begun = Instant::now();
    // Before all else: the sandbox helper must hold nothing that it did not get from its engine, and start fast.
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == sandbox::HELPER_ARG => return sandbox::helper_main(),
        Some(first) if first == documents::WORKER_ARG => return documents::worker_main(args),
        Some(first) if first == orchestrator::COPY_ARG => return orchestrator::copy_main(args),
        _ => {}
    }
    engine_command::start_session();
    let result = match Cli::parse().command {
        Command::Up(args) => up::run(&args),
        Command::Chat(args) => {
            return chat::run(args).unwrap_or_else(crate::error::Failure::report);
        }
        Command::Acp(args) => acp::run(args),
        Command::Connection(args) => connection::run(args),
        Command::Replay(args) => {
            return replay::run(args).unwrap_or_else(crate::error::Failure::report);
        }
        Command::Orchestrator(args) => orchestrator_command::run(&args),
        Command::Audit(args) => audit_command::run(&args),
        Command::Engines(args) => engines_command::run(args),
        Command::Doctor => doctor_command::run(),
        Command::Rekey => rekey_command::run(),
        Command::Engine(args) => engine_command::run(args, begun),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
