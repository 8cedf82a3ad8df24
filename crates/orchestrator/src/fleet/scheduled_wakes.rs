//! Wakes sleeping engines whose schedules are due. The engines themselves run what is due; here they are only woken
//! in time.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::DenialReason;
use api::{EngineId, ProductId, Timestamp};
use http_service::backoff;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::FleetError;
use super::execute::Executor;
use super::request::{OperationRequest, OperationResult, RequestKind};
use super::shared::Shared;
use crate::registry::ScheduledWake;

/// The longest pause between two looks at the registry. An engine whose schedule is due earlier does not sleep.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How long before its due time an engine is woken at the latest: about the time of a boot.
const MIN_LEAD_MS: i64 = 2_000;
/// By how much more some engines are woken earlier, so that those of the same due time do not boot at once.
const LEAD_SPREAD_MS: u64 = 3_000;
/// Engines of one product that are woken concurrently: most of its permits to boot are left to callers.
const MAX_CONCURRENT_WAKES: usize = 4;
/// Engines that are looked up at once, and those of one product: what is woken until the next look.
const BATCH: (i64, i64) = (4_096, 256);
/// The delay before a wake that failed is tried again: the first one and the longest.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(10));

pub(super) struct ScheduledWakes {
    shared: Arc<Shared>,
    executor: Arc<Executor>,
    /// Whether the first comparison is done.
    ready: watch::Receiver<bool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The engines that are being woken, or wait for it.
    in_progress: HashSet<EngineId>,
    /// The wakes in a row that have failed.
    failures: HashMap<EngineId, u32>,
    /// The permits of each product: engines that hang delay only those of their product.
    permits: HashMap<ProductId, Arc<Semaphore>>,
}

impl ScheduledWakes {
    pub(super) fn new(
        shared: &Arc<Shared>,
        executor: &Arc<Executor>,
        ready: &watch::Receiver<bool>,
    ) -> Arc<Self> {
        let (shared, executor) = (Arc::clone(shared), Arc::clone(executor));
        Arc::new(Self { shared, executor, ready: ready.clone(), state: Mutex::default() })
    }

    /// Wakes engines whose schedules are due, until `shutdown`.
    pub(super) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        let waking = async {
            // The sender lives as long as the fleet.
            let _ = self.ready.clone().wait_for(|ready| *ready).await;
            loop {
                let pause = match self.begin_due(&tasks, &shutdown).await {
                    Ok(pause) => pause,
                    Err(error) => {
                        let error: &dyn std::error::Error = &error;
                        tracing::warn!(
                            error,
                            "Engines whose schedules are due could not be looked up; retrying."
                        );
                        POLL_INTERVAL
                    }
                };
                self.shared.clock.sleep(pause).await;
            }
        };
        shutdown.run_until_cancelled(waking).await;
        tasks.close();
        tasks.wait().await;
    }

    /// Begins to wake the engines that are due. Returns the pause before the next look.
    async fn begin_due(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Result<Duration, FleetError> {
        let now = self.shared.clock.now();
        let horizon = i64::try_from(POLL_INTERVAL.as_millis()).unwrap_or_default();
        let horizon = horizon + MIN_LEAD_MS + i64::try_from(LEAD_SPREAD_MS).unwrap_or_default();
        let until = Timestamp::from_unix_ms(now.unix_ms().saturating_add(horizon));
        let mut next = until;
        for wake in self.shared.registry.scheduled_wakes(until, BATCH.0, BATCH.1).await? {
            let begins_at = begins_at(&wake);
            if begins_at > now {
                next = next.min(begins_at);
            } else if let Some(permits) = self.begin(&wake) {
                let (wakes, shutdown) = (Arc::clone(self), shutdown.clone());
                let waking = async move {
                    let _permit = permits.acquire().await.ok();
                    wakes.wake_or_postpone(&wake).await;
                };
                tasks.spawn(async move { shutdown.run_until_cancelled(waking).await });
            }
        }
        let pause = next.unix_ms().saturating_sub(now.unix_ms()).max(0).unsigned_abs();
        Ok(Duration::from_millis(pause).min(POLL_INTERVAL))
    }

    /// Marks the wake of an engine as in progress. Returns the permits of its product; `None` if it is in progress
    /// already.
    fn begin(&self, wake: &ScheduledWake) -> Option<Arc<Semaphore>> {
        let mut state = self.state.lock();
        if !state.in_progress.insert(wake.engine_id) {
            return None;
        }
        let permits = state.permits.entry(wake.owner.product_id);
        Some(Arc::clone(permits.or_insert_with(|| Arc::new(Semaphore::new(MAX_CONCURRENT_WAKES)))))
    }

    async fn wake_or_postpone(&self, wake: &ScheduledWake) {
        if self.wake(wake).await {
            self.state.lock().failures.remove(&wake.engine_id);
        } else {
            let failures = {
                let mut state = self.state.lock();
                let count = state.failures.entry(wake.engine_id).or_default();
                *count = count.saturating_add(1);
                *count
            };
            let until = retry_at(self.shared.clock.now(), failures);
            if let Err(error) = self.shared.registry.postpone_wake(wake, until).await {
                // It is due again at the next look.
                tracing::warn!(engine_id = %wake.engine_id, %error, "A scheduled wake could not be postponed.");
            }
        }
        // Only now: the next look finds it postponed.
        self.state.lock().in_progress.remove(&wake.engine_id);
    }

    /// Wakes an engine as an admit does. Returns whether it need not be tried again.
    async fn wake(&self, wake: &ScheduledWake) -> bool {
        let kind = RequestKind::Admit { provision: false, wake: true };
        let request = OperationRequest::new(wake.owner.clone(), kind, "schedule");
        match self.executor.execute(&request).await {
            // One that is stopped or has failed is not woken; its schedules are missed meanwhile.
            Ok(OperationResult::Denied(DenialReason::EngineSleeping)) => false,
            Ok(_) | Err(FleetError::EngineNotFound) => true,
            Err(error) => {
                tracing::info!(
                    engine_id = %wake.engine_id,
                    %error,
                    "An engine could not be woken for its schedule; retrying."
                );
                false
            }
        }
    }
}

/// When the wake of an engine begins: some time before it is due, which depends on the engine's id.
fn begins_at(wake: &ScheduledWake) -> Timestamp {
    let mut hasher = DefaultHasher::new();
    wake.engine_id.hash(&mut hasher);
    let spread = i64::try_from(hasher.finish() % LEAD_SPREAD_MS).unwrap_or_default();
    Timestamp::from_unix_ms(wake.at.unix_ms().saturating_sub(MIN_LEAD_MS + spread))
}

/// When a wake that has failed `failures` times in a row is due again. Its lead is added: it does not begin earlier.
fn retry_at(now: Timestamp, failures: u32) -> Timestamp {
    let (first, longest) = RETRY_DELAY;
    let delay = backoff::delay(first, longest, failures.saturating_sub(1), backoff::jitter());
    let delay = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    let lead = MIN_LEAD_MS + i64::try_from(LEAD_SPREAD_MS).unwrap_or_default();
    Timestamp::from_unix_ms(now.unix_ms().saturating_add(delay).saturating_add(lead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::EngineOwner;

    #[test]
    fn a_failed_wake_is_retried_less_and_less_often() {
        let now = Timestamp::from_unix_ms(1_000_000);
        let delay = |failures| retry_at(now, failures).unix_ms() - now.unix_ms();
        for (failures, seconds) in [(1, 5), (2, 10), (3, 20), (8, 600), (1_000, 600)] {
            let lead = 5_000;
            let range = seconds * 800 + lead..=seconds * 1_200 + lead;
            assert!(range.contains(&delay(failures)), "{failures}: {}", delay(failures));
        }
    }

    #[test]
    fn engines_of_one_due_time_begin_to_wake_at_different_times_before_it() {
        let at = Timestamp::from_unix_ms(1_000_000);
        let owner =
            EngineOwner { product_id: api::ProductId::new(), user_id: api::UserId::new("ada").unwrap() };
        let wakes = (0..100).map(|_| ScheduledWake { engine_id: EngineId::new(), owner: owner.clone(), at });
        let mut begins: Vec<_> = wakes.map(|wake| at.unix_ms() - begins_at(&wake).unix_ms()).collect();
        begins.sort_unstable();
        begins.dedup();
        assert!(begins.len() > 80 && begins[0] >= 2_000 && begins[begins.len() - 1] < 5_000, "{begins:?}");
    }
}
