//! The service around all routes that measures answers, if metrics are recorded.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use api::ErrorCode;
use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use pin_project_lite::pin_project;
use tower::Service;

use crate::metrics::Recorder;

/// Measures what `inner` answers.
#[derive(Clone)]
pub(crate) struct Measured<S> {
    inner: S,
    recorder: Option<Arc<Recorder>>,
}

impl<S> Measured<S> {
    /// Without a recorder it only passes on.
    pub(super) const fn new(inner: S, recorder: Option<Arc<Recorder>>) -> Self {
        Self { inner, recorder }
    }
}

impl<S: Service<Request, Response = Response>> Service<Request> for Measured<S> {
    type Response = Response;
    type Error = S::Error;
    type Future = MeasuredFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let measurement = self.recorder.clone().map(|recorder| (recorder, Instant::now()));
        MeasuredFuture { response: self.inner.call(request), measurement }
    }
}

pin_project! {
    /// The handling of a request, until the head of its answer.
    pub(crate) struct MeasuredFuture<F> {
        #[pin]
        response: F,
        measurement: Option<(Arc<Recorder>, Instant)>,
    }
}

impl<E, F: Future<Output = Result<Response, E>>> Future for MeasuredFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.response.poll(context));
        if let (Some((recorder, started)), Ok(response)) = (this.measurement.take(), &result) {
            let extensions = response.extensions();
            let route = extensions.get().map(MatchedPath::as_str);
            let code = extensions.get::<ErrorCode>().copied();
            recorder.answer(route, response.status().as_u16(), code, started.elapsed());
        }
        Poll::Ready(result)
    }
}
