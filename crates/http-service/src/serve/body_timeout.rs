//! The time limit for the body of a request.
//!
//! Only the time that a reader waits counts: a body that nobody reads at the moment, such as one that is forwarded
//! to a slow receiver, is not late.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::http::BodyTimeout;

/// The longest time without data.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the entire body may take, in addition to one second for each [`MIN_BYTES_PER_SECOND`] bytes.
const BASE_TIMEOUT: Duration = Duration::from_mins(1);

/// The required average rate: far less than any network connection carries, far more than a client sends that only
/// wants to occupy a connection.
const MIN_BYTES_PER_SECOND: u64 = 4 * 1024;

/// The body of a request, which fails with [`BodyTimeout`] if it does not arrive in time.
pub(super) struct TimedBody<B> {
    body: B,
    progress: BodyProgress,
    /// The start of the current wait, and its deadline.
    wait: Option<(Instant, Pin<Box<Sleep>>)>,
}

#[derive(Default)]
struct BodyProgress {
    bytes: u64,
    waited: Duration,
}

impl BodyProgress {
    /// Returns how long the next data may take.
    fn time_left(&self) -> Duration {
        let total = BASE_TIMEOUT + Duration::from_secs(self.bytes / MIN_BYTES_PER_SECOND);
        total.saturating_sub(self.waited).min(IDLE_TIMEOUT)
    }
}

impl<B> TimedBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body, progress: BodyProgress::default(), wait: None }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for TimedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, progress, wait } = &mut *self;
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            if let Some((since, _)) = wait.take() {
                progress.waited += since.elapsed();
            }
            let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            progress.bytes += bytes.map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let (_, deadline) =
            wait.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(progress.time_left()))));
        deadline.as_mut().poll(context).map(|()| Some(Err(BodyTimeout.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{Stream, StreamExt as _, stream};
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    /// `count` pieces of `size` bytes, one after each `pause`.
    fn drip(count: u32, size: usize, pause: Duration) -> impl Stream<Item = Bytes> {
        stream::iter(0..count).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Bytes::from(vec![b'x'; size])
        })
    }

    /// Reads a body; returns how many bytes arrived, how long that took, and whether it timed out.
    async fn read(body: impl Stream<Item = Bytes>) -> (usize, Duration, bool) {
        let body = body.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
        let mut body = TimedBody::new(StreamBody::new(Box::pin(body)));
        let (started, mut bytes) = (Instant::now(), 0);
        let timed_out = loop {
            match body.frame().await {
                Some(Ok(frame)) => bytes += frame.into_data().unwrap().len(),
                Some(Err(error)) => break error.is::<BodyTimeout>(),
                None => break false,
            }
        };
        (bytes, started.elapsed(), timed_out)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn who_sends_nothing_or_hardly_anything_is_given_up() {
        let silent = read(drip(1, 1, SECOND).chain(stream::pending())).await;
        assert_eq!((silent.0, silent.1.as_secs(), silent.2), (1, 31, true));
        let drops = read(drip(1_000, 1, SECOND * 7)).await;
        assert_eq!((drops.0, drops.1.as_secs(), drops.2), (8, 60, true));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_and_goes_on_is_heard_to_the_end() {
        // 32 MiB at 5 KiB a second, in pieces of 100 KiB: close to two hours.
        let slow = read(drip(328, 100 << 10, SECOND * 20)).await;
        assert_eq!((slow.0, slow.2), (328 * (100 << 10), false));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_reader_that_does_not_read_is_not_the_bodys() {
        let body = drip(100, 1, Duration::ZERO).map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
        let mut body = TimedBody::new(StreamBody::new(Box::pin(body)));
        while let Some(frame) = body.frame().await {
            frame.unwrap();
            tokio::time::sleep(SECOND * 100).await;
        }
    }
}
