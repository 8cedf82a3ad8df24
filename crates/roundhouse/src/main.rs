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
mod operator;
mod orchestrator_command;
mod profiles;
mod rekey_command;
mod remote;
mod replay;
mod terminal;
mod trace_export;
mod turn_reader;
mod up;

use std::process::ExitCode;
use std::time::Instant;

use clap::{CommandFactory as _, Parser, Subcommand};

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
    /// List, register and limit the products of a deployment.
    Product(operator::product::Args),
    /// See and act on the engines of all products: state, drain, failed engines, events.
    Fleet(operator::fleet::Args),
    /// Move all engines to another image, step by step, and back again if that fails.
    Rollout(operator::rollout::Args),
    /// Back up the engines of a deployment and its registry, and see, verify and remove backups.
    Backup(operator::backup::Args),
    /// Restore engines from backups, or the registry of a deployment that was lost.
    Restore(operator::restore::Args),
    /// Show how the engines of a product are.
    Status(operator::figures::StatusArgs),
    /// Show the figures of a product's engines.
    Metrics(operator::figures::MetricsArgs),
    /// Show what a product's engines have used, by day or by engine: turns, tokens, costs, tool calls.
    Usage(operator::usage::Args),
    /// Print what happens to a product's engines, and follow it.
    Events(operator::events::Args),
    /// Read, move and erase what a user's engine knows about its user.
    Memory(operator::memory::Args),
    /// Read, create and delete the skills of a user's engine.
    Skill(operator::skill::Args),
    /// Read and delete the conversations of a user's engine.
    Task(operator::task::Args),
    /// Have the rows of a product's audit log sent to receivers of its own.
    Webhook(operator::webhook::Args),
    /// List or verify the audit log.
    Audit(audit_command::Args),
    /// Show which versions a fleet's engines are on, and move them to another one.
    Engines(engines_command::Args),
    /// Examine a deployment and its host: variables, registry, data, backend, backups, disks, clock, ports, certificates
    /// and the sandbox. Says what is wrong, where, and what to do; changes nothing. Reads the orchestrator's variables, at
    /// least `ORCH_DATABASE_URL`, `ORCH_DATA_ROOT_PATH` and `ORCH_BACKEND`.
    Doctor(doctor_command::Args),
    /// Seal the registry's secrets with another master key: the new one in `ORCH_MASTER_KEY`, the old one in
    /// `ORCH_MASTER_KEY_OLD`. The orchestrator must be stopped.
    Rekey,
    /// Look at the engines of users, start, stop and destroy them. Without a command, run one engine, configured by the
    /// variables of the container contract.
    Engine(engine_command::Args),
    /// Print what a shell needs to complete this command line.
    Completions(operator::completions::CompletionsArgs),
    /// Write manual pages into a folder.
    Man(operator::completions::ManArgs),
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
        Command::Product(args) => operator::product::run(args),
        Command::Fleet(args) => operator::fleet::run(args),
        Command::Rollout(args) => operator::rollout::run(args),
        Command::Backup(args) => operator::backup::run(args),
        Command::Restore(args) => operator::restore::run(args),
        Command::Status(args) => operator::figures::status(args),
        Command::Metrics(args) => operator::figures::metrics(args),
        Command::Usage(args) => operator::usage::run(args),
        Command::Events(args) => operator::events::run(args),
        Command::Memory(args) => operator::memory::run(args),
        Command::Skill(args) => operator::skill::run(args),
        Command::Task(args) => operator::task::run(args),
        Command::Completions(args) => operator::completions::completions(&args, Cli::command()),
        Command::Man(args) => operator::completions::man(&args, Cli::command()),
        Command::Webhook(args) => operator::webhook::run(args),
        Command::Audit(args) => audit_command::run(args),
        Command::Engines(args) => engines_command::run(args),
        Command::Doctor(args) => doctor_command::run(&args),
        Command::Rekey => rekey_command::run(),
        Command::Engine(args) => engine_command::run(args, begun),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
