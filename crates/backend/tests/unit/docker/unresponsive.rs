//! A daemon that hangs, refuses connections or does not exist says nothing about any engine, and no call
//! waits for it forever.

use std::path::Path;
use std::sync::Mutex;

use api::Timestamp;
use http_service::clock::ManualClock;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::super::*;
use super::support::{Fixture, SOCKET, new_backend, target_of};
use crate::{DataRoot, DeadlineBackend, KnownData};

/// How the proxy between the backend and the daemon handles connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Forward,
    /// Reads requests and never answers.
    Hang,
    /// Closes connections at once.
    Refuse,
}

/// A proxy to the daemon whose connections can be interrupted.
pub(super) struct Proxy {
    pub(super) socket: PathBuf,
    mode: watch::Sender<Mode>,
    _accepting: AbortOnDropHandle<()>,
}

impl Proxy {
    pub(super) fn new(folder: &Path) -> Self {
        let socket = folder.join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mode = watch::Sender::new(Mode::Forward);
        let modes = mode.subscribe();
        let accepting = tokio::spawn(async move {
            let connections = Mutex::new(Vec::new());
            while let Ok((stream, _)) = listener.accept().await {
                let connection = tokio::spawn(forward_connection(stream, modes.clone()));
                connections.lock().unwrap().push(AbortOnDropHandle::new(connection));
            }
        });
        Self { socket, mode, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Closes all connections, and handles new ones in this mode.
    pub(super) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

/// Handles a connection until the mode changes.
async fn forward_connection(mut stream: UnixStream, mut modes: watch::Receiver<Mode>) {
    let mode = *modes.borrow_and_update();
    let exchange = async {
        match mode {
            Mode::Forward => {
                let mut daemon = UnixStream::connect(SOCKET).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut daemon).await;
            }
            Mode::Hang => {
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            }
            Mode::Refuse => {}
        }
    };
    tokio::select! {
        () = exchange => {}
        _ = modes.changed() => {}
    }
}

/// Makes all calls at the same time, and returns the result of each.
async fn call_all(
    backend: &DeadlineBackend,
    fixture: &Fixture,
) -> Vec<(&'static str, Result<(), BackendError>)> {
    // Each call has an engine of its own, because calls for the same engine wait for each other.
    let [launched, stopped, killed, removed, deleted] = std::array::from_fn(|_| EngineId::new());
    let results = tokio::join!(
        async { ("ping", backend.ping().await) },
        async { ("check_image", backend.check_image(&fixture.image).await) },
        async { ("launch", backend.launch(fixture.launch_of(launched)).await.map(drop)) },
        async { ("stop", backend.stop(target_of(stopped), Duration::from_secs(30)).await) },
        async { ("kill", backend.kill(target_of(killed)).await) },
        async { ("remove_instance", backend.remove_instance(target_of(removed)).await) },
        async { ("remove_with_data", backend.remove_with_data(target_of(deleted)).await) },
        async { ("list", backend.list().await.map(drop)) },
        async { ("log_tail", backend.log_tail(fixture.engine_id, 10).await.map(drop)) },
        async { ("resource_limits", backend.resource_limits(fixture.engine_id).await.map(drop)) },
    );
    <[_; 10]>::from(results).into()
}

#[tokio::test]
async fn regression_o05_a_daemon_that_is_silent_is_out_of_reach_in_time() {
    let Some(fixture) = Fixture::new().await else { return };
    let proxy = Proxy::new(fixture.folder());
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_ms(1_795_174_231_042)));
    let options = fixture.with(|options| options.socket.clone_from(&proxy.socket));
    let backend = Arc::new(DockerBackend::new(options, Arc::clone(&clock) as _));
    let data = DataRoot::new(fixture.options.data_root.clone(), "d".to_owned(), KnownData::default());
    let bounded = DeadlineBackend::new(Arc::clone(&backend) as _, Arc::clone(&clock) as _, data);
    fixture.launch_and_wait(fixture.launch()).await;
    for mode in [Mode::Hang, Mode::Refuse, Mode::Hang] {
        proxy.set(mode);
        let before = clock.monotonic();
        let calls = async {
            let results = call_all(&bounded, &fixture).await;
            (results, clock.monotonic().saturating_sub(before))
        };
        let ticking = async {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                clock.advance(Duration::from_secs(1));
            }
        };
        let (results, elapsed) = tokio::select! {
            completed = calls => completed,
            () = ticking => unreachable!(),
        };
        for (call, result) in results {
            assert!(matches!(result, Err(BackendError::Unreachable(_))), "{call}, {mode:?}: {result:?}");
        }
        // The longest call is a stop, with its grace and the kill after it.
        assert!(elapsed <= Duration::from_secs(46), "{elapsed:?}");
        // No engine was affected.
        assert_eq!(fixture.containers().await, [(fixture.engine_id, ContainerState::Running)]);
    }
    proxy.set(Mode::Forward);
    assert_eq!(backend.list().await.unwrap().len(), 1);
    backend.kill(target_of(fixture.engine_id)).await.unwrap();
}

#[tokio::test]
async fn a_daemon_that_is_not_there_yet_holds_up_no_start() {
    let Some(fixture) = Fixture::new().await else { return };
    let socket = fixture.folder().join("later.sock");
    let backend = new_backend(&fixture.with(|options| options.socket.clone_from(&socket)));
    backend.check_network().await.unwrap();
    let error = backend.ping().await.unwrap_err().to_string();
    assert!(error.contains("later.sock"), "{error}");
    std::os::unix::fs::symlink(SOCKET, &socket).unwrap();
    backend.ping().await.unwrap();
    backend.launch(fixture.launch()).await.unwrap();
    assert_eq!(fixture.containers().await, [(fixture.engine_id, ContainerState::Running)]);
}
