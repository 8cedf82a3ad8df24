//! A proxy between the orchestrator and PostgreSQL that can break connections or hold data back.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The behaviour of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyMode {
    /// It forwards all data.
    Open,
    /// It breaks all connections, and each new one immediately.
    Cut,
    /// It keeps all connections but forwards nothing.
    Hung,
}

/// A proxy for the socket of a server. Dropped, it stops and its connections break.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    mode: watch::Sender<ProxyMode>,
    server_task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy that forwards to `socket`.
    pub(crate) async fn start(socket: PathBuf) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (mode, mode_receiver) = watch::channel(ProxyMode::Open);
        Ok(Self {
            address,
            mode,
            server_task: tokio::spawn(serve(listener, Arc::new(socket), mode_receiver)),
        })
    }

    /// Sets the behaviour of existing and new connections.
    pub(crate) fn set_mode(&self, mode: ProxyMode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server_task.abort();
    }
}

async fn serve(listener: TcpListener, socket: Arc<PathBuf>, mode: watch::Receiver<ProxyMode>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    connections.spawn(forward_connection(client, Arc::clone(&socket), mode.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards one connection until an error or the mode ends it.
async fn forward_connection(
    mut client: TcpStream,
    socket: Arc<PathBuf>,
    mut mode: watch::Receiver<ProxyMode>,
) {
    let _ = client.set_nodelay(true);
    let (to_server, to_client) = (mode.clone(), mode.clone());
    let forwarding = async {
        let mut server = UnixStream::connect(&*socket).await?;
        let (from_server, into_server) = server.split();
        let (from_client, into_client) = client.split();
        tokio::select! {
            ended = copy_while_open(from_client, into_server, to_server) => ended,
            ended = copy_while_open(from_server, into_client, to_client) => ended,
        }
    };
    tokio::select! {
        _ = forwarding => {}
        _ = mode.wait_for(|mode| *mode == ProxyMode::Cut) => {}
    }
}

/// Forwards bytes. While the mode is `Hung`, received bytes are held back and forwarded later.
async fn copy_while_open(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut mode: watch::Receiver<ProxyMode>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 || mode.wait_for(|mode| *mode != ProxyMode::Hung).await.is_err() {
            return Ok(());
        }
        to.write_all(buffer.get(..read).unwrap_or_default()).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::UnixListener;

    use super::*;

    /// Long enough for any answer on a busy machine.
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
    /// Long enough for most answers, where none is expected.
    const SILENCE_TIMEOUT: Duration = Duration::from_millis(200);

    /// Returns whether a byte is echoed; `None` if nothing happens within `timeout`.
    async fn echoes(stream: &mut TcpStream, timeout: Duration) -> Option<bool> {
        let mut byte = [0];
        let echo = async {
            stream.write_all(b"x").await?;
            stream.read(&mut byte).await
        };
        let echo = tokio::time::timeout(timeout, echo).await.ok()?;
        Some(matches!(echo, Ok(1)))
    }

    #[tokio::test]
    async fn it_passes_on_or_breaks_or_keeps_silent() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let server = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = server.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.into_split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        let proxy = Proxy::start(socket).await.unwrap();
        let connect = || async { TcpStream::connect(proxy.address).await.unwrap() };
        let (mut early, mut late) = (connect().await, connect().await);
        assert_eq!(echoes(&mut early, ANSWER_TIMEOUT).await, Some(true));
        proxy.set_mode(ProxyMode::Hung);
        assert_eq!(echoes(&mut early, SILENCE_TIMEOUT).await, None);
        assert_eq!(echoes(&mut late, SILENCE_TIMEOUT).await, None);
        proxy.set_mode(ProxyMode::Open);
        assert_eq!(echoes(&mut late, ANSWER_TIMEOUT).await, Some(true));
        // Each connection has forwarded two bytes in total, of which one was echoed before.
        let mut rest = [0];
        early.read_exact(&mut rest).await.unwrap();
        late.read_exact(&mut rest).await.unwrap();
        proxy.set_mode(ProxyMode::Cut);
        assert_eq!(echoes(&mut early, ANSWER_TIMEOUT).await, Some(false));
        assert_eq!(echoes(&mut connect().await, ANSWER_TIMEOUT).await, Some(false));
        proxy.set_mode(ProxyMode::Open);
        assert_eq!(echoes(&mut connect().await, ANSWER_TIMEOUT).await, Some(true));
    }
}
