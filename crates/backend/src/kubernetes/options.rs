//! The configuration of the Kubernetes backend.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use api::EngineImage;

/// The configuration of the Kubernetes backend.
#[derive(Clone, Debug)]
pub struct Options {
    /// The deployment's id, with which its objects are labelled.
    pub deployment_id: String,
    /// The image of the Pods that copy brains.
    pub copy_image: EngineImage,
    /// What the operator chooses.
    pub settings: Settings,
}

/// Where in which cluster engines run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The file that names the cluster and the credentials; `None` inside a cluster, where the Pod's service
    /// account is used.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of everything that the backend creates.
    pub namespace: String,
    /// The headless Service through which engines get their host names.
    pub service: String,
    /// The storage of the engines' data.
    pub storage: Storage,
    /// What the scheduler reserves for an engine.
    pub requests: Requests,
    /// Where the engines' catalog comes from.
    pub catalog: CatalogSource,
    /// The Secret with the credentials of the image's registry.
    pub pull_secret: Option<String>,
    /// The runtime class of the engines, such as a sandboxed runtime.
    pub runtime_class: Option<String>,
    /// The labels that a node must have to run engines.
    pub node_selector: BTreeMap<String, String>,
    /// How long a launch waits for the engine's start before it reports what is in the way.
    pub start_timeout: Duration,
    /// How long a Pod may outlast the end of its grace before it is removed by force; `None`: never.
    pub force_after: Option<Duration>,
}

/// The storage of the engines' data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The storage class; `None` for the cluster's default.
    pub class: Option<String>,
    /// The size of each engine's volume, as Kubernetes writes quantities.
    pub size: String,
    /// How a volume may be mounted.
    pub access: AccessMode,
}

/// How an engine's volume may be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// By one Pod of the cluster. Needs a CSI driver.
    ReadWriteOncePod,
    /// By the Pods of one node.
    ReadWriteOnce,
}

impl AccessMode {
    /// The name of the mode in Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadWriteOncePod => "ReadWriteOncePod",
            Self::ReadWriteOnce => "ReadWriteOnce",
        }
    }
}

/// What the scheduler reserves for each engine, at most the engine's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Memory in MiB.
    pub memory_mb: u64,
    /// Thousandths of a processor.
    pub cpu_millis: u32,
}

/// Where the engines' catalog comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogSource {
    /// It is part of the engine's image.
    EngineImage,
    /// A `PersistentVolumeClaim` that many Pods can read.
    Claim(String),
    /// A `ConfigMap`, whose keys become files.
    ConfigMap(String),
    /// An image that contains only the catalog.
    Image(String),
}
