//! Wakes sleeping engines whose schedules are due. The engines themselves run what is due; here they are only woken
//! in time.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::DenialReason;
use api::{EngineId, Timestamp};
use futures::StreamExt as _;
use http_service::backoff;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

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
/// Engines that are woken concurrently: most permits to boot are left to callers.
const MAX_CONCURRENT_WAKES: usize = 8;
/// Engines that are taken from the registry at once.
const BATCH: i64 = 256;
/// The delay before a wake that failed is tried again: the first one and the longest.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(10));

pub(super) struct ScheduledWakes {
    pub(super) shared: Arc<Shared>,
    pub(super) executor: Arc<Executor>,
    /// Whether the first comparison is done.
    pub(super) ready: watch::Receiver<bool>,
}

impl ScheduledWakes {
    /// Wakes engines whose schedules are due, until `shutdown`.
    pub(super) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let waking = async {
            // The sender lives as long as the fleet.
            let _ = self.ready.clone().wait_for(|ready| *ready).await;
            let mut failures = HashMap::new();
            loop {
                let pause = match self.wake_due(&mut failures).await {
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
    }

    /// Wakes the engines that are due. Returns the pause before the next look; `failures` counts failed wakes in a
    /// row.
    async fn wake_due(&self, failures: &mut HashMap<EngineId, u32>) -> Result<Duration, FleetError> {
        let now = self.shared.clock.now();
        let horizon = i64::try_from(POLL_INTERVAL.as_millis()).unwrap_or_default();
        let horizon = horizon + MIN_LEAD_MS + i64::try_from(LEAD_SPREAD_MS).unwrap_or_default();
        let until = Timestamp::from_unix_ms(now.unix_ms().saturating_add(horizon));
        let wakes = self.shared.registry.scheduled_wakes(until, BATCH).await?;
        let is_full = i64::try_from(wakes.len()).is_ok_and(|length| length >= BATCH);
        let (due, later): (Vec<_>, Vec<_>) = wakes.into_iter().partition(|wake| begins_at(wake) <= now);
        let woken_any = !due.is_empty();
        let results = futures::stream::iter(due)
            .map(|wake| async move {
                let woken = self.wake(&wake).await;
                (wake, woken)
            })
            .buffer_unordered(MAX_CONCURRENT_WAKES)
            .collect::<Vec<_>>()
            .await;
        for (wake, woken) in results {
            if woken {
                failures.remove(&wake.engine_id);
            } else {
                let count = failures.entry(wake.engine_id).or_default();
                *count = count.saturating_add(1);
                self.shared.registry.postpone_wake(&wake, retry_at(self.shared.clock.now(), *count)).await?;
            }
        }
        if is_full && woken_any {
            return Ok(Duration::ZERO);
        }
        let next = later.iter().map(begins_at).min().unwrap_or(until);
        let pause = next.unix_ms().saturating_sub(self.shared.clock.now().unix_ms()).max(0).unsigned_abs();
        Ok(Duration::from_millis(pause).min(POLL_INTERVAL))
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
