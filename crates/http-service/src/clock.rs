//! The services' source of time: a trait, the system's clock, and a manual clock for tests.
//!
//! Two times are kept apart. [`Clock::now`] is the wall clock: it stamps what people read and what is stored, and
//! may jump. [`Clock::monotonic`] only measures: all delays, deadlines and windows use it, so that setting the
//! wall clock neither fires nor stalls any of them.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A boxed future, which keeps [`Clock`] object-safe.
pub type Sleep<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time of the wall clock, which may jump either way.
    fn now(&self) -> Timestamp;

    /// Returns the time since a fixed instant. It never goes back.
    fn monotonic(&self) -> Duration;

    /// Waits until `duration` of monotonic time has passed.
    fn sleep(&self, duration: Duration) -> Sleep<'_>;
}

/// The operating system's clock.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Creates a clock whose monotonic time starts now.
    #[expect(clippy::new_without_default, reason = "it reads the time, which a default should not")]
    pub fn new() -> Self {
        Self { started: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // Times before 1970 or after the year 292 million do not deserve an error path.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_unix_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Sleep<'_> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock for tests, which stands still until it is advanced.
#[derive(Debug)]
pub struct ManualClock {
    times: Mutex<Times>,
    moved: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    wall_ms: i64,
    monotonic: Duration,
}

impl ManualClock {
    /// Creates a clock whose wall time is `now`.
    pub fn at(now: Timestamp) -> Self {
        let times = Times { wall_ms: now.unix_ms(), monotonic: Duration::ZERO };
        Self { times: Mutex::new(times), moved: Notify::new() }
    }

    /// Advances both times by `duration`, and wakes the sleepers that are due.
    pub fn advance(&self, duration: Duration) {
        {
            let mut times = self.times.lock();
            times.monotonic += duration;
            times.wall_ms += i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        }
        self.moved.notify_waiters();
    }

    /// Sets only the wall clock, as a person or a time server may.
    pub fn set_wall(&self, now: Timestamp) {
        self.times.lock().wall_ms = now.unix_ms();
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_ms(self.times.lock().wall_ms)
    }

    fn monotonic(&self) -> Duration {
        self.times.lock().monotonic
    }

    fn sleep(&self, duration: Duration) -> Sleep<'_> {
        let until = self.monotonic().saturating_add(duration);
        Box::pin(async move {
            loop {
                let moved = self.moved.notified();
                tokio::pin!(moved);
                // Registered before the time is read, so that no advance in between is missed.
                moved.as_mut().enable();
                if self.monotonic() >= until {
                    return;
                }
                moved.await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_wakes_sleepers_when_their_time_has_come() {
        let clock = ManualClock::at(Timestamp::from_unix_ms(1_000));
        let sleep = clock.sleep(Duration::from_millis(10));
        tokio::pin!(sleep);
        assert!(futures::poll!(sleep.as_mut()).is_pending());
        clock.advance(Duration::from_millis(9));
        assert!(futures::poll!(sleep.as_mut()).is_pending());
        clock.advance(Duration::from_millis(1));
        assert!(futures::poll!(sleep.as_mut()).is_ready());
        assert_eq!(clock.now(), Timestamp::from_unix_ms(1_010));
    }

    #[test]
    fn setting_the_wall_clock_moves_no_measured_time() {
        let clock = ManualClock::at(Timestamp::from_unix_ms(3_600_000));
        clock.set_wall(Timestamp::from_unix_ms(0));
        assert_eq!(clock.monotonic(), Duration::ZERO);
        assert_eq!(clock.now(), Timestamp::from_unix_ms(0));
    }
}
