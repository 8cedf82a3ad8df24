//! `roundhouse acp`: the Agent Client Protocol over standard input and output, with which code editors use an engine.
//!
//! A session is a task. [`server`] answers the client's requests, a [`session`] of its own follows the turns of each
//! task, and [`updates`] says how their events look in the protocol. Nothing is kept here that the engine does not have:
//! this program may end at any time, and another one loads its sessions again.

mod config;
mod history;
mod params;
mod peer;
mod permission;
mod prompt;
mod rpc;
mod server;
mod session;
mod session_requests;
mod stdio;
mod tool_calls;
mod updates;

use std::io::Write as _;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use api::UserId;
use http_service::signals::ShutdownSignals;
use tokio_util::sync::CancellationToken;

use self::params::ClientServers;
use self::peer::Peer;
use self::server::Server;
use self::stdio::Output;
use crate::client::Orchestrator;
use crate::engine_access::EngineOptions;
use crate::error::Failure;
use crate::remote::Remote;

/// How long the client may take to read what was said last.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `roundhouse acp`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineOptions,
    /// Leave out the tool servers that the client wants to add, instead of refusing its sessions: the agent runs
    /// elsewhere and cannot use them.
    #[arg(long)]
    ignore_mcp_servers: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let (orchestrator, user) = args.engine.resolve()?;
    let servers = if args.ignore_mcp_servers { ClientServers::Ignore } else { ClientServers::Refuse };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // One thread: sessions share the client without locks.
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, serve(orchestrator, user, servers));
    drop(local);
    // The threads that read and write cannot be woken, and must not delay the exit.
    runtime.shutdown_background();
    result
}

async fn serve(orchestrator: Orchestrator, user: UserId, servers: ClientServers) -> Result<(), Failure> {
    let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
    let lines = stdio::spawn_reader();
    let remote = tokio::select! {
        remote = Remote::admit(orchestrator, user) => remote?,
        _ = signals.recv() => return Ok(()),
    };
    let client_gone = CancellationToken::new();
    let (output, writer) = Output::spawn_writer(client_gone.clone());
    let server = Server::new(remote, Rc::new(Peer::new(output.clone())), servers);
    tokio::select! {
        () = server.serve(lines) => {}
        () = client_gone.cancelled() => {}
        _ = signals.recv() => {}
    }
    let last_words = async {
        output.end().await;
        writer.await
    };
    // A client that does not read has no use for them.
    let _ = tokio::time::timeout(LAST_WORDS_TIMEOUT, last_words).await;
    Ok(())
}

/// Reports a problem to whoever reads the standard error: the standard output has the protocol only.
fn log(problem: &str) {
    let _ = writeln!(std::io::stderr(), "roundhouse acp: {problem}");
}
