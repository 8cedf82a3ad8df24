//! What the stories share: environments to run the binary in, clients of both services, and the contract's
//! schemas.

pub(crate) mod acp_client;
pub(crate) mod audit_receiver;
pub(crate) mod browser;
pub(crate) mod cassettes;
pub(crate) mod cluster;
pub(crate) mod collector;
pub(crate) mod combination;
pub(crate) mod command_line;
pub(crate) mod daemon;
pub(crate) mod deployment;
pub(crate) mod disk;
pub(crate) mod dns;
pub(crate) mod docker;
pub(crate) mod engine_calls;
pub(crate) mod engine_fixture;
pub(crate) mod fake_services;
pub(crate) mod fleet;
pub(crate) mod heard;
pub(crate) mod hook_server;
pub(crate) mod http;
pub(crate) mod image;
pub(crate) mod kill_rounds;
pub(crate) mod kubernetes;
pub(crate) mod peers;
pub(crate) mod ports;
pub(crate) mod postgres;
pub(crate) mod process_memory;
pub(crate) mod processes;
pub(crate) mod schema;
pub(crate) mod scripted_mcp;
pub(crate) mod sdk_client;
pub(crate) mod search_server;
pub(crate) mod sse;
pub(crate) mod standalone_engine;
pub(crate) mod synthetic_export;
pub(crate) mod tcp_forwarder;
pub(crate) mod terminal;
pub(crate) mod test_env;
pub(crate) mod tool_programs;
pub(crate) mod turn;
pub(crate) mod web_server;
pub(crate) mod webhook_receiver;

use std::env;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

pub(crate) use cluster::PostgresCluster;
pub(crate) use combination::{Backend, Database};
pub(crate) use daemon::{DockerDaemon, LiveRestore};
pub(crate) use deployment::{Deployment, Orchestrator, QUICK_SCRIPT, assert_within};
pub(crate) use disk::Disk;
pub(crate) use docker::Docker;
pub(crate) use engine_fixture::EngineFixture;
pub(crate) use fleet::{Engine, Fleet, Product, RunningUp};
pub(crate) use http::HttpResponse;
pub(crate) use kill_rounds::KillRounds;
pub(crate) use peers::Peers;
pub(crate) use postgres::PostgresDatabase;
pub(crate) use schema::assert_fields;
pub(crate) use sse::{Event, EventStream};
pub(crate) use standalone_engine::StandaloneEngine;
pub(crate) use terminal::Terminal;
pub(crate) use test_env::{Program, ProgramExit, TestEnv};

/// The timeout of everything that a story waits for. Generous, because the machine may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// Calls `probe` repeatedly until it returns a value.
pub(crate) async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "it did not happen within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A number from the environment variable `name`, or the default.
pub(crate) fn env_number(name: &str, default: usize) -> usize {
    env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Whether `program`, which a story needs, is installed. If not, reports the story as skipped, or fails where
/// everything is required.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        skip(&format!("{program}, which is not on this machine"));
    }
    found
}

/// Reports that a story is skipped because it lacks `what`, or fails where everything is required
/// (`ROUNDHOUSE_REQUIRE_ALL=1`).
pub(crate) fn skip(what: &str) {
    assert_ne!(env::var("ROUNDHOUSE_REQUIRE_ALL").as_deref(), Ok("1"), "required: {what}");
    // Written directly, because the test harness captures `eprintln!`.
    writeln!(io::stderr().lock(), "skipped: a story that needs {what}").unwrap();
}

/// Waits for `future`, at most [`DEADLINE`].
pub(crate) async fn with_deadline<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(DEADLINE, future).await;
    outcome.unwrap_or_else(|_| panic!("it did not happen within {DEADLINE:?}: {what}"))
}
