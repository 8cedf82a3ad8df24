//! The launch of an engine: its claim, and a new Pod with its Secret.

use std::time::Duration;

use api::EngineImage;

use super::error::obstacle_error;
use super::label::engine_name;
use super::pod_state::{Obstacle, PodState, PodView};
use super::removal::KILL_GRACE;
use super::{Inner, spec};
use crate::{BackendError, Instance, LaunchSpec};

/// How long an image counts as missing after a Pod could not get it.
const MISSING_IMAGE_TIME: Duration = Duration::from_secs(30);

/// How a launch continues.
enum Start {
    /// The container runs, or has run already.
    Started,
    /// It will not start.
    Impossible(BackendError),
}

impl Inner {
    /// Launches the engine in a Pod of its own, once any that an earlier launch left is gone.
    pub(super) async fn launch(&self, launch: &LaunchSpec) -> Result<Instance, BackendError> {
        let target = launch.target();
        self.remove_instance(target).await?;
        self.ensure_service().await?;
        let claim = self.prepare_claim(target, launch.is_first).await?;
        if claim.is_restoring {
            self.restore_brain(target).await?;
        }
        self.logs.forget(launch.engine_id);
        let pod = self.create_pod(launch).await?;
        let started = self.wait_for_start(launch, &pod).await;
        if started.is_err()
            && let Err(error) = self.end_pod(&pod, KILL_GRACE).await
        {
            // The next launch or reconciliation finds a leftover by its labels.
            tracing::warn!(engine_id = %launch.engine_id, %error, "The Pod of a failed launch was not removed.");
        }
        started.map(|()| pod.instance())
    }

    /// Creates the Service of the engines once.
    async fn ensure_service(&self) -> Result<(), BackendError> {
        self.service_exists
            .get_or_try_init(|| async {
                let service = spec::service(&self.options);
                self.cluster.ensure_service(&self.options.settings.service, &service).await
            })
            .await?;
        Ok(())
    }

    /// Creates the engine's Pod, and then the Secret with its environment, for which the Pod waits. In this order,
    /// because only one orchestrator can create the Pod, and the cluster removes the Secret with it.
    async fn create_pod(&self, launch: &LaunchSpec) -> Result<PodView, BackendError> {
        let secret_name = spec::secret_name(launch);
        let pod = self.create_only_pod(launch, &secret_name).await?;
        let secret = spec::secret(&self.options, launch, secret_name, &pod);
        if let Err(error) = self.cluster.create_secret(&secret).await {
            // Best effort: the next launch or reconciliation finds a leftover by its labels.
            let _ = self.cluster.delete_pod(&pod.name, &pod.uid, 1).await;
            return Err(error.into());
        }
        Ok(pod)
    }

    /// Creates the engine's Pod, once a Pod that another orchestrator created meanwhile is gone. Names are unique
    /// in the cluster, so no Pod is ever created beside that of a later launch.
    async fn create_only_pod(&self, launch: &LaunchSpec, secret_name: &str) -> Result<PodView, BackendError> {
        let pod = spec::engine_pod(&self.options, launch, secret_name);
        let name = engine_name(launch.engine_id);
        let foreign = || BackendError::Failed(format!("another Pod has the name {name}"));
        if let Some(created) = self.cluster.create_pod(&pod).await? {
            return self.observe(&created).ok_or_else(foreign);
        }
        if let Some(found) = self.cluster.pod(&name).await? {
            let other = self.observe(&found).filter(|other| other.engine_id == launch.engine_id);
            let other = other.ok_or_else(foreign)?;
            // A request that was repeated because the answer to it was lost finds its own Pod.
            if spec::secret_of(&found) == Some(secret_name) {
                return Ok(other);
            }
            launch.target().fence([(other.generation, ())]).reject_superseded()?;
            self.end_pod(&other, KILL_GRACE).await?;
        }
        let created = self.cluster.create_pod(&pod).await?;
        created.and_then(|created| self.observe(&created)).ok_or_else(foreign)
    }

    /// Waits until the container has started, or until it is clear that it will not. A start that takes longer for
    /// no known reason, such as the pull of a large image, is waited for by whoever waits for the engine's health.
    async fn wait_for_start(&self, launch: &LaunchSpec, pod: &PodView) -> Result<(), BackendError> {
        let check = |pod: &PodView| start_of(pod, &launch.image);
        match self.wait_for(pod, self.options.settings.start_timeout, check).await? {
            Some(Start::Started) => {
                self.missing_images.lock().remove(&launch.image);
                Ok(())
            }
            Some(Start::Impossible(error)) => {
                if matches!(error, BackendError::NoImage(_)) {
                    let until = self.clock.monotonic() + MISSING_IMAGE_TIME;
                    self.missing_images.lock().insert(launch.image.clone(), until);
                }
                Err(error)
            }
            None => match self.pods.get(pod.engine_id, &pod.uid).map(|pod| pod.state) {
                Some(PodState::Waiting(Some(obstacle))) => Err(obstacle_error(&obstacle, &launch.image)),
                _ => Ok(()),
            },
        }
    }

    /// Fails if a Pod could not get `image` a moment ago: nothing else can tell whether the registry has it.
    pub(super) fn check_image(&self, image: &EngineImage) -> Result<(), BackendError> {
        let now = self.clock.monotonic();
        let mut missing = self.missing_images.lock();
        missing.retain(|_, until| now < *until);
        if missing.contains_key(image) { Err(BackendError::NoImage(image.clone())) } else { Ok(()) }
    }
}

/// What the state of a launched Pod decides; `None` if it may still start.
fn start_of(pod: &PodView, image: &EngineImage) -> Option<Start> {
    match &pod.state {
        PodState::Exited(exit) if exit.no_room => {
            Some(Start::Impossible(BackendError::NoCapacity(exit.reason.clone())))
        }
        // The exit is reported like that of any other.
        PodState::Running | PodState::Exited(_) => Some(Start::Started),
        PodState::Waiting(Some(obstacle @ Obstacle::NoSuchImage(message))) => {
            tracing::warn!(engine_id = %pod.engine_id, %image, message, "The image of an engine cannot be pulled.");
            Some(Start::Impossible(obstacle_error(obstacle, image)))
        }
        PodState::Waiting(_) => None,
    }
}
