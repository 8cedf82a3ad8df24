//! The choice of the backend, and the images that it can run.

use std::path::{Path, PathBuf};

use api::EngineImage;
use backend::kubernetes::Settings;
use http_service::env::EnvReader;

use super::{VERSION, kubernetes};

/// The default socket of a Docker daemon.
const DEFAULT_DOCKER_SOCKET: &str = "/var/run/docker.sock";

/// The kind of backend that runs the engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Each engine is a process of this machine.
    Process,
    /// Each engine is a container of a Docker daemon on this machine.
    Docker {
        /// The path of the daemon's Unix socket.
        socket: PathBuf,
    },
    /// Each engine is a Pod of a Kubernetes cluster.
    Kubernetes(Box<Settings>),
}

impl BackendKind {
    /// Reads `ORCH_BACKEND`, and what belongs to the backend that it names.
    pub(crate) fn read(reader: &mut EnvReader<'_>) -> Self {
        let kinds = ["docker", "kubernetes", "process"];
        let kind = reader.parse_or("ORCH_BACKEND", "`docker`, `kubernetes` or `process`", "docker", |text| {
            kinds.into_iter().find(|kind| *kind == text)
        });
        match kind {
            "kubernetes" => Self::Kubernetes(Box::new(kubernetes::read(reader))),
            "process" => Self::Process,
            _ => Self::read_docker(reader),
        }
    }

    fn read_docker(reader: &mut EnvReader<'_>) -> Self {
        let socket = reader.parse_or(
            "ORCH_DOCKER_SOCKET",
            "the absolute path of the Docker daemon's socket",
            PathBuf::from(DEFAULT_DOCKER_SOCKET),
            |text| Some(PathBuf::from(text)).filter(|path| Path::is_absolute(path)),
        );
        Self::Docker { socket }
    }

    /// Whether engines see folders of this machine.
    pub const fn runs_on_this_machine(&self) -> bool {
        match self {
            Self::Process | Self::Docker { .. } => true,
            Self::Kubernetes(_) => false,
        }
    }

    /// The name of this kind in `ORCH_BACKEND`.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Docker { .. } => "docker",
            Self::Kubernetes(_) => "kubernetes",
        }
    }

    /// Reads `ORCH_ENGINE_IMAGE`. The process backend can run only this binary.
    pub(super) fn read_image(&self, reader: &mut EnvReader<'_>) -> Option<EngineImage> {
        const IMAGE_VARIABLE: &str = "ORCH_ENGINE_IMAGE";
        match self {
            Self::Docker { .. } | Self::Kubernetes(_) => {
                let must_be = format!("an image with an exact version, such as svc-engine:{VERSION}");
                reader.required(IMAGE_VARIABLE, &must_be, |text| text.parse().ok())
            }
            Self::Process => {
                let own_image = format!("svc-engine:{VERSION}");
                let must_be = format!("the image of this binary, {own_image}");
                reader.required(IMAGE_VARIABLE, &must_be, |text| {
                    text.parse().ok().filter(|image: &EngineImage| image.as_str() == own_image)
                })
            }
        }
    }
}
