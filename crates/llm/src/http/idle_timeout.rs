//! Time limits for bodies that stall without ending.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

/// How long a provider may send nothing, before its first byte or between two. A model that thinks for long sends
/// only pings, or nothing, for minutes.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_mins(5);
/// How long a provider may send only data that do not advance its answer, such as pings.
const STALL_TIMEOUT: Duration = Duration::from_mins(20);

/// Reads the beginning of a body: what arrives within `time_limit`, up to and including the chunk that
/// exceeds `max_bytes` bytes.
pub(super) async fn read_prefix<E>(
    bytes: impl Stream<Item = Result<Bytes, E>> + Send,
    max_bytes: usize,
    time_limit: Duration,
) -> Vec<u8> {
    let (mut bytes, mut prefix) = (pin!(bytes), Vec::new());
    let read = async {
        while let Some(Ok(chunk)) = bytes.next().await {
            prefix.extend_from_slice(&chunk);
            if prefix.len() > max_bytes {
                break;
            }
        }
    };
    // On a timeout, the part that has arrived is used.
    let _ = timeout(time_limit, read).await;
    prefix
}

/// A body with time limits for silence and for lack of progress.
pub(super) struct IdleTimeoutBody<B> {
    body: B,
    /// One timer for all chunks, checked when it fires and then reset: a timer per chunk would cost as much as
    /// reading the chunk. `None` before the body is first waited for.
    timer: Option<Pin<Box<Sleep>>>,
    last_chunk_at: Instant,
    /// Whether the last chunk advanced the answer; the field below is the arrival time of the chunk after the
    /// latest that did.
    made_progress: bool,
    last_progress_at: Instant,
}

impl<B, E> IdleTimeoutBody<B>
where
    B: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::error::Error + Send + Sync + 'static,
{
    /// Creates a monitored body; its time limits begin now.
    pub(super) fn new(body: B) -> Self {
        let now = Instant::now();
        Self { body, timer: None, last_chunk_at: now, made_progress: false, last_progress_at: now }
    }

    /// Records that the last chunk advanced the answer.
    pub(super) fn note_progress(&mut self) {
        self.made_progress = true;
    }

    /// Returns the next chunk; `None` at the end.
    ///
    /// # Errors
    /// The connection broke, nothing arrived for [`IDLE_TIMEOUT`], or nothing advanced the answer for
    /// [`STALL_TIMEOUT`]. The latter is noticed with the next chunk, and counted from the chunk after the last
    /// that advanced the answer: it is exceeded by at most twice [`IDLE_TIMEOUT`].
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let timed_out =
            |reason: String| Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, reason))));
        loop {
            if let Poll::Ready(chunk) = self.body.poll_next_unpin(context) {
                self.last_chunk_at = Instant::now();
                if std::mem::take(&mut self.made_progress) {
                    self.last_progress_at = self.last_chunk_at;
                } else if chunk.is_some() && self.last_chunk_at - self.last_progress_at >= STALL_TIMEOUT {
                    return timed_out(
                        "the provider kept the connection open without continuing its answer".to_owned(),
                    );
                }
                return Poll::Ready(chunk.map(|chunk| chunk.map_err(io::Error::other)));
            }
            let deadline = self.last_chunk_at + IDLE_TIMEOUT;
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            ready!(timer.as_mut().poll(context));
            if deadline <= Instant::now() {
                return timed_out(format!("no data arrived for {} seconds", IDLE_TIMEOUT.as_secs()));
            }
            timer.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;

    use futures::stream;
    use tokio::time::sleep;

    use super::*;

    /// Chunks, each after a gap of so many seconds, followed by the end or by endless silence.
    fn body(gaps: &[u64], ends: bool) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        let chunks = stream::iter(gaps.to_vec()).then(|gap| async move {
            sleep(Duration::from_secs(gap)).await;
            Ok(Bytes::from_static(b"x"))
        });
        chunks.chain(stream::pending().take(usize::from(!ends)))
    }

    /// The number of chunks that are read, and the kind of error at the end; each of the first
    /// `progress_chunks` chunks
    /// advances the answer.
    async fn read(gaps: &[u64], ends: bool, progress_chunks: usize) -> (usize, Option<io::ErrorKind>) {
        let mut body = IdleTimeoutBody::new(Box::pin(body(gaps, ends)));
        let mut chunk_count = 0;
        loop {
            match poll_fn(|context| body.poll_next(context)).await {
                Some(Ok(_)) => chunk_count += 1,
                Some(Err(error)) => return (chunk_count, Some(error.kind())),
                None => return (chunk_count, None),
            }
            if chunk_count <= progress_chunks {
                body.note_progress();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_given_up_in_time_from_the_last_piece_on() {
        for gaps in [&[][..], &[0], &[10, 290], &[299, 299, 299]] {
            let start = Instant::now();
            let expected = (gaps.len(), Some(io::ErrorKind::TimedOut));
            assert_eq!(read(gaps, false, usize::MAX).await, expected, "{gaps:?}");
            let silent_since = start + Duration::from_secs(gaps.iter().sum());
            let elapsed = silent_since.elapsed();
            assert!(
                (IDLE_TIMEOUT..IDLE_TIMEOUT + Duration::from_secs(1)).contains(&elapsed),
                "{gaps:?}: {elapsed:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_keeps_the_connection_and_says_nothing_is_given_up_and_a_slow_one_is_not() {
        for (gaps, case) in [
            ([1].repeat(9_000), "each second"),
            ([60].repeat(150), "each minute"),
            ([299].repeat(30), "as late as it may"),
            ([299, 1].repeat(30), "in pairs"),
        ] {
            assert_eq!(read(&gaps, true, usize::MAX).await, (gaps.len(), None), "{case}");
            for progress_chunks in [0, 2] {
                let start = Instant::now();
                let (_, error) = read(&gaps, true, progress_chunks).await;
                assert_eq!(error, Some(io::ErrorKind::TimedOut), "{case}");
                let last_progress = Duration::from_secs(gaps[..progress_chunks].iter().sum());
                let elapsed = start.elapsed().saturating_sub(last_progress);
                assert!(
                    (STALL_TIMEOUT..=STALL_TIMEOUT + 2 * IDLE_TIMEOUT).contains(&elapsed),
                    "{case}, {progress_chunks}: {elapsed:?}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_beginning_is_what_comes_in_time_and_not_too_much() {
        for (gaps, ends, expected) in [
            (&[][..], false, 0),
            (&[1, 2], false, 2),
            (&[1, 2], true, 2),
            (&[0; 9], true, 6),
            (&[400], true, 0),
        ] {
            let prefix = read_prefix(body(gaps, ends), 5, IDLE_TIMEOUT).await;
            assert_eq!(prefix.len(), expected, "{gaps:?} {ends}");
        }
    }
}
