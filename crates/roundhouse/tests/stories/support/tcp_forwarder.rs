//! A TCP forwarder: lets containers reach the host's loopback interface, and connections that can be cut.

use std::net::{SocketAddr, ToSocketAddrs};

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
        let listener = std::net::TcpListener::bind(from).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            // Dropping the set with the task ends the connections.
            let mut connections = JoinSet::new();
            while let Ok((mut inbound, _)) = listener.accept().await {
                connections.spawn(async move {
                    if let Ok(mut outbound) = TcpStream::connect(to).await {
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
