//! One engine under supervision: what is known of it, and when something is to be done about it.
//!
//! Pure: every function is told what time it is.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use api::{KeyHash, Timestamp};
use tokio::sync::Notify;

use super::SupervisionRules;
use crate::backend::Instance;
use crate::registry::{EngineActivity, EngineOwner, EngineRow};

/// A moment of the monotonic clock in milliseconds. Before zero: before this process began.
pub(in crate::fleet) type MonoMillis = i64;

/// A duration in the same measure.
pub(in crate::fleet) fn to_mono_millis(duration: Duration) -> MonoMillis {
    // Rounded up: what lasts at all lasts for some time.
    i64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// When nothing is to be done: never.
pub(super) const NEVER: MonoMillis = MonoMillis::MAX;

/// What is to be done about an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum SupervisionAction {
    /// Ask how it is.
    Check,
    /// Put it to sleep, if it agrees.
    Sleep,
    /// Attempt a restart; `urgent`: somebody waits for it.
    Restart { urgent: bool },
}

/// An engine under supervision.
pub(super) struct EngineMonitor {
    pub(super) engine_owner: EngineOwner,
    /// The change of its row after which this was known: what is known of an earlier one comes too late.
    pub(super) generation: i64,
    /// Told when its state changes, or a restart of it begins.
    pub(super) changed: Arc<Notify>,
    /// Its user was last admitted then, or it was brought up for them.
    admitted_mono: MonoMillis,
    admitted_at: Timestamp,
    pub(super) state: State,
}

/// Whether it is looked after or brought back.
pub(super) enum State {
    Running(RunningMonitor),
    Failed {
        restart: RestartState,
        /// Somebody waits for it.
        urgent: bool,
    },
}

/// The restart of a failed engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum RestartState {
    /// It is due then.
    Due(MonoMillis),
    /// It is attempted, or waits until it may be.
    InProgress,
}

/// Whether an engine takes the key that the registry has for it, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum KeyState {
    /// It has taken it.
    Accepted,
    /// Checks ask for it until one has succeeded at this moment or later: the registry may be older than the engine, or
    /// a command that changes the engine's key may still reach it.
    Unproven { until: MonoMillis },
    /// It has refused it: checks ask for it until it is taken.
    Refused,
}

/// A running engine.
pub(super) struct RunningMonitor {
    pub(super) instance: Instance,
    pub(super) port: u16,
    check_at: MonoMillis,
    /// A check is under way.
    check_in_progress: bool,
    pub(super) key_state: KeyState,
    pub(super) key_hash: KeyHash,
    /// It has proven once that it has its key: what gives no proof from then on is not it.
    pub(super) key_proven: bool,
    /// When its idleness is judged next.
    idle_check_at: MonoMillis,
    idle_threshold: MonoMillis,
    pub(super) failed_checks: u32,
    restarts: i64,
    last_health_at: Option<Timestamp>,
    /// Since when all checks were good.
    healthy_since: MonoMillis,
    healthy_since_at: Timestamp,
}

impl EngineMonitor {
    /// The ward of a running engine, as it was known at `now`, which is `wall` on the wall clock.
    pub(super) fn running(
        row: &EngineRow,
        (instance, port): (Instance, u16),
        stamp: EngineActivity,
        rules: &SupervisionRules,
        threshold: Duration,
        (now, wall): (MonoMillis, Timestamp),
    ) -> Self {
        let admitted_at = stamp.admitted_at.unwrap_or(wall);
        let well_since = stamp.healthy_since.unwrap_or(wall);
        let mut running = RunningMonitor {
            instance,
            port,
            check_at: now.saturating_add(check_phase(row, rules.check_interval)),
            check_in_progress: false,
            key_state: KeyState::Accepted,
            key_hash: row.key_hash,
            key_proven: false,
            idle_check_at: NEVER,
            idle_threshold: to_mono_millis(threshold),
            failed_checks: stamp.failed_checks,
            restarts: stamp.restarts,
            last_health_at: stamp.last_health_at,
            healthy_since: wall_to_mono(well_since, now, wall),
            healthy_since_at: well_since,
        };
        let admitted = wall_to_mono(admitted_at, now, wall);
        running.schedule_idle_check(admitted);
        Self::new(row, admitted, admitted_at, State::Running(running))
    }

    /// The ward of a failed engine whose restart is due then.
    pub(super) fn failed(
        row: &EngineRow,
        stamp: EngineActivity,
        restart_at: MonoMillis,
        now: (MonoMillis, Timestamp),
    ) -> Self {
        let admitted_at = stamp.admitted_at.unwrap_or(now.1);
        let restart = State::Failed { restart: RestartState::Due(restart_at), urgent: false };
        Self::new(row, wall_to_mono(admitted_at, now.0, now.1), admitted_at, restart)
    }

    fn new(row: &EngineRow, admitted: MonoMillis, admitted_at: Timestamp, state: State) -> Self {
        let (seat, generation) = (row.owner.clone(), row.generation);
        Self {
            engine_owner: seat,
            generation,
            changed: Arc::default(),
            admitted_mono: admitted,
            admitted_at,
            state,
        }
    }

    /// When something is to be done next.
    pub(super) fn next_due(&self) -> MonoMillis {
        match &self.state {
            State::Running(running) => running.check_at.min(running.idle_check_at),
            State::Failed { restart: RestartState::Due(at), .. } => *at,
            State::Failed { restart: RestartState::InProgress, .. } => NEVER,
        }
    }

    /// Takes what is due at `now`, if anything is, and sets when it is due again.
    pub(super) fn take_due(
        &mut self,
        now: MonoMillis,
        rules: &SupervisionRules,
    ) -> Option<SupervisionAction> {
        let admitted = self.admitted_mono;
        match &mut self.state {
            State::Running(running) if running.idle_check_at <= now => {
                running.schedule_idle_check(admitted);
                if running.idle_check_at > now {
                    return None;
                }
                // One that did not answer will not say whether it may sleep: that is for the checks to settle.
                if running.failed_checks > 0 {
                    running.idle_check_at = now.saturating_add(to_mono_millis(rules.check_interval));
                    return None;
                }
                running.idle_check_at = NEVER;
                Some(SupervisionAction::Sleep)
            }
            State::Running(running) if running.check_at <= now => {
                running.check_at = now.saturating_add(to_mono_millis(rules.check_interval));
                // One that takes longer than the interval is not asked twice at once.
                let free = !std::mem::replace(&mut running.check_in_progress, true);
                free.then_some(SupervisionAction::Check)
            }
            State::Failed { restart, urgent } if restart.is_due(now) => {
                *restart = RestartState::InProgress;
                Some(SupervisionAction::Restart { urgent: *urgent })
            }
            State::Running(_) | State::Failed { .. } => None,
        }
    }

    /// Whether its user has not been admitted for the threshold.
    pub(super) fn is_idle(&self, now: MonoMillis) -> bool {
        self.idle_deadline().is_some_and(|at| at <= now)
    }

    /// When it is idle, unless its user is admitted before; none if it never is.
    pub(super) fn idle_deadline(&self) -> Option<MonoMillis> {
        let State::Running(running) = &self.state else { return None };
        (running.idle_threshold > 0).then(|| self.admitted_mono.saturating_add(running.idle_threshold))
    }

    /// Sets the threshold of its idleness; zero: never idle.
    pub(super) fn set_idle_threshold(&mut self, threshold: Duration) {
        let admitted = self.admitted_mono;
        if let State::Running(running) = &mut self.state {
            running.idle_threshold = to_mono_millis(threshold);
            running.schedule_idle_check(admitted);
        }
    }

    /// Its user is admitted. When it may sleep is reckoned when that was due: an admit reckons nothing.
    pub(super) fn record_admit(&mut self, now: MonoMillis, wall: Timestamp) {
        (self.admitted_mono, self.admitted_at) = (now, wall);
    }

    /// It was to sleep, and does not: it is asked again then.
    pub(super) fn recheck_idle_at(&mut self, at: MonoMillis) {
        if let State::Running(RunningMonitor {
            idle_check_at: idle_check_at @ NEVER,
            idle_threshold: 1..,
            ..
        }) = &mut self.state
        {
            *idle_check_at = at;
        }
    }

    /// A restart that was taken could not be attempted.
    pub(super) fn postpone(&mut self, until: MonoMillis) {
        // An attempt that was made has set the next one already.
        if let State::Failed { restart: restart @ RestartState::InProgress, .. } = &mut self.state {
            *restart = RestartState::Due(until);
        }
    }

    /// Somebody waits for its restart.
    pub(super) fn prioritize(&mut self) {
        if let State::Failed { urgent, .. } = &mut self.state {
            *urgent = true;
        }
    }

    /// Its restart; none if it has not failed.
    pub(super) fn restart_state(&self) -> Option<RestartState> {
        match self.state {
            State::Failed { restart, .. } => Some(restart),
            State::Running(_) => None,
        }
    }

    pub(super) fn as_running(&self) -> Option<&RunningMonitor> {
        match &self.state {
            State::Running(running) => Some(running),
            State::Failed { .. } => None,
        }
    }

    pub(super) fn as_running_mut(&mut self) -> Option<&mut RunningMonitor> {
        match &mut self.state {
            State::Running(running) => Some(running),
            State::Failed { .. } => None,
        }
    }

    /// What is known of it.
    pub(super) fn activity(&self) -> EngineActivity {
        let admitted_at = Some(self.admitted_at);
        match &self.state {
            State::Running(running) => EngineActivity {
                admitted_at,
                last_health_at: running.last_health_at,
                healthy_since: Some(running.healthy_since_at),
                failed_checks: running.failed_checks,
                restarts: running.restarts,
            },
            State::Failed { .. } => EngineActivity { admitted_at, ..EngineActivity::default() },
        }
    }
}

impl RestartState {
    fn is_due(self, now: MonoMillis) -> bool {
        matches!(self, Self::Due(at) if at <= now)
    }
}

impl RunningMonitor {
    /// Restarts attempted, unless it has been well for so long that they are forgotten.
    pub(super) fn restart_count(&self, now: MonoMillis, rules: &SupervisionRules) -> i64 {
        let forgotten = now.saturating_sub(self.healthy_since) >= to_mono_millis(rules.backoff_max);
        if forgotten { 0 } else { self.restarts }
    }

    fn schedule_idle_check(&mut self, admitted: MonoMillis) {
        self.idle_check_at =
            if self.idle_threshold > 0 { admitted.saturating_add(self.idle_threshold) } else { NEVER };
    }

    /// It has taken the registry's key.
    pub(super) fn mark_key_accepted(&mut self, now: MonoMillis) {
        match self.key_state {
            KeyState::Unproven { until } if now < until => {}
            KeyState::Accepted | KeyState::Unproven { .. } | KeyState::Refused => {
                self.key_state = KeyState::Accepted;
            }
        }
    }

    /// A check has ended. Returns how many in a row have failed.
    pub(super) fn record_check(
        &mut self,
        passed: bool,
        rules: &SupervisionRules,
        (now, wall): (MonoMillis, Timestamp),
    ) -> u32 {
        self.check_in_progress = false;
        if !passed {
            self.failed_checks = self.failed_checks.saturating_add(1);
            return self.failed_checks;
        }
        if self.failed_checks > 0 {
            (self.healthy_since, self.healthy_since_at) = (now, wall);
        }
        self.failed_checks = 0;
        self.last_health_at = Some(wall);
        self.restarts = self.restart_count(now, rules);
        self.failed_checks
    }
}

/// When `at` was by the monotonic clock, which shows `now` when the wall clock shows `wall`. What lies ahead by
/// the wall clock is now: that clock has been set back.
fn wall_to_mono(at: Timestamp, now: MonoMillis, wall: Timestamp) -> MonoMillis {
    now.saturating_sub(wall.unix_ms().saturating_sub(at.unix_ms()).max(0))
}

/// Where in the interval an engine is asked: checks are spread, however many engines come at once.
fn check_phase(row: &EngineRow, interval: Duration) -> MonoMillis {
    let mut hasher = DefaultHasher::new();
    row.engine_id.hash(&mut hasher);
    let interval = to_mono_millis(interval).max(1).unsigned_abs();
    i64::try_from(hasher.finish() % interval).unwrap_or_default()
}
