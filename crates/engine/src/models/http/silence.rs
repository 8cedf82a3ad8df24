//! Bodies that stop coming without an end.

use std::io;
use std::pin::pin;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, sleep, timeout};

/// The beginning of a body: what comes in time, up to the piece that makes it longer than `most` bytes.
pub(super) async fn beginning<E>(
    bytes: impl Stream<Item = Result<Bytes, E>> + Send,
    most: usize,
    patience: Duration,
) -> Vec<u8> {
    let (mut bytes, mut beginning) = (pin!(bytes), Vec::new());
    let read = async {
        while let Some(Ok(piece)) = bytes.next().await {
            beginning.extend_from_slice(&piece);
            if beginning.len() > most {
                break;
            }
        }
    };
    // What has come until then must do.
    let _ = timeout(patience, read).await;
    beginning
}

/// Fails once nothing has come for `patience`. A timer of its own for each piece, as the HTTP client would have it, costs
/// as much as to read the piece.
pub(super) fn broken_off<E>(
    bytes: impl Stream<Item = Result<Bytes, E>> + Send,
    patience: Duration,
) -> impl Stream<Item = io::Result<Bytes>> + Send
where
    E: std::error::Error + Send + Sync + 'static,
{
    let mut bytes = Box::pin(bytes);
    let mut timer = Box::pin(sleep(patience));
    let mut last = Instant::now();
    futures::stream::poll_fn(move |context| {
        loop {
            if let Poll::Ready(piece) = bytes.poll_next_unpin(context) {
                last = Instant::now();
                return Poll::Ready(piece.map(|piece| piece.map_err(io::Error::other)));
            }
            // One timer for all pieces: when it fires, it is set anew if something came meanwhile.
            ready!(timer.as_mut().poll(context));
            let deadline = last + patience;
            if deadline <= Instant::now() {
                let silent = format!("nothing came for {} seconds", patience.as_secs());
                return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, silent))));
            }
            timer.as_mut().reset(deadline);
        }
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(5);

    /// Pieces, each so many seconds after the one before, and then nothing, or the end.
    fn body(gaps: &[u64], ends: bool) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        let pieces = stream::iter(gaps.to_vec()).then(|gap| async move {
            sleep(Duration::from_secs(gap)).await;
            Ok(Bytes::from_static(b"x"))
        });
        pieces.chain(stream::pending().take(usize::from(!ends)))
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_given_up_in_time_from_the_last_piece_on() {
        for gaps in [&[][..], &[0], &[10, 290], &[299, 299, 299]] {
            let began = Instant::now();
            let given: Vec<_> = broken_off(body(gaps, false), PATIENCE).take(gaps.len() + 1).collect().await;
            let (last, pieces) = given.split_last().unwrap();
            assert!(pieces.iter().all(Result::is_ok), "{gaps:?}: {given:?}");
            assert_eq!(last.as_ref().unwrap_err().kind(), io::ErrorKind::TimedOut);
            let silent_since = began + Duration::from_secs(gaps.iter().sum());
            let took = silent_since.elapsed();
            assert!((PATIENCE..PATIENCE + Duration::from_secs(1)).contains(&took), "{gaps:?}: {took:?}");
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
            let read = beginning(body(gaps, ends), 5, PATIENCE).await;
            assert_eq!(read.len(), expected, "{gaps:?} {ends}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_in_time_ends() {
        let given: Vec<_> = broken_off(body(&[299, 299, 1], true), PATIENCE).collect().await;
        assert!(given.len() == 3 && given.iter().all(Result::is_ok), "{given:?}");
    }
}
