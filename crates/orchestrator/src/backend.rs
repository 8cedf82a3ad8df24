//! Where engines run: launched, stopped, removed, listed, watched.
//!
//! A backend knows processes or containers, not rules: what may happen to an engine is decided in `fleet`.
//! Its calls may hang; [`DeadlineBackend`] puts a deadline on each.

mod blocking;
mod brain_copy;
mod cooperative_yield;
mod data_root;
mod deadlines;
pub(crate) mod docker;
mod engine_folder;
mod engine_log;
mod fence;
mod probe;
pub(crate) mod process;
mod removal;
mod root_lock;

use std::fmt;
use std::time::Duration;

use contract::policy::{Cpus, Policy};
use contract::{EngineId, EngineImage, KeyHash, ProductId};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use secrecy::SecretString;

pub(crate) use cooperative_yield::CooperativeYield;
#[cfg(test)]
pub(crate) use data_root::remove_marker;
pub(crate) use data_root::{DataRoot, DataUnavailable, KnownData, RootMarker, read_marker};
pub(crate) use deadlines::DeadlineBackend;
pub(crate) use fence::Target;
#[cfg(test)]
pub(crate) use probe::HealthReport;
pub(crate) use probe::{HttpProbe, KeyProof, Probe, ProbeError};

/// How a backend knows the process or container that runs an engine: text of its own making, unlike for any
/// two launches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Instance(Box<str>);

impl Instance {
    pub(crate) fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An engine to be launched.
#[derive(Clone, Debug)]
pub(crate) struct LaunchSpec {
    pub(crate) engine_id: EngineId,
    pub(crate) product_id: ProductId,
    /// The change of the engine's row that it is launched for.
    pub(crate) generation: i64,
    /// Whether this is the engine's first launch: the only one that makes its folder.
    pub(crate) is_first: bool,
    pub(crate) image: EngineImage,
    /// The host port where it must listen.
    pub(crate) port: u16,
    pub(crate) key_hash: KeyHash,
    /// Variables beside those of the container contract.
    pub(crate) env: Vec<(String, SecretString)>,
    pub(crate) limits: ResourceLimits,
}

impl LaunchSpec {
    /// What it is about to replace.
    pub(crate) const fn target(&self) -> Target {
        Target { engine_id: self.engine_id, generation: self.generation }
    }
}

/// What an engine may use of its host at most; where nothing is said, what the backend holds it to anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ResourceLimits {
    /// In MiB.
    pub(crate) memory_mb: Option<u64>,
    /// Processors; may be a fraction.
    pub(crate) cpus: Option<f64>,
    /// Processes and threads.
    pub(crate) pids: Option<u64>,
}

impl ResourceLimits {
    /// The caps that a product's policy sets.
    pub(crate) fn from_policy(policy: &Policy) -> Self {
        let count = |count: i64| count.unsigned_abs();
        Self {
            memory_mb: policy.engine_memory_mb.map(|mb| count(mb.get())),
            cpus: policy.engine_cpus.as_ref().map(Cpus::get),
            pids: policy.engine_pids.map(|pids| count(pids.get())),
        }
    }
}

/// An engine of which the backend has something.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EngineListing {
    pub(crate) engine_id: EngineId,
    pub(crate) instance: Instance,
    /// The change of the engine's row that it was launched for; 0 where the version that launched it did not say.
    pub(crate) generation: i64,
    /// Whether it runs. If not, it is what is left of one that has ended, or of one that was never begun.
    pub(crate) running: bool,
}

/// A copy of an engine's brain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BrainCopy {
    /// The number of the brain's format; none if it is not known.
    pub(crate) format: Option<u32>,
}

/// The end of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceExit {
    pub(crate) engine_id: EngineId,
    pub(crate) instance: Instance,
    /// How it ended, for people; none where the backend cannot know.
    pub(crate) reason: Option<String>,
}

/// Why a backend did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BackendError {
    /// It did not answer, or not in time. That says nothing about any engine.
    #[error("the backend that runs the engines cannot be reached: {0}")]
    Unreachable(String),
    /// The engines' data is not there, for this reason: a disk that is not mounted, say. That says nothing about any
    /// engine.
    #[error("the engines' data is not there: {0}")]
    DataUnavailable(DataUnavailable),
    /// It has no such image.
    #[error("the backend has no image {0}")]
    NoImage(EngineImage),
    /// The host has no room for another engine.
    #[error("the host is full: {0}; stop some engines, or give it more room")]
    NoCapacity(String),
    /// Something else on the host has the port.
    #[error("port {0} is taken by something else on the host")]
    PortTaken(u16),
    /// It has launched the engine for a later change of its row than the caller's, and has not touched that.
    #[error(
        "the engine was launched again by another orchestrator, or the registry was restored from a backup"
    )]
    Superseded {
        /// The change that it was launched for.
        generation: i64,
    },
    /// It tried and failed.
    #[error("the backend failed: {0}")]
    Failed(String),
}

impl BackendError {
    /// Whether it says something about the host, and nothing about the engine that was to be worked on: then that
    /// stays as it is.
    pub(crate) const fn is_host_problem(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::DataUnavailable(_)
            | Self::NoCapacity(_)
            | Self::Superseded { .. } => true,
            Self::NoImage(_) | Self::PortTaken(_) | Self::Failed(_) => false,
        }
    }
}

/// A backend's answer.
pub(crate) type BackendFuture<'a, T> = BoxFuture<'a, Result<T, BackendError>>;

/// What runs engines.
///
/// Every call may be dropped half-way; what it had begun may still happen, and a later call for the same
/// engine sees to that first. Calls about an engine that is not there do nothing and succeed. Whatever was launched
/// for a later change than the caller's is left alone, which ends the call as [`BackendError::Superseded`].
pub(crate) trait EngineBackend: Send + Sync + 'static {
    /// Whether the backend can be reached.
    fn ping(&self) -> BackendFuture<'_, ()>;

    /// Whether it can launch no image but the deployment's own: then no engine can stay with an earlier one.
    fn has_single_image(&self) -> bool;

    /// Fails unless `image` can be launched.
    fn check_image<'a>(&'a self, image: &'a EngineImage) -> BackendFuture<'a, ()>;

    /// Whether nothing on the host holds `port`. Does not block.
    fn port_is_free(&self, port: u16) -> bool;

    /// Whether the engine's folder is there, with its brain in it.
    fn has_data(&self, engine_id: EngineId) -> BackendFuture<'_, bool>;

    /// Launches an engine, after any earlier process or container of it is gone. Its folder is made by its first
    /// launch; without it, any other is [`BackendError::DataUnavailable`].
    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance>;

    /// Asks the engine to end, and makes it after `grace`. Returns once it is gone.
    fn stop(&self, target: Target, grace: Duration) -> BackendFuture<'_, ()>;

    /// Ends the engine at once. Returns once it is gone. Its log is kept until its next launch.
    fn kill(&self, target: Target) -> BackendFuture<'_, ()>;

    /// Ends the engine at once and removes what is left of it but its data.
    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()>;

    /// Ends the engine at once and removes its data.
    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()>;

    /// Copies the brain of an engine that does not run, in the place of an earlier copy.
    fn copy_brain(&self, target: Target) -> BackendFuture<'_, BrainCopy>;

    /// Puts the copy of the brain of an engine that does not run in the brain's place.
    fn restore_brain(&self, target: Target) -> BackendFuture<'_, ()>;

    /// What there is with this deployment's label. From then on the ends of all that run are reported.
    fn list(&self) -> BackendFuture<'_, Vec<EngineListing>>;

    /// The ends of instances, from now on.
    fn exits(&self) -> BoxStream<'static, InstanceExit>;

    /// Whether this instance runs; its end may have been told, and it begun anew. From then on its next end is told.
    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool>;

    /// The last lines of the engine's log, at most `lines`.
    fn log_tail(&self, engine_id: EngineId, lines: usize) -> BackendFuture<'_, Vec<String>>;

    /// The caps that the engine is held to as it runs now; none if it does not run, or is held to none.
    fn resource_limits(&self, engine_id: EngineId) -> BackendFuture<'_, Option<ResourceLimits>>;
}
