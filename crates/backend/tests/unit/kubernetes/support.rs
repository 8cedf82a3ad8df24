//! The fixture: each test has a namespace of its own, which is removed when the test ends, and a played node.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use api::{EngineKey, ProductId};
use futures::StreamExt as _;
use http_service::clock::SystemClock;
use k8s_openapi::api::core::v1::{Binding, Namespace, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::super::*;

/// Time limit of each wait, generous enough for a busy host.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// The address of every Pod of the played node.
pub(super) const POD_IP: &str = "127.0.0.7";

/// What the played node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// It runs every Pod, and ends those that are deleted.
    Runs,
    /// It does nothing any more.
    Lost,
    /// It cannot find the image.
    HasNoImage,
    /// No Pod gets to it.
    IsFull,
}

pub(super) struct Fixture {
    pub(super) backend: Arc<KubernetesBackend>,
    pub(super) options: Options,
    pub(super) engine_id: EngineId,
    pub(super) client: Client,
    folder: tempfile::TempDir,
    node: Arc<Mutex<Node>>,
    played: AbortOnDropHandle<()>,
    kubeconfig: PathBuf,
}

impl Fixture {
    /// Creates a namespace; `None` if there is no cluster.
    pub(super) async fn new() -> Option<Self> {
        let kubeconfig = kubeconfig()?;
        let client = admin(&kubeconfig).await;
        let namespace = create_namespace(&client).await;
        let mut options = options(&namespace);
        let folder = tempfile::tempdir().unwrap();
        grant_rights(&client, &namespace).await;
        let account = format!("system:serviceaccount:{namespace}:roundhouse-orchestrator");
        let path = folder.path().join("kubeconfig");
        write_kubeconfig(&path, &kubeconfig, |file| {
            // The administrator acts as the orchestrator's service account, with its few rights.
            file.auth_infos[0].auth_info.as_mut().unwrap().impersonate = Some(account);
        });
        options.settings.kubeconfig = Some(path);
        let node = Arc::new(Mutex::new(Node::Runs));
        let played = AbortOnDropHandle::new(tokio::spawn(play(
            Api::namespaced(client.clone(), &namespace),
            Arc::clone(&node),
        )));
        let backend = new_backend(&options);
        Some(Self { backend, options, engine_id: EngineId::new(), client, folder, node, played, kubeconfig })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.options.settings.namespace)
    }

    /// Ends the played node.
    pub(super) fn leave_pods_to_nodes(&self) {
        self.played.abort();
    }

    pub(super) fn set_node(&self, node: Node) {
        *self.node.lock() = node;
    }

    pub(super) fn launch(&self) -> LaunchSpec {
        spec_of(self.engine_id)
    }

    /// The launch of the engine for a later generation, after its first one.
    pub(super) fn relaunch(&self, generation: i64) -> LaunchSpec {
        LaunchSpec { generation, is_first: false, ..self.launch() }
    }

    pub(super) const fn target(&self, generation: i64) -> Target {
        Target { engine_id: self.engine_id, generation }
    }

    pub(super) async fn pods(&self) -> Vec<Pod> {
        self.api::<Pod>().list(&ListParams::default()).await.unwrap().items
    }

    pub(super) async fn secrets(&self) -> Vec<Secret> {
        self.api::<Secret>().list(&ListParams::default()).await.unwrap().items
    }

    pub(super) async fn claims(&self) -> Vec<PersistentVolumeClaim> {
        let claims = self.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap().items;
        claims.into_iter().filter(|claim| claim.metadata.deletion_timestamp.is_none()).collect()
    }

    /// Ends the container of the engine's Pod as its node would report it.
    pub(super) async fn end_container(&self, terminated: Value) {
        let name = engine_name(self.engine_id);
        write_status(&self.api(), &name, &ended("Failed", &terminated)).await;
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let (kubeconfig, namespace) = (self.kubeconfig.clone(), self.options.settings.namespace.clone());
        let cleanup = async move {
            let client = admin(&kubeconfig).await;
            let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let force = DeleteParams::default().grace_period(0);
            let _ = pods.delete_collection(&force, &ListParams::default()).await;
            let _ = Api::<Namespace>::all(client).delete(&namespace, &DeleteParams::default()).await;
        };
        // In a thread of its own, because this one may belong to the test's runtime.
        let cleanup_thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(cleanup);
        });
        let _ = cleanup_thread.join();
    }
}

/// Returns the options of a deployment of its own.
pub(super) fn options(namespace: &str) -> Options {
    Options {
        deployment_id: Uuid::now_v7().simple().to_string(),
        copy_image: "svc-engine:0.0.0".parse().unwrap(),
        settings: Settings {
            kubeconfig: None,
            namespace: namespace.to_owned(),
            service: "engines".to_owned(),
            storage: Storage { class: None, size: "64Mi".to_owned(), access: AccessMode::ReadWriteOnce },
            requests: Requests { memory_mb: 16, cpu_millis: 10 },
            catalog: CatalogSource::EngineImage,
            pull_secret: None,
            runtime_class: None,
            // Real nodes leave the Pods to the played one.
            node_selector: BTreeMap::from([("played".to_owned(), "yes".to_owned())]),
            start_timeout: Duration::from_secs(10),
            force_after: None,
        },
    }
}

/// Returns the first launch of an engine.
pub(super) fn spec_of(engine_id: EngineId) -> LaunchSpec {
    LaunchSpec {
        engine_id,
        product_id: ProductId::new(),
        generation: 3,
        is_first: true,
        image: "svc-engine:0.0.0".parse().unwrap(),
        placement: Placement::OwnAddress,
        key_hash: EngineKey::generate().unwrap().hash(),
        env: vec![("LLM_API_KEY".into(), SecretString::from("provider secret"))],
        limits: ResourceLimits { memory_mb: Some(64), cpus: Some(0.5), pids: Some(9) },
    }
}

/// Creates the backend of another orchestrator, of the same or of another deployment.
pub(super) fn new_backend(options: &Options) -> Arc<KubernetesBackend> {
    Arc::new(KubernetesBackend::new(options.clone(), Arc::new(SystemClock::new())))
}

/// Repeats `probe` until it returns a value.
pub(super) async fn poll_until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, found).await.unwrap_or_else(|_| panic!("this never happened: {what}"))
}

/// Waits for the next exit.
pub(super) async fn next_exit(exits: &mut BoxStream<'static, InstanceExit>) -> InstanceExit {
    tokio::time::timeout(TEST_TIMEOUT, exits.next()).await.expect("no exit in time").unwrap()
}

/// Returns the file that names the cluster; `None` if there is no cluster.
fn kubeconfig() -> Option<PathBuf> {
    required("ROUNDHOUSE_TEST_KUBECONFIG").map(PathBuf::from)
}

/// Returns the engine's image that the cluster's nodes have; `None` if there is none.
pub(super) fn node_image() -> Option<EngineImage> {
    required("ROUNDHOUSE_TEST_KUBERNETES_IMAGE").map(|image| image.parse().unwrap())
}

/// Returns the value of a variable. `none` says that there is no cluster, also where nothing else may be missing.
fn required(variable: &str) -> Option<String> {
    let value = env::var(variable).ok().filter(|value| !value.is_empty());
    if let Some(value) = value.as_deref().filter(|value| *value != "none") {
        return Some(value.to_owned());
    }
    let must = value.is_none() && env::var("ROUNDHOUSE_REQUIRE_ALL").as_deref() == Ok("1");
    assert!(!must, "{variable} is required");
    // Written directly, because the test harness would capture it and show it to nobody.
    writeln!(io::stderr().lock(), "skipped: a test of the Kubernetes backend ({variable} names no cluster)")
        .unwrap();
    None
}

pub(super) async fn admin(kubeconfig: &Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Creates a namespace that accepts only Pods of the standard `restricted`, and waits until Pods may be created.
async fn create_namespace(client: &Client) -> String {
    let name = format!("roundhouse-test-{}", Uuid::now_v7().simple());
    let namespace: Namespace = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &name);
    poll_until("a namespace has its service account", async || {
        accounts.get_opt("default").await.unwrap().map(drop)
    })
    .await;
    name
}

/// Gives the orchestrator's service account the role that operators are told to give it, in a namespace.
async fn grant_rights(client: &Client, namespace: &str) {
    let manifests = include_str!("../../../../../deploy/kubernetes/rbac.yaml");
    let manifests = manifests.replace("namespace: roundhouse", &format!("namespace: {namespace}"));
    for manifest in manifests.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(manifest).unwrap();
        match object["kind"].as_str().unwrap() {
            "Role" => create::<Role>(client, namespace, object).await,
            "RoleBinding" => create::<RoleBinding>(client, namespace, object).await,
            "Namespace" | "ServiceAccount" => {}
            other => panic!("{other}"),
        }
    }
}

async fn create<K>(client: &Client, namespace: &str, object: Value)
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).unwrap();
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// Writes a changed copy of a kubeconfig file.
pub(super) fn write_kubeconfig(path: &Path, original: &Path, change: impl FnOnce(&mut Kubeconfig)) {
    let mut file = Kubeconfig::read_from(original).unwrap();
    change(&mut file);
    std::fs::write(path, serde_json::to_string(&file).unwrap()).unwrap();
}

/// Does what a node does to its Pods.
async fn play(pods: Api<Pod>, node: Arc<Mutex<Node>>) {
    loop {
        let mode = *node.lock();
        let listed = pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        for pod in listed {
            play_pod(&pods, mode, &pod).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn play_pod(pods: &Api<Pod>, mode: Node, pod: &Pod) {
    let name = pod.metadata.name.as_deref().unwrap();
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    match mode {
        Node::Lost => {}
        _ if pod.metadata.deletion_timestamp.is_some() => {
            if phase == "Running" {
                write_status(pods, name, &ended("Succeeded", &json!({"exitCode": 0}))).await;
            }
            let _ = pods.delete(name, &DeleteParams::default().grace_period(0)).await;
        }
        Node::IsFull => {
            let message = "0/2 nodes are available: 2 Insufficient memory.";
            let scheduled = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
            write_status(pods, name, &json!({"phase": "Pending", "conditions": [scheduled]})).await;
        }
        Node::HasNoImage => {
            let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}});
            write_status(pods, name, &json!({"phase": "Pending", "containerStatuses": container(waiting)}))
                .await;
        }
        Node::Runs if !is_bound => bind(pods, name).await,
        Node::Runs if phase == "Pending" => {
            let running = container(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
            let ips = json!([{"ip": POD_IP}]);
            let status = json!({
                "phase": "Running", "podIP": POD_IP, "podIPs": ips, "containerStatuses": running});
            write_status(pods, name, &status).await;
        }
        Node::Runs => {}
    }
}

async fn bind(pods: &Api<Pod>, name: &str) {
    let binding: Binding = serde_json::from_value(json!({
        "metadata": {"name": name}, "target": {"kind": "Node", "name": "played"},
    }))
    .unwrap();
    let _: Result<Value, _> =
        pods.create_subresource("binding", name, &PostParams::default(), &binding).await;
}

/// Writes a Pod's status, unless the Pod is gone.
async fn write_status(pods: &Api<Pod>, name: &str, status: &Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    let _ = pods.patch_status(name, &PatchParams::default(), &patch).await;
}

fn ended(phase: &str, terminated: &Value) -> Value {
    json!({"phase": phase, "containerStatuses": container(json!({"terminated": terminated}))})
}

fn container(state: Value) -> Value {
    let mut status = json!({"name": "engine", "image": "", "imageID": "", "ready": false, "restartCount": 0});
    status["state"] = state;
    json!([status])
}
