//! The close of a connection whose client may still be sending.
//!
//! A request that is refused before its body has arrived, such as one that is too large, is answered and its
//! connection closed. If data arrives at a closed socket, the system resets the connection, and the client fails
//! while sending, perhaps before it has read the response. So only the write side is closed first, and data that
//! still arrives is discarded for a while (RFC 9112, section 9.6).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

/// How long a client may go on sending after its response, unless the server shuts down earlier.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// How many bytes a client may still send after its response.
const MAX_LINGER_BYTES: usize = 64 * 1024 * 1024;

/// Whether the body of a connection's last request was dropped before its end.
#[derive(Clone, Debug, Default)]
pub(super) struct UnreadBody(Arc<AtomicBool>);

impl UnreadBody {
    /// Tracks the body of a new request.
    pub(super) fn track<B: Body + Unpin>(&self, body: B) -> TrackedRequestBody<B> {
        self.0.store(false, Ordering::Relaxed);
        TrackedRequestBody { body, is_read: false, unread: self.clone() }
    }

    /// Records that further data of the client will not be read.
    pub(super) fn mark(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A request's body that records whether it was read to its end.
pub(super) struct TrackedRequestBody<B: Body + Unpin> {
    body: B,
    /// Whether the end was reached; for a body without a length this is the only indication.
    is_read: bool,
    unread: UnreadBody,
}

impl<B: Body + Unpin> Body for TrackedRequestBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.is_read = frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body + Unpin> Drop for TrackedRequestBody<B> {
    fn drop(&mut self) {
        self.unread.0.store(!self.is_read && !self.body.is_end_stream(), Ordering::Relaxed);
    }
}

/// A connection's stream, which lingers when it is shut down with a body unread.
pub(super) struct LingeringStream<S> {
    stream: S,
    unread: UnreadBody,
    shutdown: CancellationToken,
    /// Present once the write side is closed.
    linger: Option<LingerState>,
}

/// How much and how long the client may still send.
struct LingerState {
    bytes: usize,
    deadline: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<S> LingeringStream<S> {
    pub(super) const fn new(stream: S, unread: UnreadBody, shutdown: CancellationToken) -> Self {
        Self { stream, unread, shutdown, linger: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, unread, shutdown, linger } = &mut *self;
        let LingerState { bytes, deadline } = if let Some(linger) = linger {
            linger
        } else {
            ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
            if !unread.0.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            // hyper may have read the rest of a dropped body since, without any notice: a connection that looks
            // unread may be idle, and must not delay the shutdown.
            let shutdown = shutdown.clone().cancelled_owned();
            let deadline = async move { drop(tokio::time::timeout(LINGER_TIMEOUT, shutdown).await) };
            linger.insert(LingerState { bytes: MAX_LINGER_BYTES, deadline: Box::pin(deadline) })
        };
        let mut discarded = [0; 8 * 1024];
        while *bytes > 0 && deadline.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut discarded);
            match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *bytes = bytes.saturating_sub(buffer.filled().len()),
                // The client has closed or reset the connection.
                Ok(()) | Err(_) => break,
            }
        }
        // So that a further call returns at once.
        *bytes = 0;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;

    /// Returns how long a shutdown takes with `client`, and how much the client could send.
    async fn measure_shutdown<F: Future<Output = usize>>(
        is_unread: bool,
        client: impl FnOnce(DuplexStream) -> F,
    ) -> (Duration, usize) {
        let (ours, theirs) = duplex(64 * 1024);
        let unread = UnreadBody(Arc::new(AtomicBool::new(is_unread)));
        let mut lingering = LingeringStream::new(ours, unread, CancellationToken::new());
        let started = Instant::now();
        let served = async {
            lingering.shutdown().await.unwrap();
            drop(lingering);
            started.elapsed()
        };
        tokio::join!(served, client(theirs))
    }

    /// Sends endlessly, with a pause after each piece.
    async fn send(mut stream: DuplexStream, piece: usize, pause: Duration) -> usize {
        let (piece, mut sent) = (vec![b'x'; piece], 0);
        while stream.write_all(&piece).await.is_ok() {
            sent += piece.len();
            tokio::time::sleep(pause).await;
        }
        sent
    }

    #[tokio::test]
    async fn a_body_is_unread_that_was_given_up_before_its_end() {
        let unread = UnreadBody::default();
        let is_unread = || unread.0.load(Ordering::Relaxed);
        let empty = || unread.track(axum::body::Body::empty());
        let chunked = || {
            let pieces = ["a", "b"].map(|piece| Ok::<_, Infallible>(piece.to_owned()));
            unread.track(axum::body::Body::from_stream(futures::stream::iter(pieces)))
        };
        let mut half = chunked();
        half.frame().await.unwrap().unwrap();
        drop(half);
        assert!(is_unread(), "dropped half-way");
        chunked().collect().await.unwrap();
        assert!(!is_unread(), "read to its end");
        drop(chunked());
        assert!(is_unread(), "dropped before its beginning");
        drop(empty());
        assert!(!is_unread(), "there is no body");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_go_on_sending_for_a_while_and_within_bounds() {
        let second = Duration::from_secs(1);
        let (took, sent) = measure_shutdown(true, |client| send(client, 1, second / 10)).await;
        assert!((LINGER_TIMEOUT..LINGER_TIMEOUT + second).contains(&took), "{took:?}");
        assert!((49..=52).contains(&sent), "{sent}");
        let (took, sent) = measure_shutdown(true, |client| send(client, 64 * 1024, Duration::ZERO)).await;
        assert!(
            took < second && (MAX_LINGER_BYTES..MAX_LINGER_BYTES + (1 << 20)).contains(&sent),
            "{took:?} {sent}"
        );
        // The client reads the end of the response, then closes the connection.
        let read = |mut client: DuplexStream| async move { client.read(&mut [0]).await.unwrap() };
        assert_eq!(measure_shutdown(true, read).await, (Duration::ZERO, 0));
        // A client that has sent everything is not waited for, even if it keeps the connection open.
        let (took, _) = measure_shutdown(false, |client| send(client, 1, second * 60)).await;
        assert_eq!(took, Duration::ZERO);
    }
}
