//! The life of an engine that is a process, through the orchestrator's API: provision, stop, start, wake, delete.
//! The floor is the same engine alone: started, asked to end, started on the brain it has, asked to end. Below it
//! lies fork and exec of a bare server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use contract::EngineId;
use contract::orchestrator::{Destroyed, EngineStatus};

use crate::bench::Bench;
use crate::client::{Client, address_of};
use crate::engine::{Home, Model};
use crate::floors::{self, Kind};
use crate::orchestrator::{Orchestrator, Site};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;

/// Lives per round.
const LIVES: usize = 10;
const PERCENTILES: [usize; 2] = [50, 99];
const STEPS: [Step; 5] = [
    Step { name: "provision", floor: "engine alone, fresh brain", bare: UP, budget_ms: Some(40.0) },
    Step { name: "stop", floor: "engine alone, SIGTERM to exit", bare: DOWN, budget_ms: None },
    Step { name: "start", floor: "engine alone, its old brain", bare: UP, budget_ms: None },
    Step { name: "wake", floor: "engine alone, its old brain", bare: UP, budget_ms: None },
    Step { name: "delete", floor: "engine alone, SIGTERM to exit", bare: DOWN, budget_ms: None },
];
const UP: &str = "fork and exec of bare axum";
const DOWN: &str = "bare axum, SIGKILL to exit";

struct Step {
    name: &'static str,
    floor: &'static str,
    bare: &'static str,
    budget_ms: Option<f64>,
}

/// How long each of [`STEPS`] took.
type Life = [Duration; 5];

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let site = Site::small(bench)?;
    let mut quantities: Vec<(Quantity, usize, usize)> = Vec::new();
    for (index, step) in STEPS.iter().enumerate() {
        quantities.extend(PERCENTILES.map(|percent| (quantity(step, percent), index, percent)));
    }
    // The first of each kind is not looked at.
    through_api(&site, "warm-up", 1).await?;
    for round in 0..bench.rounds {
        bench.progress("provision", round);
        let ours = through_api(&site, &format!("user-{round}"), LIVES).await?;
        let (mut alones, mut bares) = (Vec::new(), Vec::new());
        for _ in 0..LIVES {
            alones.push(alone(bench)?);
            bares.push(bare(bench)?);
        }
        for (quantity, step, percent) in &mut quantities {
            quantity.ours.samples.extend(at(&ours, *step, *percent));
            for (floor, lives) in quantity.floors.iter_mut().zip([&alones, &bares]) {
                floor.samples.extend(at(lives, *step, *percent));
            }
        }
    }
    Ok(quantities.into_iter().map(|(quantity, ..)| quantity).collect())
}

/// An engine on its way: who it is, where it is, and how long its steps have taken.
struct Living {
    user: String,
    engine_id: EngineId,
    url: String,
    steps: Life,
}

/// So many lives one after the other, but for one rest that all have at the same time: their orchestrator's.
async fn through_api(site: &Site, name: &str, lives: usize) -> anyhow::Result<Vec<Life>> {
    let orchestrator = site.start().await?;
    let mut client = orchestrator.connect().await?;
    let mut living = Vec::new();
    for number in 0..lives {
        living.push(begin(&orchestrator, &mut client, format!("{name}-{number}")).await?);
    }
    drop(client);
    // Puts them to sleep.
    orchestrator.end()?;
    let orchestrator = site.start().await?;
    let mut client = orchestrator.connect().await?;
    for engine in &mut living {
        wake_and_delete(&orchestrator, &mut client, engine).await?;
    }
    orchestrator.end()?;
    Ok(living.into_iter().map(|engine| engine.steps).collect())
}

async fn begin(orchestrator: &Orchestrator, client: &mut Client, user: String) -> anyhow::Result<Living> {
    let began = Instant::now();
    let provisioned = orchestrator.provision(client, &user).await?;
    let provision = began.elapsed();
    ensure!(provisioned.status == EngineStatus::Running, "provision answered {:?}", provisioned.status);
    answers(&provisioned.url, true).await?;

    let began = Instant::now();
    let stopped = orchestrator.stop(client, &user).await?;
    let stop = began.elapsed();
    ensure!(stopped.status == EngineStatus::Stopped, "stop answered {:?}", stopped.status);
    answers(&provisioned.url, false).await?;

    let began = Instant::now();
    let started = orchestrator.start_engine(client, &user).await?;
    let start = began.elapsed();
    ensure!(started.status == EngineStatus::Running, "start answered {:?}", started.status);
    answers(&started.url, true).await?;
    let steps = [provision, stop, start, Duration::ZERO, Duration::ZERO];
    Ok(Living { user, engine_id: provisioned.engine_id, url: started.url, steps })
}

async fn wake_and_delete(
    orchestrator: &Orchestrator,
    client: &mut Client,
    engine: &mut Living,
) -> anyhow::Result<()> {
    answers(&engine.url, false).await?;
    let began = Instant::now();
    let admission = orchestrator.wake(client, &engine.user).await?;
    let wake = began.elapsed();
    let woken = admission.engine.context("nobody was admitted")?.summary;
    ensure!(woken.status == EngineStatus::Running, "the woken engine is {:?}", woken.status);
    let url = woken.url.context("the woken engine has no address")?;
    answers(&url, true).await?;

    let began = Instant::now();
    let destroyed = orchestrator.delete(client, &engine.user).await?;
    let delete = began.elapsed();
    ensure!(destroyed.status == Destroyed::Destroyed, "delete answered {:?}", destroyed.status);
    ensure!(destroyed.engine_id == engine.engine_id, "delete answered for another engine");
    answers(&url, false).await?;
    let [provision, stop, start, ..] = engine.steps;
    engine.steps = [provision, stop, start, wake, delete];
    Ok(())
}

/// Checks that an engine is there, or gone.
async fn answers(url: &str, expected: bool) -> anyhow::Result<()> {
    let there = Client::connect(address_of(url)?).await.is_ok();
    ensure!(
        there == expected,
        "the engine at {url} {}",
        if expected { "is not there" } else { "is still there" }
    );
    Ok(())
}

fn alone(bench: &Bench) -> anyhow::Result<Life> {
    let home = Home::new(&bench.binary, bench.folder()?, Model::unused())?;
    let (mut engine, fresh) = home.start()?;
    let stop = engine.process.end()?;
    let (mut engine, again) = home.start()?;
    let last = engine.process.end()?;
    Ok([fresh, stop, again, again, last])
}

fn bare(bench: &Bench) -> anyhow::Result<Life> {
    let folder = bench.folder()?;
    let port = free_port()?;
    let command = floors::command(&bench.floors, Kind::Bare, port, &folder)?;
    let began = Instant::now();
    let mut process = Process::spawn(command, "the bare floor", log_file(&folder, "floor"))?;
    probe::until_well(&mut process, port)?;
    let up = began.elapsed();
    let began = Instant::now();
    process.kill()?;
    let down = began.elapsed();
    Ok([up, down, up, up, down])
}

fn at(lives: &[Life], step: usize, percent: usize) -> Option<f64> {
    let took = |life: &Life| life.get(step).map(|took| took.as_secs_f64() * 1_000.0);
    percentile(&lives.iter().filter_map(took).collect::<Vec<_>>(), percent)
}

fn quantity(step: &Step, percent: usize) -> Quantity {
    Quantity {
        what: format!("{} p{percent}", step.name),
        unit: Unit::Milliseconds,
        ours: Subject::new("process backend"),
        floors: vec![Subject::new(step.floor), Subject::new(step.bare)],
        budget: step.budget_ms.filter(|_| percent == 50).map(Budget::Most),
    }
}
