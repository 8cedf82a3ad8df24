//! A client for the Docker daemon's API, with one request per connection, and the image and network of a run. It
//! is blocking, because the clean-up in `drop` cannot wait for a runtime.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

/// The variable with the path of the daemon's socket, and its default; the same as the orchestrator's.
const SOCKET_VAR_AND_DEFAULT: (&str, &str) = ("ORCH_DOCKER_SOCKET", "/var/run/docker.sock");
/// The read timeout of a response.
const IO_TIMEOUT: Duration = Duration::from_mins(1);

/// A client for the Docker daemon.
#[derive(Clone, Debug)]
pub struct DockerClient {
    /// The path of the daemon's socket.
    pub socket: PathBuf,
}

impl Default for DockerClient {
    fn default() -> Self {
        Self::new()
    }
}

impl DockerClient {
    /// Creates a client for the machine's daemon.
    pub fn new() -> Self {
        let (variable, default) = SOCKET_VAR_AND_DEFAULT;
        Self { socket: std::env::var_os(variable).unwrap_or_else(|| default.into()).into() }
    }

    /// Sends a request and returns the response's status and body.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<(u16, Vec<u8>)> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let exchange = || -> std::io::Result<Vec<u8>> {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(IO_TIMEOUT))?;
            // In HTTP/1.0, a response is neither chunked nor followed by another one.
            let head =
                format!("{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\n");
            stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        };
        let answer = exchange()
            .with_context(|| format!("the Docker daemon at {} does not respond", self.socket.display()))?;
        parse_response(&answer).with_context(|| format!("the Docker daemon's response to {method} {path}"))
    }

    /// Sends a GET request that must succeed, and parses the response.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.request_ok("GET", path, None)?)?)
    }

    /// Sends a request that must succeed, and returns the response body.
    pub fn request_ok(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Vec<u8>> {
        match self.request(method, path, body)? {
            (200..=299, body) => Ok(body),
            (status, body) => bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&body)),
        }
    }
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
    pub daemon: DockerClient,
    /// The name of both, unique to this run.
    name: String,
}

impl DockerResources {
    /// Builds an image of `binary`, with `folder` for the build context. The orchestrator creates the network.
    pub fn new(name: &str, binary: &Path, folder: &Path) -> anyhow::Result<Self> {
        let base = Self::base_image()?;
        let resources = Self { daemon: DockerClient::new(), name: format!("{name}-{}", std::process::id()) };
        let context = folder.join("image");
        std::fs::create_dir(&context)?;
        std::fs::copy(binary, context.join("roundhouse"))?;
        std::fs::write(context.join("Dockerfile"), DOCKERFILE)?;
        let mut build = Command::new("docker");
        build.env("DOCKER_BUILDKIT", "0").arg("--host");
        build.arg(format!("unix://{}", resources.daemon.socket.display()));
        // The host's network is used, because the daemon's default network may be missing or not usable.
        build.args(["build", "--quiet", "--force-rm", "--network", "host"]);
        build.args(["--build-arg", &format!("BASE={base}")]);
        build.args(["--target", BUILD_TARGET, "--tag", &resources.image()]).arg(&context);
        let output = build.stdin(Stdio::null()).output().context("the docker command cannot be run")?;
        if !output.status.success() {
            bail!("the image on {base} cannot be built: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::fs::remove_dir_all(context)?;
        Ok(resources)
    }

    /// Returns the base image, or an error if something that engines as containers need is missing.
    pub fn base_image() -> anyhow::Result<String> {
        let (variable, default) = BASE_IMAGE_VAR_AND_DEFAULT;
        let base = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
        let daemon = DockerClient::new();
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

fn parse_response(answer: &[u8]) -> anyhow::Result<(u16, Vec<u8>)> {
    const HEADER_END: &[u8] = b"\r\n\r\n";
    let end = answer
        .windows(HEADER_END.len())
        .position(|window| window == HEADER_END)
        .context("the head is incomplete")?;
    let (head, body) = answer.split_at(end);
    let status = std::str::from_utf8(head)?.split(' ').nth(1).context("the head has no status")?.parse()?;
    Ok((status, body.get(HEADER_END.len()..).unwrap_or_default().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_and_its_body() {
        let answer = b"HTTP/1.0 404 Not Found\r\nServer: Docker\r\n\r\n{\"message\":\"none\"}\r\n\r\n";
        assert_eq!(parse_response(answer).unwrap(), (404, b"{\"message\":\"none\"}\r\n\r\n".to_vec()));
        assert!(parse_response(b"HTTP/1.0 200 OK\r\n").is_err());
    }
}
