//! The commands of operators and product developers: products, engines, the audit log, and what an engine keeps for
//! its user. Each asks a service and shows its answer: as tables for people, or as the JSON that it is.

pub(crate) mod acts;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod completions;
mod confirm;
pub(crate) mod engine;
pub(crate) mod events;
pub(crate) mod exec_turn;
pub(crate) mod figures;
pub(crate) mod fleet;
mod input;
pub(crate) mod log_filter;
pub(crate) mod logs;
pub(crate) mod memory;
mod output;
mod policy;
pub(crate) mod product;
mod product_keys;
mod product_life;
pub(crate) mod restore;
pub(crate) mod rollout;
mod session;
pub(crate) mod skill;
pub(crate) mod task;
mod times;
pub(crate) mod usage;
mod user_engine;
mod watch;
pub(crate) mod webhook;

use anyhow::Context as _;
use http_service::signals::ShutdownSignals;

pub(crate) use self::output::EXIT_CODES;
use crate::error::Failure;

/// Does the work of a command. A signal ends it: what it holds is dropped, which also restores the terminal.
pub(crate) fn run(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
        tokio::select! {
            result = work => result,
            signal = signals.recv() => Err(Failure::Interrupted(signal)),
        }
    });
    // A thread that reads the terminal cannot be woken, and must not delay the exit.
    runtime.shutdown_background();
    result
}
