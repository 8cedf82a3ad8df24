//! A control plane without nodes, started for one run, and `kwok`, which plays its nodes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::context::log_progress;
use crate::process::{Process, log_file};

/// The namespace of everything, in which `deploy/kubernetes/rbac.yaml` gives the orchestrator its rights.
pub(super) const NAMESPACE: &str = "roundhouse";
const ACCOUNT: &str = "roundhouse-orchestrator";
/// How long the orchestrator's token is valid: longer than any run.
const TOKEN_DURATION: &str = "24h";

/// The class of the engines' volumes, which are made by this program.
pub(super) const STORAGE_CLASS: &str = "bench";
pub(super) const PROVISIONER: &str = "roundhouse/bench";

/// Pods per simulated node, as many as a kubelet allows by default.
const PODS_PER_NODE: u32 = 110;
/// More than kwok's default of 4, so that starts do not wait for one another.
const KWOK_CONFIG: &str = "apiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokConfiguration\noptions:\n  \
                           podPlayStageParallelism: 16\n";

/// A running cluster. Dropped, all of it is ended and removed.
pub(super) struct Cluster {
    /// Dropped first, while its API server still answers.
    kwok: Option<Process>,
    cache: PathBuf,
    folder: TempDir,
}

impl Cluster {
    /// Starts the control plane from what is in `cache`, which is built if it is missing, and simulated nodes with
    /// room for `pods`.
    pub(super) fn start(cache: &Path, pods: u32) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("roundhouse-kubernetes-").tempdir()?;
        let kwok_program = built_kwok(cache)?;
        let mut cluster = Self { kwok: None, cache: cache.to_owned(), folder };
        let started = cluster.script("start").args(["--control-plane-only", "--measured"]).output();
        let started = started.context("the test cluster cannot be started")?;
        ensure!(
            started.status.success() && cluster.kubeconfig().is_file(),
            "the test cluster was not started: {}",
            String::from_utf8_lossy(&started.stderr)
        );
        cluster.apply(&std::fs::read(repository().join("deploy/kubernetes/rbac.yaml"))?)?;
        cluster.apply(serde_json::to_string(&storage_class())?.as_bytes())?;
        cluster.kwok = Some(cluster.start_kwok(&kwok_program)?);
        cluster.add_nodes(pods.div_ceil(PODS_PER_NODE))?;
        Ok(cluster)
    }

    /// Returns a client with the rights of an administrator.
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        let file = Kubeconfig::read_from(self.kubeconfig())?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// Writes a kubeconfig file with the orchestrator's own account, whose requests are written down.
    pub(super) fn orchestrator_kubeconfig(&self) -> anyhow::Result<PathBuf> {
        let token = self.kubectl(
            &["create", "token", ACCOUNT, "--namespace", NAMESPACE, "--duration", TOKEN_DURATION],
            b"",
        )?;
        let mut file = Kubeconfig::read_from(self.kubeconfig())?;
        let user = json!({"name": "test", "user": {"token": token.trim()}});
        file.auth_infos = vec![serde_json::from_value(user)?];
        let path = self.folder.path().join("orchestrator.kubeconfig");
        std::fs::write(&path, serde_json::to_string(&file)?)?;
        Ok(path)
    }

    /// Returns the file in which the API server writes down the orchestrator's requests.
    pub(super) fn audit_log(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("credentials/admin.kubeconfig")
    }

    fn script(&self, action: &str) -> Command {
        let mut command = Command::new(repository().join(".ci/kubernetes-cluster"));
        command.arg(action).arg(self.folder.path()).env("ROUNDHOUSE_TEST_KUBERNETES", &self.cache);
        command
    }

    fn start_kwok(&self, program: &Path) -> anyhow::Result<Process> {
        let config = self.folder.path().join("kwok.yaml");
        std::fs::write(&config, KWOK_CONFIG)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&config).arg("--kubeconfig").arg(self.kubeconfig());
        command.args(["--manage-all-nodes", "--cidr", &self.pod_network()?, "--node-ip", "127.0.0.1"]);
        Process::spawn(command, "kwok", log_file(self.folder.path(), "kwok"))
    }

    /// Returns the addresses of Pods: 16,384, all of which are this machine (`testing/kubernetes/network.sh`).
    fn pod_network(&self) -> anyhow::Result<String> {
        let settings = std::fs::read_to_string(self.folder.path().join("settings"))?;
        let number = settings.lines().find_map(|line| line.strip_prefix("number="));
        Ok(format!("10.{}.64.1/18", number.context("the test cluster has no number")?))
    }

    fn add_nodes(&self, nodes: u32) -> anyhow::Result<()> {
        let nodes: Vec<Value> = (0..nodes).map(node).collect();
        self.kubectl(
            &["create", "--filename", "-"],
            json!({"apiVersion": "v1", "kind": "List", "items": nodes}).to_string().as_bytes(),
        )?;
        self.kubectl(&["wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s"], b"").map(drop)
    }

    fn apply(&self, manifest: &[u8]) -> anyhow::Result<()> {
        self.kubectl(&["apply", "--filename", "-"], manifest).map(drop)
    }

    /// Runs kubectl with this input, and returns its output.
    fn kubectl(&self, arguments: &[&str], input: &[u8]) -> anyhow::Result<String> {
        let mut child = Command::new(self.cache.join("bin/kubectl"))
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("kubectl cannot be started")?;
        child.stdin.take().context("kubectl has no input")?.write_all(input)?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kwok = None;
        let stopped = self.script("stop").output();
        if !stopped.is_ok_and(|stopped| stopped.status.success()) {
            log_progress(&format!("the test cluster in {} may be left", self.folder.path().display()));
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the `kwok` in the cache, which is built if it is missing.
fn built_kwok(cache: &Path) -> anyhow::Result<PathBuf> {
    let built = Command::new(repository().join("testing/kwok/build.sh"))
        .arg(cache)
        .stderr(Stdio::inherit())
        .output()
        .context("kwok cannot be built")?;
    ensure!(built.status.success(), "kwok was not built");
    Ok(PathBuf::from(String::from_utf8(built.stdout)?.trim()))
}

fn storage_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": STORAGE_CLASS},
        "provisioner": PROVISIONER, "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete",
    })
}

fn node(number: u32) -> Value {
    let name = format!("simulated-{number}");
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": PODS_PER_NODE.to_string()});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": &name, "labels": {"kubernetes.io/hostname": &name}},
        "status": {"allocatable": &room, "capacity": &room},
    })
}
