//! The timer behind a connection's header timeout.
//!
//! hyper sets this timeout anew for every request and drops it once the head has arrived. With tokio's own timer,
//! each request would insert an entry into the runtime's only timer wheel and remove it, under the wheel's lock.
//! Here a connection has a single entry, which is not moved while it fires before the deadline anyway: a busy
//! connection moves it once per timeout.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

/// One connection's timer.
#[derive(Clone, Default)]
pub(super) struct HeaderTimer {
    /// The timer entry; `None` before the first wait.
    entry: Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>,
}

impl Timer for HeaderTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(TimerSleep { timer: self.clone(), deadline: deadline.into() })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// A wait for `deadline`. Only one wait of a connection is polled at a time.
struct TimerSleep {
    timer: HeaderTimer,
    deadline: tokio::time::Instant,
}

impl Sleep for TimerSleep {}

impl Future for TimerSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut entry = self.timer.entry.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entry.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(self.deadline)));
        // A later entry would miss this deadline.
        if entry.deadline() > self.deadline {
            entry.as_mut().reset(self.deadline);
        }
        loop {
            ready!(entry.as_mut().poll(context));
            if entry.deadline() >= self.deadline {
                return Poll::Ready(());
            }
            entry.as_mut().reset(self.deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Waits for `duration`; returns how long that took by the paused clock.
    async fn waited(timer: &HeaderTimer, duration: Duration) -> Duration {
        let started = tokio::time::Instant::now();
        timer.sleep_until(timer.now() + duration).await;
        started.elapsed()
    }

    /// Polls a wait for `duration` once, and drops it.
    async fn given_up(timer: &HeaderTimer, duration: Duration) {
        let mut wait = timer.sleep_until(timer.now() + duration);
        assert!(futures::poll!(&mut wait).is_pending());
    }

    #[tokio::test(start_paused = true)]
    async fn each_wait_ends_at_its_own_deadline_whatever_was_waited_for_before() {
        let timer = HeaderTimer::default();
        for seconds in [5_u32, 9, 2, 2, 30, 1] {
            given_up(&timer, SECOND * 7).await;
            let took = waited(&timer, SECOND * seconds).await;
            let expected = SECOND * seconds;
            assert!((expected..expected + Duration::from_millis(5)).contains(&took), "{seconds}: {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_longer_than_the_entry_outlives_it() {
        let timer = HeaderTimer::default();
        given_up(&timer, SECOND).await;
        tokio::time::advance(SECOND / 2).await;
        assert!(waited(&timer, SECOND * 3).await >= SECOND * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_behind_an_entry_that_fired_long_ago_does_not_end_at_once() {
        let timer = HeaderTimer::default();
        assert!(waited(&timer, SECOND).await >= SECOND);
        tokio::time::advance(SECOND * 60).await;
        assert!(waited(&timer, SECOND).await >= SECOND);
    }
}
