//! What to do about a schedule that is due.

use api::Timestamp;
use api::schedules::MissedPolicy;

use crate::Timing;

/// How late a run may begin without being missed, in milliseconds: an engine that sleeps has to be woken first.
pub const ON_TIME: i64 = 5 * 60 * 1_000;
/// The most missed runs that are counted.
const MAX_COUNTED: u64 = 1_000;

/// What to do about a schedule that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The due time that is run now.
    pub run: Option<Timestamp>,
    /// The due times that are not run.
    pub missed: Option<MissedRuns>,
    /// The last due time that this decides about.
    pub last: Timestamp,
    /// The next due time; `None` if there is none.
    pub next: Option<Timestamp>,
}

/// Due times that were not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedRuns {
    /// The first of them.
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// How many they are, counted up to 1,000.
    pub count: u64,
}

/// Decides what to do at `now` about a schedule whose next due time is `due`; `None` before that. Of several due
/// times that have passed only the last one can be run. All that it decides about lies before its next due time, so
/// no due time comes twice, however the clock is set.
pub fn decide(timing: &Timing, due: Timestamp, policy: MissedPolicy, now: Timestamp) -> Option<Due> {
    if now < due {
        return None;
    }
    let last = timing.last_until(due, now);
    let is_late = now.unix_ms().saturating_sub(last.unix_ms()) > ON_TIME;
    let run = (!is_late || policy == MissedPolicy::RunOnce).then_some(last);
    let before = timing.count_before(due, last, MAX_COUNTED);
    let next = timing.next_after(now);
    let missed = if run.is_none() {
        let count = before.saturating_add(1).min(MAX_COUNTED);
        Some(MissedRuns { first: due, last, count })
    } else if before > 0 {
        let last = timing.last_until(due, Timestamp::from_unix_ms(last.unix_ms().saturating_sub(1)));
        Some(MissedRuns { first: due, last, count: before })
    } else {
        None
    };
    Some(Due { run, missed, last, next })
}

#[cfg(test)]
#[path = "../tests/unit/decision.rs"]
mod tests;
