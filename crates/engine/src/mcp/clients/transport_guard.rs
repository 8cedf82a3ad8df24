//! The line to a server: whether it stands, why it does not, and a guard for what passes over it.

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

/// The most messages that may wait to be taken by a server. One that asks much and takes no answers would pile them up.
const MAX_PENDING_SENDS: usize = 256;
/// The most messages that a server may send in a window. No use of the protocol comes near.
const MAX_MESSAGES_PER_WINDOW: u32 = 10_000;
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// The state of a line.
pub(super) struct TransportState {
    ended: CancellationToken,
    reason: OnceLock<String>,
    received_count: AtomicU64,
}

impl TransportState {
    /// A line that ends with `owner` at the latest.
    pub(super) fn new(owner: &CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            ended: owner.child_token(),
            reason: OnceLock::new(),
            received_count: AtomicU64::new(0),
        })
    }

    /// Ends it. The first reason is the one that is told.
    pub(super) fn end(&self, reason: impl Into<String>) {
        self.reason.get_or_init(|| reason.into());
        self.ended.cancel();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Waits for its end.
    pub(super) async fn wait_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Waits for its end, without keeping it.
    pub(super) fn wait_ended_owned(&self) -> WaitForCancellationFutureOwned {
        self.ended.clone().cancelled_owned()
    }

    /// Why it ended, or why a single answer did not come over it.
    pub(super) fn reason(&self) -> &str {
        match self.reason.get() {
            Some(reason) => reason,
            None if self.has_ended() => CONNECTION_ENDED,
            None => "the connection was closed",
        }
    }

    /// How many messages came over it.
    pub(super) fn received_count(&self) -> u64 {
        self.received_count.load(Ordering::Acquire)
    }
}

/// A transport that ends with its line, and its line with it.
pub(super) struct GuardedTransport<T> {
    inner: T,
    state: Arc<TransportState>,
    pending_sends: Arc<Semaphore>,
    window: (Instant, u32),
}

impl<T> GuardedTransport<T> {
    pub(super) fn new(inner: T, line: Arc<TransportState>) -> Self {
        Self {
            inner,
            state: line,
            pending_sends: Arc::new(Semaphore::new(MAX_PENDING_SENDS)),
            window: (Instant::now(), 0),
        }
    }

    /// Counts a message; a flood ends the line.
    fn count_message(&mut self) {
        self.state.received_count.fetch_add(1, Ordering::AcqRel);
        let (began, count) = &mut self.window;
        if began.elapsed() > RATE_WINDOW {
            (*began, *count) = (Instant::now(), 0);
        }
        *count += 1;
        if *count > MAX_MESSAGES_PER_WINDOW {
            self.state.end(format!("it sends over {MAX_MESSAGES_PER_WINDOW} messages a second"));
        }
    }
}

impl<T> Drop for GuardedTransport<T> {
    /// Also where it is dropped before anybody has closed it, as a transport is whose server took too long: what it has
    /// under way in other tasks ends with the line.
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
        let place = Arc::clone(&self.pending_sends).try_acquire_owned();
        if place.is_err() {
            self.state.end("it does not take what it is sent");
        }
        let send = self.inner.send(item);
        async move {
            let _place = place;
            send.await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let line = Arc::clone(&self.state);
        let message = tokio::select! {
            biased;
            () = line.wait_ended() => return None,
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
