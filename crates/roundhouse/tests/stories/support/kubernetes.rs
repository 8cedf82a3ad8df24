//! A Kubernetes cluster as the user of `kubectl` sees it: stories give each deployment a namespace, and look at what the
//! orchestrator has made there.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, OnceLock};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, Client, Identity};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Pid;
use serde_json::{Value, json};

use super::docker::{Docker, command_output};
use super::processes::{self, is_first_in_its_container};
use super::skip;

/// The time limit of a command, as `kubectl` takes it.
const COMMAND_TIMEOUT: &str = "--request-timeout=60s";

/// The prefix of the names of namespaces of stories; the id of the test process follows.
const NAMESPACE_PREFIX: &str = "roundhouse-e2e-";

/// The service account of the orchestrator in `deploy/kubernetes`.
const ACCOUNT: &str = "roundhouse-orchestrator";

/// The name of what holds the engines' catalog.
const CATALOG: &str = "catalog";

/// The test cluster of `.ci/kubernetes-cluster`, as its administrator.
#[derive(Debug)]
pub(crate) struct Kubernetes {
    kubectl: OsString,
    kubeconfig: PathBuf,
    /// The cluster's folder, with the disks of its nodes.
    folder: PathBuf,
}

/// A namespace for one deployment. Dropping it removes it with all that is in it.
#[derive(Debug)]
pub(crate) struct Namespace {
    cluster: &'static Kubernetes,
    pub(crate) name: String,
}

impl Kubernetes {
    /// The cluster of this test run; skips the story and returns `None` if there is none.
    pub(crate) fn local() -> Option<&'static Self> {
        let found = Self::from_env();
        if found.is_none() {
            skip("a Kubernetes cluster: eval \"$(.ci/kubernetes-cluster start DIR)\" starts one");
        }
        found
    }

    fn from_env() -> Option<&'static Self> {
        static CLUSTER: OnceLock<Option<Kubernetes>> = OnceLock::new();
        let read = || {
            let variable = |name: &str| std::env::var_os(format!("ROUNDHOUSE_TEST_{name}"));
            let kubeconfig = variable("KUBECONFIG").filter(|path| path != "none")?;
            let this = Self {
                kubectl: variable("KUBECTL")?,
                kubeconfig: kubeconfig.into(),
                folder: variable("KUBERNETES_CLUSTER")?.into(),
            };
            this.remove_leftovers();
            Some(this)
        };
        CLUSTER.get_or_init(read).as_ref()
    }

    /// Runs `kubectl`; returns its output or its error.
    fn try_run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg(COMMAND_TIMEOUT).args(arguments);
        command_output("kubectl", command.output())
    }

    /// Runs `kubectl`, which must succeed.
    fn run(&self, arguments: &[&str]) -> String {
        self.try_run(arguments).unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}"))
    }

    /// Gives all nodes an image of the Docker daemon, unless they have it.
    pub(crate) fn load_image(&self, docker: &Docker, reference: &str) {
        // Another test run may be loading it.
        let lock = File::create(self.folder.join("images.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let id = docker.run_blocking(&["image", "inspect", "--format", "{{.Id}}", reference]).unwrap();
        let marker = self.folder.join(format!("image-{}", reference.replace(['/', ':'], "_")));
        if fs::read_to_string(&marker).is_ok_and(|loaded| loaded == id) {
            return;
        }
        let archive = self.folder.join("image.tar");
        docker.run_blocking(&["save", "--output", archive.to_str().unwrap(), reference]).unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/kubernetes-cluster");
        let loaded = Command::new(program).arg("load").arg(&self.folder).arg(&archive).output();
        command_output("kubernetes-cluster", loaded).unwrap();
        fs::remove_file(archive).unwrap();
        fs::write(marker, id).unwrap();
    }

    /// The machine's address in the cluster's network.
    pub(crate) fn host_address(&self) -> String {
        let addresses = "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}";
        let node = self.run(&["get", "nodes", "--output", addresses]);
        let network = node.rsplit_once('.').unwrap().0;
        format!("{network}.1")
    }

    /// Removes namespaces that killed test runs left.
    fn remove_leftovers(&self) {
        let listed = self.try_run(&["get", "namespaces", "--output", "name"]).unwrap_or_default();
        for name in listed.lines().filter_map(|line| line.strip_prefix("namespace/")) {
            let Some(rest) = name.strip_prefix(NAMESPACE_PREFIX) else { continue };
            let process = rest.split('-').next().unwrap_or_default();
            if !Path::new("/proc").join(process).exists() {
                self.remove_namespace(name);
            }
        }
    }

    fn remove_namespace(&self, name: &str) {
        // The cluster may be gone.
        let _ = self.try_run(&["delete", "namespace", "--wait=false", "--ignore-not-found", name]);
    }
}

impl Namespace {
    /// Makes a namespace with the rights of an orchestrator, as `deploy/kubernetes` grants them.
    pub(crate) fn new(cluster: &'static Kubernetes, folder: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{NAMESPACE_PREFIX}{}-{number}", std::process::id());
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/rbac.yaml");
        let rights = fs::read_to_string(shipped).unwrap();
        let rights = rights
            .replace(" name: roundhouse\n", &format!(" name: {name}\n"))
            .replace("namespace: roundhouse\n", &format!("namespace: {name}\n"));
        let file = folder.join("rbac.yaml");
        fs::write(&file, rights).unwrap();
        let this = Self { cluster, name };
        cluster.run(&["apply", "--filename", file.to_str().unwrap()]);
        this
    }

    /// Writes a kubeconfig with which the administrator acts as the orchestrator, with its few rights.
    pub(crate) fn write_kubeconfig(&self, path: &Path) {
        let view = self.cluster.run(&["config", "view", "--raw", "--flatten", "--output", "json"]);
        let mut config: Value = serde_json::from_str(&view).unwrap();
        config["users"][0]["user"]["as"] = json!(format!("system:serviceaccount:{}:{ACCOUNT}", self.name));
        fs::write(path, config.to_string()).unwrap();
    }

    /// Makes this folder the engines' catalog; returns what the orchestrator is told of it.
    pub(crate) fn put_catalog(&self, folder: &Path) -> String {
        self.run(&["delete", "configmap", "--ignore-not-found", CATALOG]);
        self.run(&["create", "configmap", CATALOG, "--from-file", folder.to_str().unwrap()]);
        format!("configmap:{CATALOG}")
    }

    /// The machine's address in the cluster's network, at which Pods reach it.
    pub(crate) fn host_address(&self) -> String {
        self.cluster.host_address()
    }

    /// Kills a process of an engine and waits until the engine's node has told of it.
    pub(crate) fn kill(&self, engine_id: &str, process: Pid) {
        processes::kill(process);
        let name = format!("pod/{}", engine_name(engine_id));
        let ended = ["wait", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s", &name];
        // A Pod that is already gone needs no wait.
        let _ = self.cluster.try_run(&[&["--namespace", &self.name], ended.as_slice()].concat());
    }

    /// The folder of an engine's volume; `None` if it has none.
    pub(crate) fn data_folder(&self, engine_id: &str) -> Option<PathBuf> {
        let volume = "jsonpath={.spec.volumeName}";
        let claim = engine_name(engine_id);
        let volume = self.run(&["get", "pvc", "--ignore-not-found", &claim, "--output", volume]);
        let nodes = fs::read_dir(&self.cluster.folder).unwrap();
        let mut places = nodes.map(|node| node.unwrap().path().join("volumes").join(&volume));
        places.find(|place| !volume.is_empty() && place.exists())
    }

    fn run(&self, arguments: &[&str]) -> String {
        self.cluster.run(&[&["--namespace", &self.name], arguments].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.cluster.remove_namespace(&self.name);
    }
}

/// The processes in an engine's container, except its init process.
pub(crate) fn processes_of(engine_id: &str) -> Vec<Pid> {
    let variable = format!("HOSTNAME={}\0", engine_name(engine_id));
    let mut found = processes::with_environment_text(variable.as_ref());
    found.retain(|process| !is_first_in_its_container(*process));
    found
}

/// The name of an engine's Pod and claim.
fn engine_name(engine_id: &str) -> String {
    format!("roundhouse-{}", engine_id.replace('_', "-"))
}

/// Resolves the names of engines in the cluster as its API server knows them, and all others as the machine does.
pub(crate) struct EngineNames;

impl Resolve for EngineNames {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let labels: Vec<&str> = name.as_str().split('.').collect();
            let addresses: Vec<SocketAddr> = match labels[..] {
                [pod, _service, namespace, "svc"] => {
                    let address = pod_address(pod, namespace).await?;
                    address.map(|address| (address, 0).into()).into_iter().collect()
                }
                _ => tokio::net::lookup_host((name.as_str(), 0)).await?.collect(),
            };
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// The address of a Pod, if it has one. Asked without `kubectl`, because every new connection asks.
async fn pod_address(name: &str, namespace: &str) -> reqwest::Result<Option<IpAddr>> {
    static CLIENT: LazyLock<Option<(Client, String)>> = LazyLock::new(|| {
        let cluster = Kubernetes::from_env()?;
        let server = cluster.run(&["config", "view", "--output", "jsonpath={.clusters[0].cluster.server}"]);
        let read = |name: &str| fs::read(cluster.folder.join("credentials").join(name)).unwrap();
        let authority = Certificate::from_pem(&read("ca.crt")).unwrap();
        let identity = Identity::from_pem(&[read("admin.crt"), read("admin.key")].concat()).unwrap();
        let builder = Client::builder().no_proxy().pool_max_idle_per_host(0);
        Some((builder.tls_certs_only([authority]).identity(identity).build().unwrap(), server))
    });
    let Some((client, server)) = &*CLIENT else { return Ok(None) };
    let pod = client.get(format!("{server}/api/v1/namespaces/{namespace}/pods/{name}"));
    let pod: Value = pod.send().await?.json().await?;
    Ok(pod["status"]["podIP"].as_str().and_then(|address| address.parse().ok()))
}
