//! The clock that stamps the events of one task.
//!
//! It yields Unix milliseconds, strictly increasing within the task: a client identifies its position by the last
//! `ts` it received. If events come faster than one per millisecond, the clock runs ahead of real time by at most
//! [`MAX_LEAD_MS`]; an event beyond that has to wait.

use std::time::Duration;

use api::Timestamp;
use http_service::clock::Clock;

/// How far the clock may run ahead of the highest real time that the task has seen.
pub(super) const MAX_LEAD_MS: i64 = 2_000;

/// A reading of the wall clock and of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    wall: Timestamp,
    monotonic: Duration,
}

impl ClockReading {
    pub(super) fn read(clock: &dyn Clock) -> Self {
        Self { wall: clock.now(), monotonic: clock.monotonic() }
    }
}

/// The event clock of a task: its newest `ts`, and its estimate of real time.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventClock {
    last_ts: i64,
    /// The highest real time seen, and the monotonic time of that reading. From there real time advances by the
    /// monotonic clock even if the wall clock is set back, so that such a jump never stalls a turn.
    wall_ms: i64,
    wall_at: Duration,
}

impl EventClock {
    /// Creates a clock that continues above the task's highest stored `ts` (0 for a new task).
    pub(super) fn resume_after(last_ts: i64, now: ClockReading) -> Self {
        // The stored `ts` may have been ahead of real time by the whole lead, so real time is only known to have
        // been that much lower.
        let seen_ms = now.wall.unix_ms().max(last_ts - MAX_LEAD_MS);
        Self { last_ts, wall_ms: seen_ms, wall_at: now.monotonic }
    }

    /// The newest `ts` that was issued or stored.
    pub(super) const fn last_ts(&self) -> i64 {
        self.last_ts
    }

    /// Whether an event at `now` would still fall into the millisecond of the last one.
    pub(super) fn is_within_last_ts(&mut self, now: ClockReading) -> bool {
        self.observe(now) <= self.last_ts
    }

    /// Issues the `ts` of the first of `events` events at `now`; the others follow in steps of one.
    ///
    /// # Errors
    /// Returns the time to wait if the last `ts` would be too far ahead.
    pub(super) fn stamp(&mut self, now: ClockReading, events: i64) -> Result<i64, Duration> {
        let real_ms = self.observe(now);
        if events == 0 {
            return Ok(self.last_ts + 1);
        }
        let first = real_ms.max(self.last_ts + 1);
        let last = first + events - 1;
        // More events at once than the lead allows would wait forever, so they may run ahead by their number.
        let excess_ms = last - (real_ms + MAX_LEAD_MS.max(events));
        if excess_ms > 0 {
            return Err(Duration::from_millis(excess_ms.unsigned_abs()));
        }
        self.last_ts = last;
        Ok(first)
    }

    fn observe(&mut self, now: ClockReading) -> i64 {
        let elapsed = now.monotonic.saturating_sub(self.wall_at);
        let projected_ms =
            self.wall_ms.saturating_add(i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX));
        if now.wall.unix_ms() > projected_ms {
            (self.wall_ms, self.wall_at) = (now.wall.unix_ms(), now.monotonic);
        }
        self.wall_ms.max(projected_ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clock_reading(wall_ms: i64, monotonic_ms: u64) -> ClockReading {
        ClockReading {
            wall: Timestamp::from_unix_ms(wall_ms),
            monotonic: Duration::from_millis(monotonic_ms),
        }
    }

    #[test]
    fn shows_real_time_and_then_counts_on() {
        let now = clock_reading(10_000, 0);
        let mut clock = EventClock::resume_after(0, now);
        assert_eq!(clock.stamp(now, 1), Ok(10_000));
        assert_eq!(clock.stamp(now, 1), Ok(10_001));
        assert_eq!(clock.stamp(clock_reading(10_500, 500), 1), Ok(10_500));
    }

    #[test]
    fn an_event_too_far_ahead_waits() {
        let now = clock_reading(10_000, 0);
        let mut clock = EventClock::resume_after(0, now);
        for _ in 0..=MAX_LEAD_MS {
            clock.stamp(now, 1).unwrap();
        }
        assert_eq!(clock.last_ts(), 12_000);
        assert_eq!(clock.stamp(now, 1), Err(Duration::from_millis(1)));
        assert_eq!(clock.stamp(now, 5), Err(Duration::from_millis(5)));
        assert_eq!(clock.stamp(clock_reading(10_005, 5), 5), Ok(12_001));
    }

    #[test]
    fn a_wall_clock_set_back_an_hour_neither_repeats_nor_stalls() {
        let mut clock = EventClock::resume_after(0, clock_reading(7_200_000, 0));
        let before = clock.stamp(clock_reading(7_200_000, 0), 1).unwrap();
        let mut last = before;
        for passed in 1..5_000_u64 {
            let wall = 3_600_000 + i64::try_from(passed).unwrap();
            let ts = clock.stamp(clock_reading(wall, passed), 1).unwrap();
            assert!(ts > last);
            last = ts;
        }
        assert!(last <= before + 5_000);
        // The same after a restart, when only the stored `ts` is known.
        let mut clock = EventClock::resume_after(last, clock_reading(3_605_000, 0));
        assert!(clock.stamp(clock_reading(3_605_002, 2), 1).unwrap() > last);
    }

    proptest! {
        #[test]
        fn never_repeats_goes_back_or_leads_too_far(
            start in 0_i64..100_000,
            stored in 0_i64..100_000,
            moves in prop::collection::vec((-50_000_i64..50_000, 0_u64..50, 1_i64..20), 1..200),
        ) {
            let mut monotonic = 0;
            let mut clock = EventClock::resume_after(stored, clock_reading(start, 0));
            let (mut last, mut highest) = (stored, start.max(stored - MAX_LEAD_MS));
            for (wall, passed, events) in moves {
                monotonic += passed;
                highest = (highest + i64::try_from(passed).unwrap()).max(start + wall);
                let now = clock_reading(start + wall, monotonic);
                match clock.stamp(now, events) {
                    Ok(first) => {
                        prop_assert!(first > last);
                        last = first + events - 1;
                        prop_assert!(last <= highest + MAX_LEAD_MS);
                    }
                    Err(wait) => prop_assert!(wait > Duration::ZERO),
                }
                prop_assert_eq!(clock.last_ts(), last);
            }
        }
    }
}
