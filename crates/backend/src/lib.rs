//! Where engines run: the interface to launch, stop, remove, list and watch instances.
//!
//! A backend handles processes or containers and knows no rules: the orchestrator's `fleet` decides what may
//! happen to an engine. A backend's calls may hang; [`DeadlineBackend`] puts a deadline on each.

mod address;
mod blocking;
mod brain_copy;
mod cooperative_yield;
mod data_root;
mod deadlines;
pub mod docker;
mod engine_folder;
mod engine_log;
mod fence;
pub mod kubernetes;
mod log_tail;
mod probe;
pub mod process;
mod root_lock;
mod warm_marks;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use api::policy::{Cpus, Policy};
use api::{EngineId, EngineImage, KeyHash, ProductId, Timestamp};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use secrecy::SecretString;

pub use address::{Addressing, Placement};
pub use cooperative_yield::CooperativeYield;
#[cfg(any(test, feature = "testing"))]
pub use data_root::remove_marker;
pub use data_root::{DataRoot, DataUnavailable, KnownData, RootMarker, read_marker};
pub use deadlines::DeadlineBackend;
pub use fence::Target;
pub use probe::{HealthReport, HttpProbe, KeyProof, Probe, ProbeError};

/// The version of this binary, and the only one that the process backend can run.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A backend's identifier of the process or container that runs an engine: opaque text, unique per launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instance(Box<str>);

impl Instance {
    /// Creates the identifier from its text, as a backend returned it.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the text of the identifier.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The specification of an engine's launch.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    /// The engine to launch.
    pub engine_id: EngineId,
    /// The product whose user owns the engine.
    pub product_id: ProductId,
    /// The generation of the engine's row for which it is launched.
    pub generation: i64,
    /// Whether this is the engine's first launch, the only one that creates its folder.
    pub is_first: bool,
    /// The image that the engine runs.
    pub image: EngineImage,
    /// Where the engine must listen.
    pub placement: Placement,
    /// The hash of the key that the engine must accept.
    pub key_hash: KeyHash,
    /// Environment variables in addition to those of the container contract.
    pub env: Vec<(String, SecretString)>,
    /// The limits on the engine's use of the host.
    pub limits: ResourceLimits,
}

impl LaunchSpec {
    /// The target that this launch replaces.
    pub const fn target(&self) -> Target {
        Target { engine_id: self.engine_id, generation: self.generation }
    }
}

/// The limits on an engine's use of its host; an absent limit leaves the backend's own default in force.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourceLimits {
    /// Memory in MiB.
    pub memory_mb: Option<u64>,
    /// Number of processors; may be fractional.
    pub cpus: Option<f64>,
    /// Number of processes and threads.
    pub pids: Option<u64>,
}

impl ResourceLimits {
    /// Returns the limits that a product's policy sets.
    pub fn from_policy(policy: &Policy) -> Self {
        let count = |count: i64| count.unsigned_abs();
        Self {
            memory_mb: policy.engine_memory_mb.map(|mb| count(mb.get())),
            cpus: policy.engine_cpus.as_ref().map(Cpus::get),
            pids: policy.engine_pids.map(|pids| count(pids.get())),
        }
    }
}

/// An engine of which the backend has an instance or remains of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EngineListing {
    /// The engine.
    pub engine_id: EngineId,
    /// The instance, or the one that left the remains.
    pub instance: Instance,
    /// The generation for which it was launched; 0 if the version that launched it recorded none.
    pub generation: i64,
    /// Whether it runs. If not, this is what remains of an instance that exited or was never started.
    pub running: bool,
}

/// The data of an engine, as a backend finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataListing {
    /// The engine.
    pub engine_id: EngineId,
    /// Whether the brain is there.
    pub has_brain: bool,
    /// When it was last written to, as far as its brain and its log show.
    pub changed_at: Timestamp,
}

/// A copy of an engine's brain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrainCopy {
    /// The version number of the brain's format, if known.
    pub format: Option<u32>,
}

/// The formats of an engine's brain and of its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrainFormats {
    /// The format of the brain, if known.
    pub brain: Option<u32>,
    /// The copy; `None` if there is none: the engine removes it after a week, or with data that it contains.
    pub copy: Option<BrainCopy>,
}

/// The exit of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceExit {
    /// The engine that the instance ran.
    pub engine_id: EngineId,
    /// The instance that exited.
    pub instance: Instance,
    /// The exit status as text for people; `None` if the backend cannot know it.
    pub reason: Option<String>,
}

/// Why a backend did not do what was requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The backend did not answer, or not in time. This says nothing about any engine.
    #[error("the backend that runs the engines cannot be reached: {0}")]
    Unreachable(String),
    /// The engines' data is unavailable for this reason, for example a disk that is not mounted. This says
    /// nothing about any engine.
    #[error("the engines' data is unavailable: {0}")]
    DataUnavailable(DataUnavailable),
    /// The backend has no such image.
    #[error("the backend has no image {0}")]
    NoImage(EngineImage),
    /// The host has no capacity for another engine.
    #[error("the host has no capacity for another engine: {0}; stop some engines, or extend the host")]
    NoCapacity(String),
    /// Another program on the host uses the port.
    #[error("port {0} is in use by another program on the host")]
    PortTaken(u16),
    /// The backend has launched the engine for a later generation than the caller's, and left that instance
    /// untouched.
    #[error(
        "the engine was launched again by another orchestrator, or the registry was restored from a backup"
    )]
    Superseded {
        /// The generation for which the engine was launched.
        generation: i64,
    },
    /// The backend tried and failed.
    #[error("the backend failed: {0}")]
    Failed(String),
}

impl BackendError {
    /// Whether the error concerns the host and says nothing about the engine in question, whose state then stays
    /// unchanged.
    pub const fn is_host_problem(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::DataUnavailable(_)
            | Self::NoCapacity(_)
            | Self::Superseded { .. } => true,
            Self::NoImage(_) | Self::PortTaken(_) | Self::Failed(_) => false,
        }
    }
}

/// The future of a backend's call.
pub type BackendFuture<'a, T> = BoxFuture<'a, Result<T, BackendError>>;

/// The interface of what runs engines.
///
/// Every call may be dropped half-way; what it started may still happen, and a later call for the same engine
/// deals with that first. Calls for an engine that does not exist do nothing and succeed. An instance launched
/// for a later generation than the caller's is left untouched, and the call fails with
/// [`BackendError::Superseded`].
pub trait EngineBackend: Send + Sync + 'static {
    /// Whether the backend can be reached.
    fn ping(&self) -> BackendFuture<'_, ()>;

    /// Whether the backend can launch only the deployment's own image, so that no engine can stay on an earlier
    /// one.
    fn has_single_image(&self) -> bool;

    /// How many launches the backend carries out at once. More would only wait inside it, against their deadlines.
    fn concurrent_launches(&self) -> usize {
        // A Docker daemon creates containers one after the other, each in up to a second: this is as many as it can
        // create within a launch's deadline.
        16
    }

    /// How much longer the backend may take for a launch, or for the end of an engine, than a daemon of this host.
    fn latency(&self) -> Duration {
        Duration::ZERO
    }

    /// Fails unless `image` can be launched.
    fn check_image<'a>(&'a self, image: &'a EngineImage) -> BackendFuture<'a, ()>;

    /// How its engines are addressed. Always the same.
    fn addressing(&self) -> Addressing;

    /// Whether `port` is free on the host. Does not block. It is asked only under [`Addressing::HostPort`].
    fn port_is_free(&self, port: u16) -> bool;

    /// Where this orchestrator can connect to the engine now; `None` if the backend does not know, for example
    /// because the engine does not run. Does not block: it is called for each request to the engine.
    fn address(&self, engine_id: EngineId, placement: Placement) -> Option<SocketAddr>;

    /// The host and the port in the `url` that products get, also while the engine does not run. It stays the same
    /// as long as the engine keeps its placement. Does not block.
    fn url_authority(&self, engine_id: EngineId, placement: Placement) -> Option<String>;

    /// Whether the engine's folder exists and contains its brain.
    fn has_data(&self, engine_id: EngineId) -> BackendFuture<'_, bool>;

    /// Lists the data of all engines, or of one; `None` if this backend cannot.
    fn list_data(&self, engine_id: Option<EngineId>) -> BackendFuture<'_, Option<Vec<DataListing>>> {
        let _ = engine_id;
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Launches an engine once any earlier process or container of it is gone. The first launch creates the
    /// engine's folder; any other launch without that folder fails with [`BackendError::DataUnavailable`].
    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance>;

    /// Asks the engine to exit and kills it after `grace`. Returns once it is gone.
    fn stop(&self, target: Target, grace: Duration) -> BackendFuture<'_, ()>;

    /// Kills the engine. Returns once it is gone. Its log is kept until its next launch.
    fn kill(&self, target: Target) -> BackendFuture<'_, ()>;

    /// Kills the engine and removes everything of it except its data.
    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()>;

    /// Kills the engine and removes everything of it including its data.
    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()>;

    /// Copies the brain of a stopped engine, replacing any earlier copy.
    fn copy_brain(&self, target: Target) -> BackendFuture<'_, BrainCopy>;

    /// Replaces the brain of a stopped engine by its copy.
    fn restore_brain(&self, target: Target) -> BackendFuture<'_, ()>;

    /// Returns the formats of a stopped engine's brain and of its copy, which tell whether a version before that of the
    /// copy can open the brain.
    fn brain_formats(&self, target: Target) -> BackendFuture<'_, BrainFormats>;

    /// Lists the engines that carry this deployment's label. From then on the exits of all running ones are
    /// reported.
    fn list(&self) -> BackendFuture<'_, Vec<EngineListing>>;

    /// Returns a stream of the exits of instances from now on.
    fn exits(&self) -> BoxStream<'static, InstanceExit>;

    /// Whether this instance runs. Its exit may have been reported and the instance restarted since. From then on
    /// its next exit is reported.
    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool>;

    /// Returns the last lines of the engine's log, at most `lines`.
    fn log_tail(&self, engine_id: EngineId, lines: usize) -> BackendFuture<'_, Vec<String>>;

    /// Returns the limits in force on the running engine; `None` if it does not run or has no limits.
    fn resource_limits(&self, engine_id: EngineId) -> BackendFuture<'_, Option<ResourceLimits>>;
}
