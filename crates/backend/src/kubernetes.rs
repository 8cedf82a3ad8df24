//! Runs engines as Pods of a Kubernetes cluster. This module is their controller.
//!
//! Everything of a deployment is in one namespace and carries labels with the deployment, the engine and the
//! generation of its launch, so that a later orchestrator finds it again. An engine has a Pod while it runs, a Secret
//! with the Pod's environment, and a claim of a volume for its data, which stays until the engine is deleted.
//!
//! No two Pods use one brain: the name of a Pod depends on the engine alone, so that the API server accepts only one
//! at a time, and a Pod disappears only once its node confirms that its container has ended. A Pod is created for one
//! launch and never restarted, so that no engine runs with a stale environment.

mod brain;
mod claim;
mod cluster;
mod error;
mod label;
mod launch;
mod log;
mod options;
mod pod_state;
mod pods;
mod quantity;
mod removal;
mod saved_logs;
mod spec;
mod wait;
mod watch;

#[cfg(test)]
#[path = "../tests/unit/kubernetes/mod.rs"]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{EngineId, EngineImage};
use futures::stream::BoxStream;
use http_service::clock::Clock;
use parking_lot::Mutex;
use resources::keyed_locks::KeyedLocks;
use tokio::sync::OnceCell;

pub use self::brain::{COPY_ARG, copy_main};
use self::cluster::Cluster;
use self::label::{Role, engine_name};
pub use self::options::{AccessMode, CatalogSource, Options, Requests, Settings, Storage};
use self::pods::Pods;
pub use self::quantity::parse as parse_quantity;
use self::saved_logs::SavedLogs;
use super::blocking::run_to_end;
use super::{
    Addressing, BackendError, BackendFuture, BrainCopy, BrainFormats, EngineBackend, EngineListing, Instance,
    InstanceExit, LaunchSpec, Placement, ResourceLimits, Target,
};

/// The [`EngineBackend`] that runs engines as Pods.
pub struct KubernetesBackend {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    cluster: Cluster,
    pods: Pods,
    logs: SavedLogs,
    /// The images that a Pod could not get a moment ago, until when they count as missing.
    missing_images: Mutex<HashMap<EngineImage, Duration>>,
    /// Whether the Service of the engines exists.
    service_exists: OnceCell<()>,
    clock: Arc<dyn Clock>,
    /// Serializes launch, stop and removal of one engine.
    locks: KeyedLocks<EngineId>,
}

impl KubernetesBackend {
    /// Creates the backend. Does not contact the cluster yet.
    pub fn new(options: Options, clock: Arc<dyn Clock>) -> Self {
        let inner = Inner {
            cluster: Cluster::new(&options),
            options,
            pods: Pods::default(),
            logs: SavedLogs::default(),
            missing_images: Mutex::default(),
            service_exists: OnceCell::new(),
            clock,
            locks: KeyedLocks::default(),
        };
        Self { inner: Arc::new(inner) }
    }
}

impl Inner {
    async fn list(&self) -> Result<Vec<EngineListing>, BackendError> {
        let listed = self.cluster.pods(&label::selector(&self.options.deployment_id)).await?;
        let engines = listed.pods.iter().filter_map(|pod| self.observe(pod));
        let engines = engines.filter(|pod| pod.role == Role::Engine);
        let to_listing = |pod: pod_state::PodView| EngineListing {
            engine_id: pod.engine_id,
            instance: pod.instance(),
            generation: pod.generation,
            running: pod.is_alive(),
        };
        Ok(engines.map(to_listing).collect())
    }

    async fn is_running(&self, instance: &Instance) -> Result<bool, BackendError> {
        let Some((name, uid)) = pod_state::parse_instance(instance) else { return Ok(false) };
        let found = self.cluster.pod(name).await?.and_then(|pod| self.observe(&pod));
        Ok(found.is_some_and(|pod| pod.uid == uid && pod.is_alive()))
    }

    async fn log_tail(&self, engine_id: EngineId, lines: usize) -> Result<Vec<String>, BackendError> {
        // A Pod that was just launched may have written nothing yet; the saved log is better than none.
        let pods = self.pods_of(engine_id).await?;
        if let Some(pod) = pods.iter().find(|pod| pod.role == Role::Engine) {
            let tail = self.pod_log(pod, lines).await?;
            if !tail.is_empty() {
                return Ok(tail);
            }
        }
        Ok(self.logs.tail(engine_id, lines))
    }

    async fn resource_limits(&self, engine_id: EngineId) -> Result<Option<ResourceLimits>, BackendError> {
        let pods = self.pods_of(engine_id).await?;
        let running = pods.iter().find(|pod| pod.role == Role::Engine && pod.is_alive());
        Ok(running.map(|pod| pod.limits))
    }
}

impl EngineBackend for KubernetesBackend {
    fn ping(&self) -> BackendFuture<'_, ()> {
        Box::pin(async move { Ok(self.inner.cluster.ping().await?) })
    }

    fn has_single_image(&self) -> bool {
        false
    }

    /// Each waits for a node most of the time, and there are many.
    fn concurrent_launches(&self) -> usize {
        64
    }

    fn latency(&self) -> Duration {
        self.inner.options.settings.start_timeout + wait::END_TIMEOUT
    }

    /// Only a node can tell whether the registry has an image, so that this knows only what Pods have said.
    fn check_image<'a>(&'a self, image: &'a EngineImage) -> BackendFuture<'a, ()> {
        Box::pin(std::future::ready(self.inner.check_image(image)))
    }

    fn port_is_free(&self, _port: u16) -> bool {
        true
    }

    fn addressing(&self) -> Addressing {
        Addressing::OwnAddress
    }

    fn address(&self, engine_id: EngineId, _placement: Placement) -> Option<SocketAddr> {
        self.inner.pods.ip(engine_id).map(|ip| SocketAddr::new(ip, spec::PORT))
    }

    fn url_authority(&self, engine_id: EngineId, _placement: Placement) -> Option<String> {
        let Settings { service, namespace, .. } = &self.inner.options.settings;
        Some(format!("{}.{service}.{namespace}.svc:{}", engine_name(engine_id), spec::PORT))
    }

    fn has_data(&self, engine_id: EngineId) -> BackendFuture<'_, bool> {
        Box::pin(self.inner.has_data(engine_id))
    }

    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance> {
        Box::pin(async move {
            let engine_lock = self.inner.locks.lock(launch.engine_id).await;
            let inner = Arc::clone(&self.inner);
            run_to_end(engine_lock, async move { inner.launch(&launch).await }).await
        })
    }

    fn stop(&self, target: Target, grace: Duration) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.stop(target, grace).await
        })
    }

    fn kill(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.kill(target).await
        })
    }

    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.remove_instance(target).await
        })
    }

    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.remove_with_data(target).await
        })
    }

    fn copy_brain(&self, target: Target) -> BackendFuture<'_, BrainCopy> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.copy_brain(target).await
        })
    }

    fn restore_brain(&self, target: Target) -> BackendFuture<'_, ()> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.restore_brain(target).await
        })
    }

    fn brain_formats(&self, target: Target) -> BackendFuture<'_, BrainFormats> {
        Box::pin(async move {
            let _engine_lock = self.inner.locks.lock(target.engine_id).await;
            self.inner.brain_formats(target).await
        })
    }

    fn list(&self) -> BackendFuture<'_, Vec<EngineListing>> {
        Box::pin(self.inner.list())
    }

    fn exits(&self) -> BoxStream<'static, InstanceExit> {
        watch::exits(Arc::clone(&self.inner))
    }

    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool> {
        Box::pin(self.inner.is_running(instance))
    }

    fn log_tail(&self, engine_id: EngineId, lines: usize) -> BackendFuture<'_, Vec<String>> {
        Box::pin(self.inner.log_tail(engine_id, lines))
    }

    fn resource_limits(&self, engine_id: EngineId) -> BackendFuture<'_, Option<ResourceLimits>> {
        Box::pin(self.inner.resource_limits(engine_id))
    }
}
