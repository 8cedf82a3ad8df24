//! `roundhouse orchestrator`: the orchestrator of a deployment, configured by variables.

use std::sync::Arc;

use anyhow::Context as _;
use orchestrator::{Config, OpenError, Orchestrator};
use service::clock::SystemClock;
use service::env::{Env as _, ProcessEnv};
use service::signals::Endings;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::error::Failure;
use crate::terminal;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Check the variables, print what they come to, and end: 0 if all is well, 2 with every fault otherwise.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let config = Config::from_env(&ProcessEnv).map_err(Failure::usage)?;
    if args.check {
        terminal::say(&config.to_string())?;
        return Ok(());
    }
    service::logging::init(tracing_subscriber::filter::Targets::new().with_default(tracing::Level::INFO));
    service::limits::raise_file_limit();
    // One that the operator names is theirs to provide.
    if ProcessEnv.get("ORCH_CATALOG_MOUNT_PATH").is_none() {
        crate::catalog::unpack(&config.catalog).map_err(Failure::usage)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut endings = Endings::listen().context("signals cannot be listened for")?;
        let address = config.address;
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failure::usage(format!("{address} (ORCH_HOST, ORCH_PORT) cannot be listened on: {error}"))
        })?;
        tracing::info!(%address, "The orchestrator listens.");
        let shutdown = CancellationToken::new();
        let clock = Arc::new(SystemClock::new());
        let running = Orchestrator::run(config, clock, listener, shutdown.clone());
        let ran = endings.end(running, &shutdown).await;
        ran.map_err(|error| match error {
            OpenError::Unreachable { .. } | OpenError::Deposed { .. } => error.into(),
            error => Failure::usage(error),
        })?;
        tracing::info!("The orchestrator has stopped; its engines keep running.");
        Ok(())
    })
}
