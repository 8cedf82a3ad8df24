//! The Kubernetes cluster of `.ci/kubernetes-cluster`, as its administrator: commands, images, and a proxy through
//! which the harness asks the API server.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::unix_http::UnixHttpClient;

/// The time limit of a command, as `kubectl` takes it.
const COMMAND_TIMEOUT: &str = "--request-timeout=60s";
/// How long the proxy may take to start.
const PROXY_START_TIMEOUT: Duration = Duration::from_secs(20);
/// What operators grant the orchestrator.
const RIGHTS: &str = include_str!("../../../../deploy/kubernetes/rbac.yaml");
/// The service account of the orchestrator in it.
const ACCOUNT: &str = "roundhouse-orchestrator";

/// A test cluster.
#[derive(Clone, Debug)]
pub struct Kubernetes {
    kubectl: OsString,
    kubeconfig: PathBuf,
    /// The cluster's folder: the ids of its processes, and the disks of its nodes.
    pub folder: PathBuf,
}

/// A process that forwards requests on a Unix socket to the API server, as the administrator. Dropped, it is ended.
#[derive(Debug)]
pub struct ApiProxy {
    process: Child,
    /// Asks the API server.
    pub client: UnixHttpClient,
}

impl Kubernetes {
    /// The cluster that the environment names.
    pub fn from_env() -> anyhow::Result<Self> {
        let variable = |name: &str| {
            let value = std::env::var_os(format!("ROUNDHOUSE_TEST_{name}")).filter(|value| value != "none");
            value.with_context(|| {
                format!(
                    "ROUNDHOUSE_TEST_{name} is missing: eval \"$(.ci/kubernetes-cluster start DIR)\" sets it"
                )
            })
        };
        Ok(Self {
            kubectl: variable("KUBECTL")?,
            kubeconfig: variable("KUBECONFIG")?.into(),
            folder: variable("KUBERNETES_CLUSTER")?.into(),
        })
    }

    fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).stdin(Stdio::null());
        command
    }

    /// Runs `kubectl`, and returns its output.
    pub fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output_of(self.kubectl().arg(COMMAND_TIMEOUT).args(arguments))
    }

    /// Runs a command of `.ci/kubernetes-cluster` on this cluster.
    pub fn control(&self, command: &str, argument: &str) -> anyhow::Result<()> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/kubernetes-cluster");
        let mut control = Command::new(program);
        output_of(control.stdin(Stdio::null()).arg(command).arg(&self.folder).arg(argument)).map(drop)
    }

    /// Gives all nodes an image of the Docker daemon; `folder` has room for it.
    pub fn load_image(&self, reference: &str, folder: &Path) -> anyhow::Result<()> {
        let archive = folder.join("image.tar").display().to_string();
        let mut save = Command::new("docker");
        save.arg("--host").arg(format!("unix://{}", crate::docker::daemon().socket.display()));
        output_of(save.args(["save", "--output", &archive, reference]).stdin(Stdio::null()))?;
        self.control("load", &archive)?;
        Ok(fs::remove_file(archive)?)
    }

    /// Makes a namespace with the rights of an orchestrator, as `deploy/kubernetes` grants them, and writes a
    /// kubeconfig to `kubeconfig` with which the administrator acts as the orchestrator.
    pub fn create_namespace(&self, name: &str, kubeconfig: &Path) -> anyhow::Result<()> {
        let manifests = kubeconfig.with_extension("rbac.yaml");
        fs::write(&manifests, rights_in(name))?;
        self.run(&["apply", "--filename", &manifests.display().to_string()])?;
        fs::remove_file(manifests)?;
        let view = self.run(&["config", "view", "--raw", "--flatten", "--output", "json"])?;
        let mut config: Value = serde_json::from_str(&view)?;
        let user = config.pointer_mut("/users/0/user").and_then(Value::as_object_mut);
        let account = format!("system:serviceaccount:{name}:{ACCOUNT}");
        user.context("the kubeconfig names no user")?.insert("as".to_owned(), json!(account));
        Ok(fs::write(kubeconfig, config.to_string())?)
    }

    /// Begins to remove a namespace with all that is in it.
    pub fn remove_namespace(&self, name: &str) -> anyhow::Result<()> {
        self.run(&["delete", "namespace", "--wait=false", "--ignore-not-found", name]).map(drop)
    }

    /// Starts a proxy with its socket in `folder`.
    pub fn start_proxy(&self, folder: &Path) -> anyhow::Result<ApiProxy> {
        let socket = folder.join("kubernetes.sock");
        let mut command = self.kubectl();
        command.arg("proxy").arg("--unix-socket").arg(&socket).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().context("kubectl cannot be started")?;
        let proxy = ApiProxy { process, client: UnixHttpClient { socket, server: "the proxy of kubectl" } };
        let begin = Instant::now();
        while proxy.client.get("/version").is_err() {
            if begin.elapsed() > PROXY_START_TIMEOUT {
                bail!("{} cannot be reached through the proxy of kubectl", self.kubeconfig.display());
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        Ok(proxy)
    }
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        // One that has ended by itself is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The manifests of the orchestrator's rights, in this namespace.
fn rights_in(namespace: &str) -> String {
    RIGHTS
        .replace(" name: roundhouse\n", &format!(" name: {namespace}\n"))
        .replace("namespace: roundhouse\n", &format!("namespace: {namespace}\n"))
}

fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?} cannot be run"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_granted_in_the_namespace_of_the_run_alone() {
        let rights = rights_in("run-7");
        assert!(rights.contains("kind: Namespace\nmetadata:\n  name: run-7\n"), "{rights}");
        assert_eq!(rights.matches("namespace: run-7\n").count(), RIGHTS.matches("namespace: ").count());
        assert!(rights.contains(&format!("name: {ACCOUNT}\n")), "{rights}");
    }
}
