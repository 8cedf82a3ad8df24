//! The state of a connection: whether it waits for a request, or a request is being answered.
//!
//! A waiting connection can be closed without loss, and anything written to it comes from the HTTP library and not
//! from a service.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body as AxumBody, Bytes};
use axum::response::Response;
use hyper::body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

const IN_REQUEST: u64 = u64::MAX;
const RESPONSE_PRODUCED: u64 = u64::MAX - 1;

/// The state of one connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    epoch: Instant,
    /// `IN_REQUEST`, `RESPONSE_PRODUCED` (the response is complete but not yet written), or, for a connection that
    /// waits for a request's head, the time of its last response in milliseconds after `epoch`.
    state: AtomicU64,
}

impl ConnectionState {
    /// Creates the state of a new connection. `epoch` is the same for all connections that are compared.
    pub(super) fn new(epoch: Instant) -> Arc<Self> {
        let connection = Self { epoch, state: AtomicU64::new(RESPONSE_PRODUCED) };
        connection.response_flushed();
        Arc::new(connection)
    }

    /// Records that a request's head has arrived.
    pub(super) fn request_started(&self) {
        self.state.store(IN_REQUEST, Ordering::Relaxed);
    }

    /// Records that everything has been written.
    pub(super) fn response_flushed(&self) {
        if self.state.load(Ordering::Relaxed) == RESPONSE_PRODUCED {
            let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.state.store(now.min(RESPONSE_PRODUCED - 1), Ordering::Relaxed);
        }
    }

    /// Returns the time, after the epoch, since which the connection waits for a request; `None` while a request
    /// is being answered.
    pub(super) fn idle_since(&self) -> Option<Duration> {
        let state = self.state.load(Ordering::Relaxed);
        (state < RESPONSE_PRODUCED).then(|| Duration::from_millis(state))
    }

    /// Wraps the response's body, so that its end is recorded.
    pub(super) fn track_response(
        self: Arc<Self>,
        response: Response,
    ) -> hyper::Response<TrackedResponseBody> {
        response.map(|body| TrackedResponseBody { body, _end: ResponseEndGuard(self) })
    }
}

pin_project! {
    /// A response's body that records its end when it is dropped.
    pub(super) struct TrackedResponseBody {
        #[pin]
        body: AxumBody,
        _end: ResponseEndGuard,
    }
}

struct ResponseEndGuard(Arc<ConnectionState>);

impl Drop for ResponseEndGuard {
    fn drop(&mut self) {
        self.0.state.store(RESPONSE_PRODUCED, Ordering::Relaxed);
    }
}

impl Body for TrackedResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.project().body.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
