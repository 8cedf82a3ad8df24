//! A way to a server that a test can hang, cut and close.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Passes on what it is sent, as long as it is told nothing else.
pub(crate) struct FaultProxy {
    port: u16,
    state: watch::Sender<State>,
    _accepting: AbortOnDropHandle<()>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// Nothing is passed on.
    hangs: bool,
    /// Nobody is let in.
    refuses: bool,
    /// How often all connections were cut.
    disconnects: u64,
    /// The next commit reaches the server, and its answer reaches nobody: the connection is cut.
    commit_loss: Option<CommitLoss>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitLoss {
    Armed,
    /// The commit is with the server.
    Sent,
}

impl FaultProxy {
    /// A way to the server at `address`.
    pub(crate) async fn start(address: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = watch::Sender::new(State::default());
        let watched = state.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if watched.borrow().refuses {
                    continue;
                }
                let (watched, address) = (watched.clone(), address.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(&address).await else { return };
                    forward(client, server, watched).await;
                });
            }
        });
        Self { port, state, _accepting: AbortOnDropHandle::new(accepting) }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Passes nothing on from now on, or does again.
    pub(crate) fn hang(&self, hangs: bool) {
        self.state.send_modify(|state| state.hangs = hangs);
    }

    /// Cuts all connections, and lets nobody in; or does again.
    pub(crate) fn refuse_connections(&self, refuses: bool) {
        self.state.send_modify(|state| {
            state.refuses = refuses;
            state.disconnects += u64::from(refuses);
        });
    }

    /// The next commit is done, and nobody hears of it.
    pub(crate) fn drop_next_commit_ack(&self) {
        self.state.send_modify(|state| state.commit_loss = Some(CommitLoss::Armed));
    }

    /// Whether no commit is waited for any more.
    pub(crate) fn commit_ack_dropped(&self) -> bool {
        self.state.borrow().commit_loss.is_none()
    }
}

async fn forward(client: TcpStream, server: TcpStream, state: watch::Sender<State>) {
    let cuts = state.borrow().disconnects;
    let mut cut = state.subscribe();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = pump(from_client, to_server, &state, Side::Client) => {}
        _ = pump(from_server, to_client, &state, Side::Server) => {}
        _ = cut.wait_for(|state| state.disconnects != cuts) => {}
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &watch::Sender<State>,
    side: Side,
) -> io::Result<()> {
    let mut told = state.subscribe();
    let mut buffer = vec![0; 16_384];
    let mut is_losing = false;
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let _ = told.wait_for(|state| !state.hangs).await;
        let bytes = &buffer[..count];
        if side == Side::Client && bytes.windows(6).any(|window| window == b"COMMIT") {
            state.send_if_modified(|state| {
                is_losing = state.commit_loss == Some(CommitLoss::Armed);
                if is_losing {
                    state.commit_loss = Some(CommitLoss::Sent);
                }
                is_losing
            });
        }
        if side == Side::Server && state.borrow().commit_loss == Some(CommitLoss::Sent) {
            state.send_modify(|state| {
                state.commit_loss = None;
                state.disconnects += 1;
            });
            return Ok(());
        }
        to.write_all(bytes).await?;
    }
}
