//! A connection to an engine whose response is read even if the engine does not read the whole request.
//!
//! An engine may answer before it has received the whole request, for example because the body is too large, and
//! close the connection. If it does not read the rest, the system resets the connection and the next write fails.
//! The response can still be read, but the HTTP client abandons a request at the first failed write, possibly
//! before it polls for the response. So this stream hides such a failure: further writes are discarded, and the
//! outcome depends on what is read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that can be read to its end after a write has failed.
pub(super) struct HalfOpenStream<S> {
    stream: S,
    /// The error of the first failed write. It is reported instead of the end of the stream, because the response
    /// may be incomplete.
    write_error: Option<io::Error>,
}

impl<S> HalfOpenStream<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self { stream, write_error: None }
    }

    /// Performs a write of `length` bytes; once one has failed, all writes report success and discard the bytes.
    fn absorb_write_error(
        &mut self,
        length: usize,
        write: impl FnOnce(&mut S) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.write_error.is_some() {
            return Poll::Ready(Ok(length));
        }
        match ready!(write(&mut self.stream)) {
            // Both mean that the peer has closed the connection, so reads reach the end without waiting.
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
