//! A way to a server that a test can hang, cut and close.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Passes on what it is sent, as long as it is told nothing else.
pub(crate) struct Proxy {
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
    cuts: u64,
    /// The next commit reaches the server, and its answer reaches nobody: the connection is cut.
    loses: Option<Losing>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Losing {
    Armed,
    /// The commit is with the server.
    Sent,
}

impl Proxy {
    /// A way to the server at `address`.
    pub(crate) async fn to(address: String) -> Self {
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
                    pass(client, server, watched).await;
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
    pub(crate) fn refuse(&self, refuses: bool) {
        self.state.send_modify(|state| {
            state.refuses = refuses;
            state.cuts += u64::from(refuses);
        });
    }

    /// The next commit is done, and nobody hears of it.
    pub(crate) fn lose_a_commit(&self) {
        self.state.send_modify(|state| state.loses = Some(Losing::Armed));
    }

    /// Whether no commit is waited for any more.
    pub(crate) fn has_lost_it(&self) -> bool {
        self.state.borrow().loses.is_none()
    }
}

async fn pass(client: TcpStream, server: TcpStream, state: watch::Sender<State>) {
    let cuts = state.borrow().cuts;
    let mut cut = state.subscribe();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = pump(from_client, to_server, &state, Side::Client) => {}
        _ = pump(from_server, to_client, &state, Side::Server) => {}
        _ = cut.wait_for(|state| state.cuts != cuts) => {}
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
                is_losing = state.loses == Some(Losing::Armed);
                if is_losing {
                    state.loses = Some(Losing::Sent);
                }
                is_losing
            });
        }
        if side == Side::Server && state.borrow().loses == Some(Losing::Sent) {
            state.send_modify(|state| {
                state.loses = None;
                state.cuts += 1;
            });
            return Ok(());
        }
        to.write_all(bytes).await?;
    }
}
