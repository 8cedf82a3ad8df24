//! Waiting for what happens to a Pod: its start, its end, and its disappearance.

use std::time::Duration;

use tokio::time::Instant;

use super::Inner;
use super::pod_state::PodView;
use crate::BackendError;

/// How often the API server is asked for a Pod that somebody waits for. The watch usually says it earlier.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long after its grace a Pod may take to disappear.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(10);

impl Inner {
    /// Waits until `check` returns something for the Pod's state, for at most `limit`.
    pub(super) async fn wait_for<T>(
        &self,
        pod: &PodView,
        limit: Duration,
        mut check: impl FnMut(&PodView) -> Option<T>,
    ) -> Result<Option<T>, BackendError> {
        let deadline = Instant::now() + limit;
        let mut next_poll = Instant::now() + POLL_INTERVAL;
        loop {
            let mut changed = std::pin::pin!(self.pods.changed());
            // Registered before the state is read, so that no change in between is missed.
            changed.as_mut().enable();
            if let Some(found) = self.pods.get(pod.engine_id, &pod.uid).as_ref().and_then(&mut check) {
                return Ok(Some(found));
            }
            tokio::select! {
                () = changed => continue,
                () = tokio::time::sleep_until(next_poll.min(deadline)) => {}
            }
            let Some(now) = self.current(pod).await? else {
                return Err(BackendError::Failed("somebody else deleted its Pod".to_owned()));
            };
            if let Some(found) = check(&now) {
                return Ok(Some(found));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            next_poll = Instant::now() + POLL_INTERVAL;
        }
    }

    /// Returns the Pod as the API server has it now; `None` if it does not exist any more.
    pub(super) async fn current(&self, pod: &PodView) -> Result<Option<PodView>, BackendError> {
        let found = self.cluster.pod(&pod.name).await?;
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(pod.uid.as_str()));
        Ok(found.and_then(|found| self.observe(&found)))
    }

    /// Waits until the Pod does not exist any more: only then is it certain that its container has ended, because
    /// its node confirms that. Fails if that takes longer than `grace` and [`END_TIMEOUT`].
    pub(super) async fn wait_until_gone(&self, pod: &PodView, grace: Duration) -> Result<(), BackendError> {
        let deadline = Instant::now() + grace + END_TIMEOUT;
        let mut pause = Duration::from_millis(50);
        loop {
            let Some(now) = self.current(pod).await? else { return Ok(()) };
            if self.is_overdue(&now) {
                tracing::warn!(
                    engine_id = %pod.engine_id, pod = pod.name, node = now.node,
                    "A Pod whose node does not confirm its end is removed by force."
                );
                self.cluster.delete_pod(&pod.name, &pod.uid, 0).await?;
            } else if Instant::now() >= deadline {
                tracing::error!(
                    engine_id = %pod.engine_id, pod = pod.name, node = now.node,
                    "A node does not confirm that the container of a Pod has ended. If the node is down for good, delete \
                     its Node object, or give it the taint node.kubernetes.io/out-of-service."
                );
                let message = "the node of the engine's Pod does not confirm that the engine has ended, and no second \
                               one may use its data";
                return Err(BackendError::Unreachable(message.to_owned()));
            }
            self.wait_for_disappearance(pod, pause).await;
            pause = (pause * 2).min(POLL_INTERVAL);
        }
    }

    /// Waits until the watch says that the Pod is gone, for at most `limit`.
    async fn wait_for_disappearance(&self, pod: &PodView, limit: Duration) {
        let gone = async {
            loop {
                let mut changed = std::pin::pin!(self.pods.changed());
                changed.as_mut().enable();
                if self.pods.get(pod.engine_id, &pod.uid).is_none() {
                    return;
                }
                changed.await;
            }
        };
        // A Pod that was never seen is asked for again after the pause.
        if self.pods.get(pod.engine_id, &pod.uid).is_none() {
            tokio::time::sleep(limit).await;
        } else {
            let _ = tokio::time::timeout(limit, gone).await;
        }
    }

    /// Whether the operator wants a Pod to be removed by force that is still there at this time.
    fn is_overdue(&self, pod: &PodView) -> bool {
        let (Some(due_s), Some(force_after)) = (pod.deletion_s, self.options.settings.force_after) else {
            return false;
        };
        let force_after_s = i64::try_from(force_after.as_secs()).unwrap_or(i64::MAX);
        self.clock.now().unix_ms() / 1_000 > due_s.saturating_add(force_after_s)
    }
}
