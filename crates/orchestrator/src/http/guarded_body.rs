//! A body that keeps something for as long as it is being sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// See [`with_guard`].
struct GuardedBody<T> {
    body: Body,
    _guard: T,
}

/// `body`, with `kept` until it has been sent or given up. Its length and its end stay known.
pub(super) fn with_guard<T: Send + Unpin + 'static>(body: Body, kept: T) -> Body {
    Body::new(GuardedBody { body, _guard: kept })
}

impl<T: Unpin> HttpBody for GuardedBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
