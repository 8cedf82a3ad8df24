//! An orchestrator that is told to end before it has begun: at any instant of a start, whatever it waits for.
//!
//! `ROUNDHOUSE_TEST_EARLY_ENDS` says how many instants each story tries.

use std::env;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Deployment, Orchestrator};

/// The instants of a start that are tried lie in this time: in it a backend that hangs is looked for, listed, and given
/// up for the moment.
const START_SPAN: Duration = Duration::from_secs(12);

/// A database that hangs is given up for good after some five seconds: the instants before that are tried.
const DATABASE_SPAN: Duration = Duration::from_secs(4);

/// What an end may take: 30 seconds for what is in flight, and a moment.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(31);

fn instants(span: Duration) -> impl Iterator<Item = Duration> {
    let count =
        env::var("ROUNDHOUSE_TEST_EARLY_ENDS").ok().and_then(|count| count.parse().ok()).unwrap_or(4_u32);
    (0..count).map(move |number| span / count * number)
}

/// Launches an orchestrator over and over, and ends it after each of the instants in `span`.
async fn assert_ends_in_time(span: Duration, launch: impl Fn() -> Orchestrator) {
    for instant in instants(span) {
        let orchestrator = launch();
        // The instant is what is tried.
        tokio::time::sleep(instant).await;
        let asked = Instant::now();
        let ended = orchestrator.signal_and_wait(Signal::TERM).await;
        let took = asked.elapsed();
        assert!(took < SHUTDOWN_LIMIT, "told to end after {instant:?}, it took {took:?}: {}", ended.output);
        // Before it listens for signals, the system ends it.
        assert!(matches!(ended.code, Some(0) | None), "{:?}: {}", ended.code, ended.output);
    }
}

/// Nothing of those that ended remains: the next one has the registry.
async fn assert_next_start_succeeds(place: &Deployment) {
    place.start().await.signal_and_wait(Signal::TERM).await.assert_success();
}

/// A socket where a Docker daemon should be. While it is kept, calls reach it and nothing comes back.
fn silent_daemon(place: &Deployment) -> (UnixListener, PathBuf) {
    let path = place.fleet.test_env.path().join("docker.sock");
    (UnixListener::bind(&path).unwrap(), path)
}

#[tokio::test]
async fn while_the_docker_daemon_hangs() {
    let place = Deployment::process_and_sqlite();
    let (_listener, path) = silent_daemon(&place);
    let place = place.with_env("ORCH_DOCKER_SOCKET", path.to_str().unwrap());
    assert_ends_in_time(START_SPAN, || place.launch_with("ORCH_BACKEND", "docker")).await;
    assert_next_start_succeeds(&place).await;
}

#[tokio::test]
async fn while_the_docker_daemon_is_away() {
    let place = Deployment::process_and_sqlite();
    let path = place.fleet.test_env.path().join("nobody.sock");
    let place = place.with_env("ORCH_DOCKER_SOCKET", path.to_str().unwrap());
    assert_ends_in_time(START_SPAN, || place.launch_with("ORCH_BACKEND", "docker")).await;
    assert_next_start_succeeds(&place).await;
}

#[tokio::test]
async fn while_the_database_hangs() {
    let place = Deployment::process_and_sqlite();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://nobody@{}/none?sslmode=disable", listener.local_addr().unwrap());
    assert_ends_in_time(DATABASE_SPAN, || place.launch_with("ORCH_DATABASE_URL", &url)).await;
}

/// Another orchestrator has it: those that are ended are its standbys.
#[tokio::test]
async fn while_another_holds_the_registry() {
    let place = Deployment::process_and_sqlite();
    let first = place.start().await;
    assert_ends_in_time(START_SPAN, || place.launch_second()).await;
    first.signal_and_wait(Signal::TERM).await.assert_success();
}
