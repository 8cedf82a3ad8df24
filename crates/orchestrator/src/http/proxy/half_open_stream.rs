//! The connection to an engine, which is heard out though it does not hear us out.
//!
//! An engine may answer before it has all of a call, such as one that is too large, and close. If it does not wait for
//! the rest, the system resets the connection, and the next write fails. The answer is still there to be read, but the
//! HTTP client gives a call up at the first write that fails, and that may be before it is told that there is something
//! to read. So it is not told of such a write: what it still sends is thrown away, and what it reads decides.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that is read to its end when it can be written to no more.
pub(super) struct HalfOpenStream<S> {
    stream: S,
    /// How the first write failed. It is told in place of the end: nobody knows whether more was to come.
    write_error: Option<io::Error>,
}

impl<S> HalfOpenStream<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self { stream, write_error: None }
    }

    /// What to tell of a write of `length` bytes.
    fn absorb_write_error(
        &mut self,
        length: usize,
        write: impl FnOnce(&mut S) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.write_error.is_some() {
            return Poll::Ready(Ok(length));
        }
        match ready!(write(&mut self.stream)) {
            // Both say that the other end has closed: what can be read comes to an end at once.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                self.write_error = Some(error);
                Poll::Ready(Ok(length))
            }
            written => Poll::Ready(written),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfOpenStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        Poll::Ready(match self.write_error.take_if(|_| is_end) {
            Some(error) => Err(error),
            None => Ok(()),
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HalfOpenStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.absorb_write_error(bytes.len(), |stream| Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        self.absorb_write_error(length, |stream| Pin::new(stream).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: Connection> Connection for HalfOpenStream<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}
