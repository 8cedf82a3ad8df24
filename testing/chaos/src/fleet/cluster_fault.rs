//! Faults of a Kubernetes cluster: its control plane and its nodes are killed, frozen and cut off, and put back.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use super::kubernetes::Kubernetes;
use super::tenant_users::text_field;
use crate::unix_http::UnixHttpClient;

/// How long a cluster may take until it works again.
const READY_TIMEOUT: Duration = Duration::from_mins(3);
/// How long a process that was killed may take to be gone.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterFault {
    ApiServerKilled,
    ApiServerFrozen,
    EtcdKilled,
    KubeletKilled,
    KubeletFrozen,
    /// A node's link is cut.
    NodeCut,
    /// All that runs on a node is killed.
    NodeLost,
}

impl ClusterFault {
    pub(crate) const ALL: [Self; 7] = [
        Self::ApiServerKilled,
        Self::ApiServerFrozen,
        Self::EtcdKilled,
        Self::KubeletKilled,
        Self::KubeletFrozen,
        Self::NodeCut,
        Self::NodeLost,
    ];

    /// Returns the name of the fault's counter.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ApiServerKilled => "API server killed",
            Self::ApiServerFrozen => "API server frozen",
            Self::EtcdKilled => "etcd killed",
            Self::KubeletKilled => "kubelet killed",
            Self::KubeletFrozen => "kubelet frozen",
            Self::NodeCut => "node cut off",
            Self::NodeLost => "node lost",
        }
    }

    /// Whether a node is away meanwhile, so that Kubernetes notices after a while.
    pub(crate) const fn is_of_node(self) -> bool {
        matches!(self, Self::KubeletKilled | Self::KubeletFrozen | Self::NodeCut | Self::NodeLost)
    }

    /// The process that it is done to, as the path of its file in the cluster's folder without `.pid`.
    fn process(self, node: &str) -> Option<String> {
        match self {
            Self::ApiServerKilled | Self::ApiServerFrozen => Some("apiserver".to_owned()),
            Self::EtcdKilled => Some("etcd".to_owned()),
            Self::KubeletKilled | Self::KubeletFrozen => Some(format!("{node}/kubelet")),
            Self::NodeLost => Some(format!("{node}/init")),
            Self::NodeCut => None,
        }
    }
}

/// A fault that was injected and not yet put back. Dropped, it is.
#[derive(Debug)]
pub(crate) struct ClusterInjury {
    kubernetes: Kubernetes,
    fault: ClusterFault,
    node: String,
    is_healed: bool,
}

impl ClusterInjury {
    /// Injects `fault`, into `node` if it is one of a node.
    pub(crate) fn inflict(
        kubernetes: &Kubernetes,
        fault: ClusterFault,
        node: String,
    ) -> anyhow::Result<Self> {
        let injury = Self { kubernetes: kubernetes.clone(), fault, node, is_healed: false };
        match fault {
            ClusterFault::NodeCut => injury.kubernetes.control("cut", &injury.node)?,
            ClusterFault::ApiServerFrozen | ClusterFault::KubeletFrozen => injury.signal(Signal::STOP)?,
            ClusterFault::ApiServerKilled
            | ClusterFault::EtcdKilled
            | ClusterFault::KubeletKilled
            | ClusterFault::NodeLost => {
                injury.signal(Signal::KILL)?;
                injury.wait_exit()?;
            }
        }
        Ok(injury)
    }

    /// Puts everything back, and waits until the cluster works again.
    pub(crate) fn heal(mut self, api: &UnixHttpClient) -> anyhow::Result<()> {
        self.put_back()?;
        let begin = Instant::now();
        let mut renewed = None;
        loop {
            let is_over = check_ready(api).and_then(|()| {
                if !self.fault.is_of_node() {
                    return Ok(());
                }
                // The node that was away has spoken since.
                let now = lease_time(api, &self.node)?;
                let before = renewed.get_or_insert_with(|| now.clone());
                ensure!(*before != now, "{} has not renewed its lease", self.node);
                Ok(())
            });
            match is_over {
                Ok(()) => return Ok(()),
                Err(error) if begin.elapsed() > READY_TIMEOUT => {
                    return Err(
                        error.context(format!("the cluster is not ready {READY_TIMEOUT:?} after a fault"))
                    );
                }
                Err(_) => std::thread::park_timeout(POLL_INTERVAL),
            }
        }
    }

    fn put_back(&mut self) -> anyhow::Result<()> {
        self.is_healed = true;
        let process = self.fault.process(&self.node);
        match (self.fault, process) {
            (ClusterFault::ApiServerFrozen | ClusterFault::KubeletFrozen, _) => self.signal(Signal::CONT),
            (ClusterFault::NodeLost, _) => self.kubernetes.control("restart", &self.node),
            (ClusterFault::NodeCut, _) | (_, None) => self.kubernetes.control("mend", &self.node),
            (_, Some(process)) => self.kubernetes.control("restart", &process),
        }
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let process = self.process()?.context("a process of the cluster does not run")?;
        Ok(pidfd_send_signal(&process, signal)?)
    }

    fn wait_exit(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.process()?.is_some() {
            if begin.elapsed() > EXIT_TIMEOUT {
                bail!("{} was killed, but does not end", self.fault.name());
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
        Ok(())
    }

    /// The process that the fault is done to; `None` if it does not run.
    fn process(&self) -> anyhow::Result<Option<OwnedFd>> {
        let name = self.fault.process(&self.node).context("the fault is not that of a process")?;
        running_process(&self.kubernetes.folder, &name)
    }
}

impl Drop for ClusterInjury {
    fn drop(&mut self) {
        if !self.is_healed {
            // The run was broken off; whoever owns the cluster sees what it lacks.
            let _ = self.put_back();
        }
    }
}

/// Returns the process whose id is in `NAME.pid`. All of a cluster name its folder on their command line, which
/// neither a zombie does nor a stranger who got the same id later.
fn running_process(folder: &Path, name: &str) -> anyhow::Result<Option<OwnedFd>> {
    let file = folder.join(format!("{name}.pid"));
    let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
    let id = text.trim().parse().ok().and_then(Pid::from_raw);
    let id = id.with_context(|| format!("{} holds no id", file.display()))?;
    let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { return Ok(None) };
    let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let folder = folder.as_os_str().as_encoded_bytes();
    let is_it = line.windows(folder.len()).any(|part| part == folder);
    Ok(is_it.then_some(process))
}

/// Returns an error unless the API server and all nodes are ready.
fn check_ready(api: &UnixHttpClient) -> anyhow::Result<()> {
    api.request_ok("GET", "/readyz", None)?;
    let nodes = api.get("/api/v1/nodes")?;
    let away = nodes_that_are_away(&nodes);
    ensure!(away.is_empty(), "{away:?} are not ready");
    Ok(())
}

/// The names of the cluster's nodes.
pub(crate) fn node_names(api: &UnixHttpClient) -> anyhow::Result<Vec<String>> {
    let nodes = api.get("/api/v1/nodes")?;
    Ok(items(&nodes).filter_map(|node| text_field(node, "/metadata/name")).collect())
}

fn nodes_that_are_away(nodes: &Value) -> Vec<String> {
    let is_ready = |node: &&Value| {
        let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
        conditions.into_iter().flatten().any(|condition| {
            text_field(condition, "/type").as_deref() == Some("Ready")
                && text_field(condition, "/status").as_deref() == Some("True")
        })
    };
    items(nodes)
        .filter(|node| !is_ready(node))
        .filter_map(|node| text_field(node, "/metadata/name"))
        .collect()
}

/// When a node renewed its lease.
fn lease_time(api: &UnixHttpClient, node: &str) -> anyhow::Result<String> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    text_field(&api.get(&path)?, "/spec/renewTime").context("a node's lease has no time")
}

/// The items of a list.
pub(crate) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("items").and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_away_unless_it_says_that_it_is_ready() {
        let node = |name: &str, status: &str| {
            let conditions = json!([
                {"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": status},
            ]);
            json!({"metadata": {"name": name}, "status": {"conditions": conditions}})
        };
        let new = json!({"metadata": {"name": "node-4"}});
        let nodes = [node("node-1", "True"), node("node-2", "Unknown"), node("node-3", "False"), new];
        assert_eq!(nodes_that_are_away(&json!({"items": nodes})), ["node-2", "node-3", "node-4"]);
    }

    #[test]
    fn a_process_of_another_folder_is_not_the_clusters() {
        let folder = tempfile::tempdir().unwrap();
        assert!(running_process(folder.path(), "etcd").unwrap().is_none());
        fs::write(folder.path().join("etcd.pid"), format!("{}\n", std::process::id())).unwrap();
        assert!(running_process(folder.path(), "etcd").unwrap().is_none());
    }
}
