//! The choice of the backend, and the images that it can run.

use std::path::{Path, PathBuf};

use api::EngineImage;
use http_service::env::EnvReader;

use super::VERSION;

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
}

impl BackendKind {
    /// Reads `ORCH_BACKEND` and, for Docker, `ORCH_DOCKER_SOCKET`.
    pub(crate) fn read(reader: &mut EnvReader<'_>) -> Self {
        let docker = reader.parse_or("ORCH_BACKEND", "`docker` or `process`", true, |text| match text {
            "docker" => Some(true),
            "process" => Some(false),
            _ => None,
        });
        if !docker {
            return Self::Process;
        }
        let socket = reader.parse_or(
            "ORCH_DOCKER_SOCKET",
            "the absolute path of the Docker daemon's socket",
            PathBuf::from(DEFAULT_DOCKER_SOCKET),
            |text| Some(PathBuf::from(text)).filter(|path| Path::is_absolute(path)),
        );
        Self::Docker { socket }
    }

    /// The name of this kind in `ORCH_BACKEND`.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Docker { .. } => "docker",
        }
    }

    /// Reads `ORCH_ENGINE_IMAGE`. The process backend can run only this binary.
    pub(super) fn read_image(&self, reader: &mut EnvReader<'_>) -> Option<EngineImage> {
        const IMAGE_VARIABLE: &str = "ORCH_ENGINE_IMAGE";
        match self {
            Self::Docker { .. } => {
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
