//! A TCP proxy to a server, whose connections a test can hang, cut and refuse.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Forwards all traffic until a test injects a fault.
pub(crate) struct FaultProxy {
    port: u16,
    state: watch::Sender<State>,
    _accepting: AbortOnDropHandle<()>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// Whether traffic is held back.
    hangs: bool,
    /// Whether new connections are closed immediately.
    refuses: bool,
    /// The number of times that all connections were cut.
    disconnects: u64,
    /// A pending commit loss: the next commit reaches the server, but the connection is cut before its response
    /// reaches the client.
    commit_loss: Option<CommitLoss>,
    /// All connections are cut when a client sends this text, once.
    cut_at: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitLoss {
    Armed,
    /// The commit has been sent to the server.
    Sent,
}

impl FaultProxy {
    /// Starts a proxy to the server at `address`.
    pub(crate) async fn start(address: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = watch::Sender::new(State::default());
        let current = state.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if current.borrow().refuses {
                    continue;
                }
                let (state, address) = (current.clone(), address.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(&address).await else { return };
                    forward(client, server, state).await;
                });
            }
        });
        Self { port, state, _accepting: AbortOnDropHandle::new(accepting) }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Holds back all traffic, or resumes forwarding it.
    pub(crate) fn hang(&self, hangs: bool) {
        self.state.send_modify(|state| state.hangs = hangs);
    }

    /// Cuts all connections and refuses new ones, or accepts connections again.
    pub(crate) fn refuse_connections(&self, refuses: bool) {
        self.state.send_modify(|state| {
            state.refuses = refuses;
            state.disconnects += u64::from(refuses);
        });
    }

    /// Loses the response to the next commit: the server commits, and the client is disconnected.
    pub(crate) fn drop_next_commit_ack(&self) {
        self.state.send_modify(|state| state.commit_loss = Some(CommitLoss::Armed));
    }

    /// Cuts all connections instead of sending the next query that contains `text`.
    pub(crate) fn cut_at(&self, text: &'static str) {
        self.state.send_modify(|state| state.cut_at = Some(text));
    }

    /// Whether connections were cut at a query, so that no cut is pending.
    pub(crate) fn was_cut(&self) -> bool {
        self.state.borrow().cut_at.is_none()
    }

    /// Whether the response to a commit has been lost, so that no loss is pending.
    pub(crate) fn commit_ack_dropped(&self) -> bool {
        self.state.borrow().commit_loss.is_none()
    }
}

async fn forward(client: TcpStream, server: TcpStream, state: watch::Sender<State>) {
    let disconnects = state.borrow().disconnects;
    let mut changes = state.subscribe();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = pump(from_client, to_server, &state, Side::Client) => {}
        _ = pump(from_server, to_client, &state, Side::Server) => {}
        _ = changes.wait_for(|state| state.disconnects != disconnects) => {}
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
    let mut changes = state.subscribe();
    let mut buffer = vec![0; 16_384];
    let mut loses_ack = false;
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let _ = changes.wait_for(|state| !state.hangs).await;
        let bytes = &buffer[..count];
        if side == Side::Client
            && state.send_if_modified(|state| {
                let cuts = state
                    .cut_at
                    .is_some_and(|text| bytes.windows(text.len()).any(|window| window == text.as_bytes()));
                if cuts {
                    state.cut_at = None;
                    state.disconnects += 1;
                }
                cuts
            })
        {
            return Ok(());
        }
        if side == Side::Client && bytes.windows(6).any(|window| window == b"COMMIT") {
            state.send_if_modified(|state| {
                loses_ack = state.commit_loss == Some(CommitLoss::Armed);
                if loses_ack {
                    state.commit_loss = Some(CommitLoss::Sent);
                }
                loses_ack
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
