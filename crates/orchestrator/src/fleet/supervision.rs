//! What the supervisor has to do, and when: every running engine is looked after, every failed one restarted
//! as long as attempts are left.
//!
//! Nothing is scanned: each engine has one next moment, and the loop in [`duties`](super::supervisor) takes what is
//! due. All is reckoned by monotonic time; the registry keeps wall times, for the next orchestrator alone.

mod engine_monitor;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::orchestrator::EngineStatus;
use api::{EngineId, KeyHash, ProductId, Timestamp};
use tokio::sync::Notify;

use self::engine_monitor::{EngineMonitor, RunningMonitor};
pub(super) use self::engine_monitor::{
    KeyState, MonoMillis, RestartState, SupervisionAction, to_mono_millis,
};
use crate::backend::Instance;
use crate::fault_injection::{self, Mutation};
use crate::registry::{EngineActivity, EngineOwner, EngineRow, SupervisedEngine};

/// The supervisor's rules, as the operator set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupervisionRules {
    /// How often each running engine is asked how it is.
    pub check_interval: Duration,
    /// How long it may take to answer.
    pub check_timeout: Duration,
    /// So many failed checks in a row, and it has failed.
    pub max_failures: u32,
    /// The wait before the first restart; each further one waits twice as long.
    pub backoff_base: Duration,
    /// The longest wait before a restart, and how long an engine must be well for its restarts to be forgotten.
    pub backoff_max: Duration,
    /// So many restarts are attempted.
    pub max_restarts: u32,
    /// An engine sleeps after so long without an admit; zero: never.
    pub idle_threshold: Duration,
}

impl Default for SupervisionRules {
    /// The contract's example values.
    fn default() -> Self {
        Self {
            check_interval: Duration::from_secs(30),
            check_timeout: Duration::from_secs(10),
            max_failures: 3,
            backoff_base: Duration::from_secs(5),
            backoff_max: Duration::from_mins(5),
            max_restarts: 8,
            idle_threshold: Duration::from_hours(1),
        }
    }
}

/// A restart that could not be attempted is due again after so many milliseconds at least.
const MIN_RESTART_DELAY_MS: MonoMillis = 1_000;

/// A moment that one engine's duty is due.
#[derive(Clone, Debug)]
pub(super) struct DueAction {
    pub(super) engine_id: EngineId,
    pub(super) engine_owner: EngineOwner,
    pub(super) action: SupervisionAction,
    /// The change of its row after which it was due.
    pub(super) generation: i64,
    /// How long ago that was.
    pub(super) lag: Duration,
}

/// A running engine that is to be asked how it is.
#[derive(Clone, Debug)]
pub(super) struct CheckTarget {
    pub(super) port: u16,
    pub(super) instance: Instance,
    /// Checks failed in a row.
    pub(super) failed_checks: u32,
    pub(super) key_state: KeyState,
    pub(super) key_hash: KeyHash,
    /// Whether it has proven before that it has its key.
    pub(super) key_proven: bool,
}

/// See the module.
pub(super) struct Supervision {
    rules: SupervisionRules,
    state: Mutex<State>,
    /// Something may be due earlier than it was.
    changed: Notify,
}

#[derive(Default)]
struct State {
    monitors: HashMap<EngineId, EngineMonitor>,
    due: BTreeSet<(MonoMillis, EngineId)>,
    /// Those of which something was learnt that the registry does not have yet.
    unsaved: HashSet<EngineId>,
    /// Products whose policy sets a threshold of its own.
    idle_thresholds: HashMap<ProductId, Duration>,
}

impl State {
    /// Lets `change` work on a ward, and keeps its place in the order of what is due.
    fn update_monitor<T>(
        &mut self,
        engine_id: EngineId,
        change: impl FnOnce(&mut EngineMonitor) -> T,
    ) -> Option<T> {
        let ward = self.monitors.get_mut(&engine_id)?;
        let before = ward.next_due();
        let made = change(ward);
        let after = ward.next_due();
        if before != after {
            self.due.remove(&(before, engine_id));
            self.due.insert((after, engine_id));
        }
        Some(made)
    }

    fn remove(&mut self, engine_id: EngineId) {
        if let Some(ward) = self.monitors.remove(&engine_id) {
            self.due.remove(&(ward.next_due(), engine_id));
            ward.changed.notify_waiters();
        }
    }

    fn insert(&mut self, engine_id: EngineId, ward: EngineMonitor) {
        self.remove(engine_id);
        self.unsaved.remove(&engine_id);
        self.due.insert((ward.next_due(), engine_id));
        self.monitors.insert(engine_id, ward);
    }
}

impl Supervision {
    pub(super) fn new(rules: SupervisionRules) -> Self {
        Self { rules, state: Mutex::default(), changed: Notify::new() }
    }

    pub(super) const fn rules(&self) -> &SupervisionRules {
        &self.rules
    }

    /// Takes over what an earlier orchestrator knew.
    pub(super) fn restore(&self, supervised: &[SupervisedEngine], now: MonoMillis, wall: Timestamp) {
        for SupervisedEngine { row, activity: stamp } in supervised {
            let stamp = if fault_injection::active(Mutation::ForgetStamps) {
                EngineActivity::default()
            } else {
                *stamp
            };
            self.track_row(row, stamp, (now, wall));
            // The registry may be a backup that is older than the engine's key.
            self.set_key_state(row.engine_id, KeyState::Unproven { until: now });
        }
        self.changed.notify_one();
    }

    /// Takes note of the state that an engine has come into; `wanted`: because somebody wants it now.
    pub(super) fn track(&self, row: &EngineRow, wanted: bool, now: MonoMillis, wall: Timestamp) {
        let known = self.state().monitors.get(&row.engine_id).map(EngineMonitor::activity);
        let admitted_at = known.filter(|_| !wanted).and_then(|stamp| stamp.admitted_at);
        let stamp = EngineActivity {
            admitted_at: admitted_at.or(Some(wall)),
            last_health_at: row.last_health_at,
            healthy_since: Some(wall),
            failed_checks: 0,
            restarts: row.restarts,
        };
        self.track_row(row, stamp, (now, wall));
        self.changed.notify_one();
    }

    /// Forgets an engine that is no more.
    pub(super) fn forget(&self, engine_id: EngineId) {
        self.state().remove(engine_id);
    }

    fn track_row(&self, row: &EngineRow, stamp: EngineActivity, now: (MonoMillis, Timestamp)) {
        let mut state = self.state();
        // Whoever settled it later may have been faster to tell.
        if state.monitors.get(&row.engine_id).is_some_and(|ward| ward.generation > row.generation) {
            return;
        }
        let threshold = state.idle_thresholds.get(&row.owner.product_id).copied();
        let threshold = threshold.unwrap_or(self.rules.idle_threshold);
        let ward = match (row.status, row.port, &row.instance) {
            (EngineStatus::Running, Some(port), Some(instance)) => Some(EngineMonitor::running(
                row,
                (instance.clone(), port),
                stamp,
                &self.rules,
                threshold,
                now,
            )),
            (EngineStatus::Failed, ..) => row.restart_at.map(|at| {
                // By a wall clock that was set meanwhile it may be any time away.
                let due_in = at.unix_ms().saturating_sub(now.1.unix_ms());
                let due_in = due_in.clamp(0, to_mono_millis(self.rules.backoff_max).saturating_mul(2));
                EngineMonitor::failed(row, stamp, now.0.saturating_add(due_in), now)
            }),
            _ => None,
        };
        match ward {
            Some(ward) => state.insert(row.engine_id, ward),
            None => state.remove(row.engine_id),
        }
    }

    /// Sets a product's own threshold, or takes it away.
    pub(super) fn set_idle_threshold(&self, product_id: ProductId, threshold: Option<Duration>) {
        let mut state = self.state();
        match threshold {
            Some(threshold) => state.idle_thresholds.insert(product_id, threshold),
            None => state.idle_thresholds.remove(&product_id),
        };
        let threshold = threshold.unwrap_or(self.rules.idle_threshold);
        let of_product = state.monitors.iter().filter(|(_, ward)| ward.engine_owner.product_id == product_id);
        let engines: Vec<_> = of_product.map(|(engine_id, _)| *engine_id).collect();
        for engine_id in engines {
            state.update_monitor(engine_id, |ward| ward.set_idle_threshold(threshold));
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Notes that the user of a running engine was admitted.
    pub(super) fn record_admit(&self, engine_id: EngineId, now: MonoMillis, wall: Timestamp) {
        // When it may sleep is looked at when that was due: nothing is reckoned on an admit.
        let mut state = self.state();
        if let Some(ward) = state.monitors.get_mut(&engine_id) {
            ward.record_admit(now, wall);
            state.unsaved.insert(engine_id);
        }
    }

    /// Whether an engine's user has not been admitted for its threshold.
    pub(super) fn is_idle(&self, engine_id: EngineId, now: MonoMillis) -> bool {
        self.state().monitors.get(&engine_id).is_some_and(|ward| ward.is_idle(now))
    }

    /// Takes all that is due.
    pub(super) fn take_due(&self, now: MonoMillis) -> Vec<DueAction> {
        let mut state = self.state();
        let mut taken = Vec::new();
        while let Some((at, engine_id)) = state.due.first().copied().filter(|(at, _)| *at <= now) {
            let lag = Duration::from_millis(now.saturating_sub(at).unsigned_abs());
            let rules = self.rules;
            let action = state.update_monitor(engine_id, |ward| {
                let action = ward.take_due(now, &rules)?;
                Some(DueAction {
                    engine_id,
                    engine_owner: ward.engine_owner.clone(),
                    action,
                    generation: ward.generation,
                    lag,
                })
            });
            taken.extend(action.flatten());
        }
        taken
    }

    /// How many engines are supervised.
    pub(super) fn len(&self) -> usize {
        self.state().monitors.len()
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<MonoMillis> {
        self.state().due.first().map(|(at, _)| *at)
    }

    /// Waits until something may be due earlier than it was.
    pub(super) async fn wait_for_change(&self) {
        self.changed.notified().await;
    }

    /// The engine to be asked, if it still runs.
    pub(super) fn check_target(&self, engine_id: EngineId) -> Option<CheckTarget> {
        let state = self.state();
        let ward = state.monitors.get(&engine_id)?;
        let RunningMonitor {
            port,
            instance,
            failed_checks,
            key_state: key,
            key_hash,
            key_proven: proven,
            ..
        } = ward.as_running()?;
        Some(CheckTarget {
            port: *port,
            instance: instance.clone(),
            failed_checks: *failed_checks,
            key_state: *key,
            key_hash: *key_hash,
            key_proven: *proven,
        })
    }

    /// Whether a running engine takes the registry's key, as far as that is known.
    pub(super) fn key_state(&self, engine_id: EngineId) -> Option<KeyState> {
        Some(self.state().monitors.get(&engine_id)?.as_running()?.key_state)
    }

    /// Something was learnt of whether a running engine takes the registry's key.
    pub(super) fn set_key_state(&self, engine_id: EngineId, key: KeyState) {
        if let Some(running) =
            self.state().monitors.get_mut(&engine_id).and_then(EngineMonitor::as_running_mut)
        {
            running.key_state = key;
        }
    }

    /// A running engine has another key from now on.
    pub(super) fn set_key_hash(&self, engine_id: EngineId, key_hash: KeyHash) {
        if let Some(running) =
            self.state().monitors.get_mut(&engine_id).and_then(EngineMonitor::as_running_mut)
        {
            running.key_hash = key_hash;
        }
    }

    /// A running engine has proven that it has the registry's key.
    pub(super) fn mark_key_proven(&self, engine_id: EngineId, now: MonoMillis) {
        if let Some(running) =
            self.state().monitors.get_mut(&engine_id).and_then(EngineMonitor::as_running_mut)
        {
            running.key_proven = true;
            running.mark_key_accepted(now);
        }
    }

    /// A running engine has taken the registry's key.
    pub(super) fn mark_key_accepted(&self, engine_id: EngineId, now: MonoMillis) {
        if let Some(running) =
            self.state().monitors.get_mut(&engine_id).and_then(EngineMonitor::as_running_mut)
        {
            running.mark_key_accepted(now);
        }
    }

    /// A check of `instance` is over. Returns how many have failed in a row.
    pub(super) fn record_check(
        &self,
        engine_id: EngineId,
        instance: &Instance,
        passed: bool,
        now: (MonoMillis, Timestamp),
    ) -> u32 {
        let mut state = self.state();
        let running = state.monitors.get_mut(&engine_id).and_then(EngineMonitor::as_running_mut);
        let Some(running) = running.filter(|running| running.instance == *instance) else { return 0 };
        let failed = running.record_check(passed, &self.rules, now);
        state.unsaved.insert(engine_id);
        failed
    }

    /// An engine was asked to sleep, and that is over. If it runs on, it is asked again as long after as it is
    /// asked how it is.
    pub(super) fn reschedule_idle_check(&self, engine_id: EngineId, now: MonoMillis) {
        let again = now.saturating_add(to_mono_millis(self.rules.check_interval));
        self.state().update_monitor(engine_id, |ward| ward.recheck_idle_at(again));
        self.changed.notify_one();
    }

    /// A restart that was due could not be attempted yet.
    pub(super) fn postpone_restart(&self, engine_id: EngineId, now: MonoMillis) {
        let again = now.saturating_add(to_mono_millis(self.rules.backoff_base).max(MIN_RESTART_DELAY_MS));
        self.state().update_monitor(engine_id, |ward| ward.postpone(again));
        self.changed.notify_one();
    }

    /// The restart of a failed engine; none if none is known of.
    pub(super) fn restart_state(&self, engine_id: EngineId) -> Option<RestartState> {
        self.state().monitors.get(&engine_id)?.restart_state()
    }

    /// Restarts of a running engine that still count.
    pub(super) fn restart_count(&self, engine_id: EngineId, now: MonoMillis) -> Option<i64> {
        Some(self.state().monitors.get(&engine_id)?.as_running()?.restart_count(now, &self.rules))
    }

    /// When a running engine's user was last admitted, and when it is idle; none if it never is.
    pub(super) fn idleness(&self, engine_id: EngineId) -> Option<(Timestamp, Option<MonoMillis>)> {
        let state = self.state();
        let ward = state.monitors.get(&engine_id)?;
        Some((ward.activity().admitted_at?, ward.idle_deadline()))
    }

    /// Somebody waits for the restart of an engine; what they get is told when it has begun or come to something
    /// else. None if the engine is not known here.
    pub(super) fn prioritize(&self, engine_id: EngineId) -> Option<Arc<Notify>> {
        let mut state = self.state();
        let ward = state.monitors.get_mut(&engine_id)?;
        if !fault_injection::active(Mutation::NoHurry) {
            ward.prioritize();
        }
        Some(Arc::clone(&ward.changed))
    }

    /// Tells those who wait for the restart of an engine to look again.
    pub(super) fn notify_waiters(&self, engine_id: EngineId) {
        if let Some(ward) = self.state().monitors.get(&engine_id) {
            ward.changed.notify_waiters();
        }
    }

    /// What was learnt since this was last asked.
    pub(super) fn take_unsaved_activity(&self) -> Vec<(EngineId, EngineActivity)> {
        let mut state = self.state();
        let unsaved = std::mem::take(&mut state.unsaved);
        let stamp = |engine_id| Some((engine_id, state.monitors.get(&engine_id)?.activity()));
        unsaved.into_iter().filter_map(stamp).collect()
    }

    /// What was taken could not be kept: it is to be taken again.
    pub(super) fn mark_unsaved(&self, stamps: &[(EngineId, EngineActivity)]) {
        self.state().unsaved.extend(stamps.iter().map(|(engine_id, _)| *engine_id));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
