//! One engine under supervision: what is known of it, and when something is to be done about it.
//!
//! Pure: every function is told what time it is.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use contract::{KeyHash, Timestamp};
use tokio::sync::Notify;

use super::Rules;
use crate::backend::Instance;
use crate::registry::{EngineRow, Seat, Stamp};

/// A moment of the monotonic clock in milliseconds. Before zero: before this process began.
pub(in crate::fleet) type Moment = i64;

/// A duration in the same measure.
pub(in crate::fleet) fn moment(duration: Duration) -> Moment {
    // Rounded up: what lasts at all lasts for some time.
    i64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// When nothing is to be done: never.
pub(super) const NEVER: Moment = Moment::MAX;

/// What is to be done about an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum Duty {
    /// Ask how it is.
    Check,
    /// Put it to sleep, if it agrees.
    Sleep,
    /// Attempt a restart; `urgent`: somebody waits for it.
    Restart { urgent: bool },
}

/// An engine under supervision.
pub(super) struct Ward {
    pub(super) seat: Seat,
    /// The change of its row after which this was known: what is known of an earlier one comes too late.
    pub(super) generation: i64,
    /// Told when its state changes, or a restart of it begins.
    pub(super) news: Arc<Notify>,
    /// Its user was last admitted then, or it was brought up for them.
    admitted: Moment,
    admitted_at: Timestamp,
    pub(super) state: State,
}

/// Whether it is looked after or brought back.
pub(super) enum State {
    Running(Running),
    Failed {
        restart: Restart,
        /// Somebody waits for it.
        urgent: bool,
    },
}

/// The restart of a failed engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum Restart {
    /// It is due then.
    Due(Moment),
    /// It is attempted, or waits until it may be.
    Taken,
}

/// Whether an engine takes the key that the registry has for it, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum KeyState {
    /// It has taken it.
    Accepted,
    /// Checks ask for it until one has succeeded at this moment or later: the registry may be older than the engine, or
    /// a command that changes the engine's key may still reach it.
    Unproven { until: Moment },
    /// It has refused it: checks ask for it until it is taken.
    Refused,
}

/// A running engine.
pub(super) struct Running {
    pub(super) instance: Instance,
    pub(super) port: u16,
    check_at: Moment,
    /// A check is under way.
    checking: bool,
    pub(super) key: KeyState,
    pub(super) key_hash: KeyHash,
    /// It has proven once that it has its key: what gives no proof from then on is not it.
    pub(super) proven: bool,
    /// When its idleness is judged next.
    judge_at: Moment,
    threshold: Moment,
    pub(super) failed_checks: u32,
    restarts: i64,
    last_health_at: Option<Timestamp>,
    /// Since when all checks were good.
    well: Moment,
    well_since: Timestamp,
}

impl Ward {
    /// The ward of a running engine, as it was known at `now`, which is `wall` on the wall clock.
    pub(super) fn running(
        row: &EngineRow,
        (instance, port): (Instance, u16),
        stamp: Stamp,
        rules: &Rules,
        threshold: Duration,
        (now, wall): (Moment, Timestamp),
    ) -> Self {
        let admitted_at = stamp.admitted_at.unwrap_or(wall);
        let well_since = stamp.well_since.unwrap_or(wall);
        let mut running = Running {
            instance,
            port,
            check_at: now.saturating_add(phase(row, rules.check_interval)),
            checking: false,
            key: KeyState::Accepted,
            key_hash: row.key_hash,
            proven: false,
            judge_at: NEVER,
            threshold: moment(threshold),
            failed_checks: stamp.failed_checks,
            restarts: stamp.restarts,
            last_health_at: stamp.last_health_at,
            well: then(well_since, now, wall),
            well_since,
        };
        let admitted = then(admitted_at, now, wall);
        running.judge_idleness_from(admitted);
        Self::with(row, admitted, admitted_at, State::Running(running))
    }

    /// The ward of a failed engine whose restart is due then.
    pub(super) fn failed(
        row: &EngineRow,
        stamp: Stamp,
        restart_at: Moment,
        now: (Moment, Timestamp),
    ) -> Self {
        let admitted_at = stamp.admitted_at.unwrap_or(now.1);
        let restart = State::Failed { restart: Restart::Due(restart_at), urgent: false };
        Self::with(row, then(admitted_at, now.0, now.1), admitted_at, restart)
    }

    fn with(row: &EngineRow, admitted: Moment, admitted_at: Timestamp, state: State) -> Self {
        let (seat, generation) = (row.seat.clone(), row.generation);
        Self { seat, generation, news: Arc::default(), admitted, admitted_at, state }
    }

    /// When something is to be done next.
    pub(super) fn next(&self) -> Moment {
        match &self.state {
            State::Running(running) => running.check_at.min(running.judge_at),
            State::Failed { restart: Restart::Due(at), .. } => *at,
            State::Failed { restart: Restart::Taken, .. } => NEVER,
        }
    }

    /// Takes what is due at `now`, if anything is, and sets when it is due again.
    pub(super) fn take(&mut self, now: Moment, rules: &Rules) -> Option<Duty> {
        let admitted = self.admitted;
        match &mut self.state {
            State::Running(running) if running.judge_at <= now => {
                running.judge_idleness_from(admitted);
                if running.judge_at > now {
                    return None;
                }
                // One that did not answer will not say whether it may sleep: that is for the checks to settle.
                if running.failed_checks > 0 {
                    running.judge_at = now.saturating_add(moment(rules.check_interval));
                    return None;
                }
                running.judge_at = NEVER;
                Some(Duty::Sleep)
            }
            State::Running(running) if running.check_at <= now => {
                running.check_at = now.saturating_add(moment(rules.check_interval));
                // One that takes longer than the interval is not asked twice at once.
                let free = !std::mem::replace(&mut running.checking, true);
                free.then_some(Duty::Check)
            }
            State::Failed { restart, urgent } if restart.is_due(now) => {
                *restart = Restart::Taken;
                Some(Duty::Restart { urgent: *urgent })
            }
            State::Running(_) | State::Failed { .. } => None,
        }
    }

    /// Whether its user has not been admitted for the threshold.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        self.idle_at().is_some_and(|at| at <= now)
    }

    /// When it is idle, unless its user is admitted before; none if it never is.
    pub(super) fn idle_at(&self) -> Option<Moment> {
        let State::Running(running) = &self.state else { return None };
        (running.threshold > 0).then(|| self.admitted.saturating_add(running.threshold))
    }

    /// Sets the threshold of its idleness; zero: never idle.
    pub(super) fn judge_idleness_by(&mut self, threshold: Duration) {
        let admitted = self.admitted;
        if let State::Running(running) = &mut self.state {
            running.threshold = moment(threshold);
            running.judge_idleness_from(admitted);
        }
    }

    /// Its user is admitted. When it may sleep is reckoned when that was due: an admit reckons nothing.
    pub(super) fn admitted(&mut self, now: Moment, wall: Timestamp) {
        (self.admitted, self.admitted_at) = (now, wall);
    }

    /// It was to sleep, and does not: it is asked again then.
    pub(super) fn judge_again(&mut self, at: Moment) {
        if let State::Running(Running { judge_at: judge_at @ NEVER, threshold: 1.., .. }) = &mut self.state {
            *judge_at = at;
        }
    }

    /// A restart that was taken could not be attempted.
    pub(super) fn postpone(&mut self, until: Moment) {
        // An attempt that was made has set the next one already.
        if let State::Failed { restart: restart @ Restart::Taken, .. } = &mut self.state {
            *restart = Restart::Due(until);
        }
    }

    /// Somebody waits for its restart.
    pub(super) fn hurry(&mut self) {
        if let State::Failed { urgent, .. } = &mut self.state {
            *urgent = true;
        }
    }

    /// Its restart; none if it has not failed.
    pub(super) fn restart(&self) -> Option<Restart> {
        match self.state {
            State::Failed { restart, .. } => Some(restart),
            State::Running(_) => None,
        }
    }

    pub(super) fn as_running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(running) => Some(running),
            State::Failed { .. } => None,
        }
    }

    pub(super) fn as_running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.state {
            State::Running(running) => Some(running),
            State::Failed { .. } => None,
        }
    }

    /// What is known of it.
    pub(super) fn stamp(&self) -> Stamp {
        let admitted_at = Some(self.admitted_at);
        match &self.state {
            State::Running(running) => Stamp {
                admitted_at,
                last_health_at: running.last_health_at,
                well_since: Some(running.well_since),
                failed_checks: running.failed_checks,
                restarts: running.restarts,
            },
            State::Failed { .. } => Stamp { admitted_at, ..Stamp::default() },
        }
    }
}

impl Restart {
    fn is_due(self, now: Moment) -> bool {
        matches!(self, Self::Due(at) if at <= now)
    }
}

impl Running {
    /// Restarts attempted, unless it has been well for so long that they are forgotten.
    pub(super) fn restarts(&self, now: Moment, rules: &Rules) -> i64 {
        let forgotten = now.saturating_sub(self.well) >= moment(rules.backoff_max);
        if forgotten { 0 } else { self.restarts }
    }

    fn judge_idleness_from(&mut self, admitted: Moment) {
        self.judge_at = if self.threshold > 0 { admitted.saturating_add(self.threshold) } else { NEVER };
    }

    /// It has taken the registry's key.
    pub(super) fn key_accepted(&mut self, now: Moment) {
        match self.key {
            KeyState::Unproven { until } if now < until => {}
            KeyState::Accepted | KeyState::Unproven { .. } | KeyState::Refused => {
                self.key = KeyState::Accepted;
            }
        }
    }

    /// A check has ended. Returns how many in a row have failed.
    pub(super) fn checked(&mut self, passed: bool, rules: &Rules, (now, wall): (Moment, Timestamp)) -> u32 {
        self.checking = false;
        if !passed {
            self.failed_checks = self.failed_checks.saturating_add(1);
            return self.failed_checks;
        }
        if self.failed_checks > 0 {
            (self.well, self.well_since) = (now, wall);
        }
        self.failed_checks = 0;
        self.last_health_at = Some(wall);
        self.restarts = self.restarts(now, rules);
        self.failed_checks
    }
}

/// When `at` was by the monotonic clock, which shows `now` when the wall clock shows `wall`. What lies ahead by
/// the wall clock is now: that clock has been set back.
fn then(at: Timestamp, now: Moment, wall: Timestamp) -> Moment {
    now.saturating_sub(wall.unix_ms().saturating_sub(at.unix_ms()).max(0))
}

/// Where in the interval an engine is asked: checks are spread, however many engines come at once.
fn phase(row: &EngineRow, interval: Duration) -> Moment {
    let mut hasher = DefaultHasher::new();
    row.engine_id.hash(&mut hasher);
    let interval = moment(interval).max(1).unsigned_abs();
    i64::try_from(hasher.finish() % interval).unwrap_or_default()
}
