//! Engines as Pods without an orchestrator, created and deleted through the cluster's API: the baseline of the Kubernetes
//! backend.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use api::EngineId;
use chaos::unix_http::UnixHttpClient;
use serde_json::{Value, json};

use crate::measure::LifecycleTimes;
use crate::probe;

/// The time within which an engine must be healthy, and a Pod gone.
const TIMEOUT: Duration = Duration::from_mins(1);
/// The time between two looks at a Pod.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The port of an engine in its Pod.
const PORT: u16 = 8_000;
/// The grace of a Pod that is stopped, and of one that is removed with its data, the same as an orchestrator's.
const STOP_GRACE_S: u32 = 30;
const DELETE_GRACE_S: u32 = 1;

/// Creates and deletes such Pods, each with a claim and a Secret of its own. They go with their namespace.
pub(crate) struct BarePods {
    api: UnixHttpClient,
    namespace: String,
    /// What an orchestrator created for an engine, without what is the engine's own.
    pod: Value,
    claim: Value,
    secret: Value,
    pod_count: AtomicUsize,
}

impl BarePods {
    /// Takes the Pod, the claim and the Secret of `engine_id`, which runs.
    pub(crate) fn like_engine(
        api: UnixHttpClient,
        namespace: &str,
        engine_id: EngineId,
    ) -> anyhow::Result<Self> {
        let name = format!("roundhouse-{}", engine_id.to_string().replace('_', "-"));
        let get = |kind: &str, name: &str| api.get(&format!("/api/v1/namespaces/{namespace}/{kind}/{name}"));
        let mut pod = without_identity(get("pods", &name)?)?;
        let spec =
            pod.get_mut("spec").and_then(Value::as_object_mut).context("the Pod has no specification")?;
        for of_its_own in ["nodeName", "hostname", "subdomain"] {
            spec.remove(of_its_own);
        }
        let secret = pod.pointer(SECRET_OF_POD).and_then(Value::as_str).context("the Pod has no Secret")?;
        let secret = without_identity(get("secrets", secret)?)?;
        let mut claim = without_identity(get("persistentvolumeclaims", &name)?)?;
        let claimed = claim.get_mut("spec").and_then(Value::as_object_mut);
        claimed.context("the claim has no specification")?.remove("volumeName");
        let namespace = namespace.to_owned();
        Ok(Self { api, namespace, pod, claim, secret, pod_count: AtomicUsize::new(0) })
    }

    /// Measures one lifecycle and returns the durations of provision, stop, start, wake and delete.
    pub(crate) fn measure_lifecycle(&self) -> anyhow::Result<LifecycleTimes> {
        let name = format!("bare-{}", self.pod_count.fetch_add(1, Ordering::Relaxed));
        let begin = Instant::now();
        self.create("persistentvolumeclaims", &name, self.claim.clone())?;
        self.run(&name, 0)?;
        let provision = begin.elapsed();
        let begin = Instant::now();
        self.end(&name, STOP_GRACE_S)?;
        let stop = begin.elapsed();
        let begin = Instant::now();
        self.run(&name, 1)?;
        let start = begin.elapsed();
        let begin = Instant::now();
        self.end(&name, DELETE_GRACE_S)?;
        self.api.request_ok("DELETE", &self.path("persistentvolumeclaims", &name), None)?;
        self.wait_until_gone("persistentvolumeclaims", &name)?;
        Ok([provision, stop, start, start, begin.elapsed()])
    }

    /// Creates a Pod with its Secret, and waits until its engine is healthy.
    fn run(&self, name: &str, launch: usize) -> anyhow::Result<()> {
        let secret = format!("{name}-{launch}");
        let mut pod = self.pod.clone();
        *pod.pointer_mut(SECRET_OF_POD).context("the Pod has no Secret")? = json!(secret);
        let volumes = pod.pointer_mut("/spec/volumes").and_then(Value::as_array_mut);
        let claims = volumes.into_iter().flatten().filter_map(|volume| volume.pointer_mut(CLAIM_OF_VOLUME));
        claims.for_each(|claim| *claim = json!(name));
        self.create("secrets", &secret, self.secret.clone())?;
        self.create("pods", name, pod)?;
        let deadline = Instant::now() + TIMEOUT;
        let mut address = None;
        while !address.is_some_and(probe::is_healthy) {
            if Instant::now() > deadline {
                bail!("the engine of a plain Pod was not healthy within {} s", TIMEOUT.as_secs());
            }
            thread::park_timeout(POLL_INTERVAL);
            if address.is_none() {
                let pod = self.api.get(&self.path("pods", name))?;
                let ip = pod.pointer("/status/podIP").and_then(Value::as_str);
                address = ip.map(|ip| anyhow::Ok(SocketAddr::new(ip.parse()?, PORT))).transpose()?;
            }
        }
        Ok(())
    }

    /// Deletes a Pod, and waits until its node has confirmed that it has ended.
    fn end(&self, name: &str, grace_s: u32) -> anyhow::Result<()> {
        let path = format!("{}?gracePeriodSeconds={grace_s}", self.path("pods", name));
        self.api.request_ok("DELETE", &path, None)?;
        self.wait_until_gone("pods", name)
    }

    fn wait_until_gone(&self, kind: &str, name: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while self.api.request("GET", &self.path(kind, name), None)?.0 != 404 {
            ensure!(Instant::now() < deadline, "{kind}/{name} is still there after {} s", TIMEOUT.as_secs());
            thread::park_timeout(POLL_INTERVAL);
        }
        Ok(())
    }

    fn create(&self, kind: &str, name: &str, mut object: Value) -> anyhow::Result<()> {
        let metadata = object.get_mut("metadata").context("the object has no metadata")?;
        *metadata = json!({"name": name});
        let path = format!("/api/v1/namespaces/{}/{kind}", self.namespace);
        self.api.request_ok("POST", &path, Some(&object)).map(drop)
    }

    fn path(&self, kind: &str, name: &str) -> String {
        format!("/api/v1/namespaces/{}/{kind}/{name}", self.namespace)
    }
}

/// Where a Pod names the Secret with its environment, and a volume its claim.
const SECRET_OF_POD: &str = "/spec/containers/0/envFrom/0/secretRef/name";
const CLAIM_OF_VOLUME: &str = "/persistentVolumeClaim/claimName";

/// Removes from an object what the cluster has added. Without its labels no orchestrator takes it for an engine's.
fn without_identity(mut object: Value) -> anyhow::Result<Value> {
    let fields = object.as_object_mut().context("the API server answers with no object")?;
    fields.remove("status");
    fields.insert("metadata".to_owned(), json!({}));
    Ok(object)
}
