//! The Docker daemon, and the image and network of a run.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::unix_http::UnixHttpClient;

/// The variable with the path of the daemon's socket, and its default; the same as the orchestrator's.
const SOCKET_VAR_AND_DEFAULT: (&str, &str) = ("ORCH_DOCKER_SOCKET", "/var/run/docker.sock");

/// Returns a client for the machine's Docker daemon.
pub fn daemon() -> UnixHttpClient {
    let (variable, default) = SOCKET_VAR_AND_DEFAULT;
    let socket = std::env::var_os(variable).unwrap_or_else(|| default.into()).into();
    UnixHttpClient { socket, server: "the Docker daemon" }
}

/// The variable with the name of the base image, and its default.
const BASE_IMAGE_VAR_AND_DEFAULT: (&str, &str) = ("ROUNDHOUSE_TEST_BASE_IMAGE", "roundhouse-base:bookworm");

/// The Dockerfile of all deployments.
const DOCKERFILE: &str = include_str!("../../../deploy/Dockerfile");
/// The build target of the engine's image.
const BUILD_TARGET: &str = "engine";

/// The image and network of a run. Dropped, both are removed.
#[derive(Debug)]
pub struct DockerResources {
    /// The daemon that has them.
    pub daemon: UnixHttpClient,
    /// The name of both, unique to this run.
    name: String,
}

impl DockerResources {
    /// Builds an image of `binary`, with `folder` for the build context. The orchestrator creates the network.
    pub fn new(name: &str, binary: &Path, folder: &Path) -> anyhow::Result<Self> {
        let base = Self::base_image()?;
        let resources = Self { daemon: daemon(), name: format!("{name}-{}", std::process::id()) };
        let context = folder.join("image");
        std::fs::create_dir(&context)?;
        std::fs::copy(binary, context.join("roundhouse"))?;
        std::fs::write(context.join("Dockerfile"), DOCKERFILE)?;
        // The host's network is used, because the daemon's default network may be missing or not usable.
        let base = format!("BASE={base}");
        resources.build(&["--network", "host", "--build-arg", &base, "--target", BUILD_TARGET], &context)?;
        std::fs::remove_dir_all(context)?;
        Ok(resources)
    }

    /// Lets all programs in containers that are created from now on load a library first, by its path there.
    pub fn preload(&self, library: &Path) -> anyhow::Result<()> {
        let context = tempfile::tempdir()?;
        std::fs::write(context.path().join("ld.so.preload"), format!("{}\n", library.display()))?;
        let steps = format!("FROM {}\nCOPY ld.so.preload /etc/ld.so.preload\n", self.image());
        std::fs::write(context.path().join("Dockerfile"), steps)?;
        self.build(&[], context.path())
    }

    /// Builds the image from the folder `context`.
    fn build(&self, options: &[&str], context: &Path) -> anyhow::Result<()> {
        let mut build = Command::new("docker");
        build.env("DOCKER_BUILDKIT", "0").arg("--host");
        build.arg(format!("unix://{}", self.daemon.socket.display()));
        build
            .args(["build", "--quiet", "--force-rm"])
            .args(options)
            .args(["--tag", &self.image()])
            .arg(context);
        let output = build.stdin(Stdio::null()).output().context("the docker command cannot be run")?;
        if !output.status.success() {
            bail!("the image {} cannot be built: {}", self.image(), String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Returns the base image, or an error if something that engines as containers need is missing.
    pub fn base_image() -> anyhow::Result<String> {
        let (variable, default) = BASE_IMAGE_VAR_AND_DEFAULT;
        let base = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
        let daemon = daemon();
        daemon.get("/version")?;
        match daemon.request("GET", &format!("/images/{base}/json"), None)? {
            (200, _) => Ok(base),
            _ => bail!("there is no image {base}: build it, or name another base image in {variable}"),
        }
    }

    /// Returns the image's reference.
    pub fn image(&self) -> String {
        format!("{}:{}", self.name, env!("CARGO_PKG_VERSION"))
    }

    /// Returns the network's name.
    pub fn network(&self) -> &str {
        &self.name
    }
}

/// The number of attempts to remove something that a terminating container may still use.
const CLEANUP_ATTEMPTS: usize = 50;

impl DockerResources {
    /// Removes all containers of the image; the orchestrator that ran them is gone.
    fn remove_containers(&self) -> anyhow::Result<()> {
        let filter = format!("%7B%22ancestor%22%3A%5B%22{}%22%5D%7D", self.image());
        let listed = self.daemon.get(&format!("/containers/json?all=true&filters={filter}"))?;
        let ids = listed.as_array().into_iter().flatten().filter_map(|listed| listed.get("Id")?.as_str());
        for id in ids {
            self.daemon.request("DELETE", &format!("/containers/{id}?force=true&v=true"), None)?;
        }
        Ok(())
    }

    /// Removes a resource. Returns whether it is gone, or the daemon does not respond, so that there is no retry.
    fn try_remove(&self, path: &str) -> bool {
        let removed = self.daemon.request("DELETE", path, None);
        removed.map_or(true, |(status, _)| status == 404 || status < 400)
    }
}

impl Drop for DockerResources {
    fn drop(&mut self) {
        // Containers block the removal of the image, so they are removed in each attempt.
        for path in [format!("/networks/{}", self.name), format!("/images/{}?force=true", self.image())] {
            for _ in 0..CLEANUP_ATTEMPTS {
                let _ = self.remove_containers();
                if self.try_remove(&path) {
                    break;
                }
                std::thread::park_timeout(Duration::from_millis(100));
            }
        }
    }
}
