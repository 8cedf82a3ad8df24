//! Measures the lifecycle of engines as containers through the orchestrator's API (provision, stop, start, wake,
//! delete), and concurrent provisions. The baseline runs the same container, as the daemon describes it, through
//! the daemon's API: same image, mounts, limits, network and user, until its engine is healthy.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::EngineId;
use api::orchestrator::EngineStatus;
use chaos::docker::DockerResources;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::json;

use crate::bare_containers::BareContainers;
use crate::client::Client;
use crate::context::{BenchContext, log_progress};
use crate::orchestrator::Orchestrator;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::service::OrchestratorService;
use crate::stats::percentile;

/// The number of lifecycles per round.
const LIFECYCLES_PER_ROUND: usize = 5;
const PERCENTILES: [usize; 2] = [50, 99];
const STEPS: [(&str, &str); 5] = [
    ("provision", "plain container, fresh brain"),
    ("stop", "plain container, stopped and removed"),
    ("start", "plain container, its old brain"),
    ("wake", "plain container, its old brain"),
    ("delete", "plain container, removed with its folder"),
];
/// The numbers of concurrent provisions, and how many provisions are timed in total.
const CONCURRENCY_LEVELS: [usize; 3] = [1, 4, 8];
const TIMED_PROVISIONS: usize = 16;
/// The budgets relative to the baseline: the time, and the corresponding rate.
const MAX_TIME_RATIO: f64 = 1.25;
const MIN_RATE_RATIO: f64 = 0.8;
/// The idle time after which an engine sleeps, and the time within which all must be asleep.
const IDLE_SLEEP_THRESHOLD_S: f64 = 1.0;
const SLEEP_TIMEOUT: Duration = Duration::from_mins(1);

/// The duration of each of [`STEPS`].
pub(crate) type LifecycleTimes = [Duration; 5];

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
    let mut quantities = quantities();
    for round in 0..bench.rounds {
        bench.report_round("containers", round);
        let ours = measure_lifecycles(&orchestrator, round).await?;
        let baselines = (0..LIFECYCLES_PER_ROUND)
            .map(|_| plain.measure_lifecycle())
            .collect::<anyhow::Result<Vec<_>>>()?;
        for (quantity, step, percent) in &mut quantities {
            quantity.add(percentile_ms(&ours, *step, *percent), percentile_ms(&baselines, *step, *percent));
        }
    }
    let mut measured: Vec<Quantity> = quantities.into_iter().map(|(quantity, ..)| quantity).collect();
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

async fn measure_lifecycles(
    orchestrator: &Orchestrator,
    round: usize,
) -> anyhow::Result<Vec<LifecycleTimes>> {
    let mut client = orchestrator.connect().await?;
    let mut engines = Vec::new();
    for number in 0..LIFECYCLES_PER_ROUND {
        let user = format!("user-{round}-{number}");
        let begin = Instant::now();
        let provisioned = orchestrator.provision(&mut client, &user).await?;
        let provision = begin.elapsed();
        let begin = Instant::now();
        orchestrator.stop(&mut client, &user).await?;
        let stop = begin.elapsed();
        let begin = Instant::now();
        let started = orchestrator.start_engine(&mut client, &user).await?;
        let start = begin.elapsed();
        ensure!(started.status == EngineStatus::Running, "start answered {:?}", started.status);
        engines.push((user, provisioned.engine_id, [provision, stop, start]));
    }
    wait_until_all_asleep(orchestrator, &mut client).await?;
    let mut lifecycles = Vec::new();
    for (user, engine_id, [provision, stop, start]) in engines {
        let (wake, delete) = wake_and_delete(orchestrator, &mut client, &user, engine_id).await?;
        lifecycles.push([provision, stop, start, wake, delete]);
    }
    Ok(lifecycles)
}

async fn wait_until_all_asleep(orchestrator: &Orchestrator, client: &mut Client) -> anyhow::Result<()> {
    let begin = Instant::now();
    while orchestrator.engine_count(client, "sleeping").await? < LIFECYCLES_PER_ROUND as u64 {
        ensure!(begin.elapsed() < SLEEP_TIMEOUT, "the engines do not go to sleep");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn wake_and_delete(
    orchestrator: &Orchestrator,
    client: &mut Client,
    user: &str,
    engine_id: EngineId,
) -> anyhow::Result<(Duration, Duration)> {
    let begin = Instant::now();
    let admission = orchestrator.wake(client, user).await?;
    let wake = begin.elapsed();
    let woken = admission.engine.context("the user was not admitted")?.summary;
    ensure!(woken.status == EngineStatus::Running, "the woken engine is {:?}", woken.status);
    let begin = Instant::now();
    let destroyed = orchestrator.delete(client, user).await?;
    ensure!(destroyed.engine_id == engine_id, "delete answered for another engine");
    Ok((wake, begin.elapsed()))
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

fn percentile_ms(lifecycles: &[LifecycleTimes], step: usize, percent: usize) -> Option<f64> {
    let took = |times: &LifecycleTimes| times.get(step).map(|took| took.as_secs_f64() * 1_000.0);
    percentile(&lifecycles.iter().filter_map(took).collect::<Vec<_>>(), percent)
}

fn quantities() -> Vec<(Quantity, usize, usize)> {
    let quantity = |(name, baseline): (&str, &str), percent: usize| Quantity {
        name: format!("{name} p{percent}"),
        unit: Unit::Milliseconds,
        subject: Subject::new("Docker backend"),
        baselines: vec![Subject::new(baseline)],
        budget: (percent == 50).then_some(Budget::AtMostTimesBaseline(MAX_TIME_RATIO)),
    };
    let steps = STEPS.iter().enumerate();
    let each =
        steps.flat_map(|(step, names)| PERCENTILES.map(|percent| (quantity(*names, percent), step, percent)));
    each.collect()
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
