//! The life of an engine that is a container, through the orchestrator's API: provision, stop, start, wake, delete;
//! and many provisions at once. The floor is the same container, as the daemon itself describes it, run over the
//! daemon's API: with the same image, mounts, limits, network and user, until its engine is well.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use chaos::docker::Premises;
use contract::EngineId;
use contract::orchestrator::EngineStatus;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::json;

use crate::bench::{Bench, note};
use crate::client::Client;
use crate::orchestrator::Orchestrator;
use crate::plain::Plain;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::service::Service;
use crate::stats::percentile;

/// Lives per round.
const LIVES: usize = 5;
const PERCENTILES: [usize; 2] = [50, 99];
const STEPS: [(&str, &str); 5] = [
    ("provision", "plain container, fresh brain"),
    ("stop", "plain container, stopped and removed"),
    ("start", "plain container, its old brain"),
    ("wake", "plain container, its old brain"),
    ("delete", "plain container, removed with its folder"),
];
/// Provisions under way at once, and how many of them in all are timed.
const AT_ONCE: [usize; 3] = [1, 4, 8];
const PROVISIONS: usize = 16;
/// What ours may take, and the rate that goes with it.
const TIMES: f64 = 1.25;
const RATE: f64 = 0.8;
/// How soon an engine sleeps, and how long all may take to.
const THRESHOLD_S: f64 = 1.0;
const ASLEEP: Duration = Duration::from_mins(1);

/// How long each of [`STEPS`] took.
pub(crate) type Life = [Duration; 5];

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    if let Err(missing) = Premises::base() {
        note(&format!("containers: skipped: {missing:#}"));
        return Ok(Vec::new());
    }
    let premises = Premises::new("roundhouse-bench", &bench.binary, &bench.folder()?)?;
    let database = bench.folder()?.join("registry.sqlite");
    let variables = vec![
        ("ORCH_BACKEND", "docker".to_owned()),
        ("ORCH_DOCKER_SOCKET", premises.daemon.socket.display().to_string()),
        ("ORCH_ENGINE_IMAGE", premises.image()),
        ("ORCH_ENGINE_NETWORK", premises.network().to_owned()),
        ("ORCH_DATABASE_URL", format!("sqlite:{}", database.display())),
    ];
    let service = Service::new(bench, variables)?;
    let orchestrator = service.start(json!({"idle_sleep_threshold_s": THRESHOLD_S})).await?;
    let plain = plain(&orchestrator, &premises, &service).await?;
    let mut quantities = quantities();
    for round in 0..bench.rounds {
        bench.progress("containers", round);
        let ours = through_api(&orchestrator, round).await?;
        let floors = (0..LIVES).map(|_| plain.life()).collect::<anyhow::Result<Vec<_>>>()?;
        for (quantity, step, percent) in &mut quantities {
            quantity.add(at(&ours, *step, *percent), at(&floors, *step, *percent));
        }
    }
    let mut measured: Vec<Quantity> = quantities.into_iter().map(|(quantity, ..)| quantity).collect();
    for at_once in AT_ONCE {
        let mut rate = rate(at_once);
        for round in 0..bench.rounds.div_ceil(2) {
            bench.progress(&format!("containers, {at_once} at once"), round);
            rate.add(provisions(&orchestrator, at_once).await?, plain.provisions(at_once, PROVISIONS)?);
        }
        measured.push(rate);
    }
    orchestrator.end()?;
    Ok(measured)
}

/// What the orchestrator's container of a first engine is like. That engine is gone again then.
async fn plain(orchestrator: &Orchestrator, premises: &Premises, service: &Service) -> anyhow::Result<Plain> {
    let mut client = orchestrator.connect().await?;
    let provisioned = orchestrator.provision(&mut client, "model").await?;
    let plain = Plain::like(premises, service, provisioned.engine_id)?;
    orchestrator.delete(&mut client, "model").await?;
    Ok(plain)
}

async fn through_api(orchestrator: &Orchestrator, round: usize) -> anyhow::Result<Vec<Life>> {
    let mut client = orchestrator.connect().await?;
    let mut lives = Vec::new();
    for number in 0..LIVES {
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
        lives.push((user, provisioned.engine_id, [provision, stop, start]));
    }
    all_asleep(orchestrator, &mut client).await?;
    let mut whole = Vec::new();
    for (user, engine_id, [provision, stop, start]) in lives {
        let (wake, delete) = wake_and_delete(orchestrator, &mut client, &user, engine_id).await?;
        whole.push([provision, stop, start, wake, delete]);
    }
    Ok(whole)
}

async fn all_asleep(orchestrator: &Orchestrator, client: &mut Client) -> anyhow::Result<()> {
    let begin = Instant::now();
    while orchestrator.count(client, "sleeping").await? < LIVES as u64 {
        ensure!(begin.elapsed() < ASLEEP, "the engines do not go to sleep");
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
    let woken = admission.engine.context("nobody was admitted")?.summary;
    ensure!(woken.status == EngineStatus::Running, "the woken engine is {:?}", woken.status);
    let begin = Instant::now();
    let destroyed = orchestrator.delete(client, user).await?;
    ensure!(destroyed.engine_id == engine_id, "delete answered for another engine");
    Ok((wake, begin.elapsed()))
}

/// Provisions per second. The engines are deleted afterwards, which is not timed.
async fn provisions(orchestrator: &Orchestrator, at_once: usize) -> anyhow::Result<f64> {
    let begin = Instant::now();
    stream::iter(0..PROVISIONS)
        .map(async |number| {
            let mut client = orchestrator.connect().await?;
            orchestrator.provision(&mut client, &format!("at-once-{number}")).await.map(drop)
        })
        .buffer_unordered(at_once)
        .try_collect::<()>()
        .await?;
    let took = begin.elapsed();
    let mut client = orchestrator.connect().await?;
    for number in 0..PROVISIONS {
        orchestrator.delete(&mut client, &format!("at-once-{number}")).await?;
    }
    Ok(per_second(took))
}

/// The rate of [`PROVISIONS`] in `took`.
#[expect(clippy::cast_precision_loss, reason = "a handful")]
pub(crate) fn per_second(took: Duration) -> f64 {
    PROVISIONS as f64 / took.as_secs_f64()
}

fn at(lives: &[Life], step: usize, percent: usize) -> Option<f64> {
    let took = |life: &Life| life.get(step).map(|took| took.as_secs_f64() * 1_000.0);
    percentile(&lives.iter().filter_map(took).collect::<Vec<_>>(), percent)
}

fn quantities() -> Vec<(Quantity, usize, usize)> {
    let quantity = |(name, floor): (&str, &str), percent: usize| Quantity {
        what: format!("{name} p{percent}"),
        unit: Unit::Milliseconds,
        ours: Subject::new("Docker backend"),
        floors: vec![Subject::new(floor)],
        budget: (percent == 50).then_some(Budget::MostTimesFloor(TIMES)),
    };
    let steps = STEPS.iter().enumerate();
    let each =
        steps.flat_map(|(step, names)| PERCENTILES.map(|percent| (quantity(*names, percent), step, percent)));
    each.collect()
}

fn rate(at_once: usize) -> Quantity {
    Quantity {
        what: format!("provisions, {at_once} at once"),
        unit: Unit::PerSecond,
        ours: Subject::new("Docker backend"),
        floors: vec![Subject::new("plain containers, as many at once")],
        budget: Some(Budget::LeastTimesFloor(RATE)),
    }
}
