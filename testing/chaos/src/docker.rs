//! The Docker daemon, asked over its socket one question a connection, and what a run has of its own there. It
//! blocks: what cleans up may not wait for a runtime.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

/// Where it listens; the orchestrator's own variable and its default.
const SOCKET_VAR_AND_DEFAULT: (&str, &str) = ("ORCH_DOCKER_SOCKET", "/var/run/docker.sock");
/// How long it may be silent.
const IO_TIMEOUT: Duration = Duration::from_mins(1);

/// See the module.
#[derive(Clone, Debug)]
pub struct DockerClient {
    /// Where it listens.
    pub socket: PathBuf,
}

impl Default for DockerClient {
    fn default() -> Self {
        Self::new()
    }
}

impl DockerClient {
    /// The machine's.
    pub fn new() -> Self {
        let (variable, default) = SOCKET_VAR_AND_DEFAULT;
        Self { socket: std::env::var_os(variable).unwrap_or_else(|| default.into()).into() }
    }

    /// Asks something. Gives the answer's status and body.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<(u16, Vec<u8>)> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let asking = || -> std::io::Result<Vec<u8>> {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(IO_TIMEOUT))?;
            // In this version of HTTP an answer is neither cut into chunks nor followed by another.
            let head =
                format!("{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\n");
            stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        };
        let answer = asking()
            .with_context(|| format!("the Docker daemon at {} does not answer", self.socket.display()))?;
        parse_response(&answer).with_context(|| format!("the Docker daemon's answer to {method} {path}"))
    }

    /// Asks for something that must be there.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.request_ok("GET", path, None)?)?)
    }

    /// Asks for something that must be done. Gives the answer's body.
    pub fn request_ok(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Vec<u8>> {
        match self.request(method, path, body)? {
            (200..=299, body) => Ok(body),
            (status, body) => bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&body)),
        }
    }
}

/// Names the base image, and the one that is taken without it.
const BASE_IMAGE_VAR_AND_DEFAULT: (&str, &str) = ("ROUNDHOUSE_TEST_BASE_IMAGE", "roundhouse-base:bookworm");

/// As every deployment's image is made.
const DOCKERFILE: &str = include_str!("../../../deploy/Dockerfile");
/// The part of it that is the engine's.
const BUILD_TARGET: &str = "engine";

/// An image and a network of the run's own. Dropped, both are removed.
#[derive(Debug)]
pub struct DockerResources {
    /// The daemon on which they are.
    pub daemon: DockerClient,
    /// The name of both: no other run has it.
    name: String,
}

impl DockerResources {
    /// Makes the image of `binary`; `folder` is for what it is made of. The network is for the orchestrator to
    /// make.
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
        // The host's own network: the daemon's default one may be another's, or none.
        build.args(["build", "--quiet", "--force-rm", "--network", "host"]);
        build.args(["--build-arg", &format!("BASE={base}")]);
        build.args(["--target", BUILD_TARGET, "--tag", &resources.image()]).arg(&context);
        let output = build.stdin(Stdio::null()).output().context("the docker command cannot be run")?;
        if !output.status.success() {
            bail!("no image was built over {base}: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::fs::remove_dir_all(context)?;
        Ok(resources)
    }

    /// The base image, if all is there that engines as containers need.
    pub fn base_image() -> anyhow::Result<String> {
        let (variable, default) = BASE_IMAGE_VAR_AND_DEFAULT;
        let base = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
        let daemon = DockerClient::new();
        daemon.get("/version")?;
        match daemon.request("GET", &format!("/images/{base}/json"), None)? {
            (200, _) => Ok(base),
            _ => bail!("there is no image {base}: make it, or name another base in {variable}"),
        }
    }

    /// The reference of the image.
    pub fn image(&self) -> String {
        format!("{}:{}", self.name, env!("CARGO_PKG_VERSION"))
    }

    /// The name of the network.
    pub fn network(&self) -> &str {
        &self.name
    }
}

/// How often is tried to remove what something that ends may still use.
const CLEANUP_ATTEMPTS: usize = 50;

impl DockerResources {
    /// Removes every container of the image: whoever ran them is gone.
    fn remove_containers(&self) -> anyhow::Result<()> {
        let filter = format!("%7B%22ancestor%22%3A%5B%22{}%22%5D%7D", self.image());
        let listed = self.daemon.get(&format!("/containers/json?all=true&filters={filter}"))?;
        let ids = listed.as_array().into_iter().flatten().filter_map(|listed| listed.get("Id")?.as_str());
        for id in ids {
            self.daemon.request("DELETE", &format!("/containers/{id}?force=true&v=true"), None)?;
        }
        Ok(())
    }

    /// Removes something. Gives whether it is gone; a daemon that does not answer is not asked again.
    fn try_remove(&self, path: &str) -> bool {
        let removed = self.daemon.request("DELETE", path, None);
        removed.map_or(true, |(status, _)| status == 404 || status < 400)
    }
}

impl Drop for DockerResources {
    fn drop(&mut self) {
        // What is left is in the way of the image, and is tried again with it.
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
    let end =
        answer.windows(HEADER_END.len()).position(|window| window == HEADER_END).context("it has no end")?;
    let (head, body) = answer.split_at(end);
    let status = std::str::from_utf8(head)?.split(' ').nth(1).context("it has no status")?.parse()?;
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
