//! The state of one supervised engine, and when its next action is due.
//!
//! It is pure: every function gets the current time as an argument.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use api::{KeyHash, Timestamp};
use backend::{Instance, Placement};
use tokio::sync::Notify;

use crate::domain::{EngineOwner, SupervisionRules};
use crate::registry::{EngineActivity, EngineRow, RunningEngine};

/// A time of the monotonic clock in milliseconds; negative values lie before the start of this process.
pub(in crate::fleet) type MonoMillis = i64;

/// Converts a duration to milliseconds.
pub(in crate::fleet) fn to_mono_millis(duration: Duration) -> MonoMillis {
    // Rounded up, so that no positive duration becomes zero.
    i64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// The due time of an action that is not scheduled.
pub(super) const NEVER: MonoMillis = MonoMillis::MAX;

/// An action that the supervisor takes on an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum SupervisionAction {
    /// Check its health.
    Check,
    /// Put it to sleep, if it agrees.
    Sleep,
    /// Attempt a restart; `urgent` if a caller waits for it.
    Restart { urgent: bool },
}

/// The monitor of one engine.
pub(super) struct EngineMonitor {
    pub(super) engine_owner: EngineOwner,
    /// The generation of the row that this reflects; information about earlier generations is stale.
    pub(super) generation: i64,
    /// Notified when the state changes or a restart begins.
    pub(super) changed: Arc<Notify>,
    /// When its user was last admitted, or the engine was launched on demand.
    admitted_mono: MonoMillis,
    admitted_at: Timestamp,
    pub(super) state: State,
}

/// Whether the engine is checked or restarted.
pub(super) enum State {
    Running(RunningMonitor),
    Failed {
        restart: RestartState,
        /// Whether a caller waits for the restart.
        urgent: bool,
    },
}

/// The state of the restart of a failed engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum RestartState {
    /// It is due at this time.
    Due(MonoMillis),
    /// It is being attempted, or waits for a permit.
    InProgress,
}

/// Whether an engine accepts the registry's key, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum KeyState {
    /// It has accepted the key.
    Accepted,
    /// Health checks verify the key until one has succeeded at `until` or later: the registry may be older than
    /// the engine, or a command that changes the engine's key may still reach it.
    Unproven { until: MonoMillis },
    /// It has refused the key: health checks verify the key until it is accepted.
    Refused,
}

/// The state of a running engine.
pub(super) struct RunningMonitor {
    pub(super) instance: Instance,
    pub(super) placement: Placement,
    check_at: MonoMillis,
    /// Whether a check is under way.
    check_in_progress: bool,
    pub(super) key_state: KeyState,
    pub(super) key_hash: KeyHash,
    /// Whether it has proven once that it holds its key. From then on, a process that gives no proof is not it.
    pub(super) key_proven: bool,
    /// When the next idle check is due.
    idle_check_at: MonoMillis,
    idle_threshold: MonoMillis,
    pub(super) failed_checks: u32,
    restarts: i64,
    last_health_at: Option<Timestamp>,
    /// The time since which all checks have passed.
    healthy_since: MonoMillis,
    healthy_since_at: Timestamp,
}

impl EngineMonitor {
    /// The monitor of a running engine at the time `now`, which is `wall` on the wall clock.
    pub(super) fn running(
        engine: RunningEngine<'_>,
        activity: EngineActivity,
        rules: &SupervisionRules,
        threshold: Duration,
        (now, wall): (MonoMillis, Timestamp),
    ) -> Self {
        let admitted_at = activity.admitted_at.unwrap_or(wall);
        let healthy_since_at = activity.healthy_since.unwrap_or(wall);
        let RunningEngine { row, placement, instance } = engine;
        let mut running = RunningMonitor {
            instance: instance.clone(),
            placement,
            check_at: now.saturating_add(check_phase(row, rules.check_interval)),
            check_in_progress: false,
            key_state: KeyState::Accepted,
            key_hash: row.key_hash,
            key_proven: false,
            idle_check_at: NEVER,
            idle_threshold: to_mono_millis(threshold),
            failed_checks: activity.failed_checks,
            restarts: activity.restarts,
            last_health_at: activity.last_health_at,
            healthy_since: wall_to_mono(healthy_since_at, now, wall),
            healthy_since_at,
        };
        let admitted_mono = wall_to_mono(admitted_at, now, wall);
        running.schedule_idle_check(admitted_mono);
        Self::new(row, admitted_mono, admitted_at, State::Running(running))
    }

    /// The monitor of a failed engine whose restart is due at `restart_at`.
    pub(super) fn failed(
        row: &EngineRow,
        activity: EngineActivity,
        restart_at: MonoMillis,
        now: (MonoMillis, Timestamp),
    ) -> Self {
        let admitted_at = activity.admitted_at.unwrap_or(now.1);
        let restart = State::Failed { restart: RestartState::Due(restart_at), urgent: false };
        Self::new(row, wall_to_mono(admitted_at, now.0, now.1), admitted_at, restart)
    }

    fn new(row: &EngineRow, admitted_mono: MonoMillis, admitted_at: Timestamp, state: State) -> Self {
        let (engine_owner, generation) = (row.owner.clone(), row.generation);
        Self { engine_owner, generation, changed: Arc::default(), admitted_mono, admitted_at, state }
    }

    /// The time at which the next action is due.
    pub(super) fn next_due(&self) -> MonoMillis {
        match &self.state {
            State::Running(running) => running.check_at.min(running.idle_check_at),
            State::Failed { restart: RestartState::Due(at), .. } => *at,
            State::Failed { restart: RestartState::InProgress, .. } => NEVER,
        }
    }

    /// Takes the action that is due at `now`, if any, and schedules the next one.
    pub(super) fn take_due(
        &mut self,
        now: MonoMillis,
        rules: &SupervisionRules,
    ) -> Option<SupervisionAction> {
        let admitted_mono = self.admitted_mono;
        match &mut self.state {
            State::Running(running) if running.idle_check_at <= now => {
                running.schedule_idle_check(admitted_mono);
                if running.idle_check_at > now {
                    return None;
                }
                // An engine that failed its last check would not answer; the checks decide what happens to it.
                if running.failed_checks > 0 {
                    running.idle_check_at = now.saturating_add(to_mono_millis(rules.check_interval));
                    return None;
                }
                running.idle_check_at = NEVER;
                Some(SupervisionAction::Sleep)
            }
            State::Running(running) if running.check_at <= now => {
                running.check_at = now.saturating_add(to_mono_millis(rules.check_interval));
                // If a check takes longer than the interval, no second one starts beside it.
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

    /// Whether its user was not admitted within the idle threshold.
    pub(super) fn is_idle(&self, now: MonoMillis) -> bool {
        self.idle_deadline().is_some_and(|at| at <= now)
    }

    /// When it becomes idle unless its user is admitted before; `None` means never.
    pub(super) fn idle_deadline(&self) -> Option<MonoMillis> {
        let State::Running(running) = &self.state else { return None };
        (running.idle_threshold > 0).then(|| self.admitted_mono.saturating_add(running.idle_threshold))
    }

    /// Sets the idle threshold; zero means never idle.
    pub(super) fn set_idle_threshold(&mut self, threshold: Duration) {
        let admitted_mono = self.admitted_mono;
        if let State::Running(running) = &mut self.state {
            running.idle_threshold = to_mono_millis(threshold);
            running.schedule_idle_check(admitted_mono);
        }
    }

    /// Records an admit of its user. The idle check is not rescheduled before it is due, so an admit is cheap.
    pub(super) fn record_admit(&mut self, now: MonoMillis, wall: Timestamp) {
        (self.admitted_mono, self.admitted_at) = (now, wall);
    }

    /// Schedules another idle check at `at`, after the engine did not agree to sleep.
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

    /// Postpones a restart that was taken and could not be attempted.
    pub(super) fn postpone(&mut self, until: MonoMillis) {
        // If it was attempted, the next restart is scheduled already.
        if let State::Failed { restart: restart @ RestartState::InProgress, .. } = &mut self.state {
            *restart = RestartState::Due(until);
        }
    }

    /// Marks its restart as urgent.
    pub(super) fn prioritize(&mut self) {
        if let State::Failed { urgent, .. } = &mut self.state {
            *urgent = true;
        }
    }

    /// The state of its restart; `None` if it has not failed.
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

    /// Its activity, as the registry stores it.
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
    /// The restarts that count: none once it has been healthy for [`SupervisionRules::backoff_max`].
    pub(super) fn restart_count(&self, now: MonoMillis, rules: &SupervisionRules) -> i64 {
        let is_reset = now.saturating_sub(self.healthy_since) >= to_mono_millis(rules.backoff_max);
        if is_reset { 0 } else { self.restarts }
    }

    fn schedule_idle_check(&mut self, admitted_mono: MonoMillis) {
        self.idle_check_at =
            if self.idle_threshold > 0 { admitted_mono.saturating_add(self.idle_threshold) } else { NEVER };
    }

    /// Records that it has accepted the registry's key.
    pub(super) fn mark_key_accepted(&mut self, now: MonoMillis) {
        match self.key_state {
            KeyState::Unproven { until } if now < until => {}
            KeyState::Accepted | KeyState::Unproven { .. } | KeyState::Refused => {
                self.key_state = KeyState::Accepted;
            }
        }
    }

    /// Records the result of a check. Returns the number of consecutive failed checks.
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

    /// Ends a health check whose result counts neither way.
    pub(super) fn discard_check(&mut self) {
        self.check_in_progress = false;
    }
}

/// Converts the wall-clock time `at` to monotonic time, given that `now` and `wall` are the same moment. A time in
/// the future becomes `now`: the wall clock was set back.
fn wall_to_mono(at: Timestamp, now: MonoMillis, wall: Timestamp) -> MonoMillis {
    now.saturating_sub(wall.unix_ms().saturating_sub(at.unix_ms()).max(0))
}

/// The offset of the first check within the interval. It depends on the engine's id, so that the checks of many
/// engines are spread over the interval.
fn check_phase(row: &EngineRow, interval: Duration) -> MonoMillis {
    let mut hasher = DefaultHasher::new();
    row.engine_id.hash(&mut hasher);
    let interval = to_mono_millis(interval).max(1).unsigned_abs();
    i64::try_from(hasher.finish() % interval).unwrap_or_default()
}
