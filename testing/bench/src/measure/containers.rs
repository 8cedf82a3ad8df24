//! Measures the lifecycle of engines as containers through the orchestrator's API (provision, stop, start, wake,
//! delete), and concurrent provisions. The baseline runs the same container, as the daemon describes it, through
//! the daemon's API: same image, mounts, limits, network and user, until its engine is healthy.

use std::time::{Duration, Instant};

use chaos::docker::DockerResources;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::json;

use super::lifecycles::{LIFECYCLES_PER_ROUND, LifecycleQuantities, measure_lifecycles};
use crate::bare_containers::BareContainers;
use crate::context::{BenchContext, log_progress};
use crate::orchestrator::Orchestrator;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::service::OrchestratorService;

/// The baseline of each step of a lifecycle.
const BASELINES: [&str; 5] = [
    "plain container, fresh brain",
    "plain container, stopped and removed",
    "plain container, its old brain",
    "plain container, its old brain",
    "plain container, removed with its folder",
];
/// The numbers of concurrent provisions, and how many provisions are timed in total.
const CONCURRENCY_LEVELS: [usize; 3] = [1, 4, 8];
const TIMED_PROVISIONS: usize = 16;
/// The budget of a rate relative to the baseline.
const MIN_RATE_RATIO: f64 = 0.8;
/// The idle time after which an engine sleeps.
const IDLE_SLEEP_THRESHOLD_S: f64 = 1.0;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    if let Err(missing) = DockerResources::base_image() {
        log_progress(&format!("containers: skipped: {missing:#}"));
        return Ok(Vec::new());
    }
    let resources = DockerResources::new("roundhouse-bench", &bench.binary, &bench.new_folder()?)?;
    let database = bench.new_folder()?.join("registry.sqlite");
    let variables = vec![
        ("ORCH_BACKEND", "docker".to_owned()),
        ("ORCH_DOCKER_SOCKET", resources.daemon.socket.display().to_string()),
        ("ORCH_ENGINE_IMAGE", resources.image()),
        ("ORCH_ENGINE_NETWORK", resources.network().to_owned()),
        ("ORCH_DATABASE_URL", format!("sqlite:{}", database.display())),
    ];
    let service = OrchestratorService::new(bench, variables)?;
    let orchestrator = service.start(json!({"idle_sleep_threshold_s": IDLE_SLEEP_THRESHOLD_S})).await?;
    let plain = bare_containers(&orchestrator, &resources, &service).await?;
    let mut quantities = LifecycleQuantities::new("Docker backend", BASELINES);
    for round in 0..bench.rounds {
        bench.report_round("containers", round);
        let ours = measure_lifecycles(&orchestrator, round).await?;
        let baselines = (0..LIFECYCLES_PER_ROUND)
            .map(|_| plain.measure_lifecycle())
            .collect::<anyhow::Result<Vec<_>>>()?;
        quantities.add(&ours, &baselines);
    }
    let mut measured = quantities.into_vec();
    for concurrency in CONCURRENCY_LEVELS {
        let mut rate = rate_quantity(concurrency);
        for round in 0..bench.rounds.div_ceil(2) {
            bench.report_round(&format!("containers, {concurrency} at once"), round);
            rate.add(
                provision_rate(&orchestrator, concurrency).await?,
                plain.provision_rate(concurrency, TIMED_PROVISIONS)?,
            );
        }
        measured.push(rate);
    }
    orchestrator.shut_down()?;
    Ok(measured)
}

/// Copies the container configuration of a first engine, which is deleted again.
async fn bare_containers(
    orchestrator: &Orchestrator,
    resources: &DockerResources,
    service: &OrchestratorService,
) -> anyhow::Result<BareContainers> {
    let mut client = orchestrator.connect().await?;
    let provisioned = orchestrator.provision(&mut client, "model").await?;
    let plain = BareContainers::like_engine(resources, service, provisioned.engine_id)?;
    orchestrator.delete(&mut client, "model").await?;
    Ok(plain)
}

/// Returns the provisions per second. The engines are deleted afterwards, which is not timed.
async fn provision_rate(orchestrator: &Orchestrator, concurrency: usize) -> anyhow::Result<f64> {
    let begin = Instant::now();
    stream::iter(0..TIMED_PROVISIONS)
        .map(async |number| {
            let mut client = orchestrator.connect().await?;
            orchestrator.provision(&mut client, &format!("at-once-{number}")).await.map(drop)
        })
        .buffer_unordered(concurrency)
        .try_collect::<()>()
        .await?;
    let took = begin.elapsed();
    let mut client = orchestrator.connect().await?;
    for number in 0..TIMED_PROVISIONS {
        orchestrator.delete(&mut client, &format!("at-once-{number}")).await?;
    }
    Ok(per_second(took))
}

/// Returns the rate of [`TIMED_PROVISIONS`] in `took`.
#[expect(clippy::cast_precision_loss, reason = "a handful")]
pub(crate) fn per_second(took: Duration) -> f64 {
    TIMED_PROVISIONS as f64 / took.as_secs_f64()
}

fn rate_quantity(concurrency: usize) -> Quantity {
    Quantity {
        name: format!("provisions, {concurrency} at once"),
        unit: Unit::PerSecond,
        subject: Subject::new("Docker backend"),
        baselines: vec![Subject::new("plain containers, as many at once")],
        budget: Some(Budget::AtLeastTimesBaseline(MIN_RATE_RATIO)),
    }
}
