//! A TCP forwarder: lets containers reach the host's loopback interface, and connections that can be cut.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Forwards connections until this is dropped, which breaks the open ones.
#[derive(Debug)]
pub(crate) struct TcpForwarder {
    pub(crate) address: SocketAddr,
    task: AbortHandle,
}

impl TcpForwarder {
    /// Listens on a free port of `host` and forwards connections to `to`.
    pub(crate) fn bind_any(host: &str, to: SocketAddr) -> Self {
        Self::bind((host, 0), to)
    }

    /// Listens at `from` and forwards connections to `to`.
    pub(crate) fn bind(from: impl ToSocketAddrs, to: SocketAddr) -> Self {
        Self::forward(from, move || TcpStream::connect(to))
    }

    /// Listens on a free port and forwards connections to `to`; while nothing listens there, they wait.
    pub(crate) fn bind_patient(to: SocketAddr) -> Self {
        Self::forward(("127.0.0.1", 0), move || async move {
            loop {
                match TcpStream::connect(to).await {
                    Ok(connection) => return Ok(connection),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        })
    }

    fn forward<F>(from: impl ToSocketAddrs, connect: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = std::io::Result<TcpStream>> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind(from).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            // Dropping the set with the task ends the connections.
            let mut connections = JoinSet::new();
            while let Ok((mut inbound, _)) = listener.accept().await {
                let outbound = connect();
                connections.spawn(async move {
                    if let Ok(mut outbound) = outbound.await {
                        // A broken connection is noticed by its other end.
                        let _ = copy_bidirectional(&mut inbound, &mut outbound).await;
                    }
                });
            }
        });
        Self { address, task: task.abort_handle() }
    }
}

impl Drop for TcpForwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}
