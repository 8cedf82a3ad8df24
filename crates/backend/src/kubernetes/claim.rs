//! The claim of an engine's volume, which holds its data, and carries what must survive its Pods.
//!
//! The claim names the latest generation for which its engine was launched. An orchestrator that was replaced
//! without noticing can therefore neither launch the engine while it sleeps, nor remove its data.

use std::time::Duration;

use api::EngineId;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::Preconditions;
use serde_json::json;

use super::Inner;
use super::label::{engine_name, engine_of};
use super::spec::{self, GENERATION_ANNOTATION, RESTORING_ANNOTATION};
use crate::{BackendError, DataUnavailable, Target};

/// How often a change of a claim is attempted if others change it at the same time.
const MAX_ATTEMPTS: usize = 8;

/// How long a removal waits until the claim is gone. It is removed in any case once it is being deleted.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(3);
const REMOVAL_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A claim of this deployment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claim {
    uid: String,
    version: String,
    generation: i64,
    /// Whether the brain on it is being replaced by its copy, so that it is a mixture of two versions.
    pub(super) is_restoring: bool,
    /// Whether its volume was lost.
    is_lost: bool,
    is_being_deleted: bool,
}

impl Claim {
    /// Reads a claim; `None` if it is not that of `engine_id`.
    fn of(deployment_id: &str, engine_id: EngineId, claim: &PersistentVolumeClaim) -> Option<Self> {
        let metadata = &claim.metadata;
        let annotation = |name: &str| metadata.annotations.as_ref().and_then(|found| found.get(name));
        (engine_of(deployment_id, metadata)? == engine_id).then_some(())?;
        Some(Self {
            uid: metadata.uid.clone()?,
            version: metadata.resource_version.clone()?,
            generation: annotation(GENERATION_ANNOTATION)
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            is_restoring: annotation(RESTORING_ANNOTATION).is_some(),
            is_lost: claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost"),
            is_being_deleted: metadata.deletion_timestamp.is_some(),
        })
    }

    fn check(self, target: Target) -> Result<Self, BackendError> {
        target.fence([(self.generation, ())]).reject_superseded()?;
        if self.is_being_deleted {
            return Err(BackendError::DataUnavailable(DataUnavailable::VolumeMissing));
        }
        if self.is_lost {
            return Err(BackendError::DataUnavailable(DataUnavailable::VolumeLost));
        }
        Ok(self)
    }
}

impl Inner {
    async fn claim(&self, engine_id: EngineId) -> Result<Option<Claim>, BackendError> {
        let found = self.cluster.claim(&engine_name(engine_id)).await?;
        Ok(found.and_then(|found| Claim::of(&self.options.deployment_id, engine_id, &found)))
    }

    /// Whether the engine's data is there. A claim that an operator restores must have the labels of the lost one.
    pub(super) async fn has_data(&self, engine_id: EngineId) -> Result<bool, BackendError> {
        let Some(claim) = self.claim(engine_id).await? else {
            return Err(BackendError::DataUnavailable(DataUnavailable::VolumeMissing));
        };
        claim.check(Target { engine_id, generation: i64::MAX }).map(|_| true)
    }

    /// Returns the claim for an action of `target`. Fails if it is missing, or of a later generation.
    pub(super) async fn claim_for(&self, target: Target) -> Result<Claim, BackendError> {
        match self.claim(target.engine_id).await? {
            Some(claim) => claim.check(target),
            None => Err(BackendError::DataUnavailable(DataUnavailable::VolumeMissing)),
        }
    }

    /// Prepares the claim for a launch, and notes the launch's generation on it. The `first` launch of an engine
    /// creates it. Any other launch fails if it is missing, because the engine would start with an empty brain.
    pub(super) async fn prepare_claim(&self, target: Target, first: bool) -> Result<Claim, BackendError> {
        if first {
            let claim = spec::claim(&self.options, target);
            if let Some(created) = self.cluster.create_claim(&claim).await?
                && let Some(created) = Claim::of(&self.options.deployment_id, target.engine_id, &created)
            {
                return Ok(created);
            }
        }
        let annotations = json!({ GENERATION_ANNOTATION: target.generation.to_string() });
        self.annotate_claim(target, &annotations).await
    }

    /// Notes whether the brain is being replaced by its copy.
    pub(super) async fn mark_restoring(
        &self,
        target: Target,
        restoring: bool,
    ) -> Result<Claim, BackendError> {
        let value = restoring.then(|| "true".to_owned());
        self.annotate_claim(target, &json!({ RESTORING_ANNOTATION: value })).await
    }

    /// Merges annotations into the claim, unless it is of a later generation by then.
    async fn annotate_claim(
        &self,
        target: Target,
        annotations: &serde_json::Value,
    ) -> Result<Claim, BackendError> {
        for _ in 0..MAX_ATTEMPTS {
            let claim = self.claim_for(target).await?;
            let patch =
                json!({ "metadata": { "resourceVersion": claim.version, "annotations": annotations } });
            if let Some(patched) = self.cluster.patch_claim(&engine_name(target.engine_id), patch).await? {
                let patched = Claim::of(&self.options.deployment_id, target.engine_id, &patched);
                return patched.ok_or(BackendError::DataUnavailable(DataUnavailable::VolumeMissing));
            }
        }
        Err(BackendError::Unreachable("others keep changing the claim of the engine's volume".to_owned()))
    }

    /// Deletes the claim, unless it is of a later generation.
    pub(super) async fn remove_claim(&self, target: Target) -> Result<(), BackendError> {
        let name = engine_name(target.engine_id);
        for _ in 0..MAX_ATTEMPTS {
            let Some(claim) = self.claim(target.engine_id).await? else { return Ok(()) };
            target.fence([(claim.generation, ())]).reject_superseded()?;
            let preconditions = Preconditions { uid: Some(claim.uid), resource_version: Some(claim.version) };
            if claim.is_being_deleted || self.cluster.delete_claim(&name, preconditions).await?.is_some() {
                return self.wait_for_removal(target.engine_id).await;
            }
        }
        Err(BackendError::Unreachable("others keep changing the claim of the engine's volume".to_owned()))
    }

    /// Waits until the claim is gone, for at most [`REMOVAL_TIMEOUT`]: nothing can keep it any more.
    async fn wait_for_removal(&self, engine_id: EngineId) -> Result<(), BackendError> {
        let gone = async {
            while self.claim(engine_id).await?.is_some() {
                tokio::time::sleep(REMOVAL_POLL_INTERVAL).await;
            }
            Ok(())
        };
        tokio::time::timeout(REMOVAL_TIMEOUT, gone).await.unwrap_or_else(|_| {
            tracing::info!(%engine_id, "The claim of an engine's volume is still being removed.");
            Ok(())
        })
    }
}
