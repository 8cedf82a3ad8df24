//! The floor of a provision: the same objects, created with plain calls of the API by a program that does nothing else.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cluster::NAMESPACE;
use super::engines::SharedEngines;

/// The most engines that are created for one size, for which the cluster needs room beside those of the orchestrator.
pub(super) const MAX_PLAIN: u32 = 200;
/// As many at once as the orchestrator boots.
const CONCURRENCY: usize = 16;
/// The label of these objects instead of the deployment's, so that the orchestrator does not know them.
const DEPLOYMENT: (&str, &str) = ("roundhouse/deployment", "plain");
const START_TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// An engine's objects, of which others are made.
pub(super) struct PlainEngines {
    claims: Api<PersistentVolumeClaim>,
    pods: Api<Pod>,
    secrets: Api<Secret>,
    templates: [Value; 3],
}

/// The rate per second and the median time in milliseconds until a Pod runs.
pub(super) struct PlainRate {
    pub(super) per_second: f64,
    pub(super) times_ms: Vec<f64>,
}

impl PlainEngines {
    /// Takes the objects of one running engine as templates.
    pub(super) async fn new(client: Client) -> anyhow::Result<Self> {
        let claims = Api::namespaced(client.clone(), NAMESPACE);
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let secrets = Api::namespaced(client, NAMESPACE);
        let listed = pods.list(&ListParams::default().limit(1)).await?;
        let pod = listed.items.into_iter().next().context("no engine runs")?;
        let name = pod.metadata.name.clone().context("a Pod has no name")?;
        let secret = super::engines::secret_of(&pod).context("a Pod has no Secret")?.to_owned();
        let templates = [
            template(&claims.get(&name).await?, &["volumeName"])?,
            template(&pod, &["nodeName", "tolerations", "serviceAccountName", "serviceAccount"])?,
            template(&secrets.get(&secret).await?, &[])?,
        ];
        Ok(Self { claims, pods, secrets, templates })
    }

    /// Creates `count` engines, and waits until each runs. They stay, so that no address gets
    /// another Pod. No two calls use the same `prefix`.
    pub(super) async fn measure(
        &self,
        engines: &SharedEngines,
        prefix: &str,
        count: u32,
    ) -> anyhow::Result<PlainRate> {
        let began = Instant::now();
        let times_ms: Vec<f64> = stream::iter(0..count)
            .map(|number| self.create(engines, format!("{prefix}-{number}")))
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        let per_second = f64::from(count) / began.elapsed().as_secs_f64();
        Ok(PlainRate { per_second, times_ms })
    }

    async fn create(&self, engines: &SharedEngines, name: String) -> anyhow::Result<f64> {
        let began = Instant::now();
        let [claim, pod, secret] = &self.templates;
        self.claims.create(&PostParams::default(), &named(claim, &name)?).await?;
        let mut pod = pod.clone();
        for pointer in [
            "/spec/hostname",
            "/spec/containers/0/envFrom/0/secretRef/name",
            "/spec/volumes/0/persistentVolumeClaim/claimName",
        ] {
            *pod.pointer_mut(pointer).with_context(|| format!("a Pod has no {pointer}"))? = json!(name);
        }
        let created = self.pods.create(&PostParams::default(), &named(&pod, &name)?).await?;
        let mut secret = secret.clone();
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": created.metadata.uid}]);
        if let Some(metadata) = secret.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("ownerReferences".to_owned(), owner);
        }
        self.secrets.create(&PostParams::default(), &named(&secret, &name)?).await?;
        while !engines.is_running(&name) {
            ensure!(began.elapsed() < START_TIMEOUT, "a plain Pod did not start in time");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(began.elapsed().as_secs_f64() * 1_000.0)
    }
}

/// Returns what of an object describes it, without what the cluster added, such as these fields of its specification.
fn template<K: Serialize>(object: &K, added: &[&str]) -> anyhow::Result<Value> {
    let mut object = serde_json::to_value(object)?;
    let labels = object.pointer("/metadata/labels").cloned();
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
        object.insert("metadata".to_owned(), json!({"labels": labels}));
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        for field in added {
            spec.remove(*field);
        }
    }
    if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.insert(DEPLOYMENT.0.to_owned(), DEPLOYMENT.1.into());
    }
    Ok(object)
}

fn named<K: DeserializeOwned>(template: &Value, name: &str) -> anyhow::Result<K> {
    let mut object = template.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("name".to_owned(), name.into());
    }
    Ok(serde_json::from_value(object)?)
}
