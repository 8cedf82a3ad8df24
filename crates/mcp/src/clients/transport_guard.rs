//! The state of a transport to a server: whether and why it has ended, and a wrapper that limits its messages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::CONNECTION_ENDED;

/// The maximum number of messages queued for a server. One that asks much and reads no answers would let them pile
/// up.
const MAX_PENDING_SENDS: usize = 256;
/// The maximum number of messages that a server may send in a window. No legitimate use comes near it.
const MAX_MESSAGES_PER_WINDOW: u32 = 10_000;
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// The state of a transport.
pub(super) struct TransportState {
    ended: CancellationToken,
    reason: OnceLock<String>,
    received_count: AtomicU64,
}

impl TransportState {
    /// Creates the state of a transport that ends with `owner` at the latest.
    pub(super) fn new(owner: &CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            ended: owner.child_token(),
            reason: OnceLock::new(),
            received_count: AtomicU64::new(0),
        })
    }

    /// Ends the transport. The first reason is the one that is reported.
    pub(super) fn end(&self, reason: impl Into<String>) {
        self.reason.get_or_init(|| reason.into());
        self.ended.cancel();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Waits for the end of the transport.
    pub(super) async fn wait_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Waits for the end of the transport, without keeping its state alive.
    pub(super) fn wait_ended_owned(&self) -> WaitForCancellationFutureOwned {
        self.ended.clone().cancelled_owned()
    }

    /// Returns why the transport ended, or why a single answer did not arrive.
    pub(super) fn reason(&self) -> &str {
        match self.reason.get() {
            Some(reason) => reason,
            None if self.has_ended() => CONNECTION_ENDED,
            None => "the connection was closed",
        }
    }

    /// Returns the number of messages received.
    pub(super) fn received_count(&self) -> u64 {
        self.received_count.load(Ordering::Acquire)
    }
}

/// A transport and its state; each ends with the other.
pub(super) struct GuardedTransport<T> {
    inner: T,
    state: Arc<TransportState>,
    pending_sends: Arc<Semaphore>,
    window: (Instant, u32),
}

impl<T> GuardedTransport<T> {
    pub(super) fn new(inner: T, state: Arc<TransportState>) -> Self {
        Self {
            inner,
            state,
            pending_sends: Arc::new(Semaphore::new(MAX_PENDING_SENDS)),
            window: (Instant::now(), 0),
        }
    }

    /// Counts a message; a flood ends the transport.
    fn count_message(&mut self) {
        self.state.received_count.fetch_add(1, Ordering::AcqRel);
        let (began, count) = &mut self.window;
        if began.elapsed() > RATE_WINDOW {
            (*began, *count) = (Instant::now(), 0);
        }
        *count += 1;
        if *count > MAX_MESSAGES_PER_WINDOW {
            self.state.end(format!("it sent over {MAX_MESSAGES_PER_WINDOW} messages a second"));
        }
    }
}

impl<T> Drop for GuardedTransport<T> {
    /// Runs even if nobody closed the transport, as when connecting took too long: its requests in other tasks end
    /// with it.
    fn drop(&mut self) {
        self.state.ended.cancel();
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for GuardedTransport<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let permit = Arc::clone(&self.pending_sends).try_acquire_owned();
        if permit.is_err() {
            self.state.end("it does not read what it is sent");
        }
        let send = self.inner.send(item);
        async move {
            let _permit = permit;
            send.await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let state = Arc::clone(&self.state);
        let message = tokio::select! {
            biased;
            () = state.wait_ended() => return None,
            message = self.inner.receive() => message,
        };
        match message {
            Some(_) => self.count_message(),
            None => self.state.end("it closed the connection"),
        }
        message
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.state.end(CONNECTION_ENDED);
        self.inner.close().await
    }
}
