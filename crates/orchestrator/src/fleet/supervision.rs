//! The supervisor's schedule: when each running engine is checked or put to sleep, and when each failed engine is
//! restarted, as long as attempts are left.
//!
//! Nothing scans all engines: each one has a next due time, and the loop in [`supervisor`](super::supervisor)
//! takes what is due. All times are monotonic; the wall-clock times in the registry are for the next orchestrator
//! only.

mod engine_monitor;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::EngineStatus;
use api::{EngineId, KeyHash, ProductId, Timestamp};
use backend::{Addressing, Instance, Placement};
use http_service::clock::Clock;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use self::engine_monitor::{EngineMonitor, RunningMonitor};
pub(super) use self::engine_monitor::{
    KeyState, MonoMillis, RestartState, SupervisionAction, to_mono_millis,
};
use crate::domain::{EngineOwner, SupervisionRules};
use crate::registry::{EngineActivity, EngineRow, SupervisedEngine};

/// The shortest delay before a restart that could not be attempted is due again, in milliseconds.
const MIN_RESTART_DELAY_MS: MonoMillis = 1_000;

/// An action on one engine that is due.
#[derive(Clone, Debug)]
pub(super) struct DueAction {
    pub(super) engine_id: EngineId,
    pub(super) engine_owner: EngineOwner,
    pub(super) action: SupervisionAction,
    /// The generation of the engine's row for which it was scheduled.
    pub(super) generation: i64,
    /// The time since it was due.
    pub(super) lag: Duration,
}

/// The data that a health check of a running engine needs.
#[derive(Clone, Debug)]
pub(super) struct CheckTarget {
    pub(super) engine_owner: EngineOwner,
    pub(super) placement: Placement,
    pub(super) instance: Instance,
    /// The number of consecutive failed checks.
    pub(super) failed_checks: u32,
    pub(super) key_state: KeyState,
    pub(super) key_hash: KeyHash,
    /// Whether the engine has proven before that it holds its key.
    pub(super) key_proven: bool,
}

/// The monitors of all supervised engines, ordered by their due times.
pub(super) struct Supervision {
    rules: SupervisionRules,
    /// How the engines are addressed.
    addressing: Addressing,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Notified when something may have become due earlier.
    changed: Notify,
}

#[derive(Default)]
struct State {
    monitors: HashMap<EngineId, EngineMonitor>,
    due: BTreeSet<(MonoMillis, EngineId)>,
    /// Engines whose activity has changed since it was last saved in the registry.
    unsaved: HashSet<EngineId>,
    /// The idle thresholds that policies set, by product.
    idle_thresholds: HashMap<ProductId, Duration>,
}

impl State {
    /// Applies `change` to a monitor and updates its position in the order of due times.
    fn update_monitor<T>(
        &mut self,
        engine_id: EngineId,
        change: impl FnOnce(&mut EngineMonitor) -> T,
    ) -> Option<T> {
        let monitor = self.monitors.get_mut(&engine_id)?;
        let before = monitor.next_due();
        let result = change(monitor);
        let after = monitor.next_due();
        if before != after {
            self.due.remove(&(before, engine_id));
            self.due.insert((after, engine_id));
        }
        Some(result)
    }

    fn remove(&mut self, engine_id: EngineId) {
        if let Some(monitor) = self.monitors.remove(&engine_id) {
            self.due.remove(&(monitor.next_due(), engine_id));
            monitor.changed.notify_waiters();
        }
    }

    fn insert(&mut self, engine_id: EngineId, monitor: EngineMonitor) {
        self.remove(engine_id);
        self.unsaved.remove(&engine_id);
        self.due.insert((monitor.next_due(), engine_id));
        self.monitors.insert(engine_id, monitor);
    }
}

impl Supervision {
    pub(super) fn new(rules: SupervisionRules, addressing: Addressing, clock: Arc<dyn Clock>) -> Self {
        Self { rules, addressing, clock, state: Mutex::default(), changed: Notify::new() }
    }

    /// The monotonic clock, for everything that must not depend on the wall clock.
    pub(super) fn mono_now(&self) -> MonoMillis {
        to_mono_millis(self.clock.monotonic())
    }

    /// The current time on both clocks.
    pub(super) fn now(&self) -> (MonoMillis, Timestamp) {
        (self.mono_now(), self.clock.now())
    }

    pub(super) const fn rules(&self) -> &SupervisionRules {
        &self.rules
    }

    /// Restores the monitors from the state that an earlier orchestrator saved.
    pub(super) fn restore(&self, supervised: &[SupervisedEngine]) {
        let now = self.now();
        for SupervisedEngine { row, activity } in supervised {
            self.track_row(row, *activity, now);
            // The registry may have been restored from a backup that is older than the engine's key.
            self.set_key_state(row.engine_id, KeyState::Unproven { until: now.0 });
        }
        self.changed.notify_one();
    }

    /// Tracks the state that an engine has had since `now`. `on_demand`: a caller requested it, which counts as an
    /// admit.
    pub(super) fn track(&self, row: &EngineRow, on_demand: bool, now: (MonoMillis, Timestamp)) {
        let wall = now.1;
        let known = self.state().monitors.get(&row.engine_id).map(EngineMonitor::activity);
        let admitted_at = known.filter(|_| !on_demand).and_then(|activity| activity.admitted_at);
        let activity = EngineActivity {
            admitted_at: admitted_at.or(Some(wall)),
            last_health_at: row.last_health_at,
            healthy_since: Some(wall),
            failed_checks: 0,
            restarts: row.restarts,
        };
        self.track_row(row, activity, now);
        self.changed.notify_one();
    }

    /// Removes an engine that does not exist any more.
    pub(super) fn forget(&self, engine_id: EngineId) {
        self.state().remove(engine_id);
    }

    fn track_row(&self, row: &EngineRow, activity: EngineActivity, now: (MonoMillis, Timestamp)) {
        let mut state = self.state();
        // A later change may have been tracked first.
        if state.monitors.get(&row.engine_id).is_some_and(|monitor| monitor.generation > row.generation) {
            return;
        }
        let threshold = state.idle_thresholds.get(&row.owner.product_id).copied();
        let threshold = threshold.unwrap_or(self.rules.idle_threshold);
        let monitor = match row.running(self.addressing) {
            Some(running) => Some(EngineMonitor::running(running, activity, &self.rules, threshold, now)),
            None if row.status == EngineStatus::Failed => row.restart_at.map(|at| {
                // If the wall clock was set meanwhile, the difference can be arbitrary.
                let due_in = at.unix_ms().saturating_sub(now.1.unix_ms());
                let due_in = due_in.clamp(0, to_mono_millis(self.rules.backoff_max).saturating_mul(2));
                EngineMonitor::failed(row, activity, now.0.saturating_add(due_in), now)
            }),
            None => None,
        };
        match monitor {
            Some(monitor) => state.insert(row.engine_id, monitor),
            None => state.remove(row.engine_id),
        }
    }

    /// Sets the idle threshold of a product; with `None`, the operator's default applies again.
    pub(super) fn set_idle_threshold(&self, product_id: ProductId, threshold: Option<Duration>) {
        let mut state = self.state();
        match threshold {
            Some(threshold) => state.idle_thresholds.insert(product_id, threshold),
            None => state.idle_thresholds.remove(&product_id),
        };
        let threshold = threshold.unwrap_or(self.rules.idle_threshold);
        let of_product =
            state.monitors.iter().filter(|(_, monitor)| monitor.engine_owner.product_id == product_id);
        let engines: Vec<_> = of_product.map(|(engine_id, _)| *engine_id).collect();
        for engine_id in engines {
            state.update_monitor(engine_id, |monitor| monitor.set_idle_threshold(threshold));
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Records that the user of a running engine was admitted.
    pub(super) fn record_admit(&self, engine_id: EngineId) {
        let (now, wall) = self.now();
        // An admit does not reschedule the idle check: when that is due, it finds the later admit.
        let mut state = self.state();
        if let Some(monitor) = state.monitors.get_mut(&engine_id) {
            monitor.record_admit(now, wall);
            state.unsaved.insert(engine_id);
        }
    }

    /// Whether the engine's user was not admitted within the idle threshold.
    pub(super) fn is_idle(&self, engine_id: EngineId) -> bool {
        let now = self.mono_now();
        self.state().monitors.get(&engine_id).is_some_and(|monitor| monitor.is_idle(now))
    }

    /// Takes all actions that are due.
    pub(super) fn take_due(&self) -> Vec<DueAction> {
        let now = self.mono_now();
        let mut state = self.state();
        let mut actions = Vec::new();
        while let Some((at, engine_id)) = state.due.first().copied().filter(|(at, _)| *at <= now) {
            let lag = Duration::from_millis(now.saturating_sub(at).unsigned_abs());
            let rules = self.rules;
            let action = state.update_monitor(engine_id, |monitor| {
                let action = monitor.take_due(now, &rules)?;
                Some(DueAction {
                    engine_id,
                    engine_owner: monitor.engine_owner.clone(),
                    action,
                    generation: monitor.generation,
                    lag,
                })
            });
            actions.extend(action.flatten());
        }
        actions
    }

    /// The number of supervised engines.
    pub(super) fn len(&self) -> usize {
        self.state().monitors.len()
    }

    /// The time until the next action is due; `None` if none is scheduled.
    pub(super) fn until_next_due(&self) -> Option<Duration> {
        let (at, _) = *self.state().due.first()?;
        Some(Duration::from_millis(at.saturating_sub(self.mono_now()).max(0).unsigned_abs()))
    }

    /// Waits until something may have become due earlier.
    pub(super) async fn wait_for_change(&self) {
        self.changed.notified().await;
    }

    /// The data for a health check, if the engine still runs.
    pub(super) fn check_target(&self, engine_id: EngineId) -> Option<CheckTarget> {
        let state = self.state();
        let monitor = state.monitors.get(&engine_id)?;
        let engine_owner = monitor.engine_owner.clone();
        let RunningMonitor { placement, instance, failed_checks, key_state, key_hash, key_proven, .. } =
            monitor.as_running()?;
        Some(CheckTarget {
            engine_owner,
            placement: *placement,
            instance: instance.clone(),
            failed_checks: *failed_checks,
            key_state: *key_state,
            key_hash: *key_hash,
            key_proven: *key_proven,
        })
    }

    /// Whether a running engine accepts the registry's key, as far as is known.
    pub(super) fn key_state(&self, engine_id: EngineId) -> Option<KeyState> {
        Some(self.state().monitors.get(&engine_id)?.as_running()?.key_state)
    }

    /// Records whether a running engine accepts the registry's key.
    pub(super) fn set_key_state(&self, engine_id: EngineId, key_state: KeyState) {
        self.update_running(engine_id, |running| running.key_state = key_state);
    }

    /// Records that the key of a running engine was replaced.
    pub(super) fn set_key_hash(&self, engine_id: EngineId, key_hash: KeyHash) {
        self.update_running(engine_id, |running| running.key_hash = key_hash);
    }

    /// Records that a running engine has proven that it holds the registry's key.
    pub(super) fn mark_key_proven(&self, engine_id: EngineId) {
        let now = self.mono_now();
        self.update_running(engine_id, |running| {
            running.key_proven = true;
            running.mark_key_accepted(now);
        });
    }

    /// Records that a running engine has accepted the registry's key.
    pub(super) fn mark_key_accepted(&self, engine_id: EngineId) {
        let now = self.mono_now();
        self.update_running(engine_id, |running| running.mark_key_accepted(now));
    }

    /// Records the result of a health check of `instance`. Returns the number of consecutive failed checks; `None` if
    /// that instance is not supervised any more.
    pub(super) fn record_check(&self, engine_id: EngineId, instance: &Instance, passed: bool) -> Option<u32> {
        let now = self.now();
        let mut state = self.state();
        let running = state.monitors.get_mut(&engine_id)?.as_running_mut()?;
        if running.instance != *instance {
            return None;
        }
        let failed = running.record_check(passed, &self.rules, now);
        state.unsaved.insert(engine_id);
        Some(failed)
    }

    /// Ends a health check that says nothing about the engine.
    pub(super) fn discard_check(&self, engine_id: EngineId, instance: &Instance) {
        self.update_running(engine_id, |running| {
            if running.instance == *instance {
                running.discard_check();
            }
        });
    }

    /// Reschedules the idle check after an attempt to put the engine to sleep: if it keeps running, it is tried
    /// again one check interval later.
    pub(super) fn reschedule_idle_check(&self, engine_id: EngineId) {
        let next_at = self.mono_now().saturating_add(to_mono_millis(self.rules.check_interval));
        self.state().update_monitor(engine_id, |monitor| monitor.recheck_idle_at(next_at));
        self.changed.notify_one();
    }

    /// Postpones a restart that was due and could not be attempted.
    pub(super) fn postpone_restart(&self, engine_id: EngineId) {
        let delay = to_mono_millis(self.rules.backoff_base).max(MIN_RESTART_DELAY_MS);
        let next_at = self.mono_now().saturating_add(delay);
        self.state().update_monitor(engine_id, |monitor| monitor.postpone(next_at));
        self.changed.notify_one();
    }

    /// The state of the restart of a failed engine; `None` if no restart is scheduled.
    pub(super) fn restart_state(&self, engine_id: EngineId) -> Option<RestartState> {
        self.state().monitors.get(&engine_id)?.restart_state()
    }

    /// The number of restarts of a running engine that still count.
    pub(super) fn restart_count(&self, engine_id: EngineId) -> Option<i64> {
        let now = self.mono_now();
        Some(self.state().monitors.get(&engine_id)?.as_running()?.restart_count(now, &self.rules))
    }

    /// When the user of a running engine was last admitted, and when it becomes idle, which may be never.
    pub(super) fn idleness(&self, engine_id: EngineId) -> Option<(Timestamp, Option<MonoMillis>)> {
        let state = self.state();
        let monitor = state.monitors.get(&engine_id)?;
        Some((monitor.activity().admitted_at?, monitor.idle_deadline()))
    }

    /// Marks the restart of an engine as urgent, because a caller waits for it. The returned [`Notify`] is
    /// notified when the restart has begun or the state has changed; `None` if the engine is not supervised.
    pub(super) fn prioritize(&self, engine_id: EngineId) -> Option<Arc<Notify>> {
        let mut state = self.state();
        let monitor = state.monitors.get_mut(&engine_id)?;
        monitor.prioritize();
        Some(Arc::clone(&monitor.changed))
    }

    /// Wakes the callers who wait for the restart of an engine, so that they decide again.
    pub(super) fn notify_waiters(&self, engine_id: EngineId) {
        if let Some(monitor) = self.state().monitors.get(&engine_id) {
            monitor.changed.notify_waiters();
        }
    }

    /// Takes the activity of the engines that have changed since the last call.
    pub(super) fn take_unsaved_activity(&self) -> Vec<(EngineId, EngineActivity)> {
        let mut state = self.state();
        let unsaved = std::mem::take(&mut state.unsaved);
        let activity = |engine_id| Some((engine_id, state.monitors.get(&engine_id)?.activity()));
        unsaved.into_iter().filter_map(activity).collect()
    }

    /// Marks activity that could not be saved as unsaved again.
    pub(super) fn mark_unsaved(&self, activities: &[(EngineId, EngineActivity)]) {
        self.state().unsaved.extend(activities.iter().map(|(engine_id, _)| *engine_id));
    }

    fn update_running(&self, engine_id: EngineId, update: impl FnOnce(&mut RunningMonitor)) {
        let mut state = self.state();
        if let Some(running) = state.monitors.get_mut(&engine_id).and_then(EngineMonitor::as_running_mut) {
            update(running);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
