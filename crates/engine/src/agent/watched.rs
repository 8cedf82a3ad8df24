//! An answer that is waited for, but not for ever: a provider may keep a connection alive and say nothing.

use std::time::Duration;

use futures::StreamExt as _;
use service::clock::{Clock, Sleep};

use crate::models::{ModelError, ModelErrorKind, Part, Parts};

/// How long a model may write something that makes no part of its answer, such as the input of a call.
const STALLED: Duration = Duration::from_mins(20);

/// See the module. One timer serves many parts: it is looked at when it fires, and set anew if something came
/// meanwhile, so an answer is given up between one and two times [`STALLED`] after its last part.
pub(super) struct Watched<'a> {
    parts: Parts,
    clock: &'a dyn Clock,
    timer: Sleep<'a>,
    progress: bool,
}

impl<'a> Watched<'a> {
    /// Watches an answer from now on.
    pub(super) fn new(parts: Parts, clock: &'a dyn Clock) -> Self {
        let timer = clock.sleep(STALLED);
        Self { parts, clock, timer, progress: false }
    }

    /// The next part; none at the end. Nothing is lost if it is dropped before it is ready.
    pub(super) async fn next(&mut self) -> Option<Result<Part, ModelError>> {
        loop {
            tokio::select! {
                biased;
                part = self.parts.next() => {
                    self.progress = true;
                    return part;
                }
                () = &mut self.timer => {}
            }
            if !std::mem::take(&mut self.progress) {
                let what = "the provider kept the connection and said nothing";
                return Some(Err(ModelError::new(ModelErrorKind::Broken, what)));
            }
            self.timer = self.clock.sleep(STALLED);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use service::clock::SystemClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_says_nothing_is_given_up_and_a_slow_one_is_not() {
        let slow = stream::unfold((), |()| async {
            tokio::time::sleep(STALLED.mul_f64(0.9)).await;
            Some((Ok(Part::Stop), ()))
        });
        let parts = slow.take(5).chain(stream::pending()).boxed();
        let clock = SystemClock::new();
        let mut watched = Watched::new(parts, &clock);
        for _ in 0..5 {
            assert_eq!(watched.next().await, Some(Ok(Part::Stop)));
        }
        let silent_since = tokio::time::Instant::now();
        let error = watched.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::Broken);
        assert!((STALLED.mul_f64(0.9)..STALLED * 2).contains(&silent_since.elapsed()));
    }
}
