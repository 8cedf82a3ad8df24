//! When a schedule is due. Pure: the current time is an argument everywhere.
//!
//! Due times are instants, in strictly increasing order. A cron expression is matched against the local time of its
//! time zone. A local time that does not exist, because clocks are set forward, is due at the first instant after
//! the gap. One that comes twice, because clocks are set back, is due at the first of the two, unless the expression
//! covers every hour: then what counts is the time that passes, and both are due.

mod cron;
mod decision;
pub mod definition;
mod local_time;

use api::Timestamp;
pub use cron::{Cron, InvalidCron};
pub use decision::{Due, MissedRuns, ON_TIME, decide};
pub use local_time::{UnknownTimeZone, Zone};

/// When a schedule is due.
#[derive(Clone, Debug)]
pub enum Timing {
    /// Whenever the local time matches an expression.
    Cron(Cron, Zone),
    /// Once.
    Once(Timestamp),
    /// At `start`, and every `seconds` after it.
    Every {
        /// The first due time.
        start: Timestamp,
        /// The interval, at least 1.
        seconds: i64,
    },
}

impl Timing {
    /// The first due time after `after`; `None` if there is none.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron(cron, zone) => zone.next_after(cron, after),
            Self::Once(at) => (*at > after).then_some(*at),
            Self::Every { start, .. } if *start > after => Some(*start),
            Self::Every { start, seconds } => {
                let interval = interval_ms(*seconds);
                let passed = after.unix_ms().checked_sub(start.unix_ms())?.div_euclid(interval);
                let offset = passed.checked_add(1)?.checked_mul(interval)?;
                start.unix_ms().checked_add(offset).map(Timestamp::from_unix_ms)
            }
        }
    }

    /// The last due time in `first..=until`, where `first` is one.
    fn last_until(&self, first: Timestamp, until: Timestamp) -> Timestamp {
        match self {
            Self::Once(_) => first,
            Self::Every { seconds, .. } => {
                let interval = interval_ms(*seconds);
                let passed = until.unix_ms().saturating_sub(first.unix_ms()).max(0) / interval;
                Timestamp::from_unix_ms(first.unix_ms().saturating_add(passed.saturating_mul(interval)))
            }
            Self::Cron(..) => self.last_cron_until(first, until),
        }
    }

    /// Looks for the last due time in windows before `until` that get longer, so that few due times are visited.
    fn last_cron_until(&self, first: Timestamp, until: Timestamp) -> Timestamp {
        let mut window_ms = 60 * 60 * 1_000_i64;
        loop {
            let begin = until.unix_ms().saturating_sub(window_ms).max(first.unix_ms().saturating_sub(1));
            let mut last = None;
            let mut next = self.next_after(Timestamp::from_unix_ms(begin));
            while let Some(due) = next.filter(|due| *due <= until) {
                last = Some(due);
                next = self.next_after(due);
            }
            match last {
                Some(last) => return last,
                None if begin < first.unix_ms() => return first,
                None => window_ms = window_ms.saturating_mul(24),
            }
        }
    }

    /// The number of due times in `from..until`, where `from` is one; at most `max`.
    fn count_before(&self, from: Timestamp, until: Timestamp, max: u64) -> u64 {
        let mut count = 0;
        let mut next = Some(from);
        while let Some(due) = next.filter(|due| *due < until && count < max) {
            count += 1;
            next = self.next_after(due);
        }
        count
    }
}

/// The interval in milliseconds; at least one second.
fn interval_ms(seconds: i64) -> i64 {
    seconds.max(1).saturating_mul(1_000)
}

#[cfg(test)]
#[path = "../tests/unit/lib.rs"]
mod tests;
