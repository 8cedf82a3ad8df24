//! Measures the lifecycle of engines as processes through the orchestrator's API: provision, stop, start, wake,
//! delete. One baseline is the same engine alone: started, terminated, started on its existing brain, terminated.
//! Another one is fork and exec of a bare server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::EngineId;
use api::orchestrator::{Destroyed, EngineStatus};

use crate::baselines::{self, BaselineKind};
use crate::client::{Client, parse_address};
use crate::context::BenchContext;
use crate::engine::{EngineSetup, ModelConfig};
use crate::orchestrator::{Orchestrator, OrchestratorSetup};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;

/// The number of lifecycles per round.
const LIFECYCLES_PER_ROUND: usize = 10;
const PERCENTILES: [usize; 2] = [50, 99];
const STEPS: [LifecycleStep; 5] = [
    LifecycleStep {
        name: "provision",
        baseline: "engine alone, fresh brain",
        bare_baseline: BARE_START,
        budget_ms: Some(40.0),
    },
    LifecycleStep {
        name: "stop",
        baseline: "engine alone, SIGTERM to exit",
        bare_baseline: BARE_STOP,
        budget_ms: None,
    },
    LifecycleStep {
        name: "start",
        baseline: "engine alone, its old brain",
        bare_baseline: BARE_START,
        budget_ms: None,
    },
    LifecycleStep {
        name: "wake",
        baseline: "engine alone, its old brain",
        bare_baseline: BARE_START,
        budget_ms: None,
    },
    LifecycleStep {
        name: "delete",
        baseline: "engine alone, SIGTERM to exit",
        bare_baseline: BARE_STOP,
        budget_ms: None,
    },
];
const BARE_START: &str = "fork and exec of bare axum";
const BARE_STOP: &str = "bare axum, SIGKILL to exit";

struct LifecycleStep {
    name: &'static str,
    baseline: &'static str,
    bare_baseline: &'static str,
    budget_ms: Option<f64>,
}

/// The duration of each of [`STEPS`].
type LifecycleTimes = [Duration; 5];

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let setup = OrchestratorSetup::with_few_ports(bench)?;
    let mut quantities: Vec<(Quantity, usize, usize)> = Vec::new();
    for (index, step) in STEPS.iter().enumerate() {
        quantities.extend(PERCENTILES.map(|percent| (quantity(step, percent), index, percent)));
    }
    // The first lifecycle is a warm-start.
    measure_lifecycles(&setup, "warm-up", 1).await?;
    for round in 0..bench.rounds {
        bench.report_round("provision", round);
        let ours = measure_lifecycles(&setup, &format!("user-{round}"), LIFECYCLES_PER_ROUND).await?;
        let (mut standalone, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..LIFECYCLES_PER_ROUND {
            standalone.push(measure_standalone_engine(bench)?);
            bare.push(measure_bare_server(bench)?);
        }
        for (quantity, step, percent) in &mut quantities {
            quantity.subject.samples.extend(percentile_ms(&ours, *step, *percent));
            for (baseline, lifecycles) in quantity.baselines.iter_mut().zip([&standalone, &bare]) {
                baseline.samples.extend(percentile_ms(lifecycles, *step, *percent));
            }
        }
    }
    Ok(quantities.into_iter().map(|(quantity, ..)| quantity).collect())
}

/// An engine during its lifecycle, with the durations of the steps so far.
struct MeasuredEngine {
    user: String,
    engine_id: EngineId,
    url: String,
    steps: LifecycleTimes,
}

/// Measures lifecycles one after another. All engines go to sleep together, when their orchestrator stops.
async fn measure_lifecycles(
    setup: &OrchestratorSetup,
    name: &str,
    lifecycles: usize,
) -> anyhow::Result<Vec<LifecycleTimes>> {
    let orchestrator = setup.start().await?;
    let mut client = orchestrator.connect().await?;
    let mut engines = Vec::new();
    for number in 0..lifecycles {
        engines.push(provision_stop_and_start(&orchestrator, &mut client, format!("{name}-{number}")).await?);
    }
    drop(client);
    // Puts the engines to sleep.
    orchestrator.shut_down()?;
    let orchestrator = setup.start().await?;
    let mut client = orchestrator.connect().await?;
    for engine in &mut engines {
        wake_and_delete(&orchestrator, &mut client, engine).await?;
    }
    orchestrator.shut_down()?;
    Ok(engines.into_iter().map(|engine| engine.steps).collect())
}

async fn provision_stop_and_start(
    orchestrator: &Orchestrator,
    client: &mut Client,
    user: String,
) -> anyhow::Result<MeasuredEngine> {
    let began = Instant::now();
    let provisioned = orchestrator.provision(client, &user).await?;
    let provision = began.elapsed();
    ensure!(provisioned.status == EngineStatus::Running, "provision answered {:?}", provisioned.status);
    check_reachable(&provisioned.url, true).await?;

    let began = Instant::now();
    let stopped = orchestrator.stop(client, &user).await?;
    let stop = began.elapsed();
    ensure!(stopped.status == EngineStatus::Stopped, "stop answered {:?}", stopped.status);
    check_reachable(&provisioned.url, false).await?;

    let began = Instant::now();
    let started = orchestrator.start_engine(client, &user).await?;
    let start = began.elapsed();
    ensure!(started.status == EngineStatus::Running, "start answered {:?}", started.status);
    check_reachable(&started.url, true).await?;
    let steps = [provision, stop, start, Duration::ZERO, Duration::ZERO];
    Ok(MeasuredEngine { user, engine_id: provisioned.engine_id, url: started.url, steps })
}

async fn wake_and_delete(
    orchestrator: &Orchestrator,
    client: &mut Client,
    engine: &mut MeasuredEngine,
) -> anyhow::Result<()> {
    check_reachable(&engine.url, false).await?;
    let began = Instant::now();
    let admission = orchestrator.wake(client, &engine.user).await?;
    let wake = began.elapsed();
    let woken = admission.engine.context("the user was not admitted")?.summary;
    ensure!(woken.status == EngineStatus::Running, "the woken engine is {:?}", woken.status);
    let url = woken.url.context("the woken engine has no address")?;
    check_reachable(&url, true).await?;

    let began = Instant::now();
    let destroyed = orchestrator.delete(client, &engine.user).await?;
    let delete = began.elapsed();
    ensure!(destroyed.status == Destroyed::Destroyed, "delete answered {:?}", destroyed.status);
    ensure!(destroyed.engine_id == engine.engine_id, "delete answered for another engine");
    check_reachable(&url, false).await?;
    let [provision, stop, start, ..] = engine.steps;
    engine.steps = [provision, stop, start, wake, delete];
    Ok(())
}

/// Checks whether an engine accepts connections, or no longer does.
async fn check_reachable(url: &str, expected: bool) -> anyhow::Result<()> {
    let is_reachable = Client::connect(parse_address(url)?).await.is_ok();
    ensure!(
        is_reachable == expected,
        "the engine at {url} {}",
        if expected { "is not reachable" } else { "is still reachable" }
    );
    Ok(())
}

fn measure_standalone_engine(bench: &BenchContext) -> anyhow::Result<LifecycleTimes> {
    let engine_setup = EngineSetup::new(&bench.binary, bench.new_folder()?, ModelConfig::unused())?;
    let (mut engine, fresh) = engine_setup.start()?;
    let stop = engine.process.stop()?;
    let (mut engine, again) = engine_setup.start()?;
    let last = engine.process.stop()?;
    Ok([fresh, stop, again, again, last])
}

fn measure_bare_server(bench: &BenchContext) -> anyhow::Result<LifecycleTimes> {
    let folder = bench.new_folder()?;
    let port = free_port()?;
    let command = baselines::command(&bench.baseline_program, BaselineKind::Bare, port, &folder)?;
    let began = Instant::now();
    let mut process = Process::spawn(command, "the bare baseline", log_file(&folder, "baseline"))?;
    probe::wait_until_healthy(&mut process, port)?;
    let start = began.elapsed();
    let began = Instant::now();
    process.kill()?;
    let stop = began.elapsed();
    Ok([start, stop, start, start, stop])
}

fn percentile_ms(lifecycles: &[LifecycleTimes], step: usize, percent: usize) -> Option<f64> {
    let took = |times: &LifecycleTimes| times.get(step).map(|took| took.as_secs_f64() * 1_000.0);
    percentile(&lifecycles.iter().filter_map(took).collect::<Vec<_>>(), percent)
}

fn quantity(step: &LifecycleStep, percent: usize) -> Quantity {
    Quantity {
        name: format!("{} p{percent}", step.name),
        unit: Unit::Milliseconds,
        subject: Subject::new("process backend"),
        baselines: vec![Subject::new(step.baseline), Subject::new(step.bare_baseline)],
        budget: step.budget_ms.filter(|_| percent == 50).map(Budget::AtMost),
    }
}
