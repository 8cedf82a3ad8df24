//! The envelope for errors of the HTTP library itself.
//!
//! A head that is no HTTP, or too large, never reaches a service: hyper answers it with a bare status. hyper has
//! no hook for this, but such a response can be recognised by the time when it is written: on a connection that
//! waits for a request, only hyper writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use api::{ErrorBody, ErrorCode};
use axum::http::HeaderMap;
use axum::response::IntoResponse as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection_state::ConnectionState;
use super::lingering_close::UnreadBody;
use crate::http::{ApiError, with_request_id};

/// A connection's stream that adds a body to bare errors.
pub(super) struct ErrorEnvelopeStream<S> {
    stream: S,
    state: Arc<ConnectionState>,
    unread: UnreadBody,
    /// The response written instead of a bare error, and the number of its bytes already written.
    replacement: Vec<u8>,
    written: usize,
}

impl<S> ErrorEnvelopeStream<S> {
    pub(super) const fn new(stream: S, state: Arc<ConnectionState>, unread: UnreadBody) -> Self {
        Self { stream, state, unread, replacement: Vec::new(), written: 0 }
    }
}

impl<S: AsyncWrite + Unpin> ErrorEnvelopeStream<S> {
    /// Replaces `bytes` if they are an error of the library itself. Returns whether they were.
    fn replace_bare_error(&mut self, bytes: &[u8]) -> bool {
        let Some(message) = self.state.idle_since().and_then(|_| error_message(bytes)) else {
            return false;
        };
        self.replacement = error_response(message);
        // Neither the rest of the head nor anything after it is read.
        self.unread.mark();
        true
    }

    fn poll_write_replacement(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.replacement.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns the message for the request that hyper answered with `answer`; `None` if `answer` is not a bare error.
fn error_message(answer: &[u8]) -> Option<&'static str> {
    let status = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    if !answer.ends_with(b"\r\n\r\n") {
        return None;
    }
    match status {
        b"400" => Some(
            "this is not a request of HTTP/1.1: its first line must be `METHOD /path HTTP/1.1`, each header must be \
             `name: value`, and there may be one Content-Length (a number) or Transfer-Encoding (chunked)",
        ),
        b"414" | b"431" => Some(
            "the head of the request is too large: its first line and its headers together must be under 64 KiB, \
             and at most 100 headers",
        ),
        _ => None,
    }
}

/// Returns the bytes of the complete response, after which the connection is closed.
fn error_response(message: &str) -> Vec<u8> {
    let error = ApiError::new(ErrorCode::InvalidRequest, message);
    let body = serde_json::to_vec(&ErrorBody::new(error.code(), message)).unwrap_or_default();
    let response = with_request_id(&HeaderMap::new(), error.into_response());
    let mut bytes = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
    for (name, value) in response.headers() {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend(format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()).into_bytes());
    bytes.extend(body);
    bytes
}

impl<S: AsyncRead + Unpin> AsyncRead for ErrorEnvelopeStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ErrorEnvelopeStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.replace_bare_error(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A bare error is written in a single slice.
        if let [only] = slices
            && self.replace_bare_error(only)
        {
            return Poll::Ready(Ok(only.len()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_replacement(context))?;
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.state.response_flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_replacement(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
