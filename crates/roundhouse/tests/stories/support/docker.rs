//! A Docker daemon as the user of its command line sees it: stories inspect what the orchestrator has created, and
//! change it behind the orchestrator's back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use reqwest::Client;
use rustix::process::Pid;
use serde_json::Value;

use super::{processes, skip, with_deadline};

/// The socket of this machine's daemon.
pub(crate) const LOCAL_SOCKET: &str = "/var/run/docker.sock";

/// The timeout of a client call.
const CLIENT_TIMEOUT_S: &str = "120";

/// The prefix of the names of networks of stories; the id of the test process follows.
const NETWORK_NAME_PREFIX: &str = "roundhouse-e2e-";

/// A client of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Docker {
    socket: PathBuf,
}

/// A network for one deployment. Dropping it removes it with all of its containers.
#[derive(Debug)]
pub(crate) struct DockerNetwork {
    docker: Docker,
    pub(crate) name: String,
}

impl Docker {
    /// This machine's daemon; skips the story and returns `None` if there is none.
    pub(crate) fn local() -> Option<Self> {
        static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
        let this = Self::from_socket(Path::new(LOCAL_SOCKET));
        let found = FOUND.get_or_init(|| {
            this.run_blocking(&["version", "--format", "{{.Server.Version}}"])?;
            this.remove_leftovers();
            Ok(())
        });
        match found {
            Ok(()) => Some(this),
            Err(reason) => {
                skip(&format!("a Docker daemon and its client: {reason}"));
                None
            }
        }
    }

    /// A client of the daemon that listens on this socket.
    pub(crate) fn from_socket(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs the client; returns its output or its error.
    pub(crate) fn run_blocking(&self, arguments: &[&str]) -> Result<String, String> {
        command_output("docker", self.command().args(arguments).output())
    }

    /// Runs the client without blocking the story's other tasks.
    pub(crate) async fn try_run(&self, arguments: &[&str]) -> Result<String, String> {
        command_output("docker", tokio::process::Command::from(self.command()).args(arguments).output().await)
    }

    /// Runs the client, which must succeed.
    pub(crate) async fn run(&self, arguments: &[&str]) -> String {
        self.try_run(arguments).await.unwrap_or_else(|error| panic!("docker {arguments:?}: {error}"))
    }

    /// The containers that match a filter, running or not.
    pub(crate) async fn containers(&self, filter: &str) -> Vec<String> {
        let found = self.run(&["ps", "--all", "--quiet", "--no-trunc", "--filter", filter]).await;
        found.lines().map(str::to_owned).collect()
    }

    /// The container of an engine, running or not.
    pub(crate) async fn container_of(&self, engine_id: &str) -> Option<String> {
        let found = self.containers(&format!("label=roundhouse.engine={engine_id}")).await;
        assert!(found.len() < 2, "one engine, {found:?}");
        found.into_iter().next()
    }

    /// The daemon's description of a container.
    pub(crate) async fn inspect(&self, container: &str) -> Value {
        let description = self.run(&["inspect", "--type", "container", container]).await;
        serde_json::from_str::<Value>(&description).unwrap()[0].take()
    }

    /// The state of a container; `None` if there is no such container.
    pub(crate) async fn state(&self, container: &str) -> Option<String> {
        self.try_run(&["inspect", "--type", "container", "--format", "{{.State.Status}}", container])
            .await
            .ok()
    }

    /// The output of a shell line in a container, run as the engine's user.
    pub(crate) async fn exec_shell(&self, container: &str, line: &str) -> String {
        self.run(&["exec", container, "sh", "-c", line]).await
    }

    /// Posts to the daemon's API directly; returns the status and the response.
    pub(crate) async fn api_post(&self, path: &str, body: &Value) -> (u16, Value) {
        let client = Client::builder().unix_socket(self.socket.clone()).build().unwrap();
        let request = client.post(format!("http://docker/v1.41{path}")).json(body);
        let response = with_deadline(path, request.send()).await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap_or_default())
    }

    /// The host's address in the default bridge network, at which containers reach it.
    pub(crate) fn host_address(&self) -> String {
        let format = "{{with index .IPAM.Config 0}}{{.Gateway}} {{.Subnet}}{{end}}";
        let output = self.run_blocking(&["network", "inspect", "bridge", "--format", format]);
        let output = output.unwrap_or_else(|error| panic!("no network `bridge`: {error}"));
        if let Some((gateway, _)) = output.split_once(' ') {
            return gateway.to_owned();
        }
        // For a bridge that is older than its daemon no gateway is reported: it is the first address.
        let first = output.rsplit_once(".0/").unwrap_or_else(|| panic!("no address in {output:?}")).0;
        format!("{first}.1")
    }

    fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.args([CLIENT_TIMEOUT_S, "docker", "--host", &format!("unix://{}", self.socket.display())]);
        command
    }

    /// Removes networks that killed test runs left.
    fn remove_leftovers(&self) {
        let filter = format!("name=^{NETWORK_NAME_PREFIX}");
        let names = self.run_blocking(&["network", "ls", "--filter", &filter, "--format", "{{.Name}}"]);
        for name in names.unwrap_or_default().lines() {
            let process = name.trim_start_matches(NETWORK_NAME_PREFIX).split('-').next().unwrap_or_default();
            if !Path::new("/proc").join(process).exists() {
                remove_network(self, name);
            }
        }
    }
}

impl DockerNetwork {
    /// Chooses a unique name. The network itself is created later, by the story or by the orchestrator.
    pub(crate) fn new(docker: &Docker) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { docker: docker.clone(), name: format!("{NETWORK_NAME_PREFIX}{}-{number}", std::process::id()) }
    }
}

impl Drop for DockerNetwork {
    fn drop(&mut self) {
        remove_network(&self.docker, &self.name);
    }
}

/// Removes a network with its containers, as far as the daemon responds.
fn remove_network(docker: &Docker, name: &str) {
    let filter = format!("network={name}");
    let containers = docker
        .run_blocking(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter])
        .unwrap_or_default();
    let containers: Vec<&str> = containers.lines().collect();
    if !containers.is_empty() {
        let _ = docker.run_blocking(&[&["rm", "--force", "--volumes"], containers.as_slice()].concat());
    }
    let _ = docker.run_blocking(&["network", "rm", name]);
}

/// The output of a program that has ended, or its error.
pub(crate) fn command_output(program: &str, output: std::io::Result<Output>) -> Result<String, String> {
    let output = output.map_err(|error| format!("{program} cannot be run: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The processes in containers whose `/data` is `engine_id`'s folder, except each container's init process.
pub(crate) fn processes_with_data_of(engine_id: &str) -> Vec<Pid> {
    let folder = format!("/{engine_id} /data ");
    let is_engine = |process: &Path| {
        let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        mounts.contains(&folder)
    };
    let mut found = processes::with_environment_text("SQLITE_DB_PATH=/data/brain.sqlite".as_ref());
    found.retain(|process| {
        is_engine(&processes::proc_folder(*process)) && !processes::is_first_in_its_container(*process)
    });
    found
}
