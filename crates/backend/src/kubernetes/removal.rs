//! The end of an engine's Pods, and the removal of its data.

use std::time::Duration;

use api::EngineId;

use super::Inner;
use super::label::{copy_name, engine_name};
use super::pod_state::PodView;
use crate::fence::Fenced;
use crate::{BackendError, Target};

/// The grace of a kill. A grace of 0 would remove the Pod from the API server at once, whatever its node does.
pub(super) const KILL_GRACE: Duration = Duration::from_secs(1);

impl Inner {
    /// Returns the Pods of an engine, in any state and role. They are asked for by their names: to select them by their
    /// labels, the API server would look at every Pod of the namespace.
    pub(super) async fn pods_of(&self, engine_id: EngineId) -> Result<Vec<PodView>, BackendError> {
        let names = (engine_name(engine_id), copy_name(engine_id));
        let (engine, copy) = tokio::try_join!(self.cluster.pod(&names.0), self.cluster.pod(&names.1))?;
        let found = [engine, copy].into_iter().flatten().filter_map(|pod| self.observe(&pod));
        Ok(found.filter(|pod| pod.engine_id == engine_id).collect())
    }

    /// Lists the Pods of the target's engine. Callers address them by UID, so that they never act on a Pod that
    /// was created in the meantime.
    pub(super) async fn fenced_pods(&self, target: Target) -> Result<Fenced<PodView>, BackendError> {
        let found = self.pods_of(target.engine_id).await?.into_iter();
        Ok(target.fence(found.map(|pod| (pod.generation, pod))))
    }

    /// Deletes a Pod, and returns once it is gone and its log is saved.
    pub(super) async fn end_pod(&self, pod: &PodView, grace: Duration) -> Result<(), BackendError> {
        self.while_saving_log(pod, async {
            let grace = grace.max(KILL_GRACE);
            let grace_s = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
            self.cluster.delete_pod(&pod.name, &pod.uid, grace_s).await?;
            self.wait_until_gone(pod, grace).await
        })
        .await
    }

    /// Asks the engine to exit, and waits until its Pods are gone.
    pub(super) async fn stop(&self, target: Target, grace: Duration) -> Result<(), BackendError> {
        let found = self.fenced_pods(target).await?;
        for pod in &found.own {
            self.end_pod(pod, grace).await?;
        }
        found.reject_superseded()
    }

    /// Kills the engine. The Pod of one that has exited is left, because its log is.
    pub(super) async fn kill(&self, target: Target) -> Result<(), BackendError> {
        let found = self.fenced_pods(target).await?;
        for pod in found.own.iter().filter(|pod| pod.is_alive()) {
            self.end_pod(pod, KILL_GRACE).await?;
        }
        found.reject_superseded()
    }

    /// Kills and removes the Pods of the target's engine.
    pub(super) async fn remove_instance(&self, target: Target) -> Result<(), BackendError> {
        self.stop(target, KILL_GRACE).await
    }

    /// Removes everything of the engine. The cluster removes its Secrets with their Pods, and its volume with the
    /// claim if the storage class says so.
    pub(super) async fn remove_with_data(&self, target: Target) -> Result<(), BackendError> {
        self.remove_instance(target).await?;
        self.remove_claim(target).await?;
        self.logs.forget(target.engine_id);
        Ok(())
    }
}
