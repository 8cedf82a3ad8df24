//! The engines of a deployment as Pods, in a namespace of the run's own.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use parking_lot::Mutex;
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};

use super::cluster_fault::{ClusterFault, ClusterInjury, items, node_names};
use super::engine_host::{EngineFault, EngineInstance};
use super::engine_urls::{EngineNames, EngineUrls};
use super::kubernetes::{ApiProxy, Kubernetes};
use super::pod_process;
use super::pod_watch::PodWatch;
use super::secrets::Secrets;
use super::tenant_users::text_field;
use crate::docker::DockerResources;

/// The prefix of the namespaces of runs; the id of the harness's process follows.
const NAMESPACE_PREFIX: &str = "roundhouse-chaos-";
const DEPLOYMENT_LABEL: &str = "roundhouse/deployment";
/// The port of an engine in its Pod.
const ENGINE_PORT: u16 = 8_000;
/// What may not contain a secret of any kind, and what says of the deployment's objects.
const DESCRIPTIONS: [&str; 5] = ["pods", "persistentvolumeclaims", "services", "configmaps", "events"];

/// Access to the Pods of a deployment. Dropped, the namespace is removed with all that is in it.
#[derive(Debug)]
pub(crate) struct Pods {
    watch: PodWatch,
    /// The fault of the cluster that was not yet put back.
    injury: Mutex<Option<ClusterInjury>>,
    nodes: Vec<String>,
    namespace: String,
    api: ApiProxy,
    kubernetes: Kubernetes,
    resources: DockerResources,
}

impl Pods {
    /// Builds the image of `binary`, gives it to the nodes, and makes the namespace. What the orchestrator uses to
    /// reach the cluster is in `folder`.
    pub(crate) fn new(binary: &Path, folder: &Path) -> anyhow::Result<Self> {
        let kubernetes = Kubernetes::from_env()?;
        let resources = DockerResources::new("roundhouse-chaos", binary, folder)?;
        kubernetes.load_image(&resources.image(), folder)?;
        remove_leftovers(&kubernetes)?;
        let api = kubernetes.start_proxy(folder)?;
        let namespace = format!("{NAMESPACE_PREFIX}{}", std::process::id());
        let watch = PodWatch::start(api.client.clone(), format!("/api/v1/namespaces/{namespace}/pods"));
        let nodes = node_names(&api.client)?;
        let pods = Self { watch, injury: Mutex::default(), nodes, namespace, api, kubernetes, resources };
        pods.kubernetes.create_namespace(&pods.namespace, &kubeconfig(folder))?;
        Ok(pods)
    }

    /// The orchestrator's settings.
    pub(crate) fn settings(&self, folder: &Path) -> Vec<(&'static str, String)> {
        vec![
            ("ORCH_BACKEND", "kubernetes".to_owned()),
            ("KUBECONFIG", kubeconfig(folder).display().to_string()),
            ("ORCH_KUBERNETES_NAMESPACE", self.namespace.clone()),
            ("ORCH_KUBERNETES_STORAGE_SIZE", "16Mi".to_owned()),
            ("ORCH_ENGINE_IMAGE", self.resources.image()),
        ]
    }

    /// How the URLs of the engines are formed.
    pub(crate) fn urls(&self) -> EngineUrls {
        EngineUrls::Names { namespace: self.namespace.clone(), port: ENGINE_PORT }
    }

    /// What finds the addresses of these names.
    pub(crate) fn names(&self) -> EngineNames {
        EngineNames { api: self.api.client.clone() }
    }

    fn list(&self, what: &str, selector: &str) -> anyhow::Result<Value> {
        self.api.client.get(&format!("{}?labelSelector={selector}", self.path(what)))
    }

    fn path(&self, what: &str) -> String {
        format!("/api/v1/namespaces/{}/{what}", self.namespace)
    }

    /// Returns all Pods of engines with the deployment's label, whether they have ended or not.
    pub(crate) fn find_by_label(&self, deployment_id: &str) -> anyhow::Result<Vec<EngineInstance>> {
        let listed = self.list("pods", &format!("{DEPLOYMENT_LABEL}%3D{deployment_id}"))?;
        Ok(items(&listed).filter_map(parse_pod).map(EngineInstance::from).collect())
    }

    /// Returns the engines with a claim. One that is being deleted is the cluster's: how long it takes depends on its
    /// controllers, which this run injures.
    pub(crate) fn engines_with_data(&self, deployment_id: &str) -> anyhow::Result<BTreeSet<String>> {
        let listed = self.list("persistentvolumeclaims", &format!("{DEPLOYMENT_LABEL}%3D{deployment_id}"))?;
        let is_kept = |claim: &&Value| claim.pointer("/metadata/deletionTimestamp").is_none();
        Ok(items(&listed).filter(is_kept).filter_map(engine_of).collect())
    }

    /// Injects a fault into an engine behind the orchestrator's back. One that is gone is ignored.
    pub(crate) fn inject_fault(&self, engine: &EngineInstance, fault: EngineFault) -> anyhow::Result<()> {
        let pod = pod_name(&engine.engine_id);
        let signal = match fault {
            EngineFault::Kill => Signal::KILL,
            EngineFault::Hang => Signal::STOP,
            EngineFault::Remove => return self.delete(&pod, &engine.instance),
        };
        for process in pod_process::find(&pod)? {
            let _ = pidfd_send_signal(&process, signal);
        }
        Ok(())
    }

    fn delete(&self, pod: &str, uid: &str) -> anyhow::Result<()> {
        let options = json!({"gracePeriodSeconds": 1, "preconditions": {"uid": uid}});
        let path = format!("{}/{pod}", self.path("pods"));
        match self.api.client.request("DELETE", &path, Some(&options))? {
            (status, body) if status >= 500 => {
                bail!("DELETE {path}: {status} {}", String::from_utf8_lossy(&body))
            }
            _ => Ok(()),
        }
    }

    /// Injects a fault into the cluster, until [`Self::heal`].
    /// `number` chooses the node, if it is one of a node.
    pub(crate) fn injure(&self, fault: ClusterFault, number: usize) -> anyhow::Result<()> {
        let node = self.nodes.iter().cycle().nth(number).cloned().context("the cluster has no nodes")?;
        *self.injury.lock() = Some(ClusterInjury::inflict(&self.kubernetes, fault, node)?);
        Ok(())
    }

    /// Puts the cluster back, and waits until it works again.
    pub(crate) fn heal(&self) -> anyhow::Result<()> {
        let injury = self.injury.lock().take();
        injury.map_or(Ok(()), |injury| injury.heal(&self.api.client))
    }

    /// Waits until a Pod of an engine disappears, at most for `limit`.
    pub(crate) fn wait_gone(&self, limit: Duration) {
        self.watch.wait_gone(limit);
    }

    /// How many Pods of engines there were.
    pub(crate) fn seen_count(&self) -> usize {
        self.watch.seen_count()
    }

    /// Removes and returns the violations of what holds at every moment.
    pub(crate) fn take_violations(&self) -> Vec<String> {
        self.watch.take_violations()
    }

    /// Returns the objects, logs and volumes that contain a secret. A Secret may hold the hash of a key and no key.
    pub(crate) fn leaks(&self, deployment_id: &str, secrets: &Secrets) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for what in DESCRIPTIONS {
            let body = self.api.client.request_ok("GET", &self.path(what), None)?;
            found.extend(secrets.find(&body).map(|leak| format!("one of the {what} contains {leak}")));
        }
        for value in values_of(&self.api.client.get(&self.path("secrets"))?) {
            found.extend(secrets.find(&value).map(|leak| format!("a Secret contains {leak}")));
        }
        for engine in self.find_by_label(deployment_id)? {
            let pod = pod_name(&engine.engine_id);
            let (_, log) =
                self.api.client.request("GET", &format!("{}/{pod}/log", self.path("pods")), None)?;
            found.extend(secrets.find(&log).map(|leak| format!("the log of {pod} contains {leak}")));
        }
        let claims = self.api.client.get(&self.path("persistentvolumeclaims"))?;
        for volume in items(&claims).filter_map(|claim| text_field(claim, "/spec/volumeName")) {
            for node in &self.nodes {
                let folder = self.kubernetes.folder.join(node).join("volumes").join(&volume);
                found.extend(secrets.scan_files(&folder)?);
            }
        }
        Ok(found)
    }
}

impl Drop for Pods {
    /// What cannot be removed here is removed by the next run, or with the cluster.
    fn drop(&mut self) {
        drop(self.injury.lock().take());
        // Engines that hang would make use of their whole grace.
        let options = json!({"gracePeriodSeconds": 1});
        let _ = self.api.client.request("DELETE", &self.path("pods"), Some(&options));
        let _ = self.kubernetes.remove_namespace(&self.namespace);
        let _ = self.kubernetes.control("unload", &self.resources.image());
    }
}

fn kubeconfig(folder: &Path) -> std::path::PathBuf {
    folder.join("kubeconfig")
}

/// Removes the namespaces of runs that were killed.
fn remove_leftovers(kubernetes: &Kubernetes) -> anyhow::Result<()> {
    let listed = kubernetes.run(&["get", "namespaces", "--output", "name"])?;
    for name in listed.lines().filter_map(|line| line.strip_prefix("namespace/")) {
        let process = name.strip_prefix(NAMESPACE_PREFIX);
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            kubernetes.remove_namespace(name)?;
        }
    }
    Ok(())
}

/// The name of an engine's Pod, which is its host name too.
pub(crate) fn pod_name(engine_id: &str) -> String {
    format!("roundhouse-{}", engine_id.replace('_', "-"))
}

/// What an object says of an engine's Pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PodView {
    pub(crate) engine_id: String,
    pub(crate) uid: String,
    address: Option<SocketAddr>,
    /// Whether its engine may run now or later.
    pub(crate) is_alive: bool,
    /// The end of its log, if its engine failed.
    pub(crate) last_words: String,
}

impl From<PodView> for EngineInstance {
    fn from(pod: PodView) -> Self {
        let PodView { engine_id, uid, address, is_alive, .. } = pod;
        Self { engine_id, instance: uid, address, is_alive, pidfd: None }
    }
}

/// Reads a Pod; `None` if it runs no engine, but copies a brain, or is a stranger's.
pub(crate) fn parse_pod(pod: &Value) -> Option<PodView> {
    let role = text_field(pod, "/metadata/labels/roundhouse~1role")?;
    let address = text_field(pod, "/status/podIP").and_then(|address| address.parse::<IpAddr>().ok());
    let phase = text_field(pod, "/status/phase");
    (role == "engine").then_some(())?;
    Some(PodView {
        engine_id: engine_of(pod)?,
        uid: text_field(pod, "/metadata/uid")?,
        address: address.map(|address| (address, ENGINE_PORT).into()),
        is_alive: !matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
        last_words: text_field(pod, "/status/containerStatuses/0/state/terminated/message")
            .unwrap_or_default(),
    })
}

/// The engine of an object.
fn engine_of(object: &Value) -> Option<String> {
    text_field(object, "/metadata/labels/roundhouse~1engine")
}

/// The values in a list of Secrets.
fn values_of(secrets: &Value) -> Vec<Vec<u8>> {
    let data = items(secrets).filter_map(|secret| secret.get("data")?.as_object());
    let values = data.flat_map(|data| data.values());
    values.filter_map(|value| BASE64.decode(value.as_str()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(role: &str, status: &Value) -> Value {
        let labels = json!({"roundhouse/engine": "eng_1", "roundhouse/role": role});
        json!({"metadata": {"uid": "abc", "labels": labels}, "status": status})
    }

    #[test]
    fn a_pod_is_alive_until_its_phase_is_final_and_a_copy_is_no_engine() {
        let running = parse_pod(&pod("engine", &json!({"phase": "Running", "podIP": "10.201.1.7"}))).unwrap();
        assert_eq!((running.engine_id.as_str(), running.uid.as_str()), ("eng_1", "abc"));
        assert_eq!((running.address, running.is_alive), ("10.201.1.7:8000".parse().ok(), true));
        for (status, is_alive) in [
            (json!({}), true),
            (json!({"phase": "Pending"}), true),
            (json!({"phase": "Failed"}), false),
            (json!({"phase": "Succeeded"}), false),
        ] {
            assert_eq!(parse_pod(&pod("engine", &status)).unwrap().is_alive, is_alive, "{status}");
        }
        assert_eq!(parse_pod(&pod("copy", &json!({"phase": "Running"}))), None);
        assert_eq!(parse_pod(&json!({"metadata": {"uid": "abc"}})), None);
    }

    #[test]
    fn the_values_of_secrets_are_read_in_the_clear() {
        let data =
            json!({"ENGINE_KEY_HASH": BASE64.encode("0a1b"), "LLM_PROVIDER": BASE64.encode("scripted")});
        let secrets = json!({"items": [{"data": data}, {"metadata": {}}]});
        assert_eq!(values_of(&secrets), [b"0a1b".to_vec(), b"scripted".to_vec()]);
    }
}
