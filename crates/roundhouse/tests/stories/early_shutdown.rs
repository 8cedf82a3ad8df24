//! An orchestrator is told to stop before its start has finished: at any instant of the start, whatever it waits
//! for.
//!
//! `ROUNDHOUSE_TEST_EARLY_ENDS` is the number of instants that each story tries.

use std::env;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Deployment, Orchestrator};

/// The span of a start in which instants are tried. Within it the orchestrator connects to a hanging backend,
/// lists its engines, and gives up for the moment.
const START_SPAN: Duration = Duration::from_secs(12);

/// The orchestrator gives up a hanging database after about five seconds; instants before that are tried.
const DATABASE_SPAN: Duration = Duration::from_secs(4);

/// The longest shutdown: 30 seconds for operations in flight, plus a margin.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(31);

fn instants(span: Duration) -> impl Iterator<Item = Duration> {
    let count =
        env::var("ROUNDHOUSE_TEST_EARLY_ENDS").ok().and_then(|count| count.parse().ok()).unwrap_or(4_u32);
    (0..count).map(move |number| span / count * number)
}

/// Launches an orchestrator repeatedly and stops it after each of the instants in `span`; asserts that it ends in
/// time.
async fn assert_ends_in_time(span: Duration, launch: impl Fn() -> Orchestrator) {
    for instant in instants(span) {
        let orchestrator = launch();
        // The instant is what the story varies.
        tokio::time::sleep(instant).await;
        let stopped_at = Instant::now();
        let exit = orchestrator.signal_and_wait(Signal::TERM).await;
        let elapsed = stopped_at.elapsed();
        assert!(elapsed < SHUTDOWN_LIMIT, "the shutdown after {instant:?} took {elapsed:?}: {}", exit.output);
        // Before it handles signals, SIGTERM kills it.
        assert!(matches!(exit.code, Some(0) | None), "{:?}: {}", exit.code, exit.output);
    }
}

/// Asserts that the stopped orchestrators left nothing behind: the next one gets the registry.
async fn assert_next_start_succeeds(deployment: &Deployment) {
    deployment.start().await.signal_and_wait(Signal::TERM).await.assert_success();
}

/// A socket in place of a Docker daemon's. While the listener lives, calls connect but get no response.
fn silent_daemon(deployment: &Deployment) -> (UnixListener, PathBuf) {
    let path = deployment.fleet.test_env.path().join("docker.sock");
    (UnixListener::bind(&path).unwrap(), path)
}

#[tokio::test]
async fn while_the_docker_daemon_hangs() {
    let deployment = Deployment::process_and_sqlite();
    let (_listener, path) = silent_daemon(&deployment);
    let deployment = deployment.with_env("ORCH_DOCKER_SOCKET", path.to_str().unwrap());
    assert_ends_in_time(START_SPAN, || deployment.launch_with("ORCH_BACKEND", "docker")).await;
    assert_next_start_succeeds(&deployment).await;
}

#[tokio::test]
async fn while_the_docker_daemon_is_away() {
    let deployment = Deployment::process_and_sqlite();
    let path = deployment.fleet.test_env.path().join("nobody.sock");
    let deployment = deployment.with_env("ORCH_DOCKER_SOCKET", path.to_str().unwrap());
    assert_ends_in_time(START_SPAN, || deployment.launch_with("ORCH_BACKEND", "docker")).await;
    assert_next_start_succeeds(&deployment).await;
}

#[tokio::test]
async fn while_the_database_hangs() {
    let deployment = Deployment::process_and_sqlite();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://nobody@{}/none?sslmode=disable", listener.local_addr().unwrap());
    assert_ends_in_time(DATABASE_SPAN, || deployment.launch_with("ORCH_DATABASE_URL", &url)).await;
}

/// Another orchestrator holds the registry; those that are stopped are its standbys.
#[tokio::test]
async fn while_another_holds_the_registry() {
    let deployment = Deployment::process_and_sqlite();
    let first = deployment.start().await;
    assert_ends_in_time(START_SPAN, || deployment.launch_second()).await;
    first.signal_and_wait(Signal::TERM).await.assert_success();
}
