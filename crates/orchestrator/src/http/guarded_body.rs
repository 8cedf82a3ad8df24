//! A response body that owns a guard, such as a permit, until it has been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// A body with a guard that is dropped with it, made by [`with_guard`].
struct GuardedBody<T> {
    body: Body,
    _guard: T,
}

/// Returns `body` with `guard`, which is dropped once the body has been sent or abandoned. The body's size hint
/// and end of stream are preserved.
pub(super) fn with_guard<T: Send + Unpin + 'static>(body: Body, guard: T) -> Body {
    Body::new(GuardedBody { body, _guard: guard })
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
