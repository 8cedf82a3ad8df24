//! The body of a download, which a client that does not read cannot hold for ever.

use std::io;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// How long a client may take for a chunk. A connection with less than a few kilobytes per second is given up.
const STALL_TIMEOUT: Duration = Duration::from_mins(1);

/// Returns a body that is cut off if the content cannot be read to its end, or if the client does not take it.
/// `held` is dropped at the end of the download, also if the client still has its connection open.
pub(crate) fn download_body<E: std::error::Error + Send + Sync + 'static>(
    content: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    held: impl Send + 'static,
) -> Body {
    // One chunk is made while another is sent.
    let (sender, mut receiver) = mpsc::channel(1);
    let sending = async move {
        let _held = held;
        let mut content = std::pin::pin!(content);
        while let Some(chunk) = content.next().await {
            let chunk = chunk.map_err(|error| {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "A download was cut off by an error."
                );
                io::Error::other(error)
            });
            let is_last = chunk.is_err();
            match tokio::time::timeout(STALL_TIMEOUT, sender.send(Some(chunk))).await {
                Ok(Ok(())) if !is_last => {}
                Ok(_) => return,
                Err(_) => {
                    tracing::info!("A download was cut off, because its client did not read.");
                    return;
                }
            }
        }
        // Distinguishes the end from a download that was given up.
        let _ = tokio::time::timeout(STALL_TIMEOUT, sender.send(None)).await;
    };
    let sending = AbortOnDropHandle::new(tokio::spawn(sending));
    let chunks = futures::stream::poll_fn(move |context| {
        let _owned = &sending;
        receiver
            .poll_recv(context)
            .map(|chunk| chunk.unwrap_or_else(|| Some(Err(io::Error::from(io::ErrorKind::TimedOut)))))
    });
    Body::from_stream(chunks)
}

#[cfg(test)]
#[path = "../../tests/unit/http/download_body.rs"]
mod tests;
