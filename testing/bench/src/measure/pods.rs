//! Measures the lifecycle of engines as Pods through the orchestrator's API (provision, stop, start, wake, delete). The
//! baseline runs the same Pod, as the API server describes it, made by hand: same image, volumes, limits and environment,
//! until its engine is healthy.

use anyhow::Context as _;
use api::orchestrator::EngineLogs;
use chaos::docker::DockerResources;
use chaos::kubernetes::Kubernetes;
use serde_json::json;

use super::lifecycles::{LIFECYCLES_PER_ROUND, LifecycleQuantities, LifecycleTimes, measure_lifecycles};
use crate::bare_pods::BarePods;
use crate::context::{BenchContext, log_progress};
use crate::engine::{EngineSetup, ModelConfig};
use crate::orchestrator::Orchestrator;
use crate::report::{Quantity, Subject, Unit};
use crate::service::OrchestratorService;

/// The baseline of each step.
const BASELINES: [&str; 5] = [
    "plain Pod, fresh volume",
    "plain Pod, deleted",
    "plain Pod, its old volume",
    "plain Pod, its old volume",
    "plain Pod, deleted with its volume",
];
/// The idle time after which an engine sleeps: longer than it takes to start all of a round.
const IDLE_SLEEP_THRESHOLD_S: f64 = 20.0;

/// A namespace that is removed when this is dropped.
struct Namespace<'a> {
    cluster: &'a Kubernetes,
    name: String,
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.cluster.remove_namespace(&self.name) {
            log_progress(&format!("pods: the namespace {} remains: {error:#}", self.name));
        }
    }
}

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let missing = DockerResources::base_image().and_then(|_| Kubernetes::from_env());
    let cluster = match missing {
        Ok(cluster) => cluster,
        Err(missing) => {
            log_progress(&format!("pods: skipped: {missing:#}"));
            return Ok(Vec::new());
        }
    };
    let folder = bench.new_folder()?;
    let resources = DockerResources::new("roundhouse-bench", &bench.binary, &bench.new_folder()?)?;
    cluster.load_image(&resources.image(), &folder)?;
    let namespace = Namespace { cluster: &cluster, name: format!("roundhouse-bench-{}", std::process::id()) };
    let kubeconfig = folder.join("kubeconfig");
    cluster.create_namespace(&namespace.name, &kubeconfig)?;
    let proxy = cluster.start_proxy(&folder)?;
    let variables = vec![
        ("ORCH_BACKEND", "kubernetes".to_owned()),
        ("KUBECONFIG", kubeconfig.display().to_string()),
        ("ORCH_KUBERNETES_NAMESPACE", namespace.name.clone()),
        ("ORCH_ENGINE_IMAGE", resources.image()),
        ("ORCH_DATABASE_URL", format!("sqlite:{}", folder.join("registry.sqlite").display())),
    ];
    let service = OrchestratorService::new(bench, variables)?;
    let orchestrator = service.start(json!({"idle_sleep_threshold_s": IDLE_SLEEP_THRESHOLD_S})).await?;
    let mut client = orchestrator.connect().await?;
    let model = orchestrator.provision(&mut client, "model").await?;
    let plain = BarePods::like_engine(proxy.client.clone(), &namespace.name, model.engine_id)?;
    orchestrator.delete(&mut client, "model").await?;
    let mut measured = measure_rounds(bench, &orchestrator, &plain).await?;
    measured.push(measure_engine_starts(bench, &orchestrator).await?);
    orchestrator.shut_down()?;
    Ok(measured)
}

/// Measures the engine's own part of a launch: from the begin of its program until it is ready, as its log says.
async fn measure_engine_starts(
    bench: &BenchContext,
    orchestrator: &Orchestrator,
) -> anyhow::Result<Quantity> {
    let mut quantity = Quantity {
        name: "engine start".into(),
        unit: Unit::Milliseconds,
        subject: Subject::new("engine in its Pod"),
        baselines: vec![Subject::new("the same as a process of this machine")],
        budget: None,
    };
    let mut client = orchestrator.connect().await?;
    for number in 0..bench.rounds * LIFECYCLES_PER_ROUND {
        let user = format!("start-{number}");
        orchestrator.provision(&mut client, &user).await?;
        let log: EngineLogs = orchestrator.get(&mut client, &format!("/engines/{user}/logs")).await?;
        let in_pod = startup_ms(&log.lines.join("\n"))?;
        orchestrator.delete(&mut client, &user).await?;
        let setup = EngineSetup::new(&bench.binary, bench.new_folder()?, ModelConfig::unused())?;
        let (mut process, _) = setup.start()?;
        quantity.add(Some(in_pod), Some(startup_ms(&process.process.log_tail())?));
        process.process.stop()?;
    }
    Ok(quantity)
}

/// The time that an engine's log says its start took.
fn startup_ms(log: &str) -> anyhow::Result<f64> {
    let after = log.split_once("startup_ms=").context("the log does not say how long the start took")?.1;
    let digits = after.split(|character: char| !character.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().with_context(|| format!("`startup_ms` is no number in {log}"))
}

async fn measure_rounds(
    bench: &BenchContext,
    orchestrator: &Orchestrator,
    plain: &BarePods,
) -> anyhow::Result<Vec<Quantity>> {
    let mut quantities = LifecycleQuantities::new("Kubernetes backend", BASELINES);
    for round in 0..bench.rounds {
        bench.report_round("pods", round);
        let ours = measure_lifecycles(orchestrator, round).await?;
        let baselines: Vec<LifecycleTimes> =
            (0..LIFECYCLES_PER_ROUND).map(|_| plain.measure_lifecycle()).collect::<anyhow::Result<_>>()?;
        quantities.add(&ours, &baselines);
    }
    Ok(quantities.into_vec())
}
