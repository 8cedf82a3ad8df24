//! How far a connection is: whether it waits for a request, or one is being answered.
//!
//! Who is waiting can be closed without loss, and what is written then was said by the HTTP library and not by a
//! service.

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

/// One connection's place in its exchange.
#[derive(Debug)]
pub(super) struct ConnectionState {
    epoch: Instant,
    /// `IN_REQUEST`, `RESPONSE_PRODUCED` (all is said, but not yet written), or the milliseconds after `epoch` since which it
    /// waits for a request's head.
    state: AtomicU64,
}

impl ConnectionState {
    /// Of a connection that begins. `epoch` is the same for all connections that are compared.
    pub(super) fn new(epoch: Instant) -> Arc<Self> {
        let exchange = Self { epoch, state: AtomicU64::new(RESPONSE_PRODUCED) };
        exchange.response_flushed();
        Arc::new(exchange)
    }

    /// A request's head has come.
    pub(super) fn request_started(&self) {
        self.state.store(IN_REQUEST, Ordering::Relaxed);
    }

    /// All that was to be written is written.
    pub(super) fn response_flushed(&self) {
        if self.state.load(Ordering::Relaxed) == RESPONSE_PRODUCED {
            let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.state.store(now.min(RESPONSE_PRODUCED - 1), Ordering::Relaxed);
        }
    }

    /// Since when, from the epoch on, it waits for a request; none while one is answered.
    pub(super) fn idle_since(&self) -> Option<Duration> {
        let state = self.state.load(Ordering::Relaxed);
        (state < RESPONSE_PRODUCED).then(|| Duration::from_millis(state))
    }

    /// The answer, watched until it is said.
    pub(super) fn track_response(self: Arc<Self>, answer: Response) -> hyper::Response<TrackedResponseBody> {
        answer.map(|body| TrackedResponseBody { body, _end: ResponseEndGuard(self) })
    }
}

pin_project! {
    /// The body of an answer.
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
