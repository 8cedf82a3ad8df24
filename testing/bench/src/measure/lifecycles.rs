//! The lifecycle of engines through the orchestrator's API: provision, stop, start, wake, delete.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::EngineId;
use api::orchestrator::EngineStatus;

use crate::client::Client;
use crate::orchestrator::Orchestrator;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;

/// The number of lifecycles per round.
pub(super) const LIFECYCLES_PER_ROUND: usize = 5;
const STEPS: [&str; 5] = ["provision", "stop", "start", "wake", "delete"];
const PERCENTILES: [usize; 2] = [50, 99];
/// The budget of a time relative to the baseline.
const MAX_TIME_RATIO: f64 = 1.25;
/// The time within which all engines must be asleep.
const SLEEP_TIMEOUT: Duration = Duration::from_mins(1);

/// The duration of each of [`STEPS`].
pub(crate) type LifecycleTimes = [Duration; STEPS.len()];

/// The percentiles of the steps, beside those of a baseline.
pub(super) struct LifecycleQuantities(Vec<(Quantity, usize, usize)>);

impl LifecycleQuantities {
    /// `baselines` are what each step is compared with.
    pub(super) fn new(subject: &str, baselines: [&str; STEPS.len()]) -> Self {
        let quantity = |name: &str, baseline: &str, percent: usize| Quantity {
            name: format!("{name} p{percent}"),
            unit: Unit::Milliseconds,
            subject: Subject::new(subject),
            baselines: vec![Subject::new(baseline)],
            budget: (percent == 50).then_some(Budget::AtMostTimesBaseline(MAX_TIME_RATIO)),
        };
        let steps = STEPS.into_iter().zip(baselines).enumerate();
        let each = steps.flat_map(|(step, (name, baseline))| {
            PERCENTILES.map(|percent| (quantity(name, baseline, percent), step, percent))
        });
        Self(each.collect())
    }

    /// Adds the lifecycles of a round.
    pub(super) fn add(&mut self, ours: &[LifecycleTimes], baselines: &[LifecycleTimes]) {
        for (quantity, step, percent) in &mut self.0 {
            quantity.add(percentile_ms(ours, *step, *percent), percentile_ms(baselines, *step, *percent));
        }
    }

    pub(super) fn into_vec(self) -> Vec<Quantity> {
        self.0.into_iter().map(|(quantity, ..)| quantity).collect()
    }
}

/// Measures the lifecycles of a round. All engines go to sleep by themselves before each is woken.
pub(super) async fn measure_lifecycles(
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

fn percentile_ms(lifecycles: &[LifecycleTimes], step: usize, percent: usize) -> Option<f64> {
    let took = |times: &LifecycleTimes| times.get(step).map(|took| took.as_secs_f64() * 1_000.0);
    percentile(&lifecycles.iter().filter_map(took).collect::<Vec<_>>(), percent)
}
