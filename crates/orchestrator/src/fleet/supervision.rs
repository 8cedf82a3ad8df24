//! What the supervisor has to do, and when: every running engine is looked after, every failed one restarted
//! as long as attempts are left.
//!
//! Nothing is scanned: each engine has one next moment, and the loop in [`duties`](super::duties) takes what is
//! due. All is reckoned by monotonic time; the registry keeps wall times, for the next orchestrator alone.

mod ward;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::orchestrator::EngineStatus;
use contract::{EngineId, KeyHash, ProductId, Timestamp};
use tokio::sync::Notify;

pub(super) use self::ward::{Duty, KeyState, Moment, Restart, moment};
use self::ward::{Running, Ward};
use crate::backend::Instance;
use crate::registry::{EngineRow, Seat, Stamp, Supervised};
use crate::sabotage::{self, Saboteur};

/// The supervisor's rules, as the operator set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
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

impl Default for Rules {
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
const MIN_POSTPONEMENT: Moment = 1_000;

/// A moment that one engine's duty is due.
#[derive(Clone, Debug)]
pub(super) struct Due {
    pub(super) engine_id: EngineId,
    pub(super) seat: Seat,
    pub(super) duty: Duty,
    /// The change of its row after which it was due.
    pub(super) generation: i64,
    /// How long ago that was.
    pub(super) lag: Duration,
}

/// A running engine that is to be asked how it is.
#[derive(Clone, Debug)]
pub(super) struct Patient {
    pub(super) port: u16,
    pub(super) instance: Instance,
    /// Checks failed in a row.
    pub(super) failed: u32,
    pub(super) key: KeyState,
    pub(super) key_hash: KeyHash,
    /// Whether it has proven before that it has its key.
    pub(super) proven: bool,
}

/// See the module.
pub(super) struct Supervision {
    rules: Rules,
    state: Mutex<State>,
    /// Something may be due earlier than it was.
    changed: Notify,
}

#[derive(Default)]
struct State {
    wards: HashMap<EngineId, Ward>,
    due: BTreeSet<(Moment, EngineId)>,
    /// Those of which something was learnt that the registry does not have yet.
    unsaved: HashSet<EngineId>,
    /// Products whose policy sets a threshold of its own.
    thresholds: HashMap<ProductId, Duration>,
}

impl State {
    /// Lets `change` work on a ward, and keeps its place in the order of what is due.
    fn with<T>(&mut self, engine_id: EngineId, change: impl FnOnce(&mut Ward) -> T) -> Option<T> {
        let ward = self.wards.get_mut(&engine_id)?;
        let before = ward.next();
        let made = change(ward);
        let after = ward.next();
        if before != after {
            self.due.remove(&(before, engine_id));
            self.due.insert((after, engine_id));
        }
        Some(made)
    }

    fn remove(&mut self, engine_id: EngineId) {
        if let Some(ward) = self.wards.remove(&engine_id) {
            self.due.remove(&(ward.next(), engine_id));
            ward.news.notify_waiters();
        }
    }

    fn put(&mut self, engine_id: EngineId, ward: Ward) {
        self.remove(engine_id);
        self.unsaved.remove(&engine_id);
        self.due.insert((ward.next(), engine_id));
        self.wards.insert(engine_id, ward);
    }
}

impl Supervision {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, state: Mutex::default(), changed: Notify::new() }
    }

    pub(super) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Takes over what an earlier orchestrator knew.
    pub(super) fn adopt(&self, supervised: &[Supervised], now: Moment, wall: Timestamp) {
        for Supervised { row, stamp } in supervised {
            let stamp = if sabotage::by(Saboteur::ForgetStamps) { Stamp::default() } else { *stamp };
            self.place(row, stamp, (now, wall));
            // The registry may be a backup that is older than the engine's key.
            self.set_key_state(row.engine_id, KeyState::Unproven { until: now });
        }
        self.changed.notify_one();
    }

    /// Takes note of the state that an engine has come into; `wanted`: because somebody wants it now.
    pub(super) fn follow(&self, row: &EngineRow, wanted: bool, now: Moment, wall: Timestamp) {
        let known = self.state().wards.get(&row.engine_id).map(Ward::stamp);
        let admitted_at = known.filter(|_| !wanted).and_then(|stamp| stamp.admitted_at);
        let stamp = Stamp {
            admitted_at: admitted_at.or(Some(wall)),
            last_health_at: row.last_health_at,
            well_since: Some(wall),
            failed_checks: 0,
            restarts: row.restarts,
        };
        self.place(row, stamp, (now, wall));
        self.changed.notify_one();
    }

    /// Forgets an engine that is no more.
    pub(super) fn forget(&self, engine_id: EngineId) {
        self.state().remove(engine_id);
    }

    fn place(&self, row: &EngineRow, stamp: Stamp, now: (Moment, Timestamp)) {
        let mut state = self.state();
        // Whoever settled it later may have been faster to tell.
        if state.wards.get(&row.engine_id).is_some_and(|ward| ward.generation > row.generation) {
            return;
        }
        let threshold = state.thresholds.get(&row.seat.product_id).copied();
        let threshold = threshold.unwrap_or(self.rules.idle_threshold);
        let ward = match (row.status, row.port, &row.instance) {
            (EngineStatus::Running, Some(port), Some(instance)) => {
                Some(Ward::running(row, (instance.clone(), port), stamp, &self.rules, threshold, now))
            }
            (EngineStatus::Failed, ..) => row.restart_at.map(|at| {
                // By a wall clock that was set meanwhile it may be any time away.
                let due_in = at.unix_ms().saturating_sub(now.1.unix_ms());
                let due_in = due_in.clamp(0, moment(self.rules.backoff_max).saturating_mul(2));
                Ward::failed(row, stamp, now.0.saturating_add(due_in), now)
            }),
            _ => None,
        };
        match ward {
            Some(ward) => state.put(row.engine_id, ward),
            None => state.remove(row.engine_id),
        }
    }

    /// Sets a product's own threshold, or takes it away.
    pub(super) fn set_threshold(&self, product_id: ProductId, threshold: Option<Duration>) {
        let mut state = self.state();
        match threshold {
            Some(threshold) => state.thresholds.insert(product_id, threshold),
            None => state.thresholds.remove(&product_id),
        };
        let threshold = threshold.unwrap_or(self.rules.idle_threshold);
        let of_product = state.wards.iter().filter(|(_, ward)| ward.seat.product_id == product_id);
        let engines: Vec<_> = of_product.map(|(engine_id, _)| *engine_id).collect();
        for engine_id in engines {
            state.with(engine_id, |ward| ward.judge_idleness_by(threshold));
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Notes that the user of a running engine was admitted.
    pub(super) fn admitted(&self, engine_id: EngineId, now: Moment, wall: Timestamp) {
        // When it may sleep is looked at when that was due: nothing is reckoned on an admit.
        let mut state = self.state();
        if let Some(ward) = state.wards.get_mut(&engine_id) {
            ward.admitted(now, wall);
            state.unsaved.insert(engine_id);
        }
    }

    /// Whether an engine's user has not been admitted for its threshold.
    pub(super) fn is_idle(&self, engine_id: EngineId, now: Moment) -> bool {
        self.state().wards.get(&engine_id).is_some_and(|ward| ward.is_idle(now))
    }

    /// Takes all that is due.
    pub(super) fn take_due(&self, now: Moment) -> Vec<Due> {
        let mut state = self.state();
        let mut taken = Vec::new();
        while let Some((at, engine_id)) = state.due.first().copied().filter(|(at, _)| *at <= now) {
            let lag = Duration::from_millis(now.saturating_sub(at).unsigned_abs());
            let rules = self.rules;
            let duty = state.with(engine_id, |ward| {
                let duty = ward.take(now, &rules)?;
                Some(Due { engine_id, seat: ward.seat.clone(), duty, generation: ward.generation, lag })
            });
            taken.extend(duty.flatten());
        }
        taken
    }

    /// How many engines are supervised.
    pub(super) fn len(&self) -> usize {
        self.state().wards.len()
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.state().due.first().map(|(at, _)| *at)
    }

    /// Waits until something may be due earlier than it was.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The engine to be asked, if it still runs.
    pub(super) fn patient(&self, engine_id: EngineId) -> Option<Patient> {
        let state = self.state();
        let ward = state.wards.get(&engine_id)?;
        let Running { port, instance, failed_checks, key, key_hash, proven, .. } = ward.as_running()?;
        Some(Patient {
            port: *port,
            instance: instance.clone(),
            failed: *failed_checks,
            key: *key,
            key_hash: *key_hash,
            proven: *proven,
        })
    }

    /// Whether a running engine takes the registry's key, as far as that is known.
    pub(super) fn key_state(&self, engine_id: EngineId) -> Option<KeyState> {
        Some(self.state().wards.get(&engine_id)?.as_running()?.key)
    }

    /// Something was learnt of whether a running engine takes the registry's key.
    pub(super) fn set_key_state(&self, engine_id: EngineId, key: KeyState) {
        if let Some(running) = self.state().wards.get_mut(&engine_id).and_then(Ward::as_running_mut) {
            running.key = key;
        }
    }

    /// A running engine has another key from now on.
    pub(super) fn set_key_hash(&self, engine_id: EngineId, key_hash: KeyHash) {
        if let Some(running) = self.state().wards.get_mut(&engine_id).and_then(Ward::as_running_mut) {
            running.key_hash = key_hash;
        }
    }

    /// A running engine has proven that it has the registry's key.
    pub(super) fn key_proven(&self, engine_id: EngineId, now: Moment) {
        if let Some(running) = self.state().wards.get_mut(&engine_id).and_then(Ward::as_running_mut) {
            running.proven = true;
            running.key_accepted(now);
        }
    }

    /// A running engine has taken the registry's key.
    pub(super) fn key_accepted(&self, engine_id: EngineId, now: Moment) {
        if let Some(running) = self.state().wards.get_mut(&engine_id).and_then(Ward::as_running_mut) {
            running.key_accepted(now);
        }
    }

    /// A check of `instance` is over. Returns how many have failed in a row.
    pub(super) fn checked(
        &self,
        engine_id: EngineId,
        instance: &Instance,
        passed: bool,
        now: (Moment, Timestamp),
    ) -> u32 {
        let mut state = self.state();
        let running = state.wards.get_mut(&engine_id).and_then(Ward::as_running_mut);
        let Some(running) = running.filter(|running| running.instance == *instance) else { return 0 };
        let failed = running.checked(passed, &self.rules, now);
        state.unsaved.insert(engine_id);
        failed
    }

    /// An engine was asked to sleep, and that is over. If it runs on, it is asked again as long after as it is
    /// asked how it is.
    pub(super) fn asked_to_sleep(&self, engine_id: EngineId, now: Moment) {
        let again = now.saturating_add(moment(self.rules.check_interval));
        self.state().with(engine_id, |ward| ward.judge_again(again));
        self.changed.notify_one();
    }

    /// A restart that was due could not be attempted yet.
    pub(super) fn postpone(&self, engine_id: EngineId, now: Moment) {
        let again = now.saturating_add(moment(self.rules.backoff_base).max(MIN_POSTPONEMENT));
        self.state().with(engine_id, |ward| ward.postpone(again));
        self.changed.notify_one();
    }

    /// The restart of a failed engine; none if none is known of.
    pub(super) fn restart(&self, engine_id: EngineId) -> Option<Restart> {
        self.state().wards.get(&engine_id)?.restart()
    }

    /// Restarts of a running engine that still count.
    pub(super) fn restarts(&self, engine_id: EngineId, now: Moment) -> Option<i64> {
        Some(self.state().wards.get(&engine_id)?.as_running()?.restarts(now, &self.rules))
    }

    /// When a running engine's user was last admitted, and when it is idle; none if it never is.
    pub(super) fn idleness(&self, engine_id: EngineId) -> Option<(Timestamp, Option<Moment>)> {
        let state = self.state();
        let ward = state.wards.get(&engine_id)?;
        Some((ward.stamp().admitted_at?, ward.idle_at()))
    }

    /// Somebody waits for the restart of an engine; what they get is told when it has begun or come to something
    /// else. None if the engine is not known here.
    pub(super) fn hurry(&self, engine_id: EngineId) -> Option<Arc<Notify>> {
        let mut state = self.state();
        let ward = state.wards.get_mut(&engine_id)?;
        if !sabotage::by(Saboteur::NoHurry) {
            ward.hurry();
        }
        Some(Arc::clone(&ward.news))
    }

    /// Tells those who wait for the restart of an engine to look again.
    pub(super) fn tell(&self, engine_id: EngineId) {
        if let Some(ward) = self.state().wards.get(&engine_id) {
            ward.news.notify_waiters();
        }
    }

    /// What was learnt since this was last asked.
    pub(super) fn take_stamps(&self) -> Vec<(EngineId, Stamp)> {
        let mut state = self.state();
        let unsaved = std::mem::take(&mut state.unsaved);
        let stamp = |engine_id| Some((engine_id, state.wards.get(&engine_id)?.stamp()));
        unsaved.into_iter().filter_map(stamp).collect()
    }

    /// What was taken could not be kept: it is to be taken again.
    pub(super) fn give_back(&self, stamps: &[(EngineId, Stamp)]) {
        self.state().unsaved.extend(stamps.iter().map(|(engine_id, _)| *engine_id));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
