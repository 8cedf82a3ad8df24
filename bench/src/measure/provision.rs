//! The life of an engine that is a process, through the orchestrator's API: provision, stop, start, delete.
//! The floor is the same engine alone: started, asked to end, started on the brain it has, asked to end.

use std::time::{Duration, Instant};

use anyhow::ensure;
use contract::orchestrator::{Destroyed, EngineStatus};

use crate::bench::Bench;
use crate::client::{Client, address_of};
use crate::engine::{Home, Model};
use crate::orchestrator::Orchestrator;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;

/// Lives per round.
const LIVES: usize = 10;
const PERCENTILES: [usize; 2] = [50, 99];
const STEPS: [Step; 4] = [
    Step { name: "provision", floor: "engine alone, fresh brain", budget_ms: Some(40.0) },
    Step { name: "stop", floor: "engine alone, SIGTERM to exit", budget_ms: None },
    Step { name: "start", floor: "engine alone, its old brain", budget_ms: None },
    Step { name: "delete", floor: "engine alone, SIGTERM to exit", budget_ms: None },
];

struct Step {
    name: &'static str,
    floor: &'static str,
    budget_ms: Option<f64>,
}

/// How long each of [`STEPS`] took.
type Life = [Duration; 4];

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let orchestrator = Orchestrator::start(bench).await?;
    let mut client = orchestrator.connect().await?;
    let mut quantities: Vec<(Quantity, usize, usize)> = Vec::new();
    for (index, step) in STEPS.iter().enumerate() {
        quantities.extend(PERCENTILES.map(|percent| (quantity(step, percent), index, percent)));
    }
    // The first of each kind is not looked at.
    through_api(&orchestrator, &mut client, "warm-up").await?;
    for round in 0..bench.rounds {
        bench.progress("provision", round);
        let (mut ours, mut floors) = (Vec::new(), Vec::new());
        for number in 0..LIVES {
            ours.push(through_api(&orchestrator, &mut client, &format!("user-{round}-{number}")).await?);
            floors.push(alone(bench)?);
        }
        for (quantity, step, percent) in &mut quantities {
            quantity.ours.samples.extend(at(&ours, *step, *percent));
            if let Some(floor) = quantity.floors.first_mut() {
                floor.samples.extend(at(&floors, *step, *percent));
            }
        }
    }
    orchestrator.end()?;
    Ok(quantities.into_iter().map(|(quantity, ..)| quantity).collect())
}

async fn through_api(orchestrator: &Orchestrator, client: &mut Client, user: &str) -> anyhow::Result<Life> {
    let began = Instant::now();
    let provisioned = orchestrator.provision(client, user).await?;
    let provision = began.elapsed();
    ensure!(provisioned.status == EngineStatus::Running, "provision answered {:?}", provisioned.status);
    answers(&provisioned.url, true).await?;

    let began = Instant::now();
    let stopped = orchestrator.stop(client, user).await?;
    let stop = began.elapsed();
    ensure!(stopped.status == EngineStatus::Stopped, "stop answered {:?}", stopped.status);
    answers(&provisioned.url, false).await?;

    let began = Instant::now();
    let started = orchestrator.start_engine(client, user).await?;
    let start = began.elapsed();
    ensure!(started.status == EngineStatus::Running, "start answered {:?}", started.status);
    answers(&started.url, true).await?;

    let began = Instant::now();
    let destroyed = orchestrator.delete(client, user).await?;
    let delete = began.elapsed();
    ensure!(destroyed.status == Destroyed::Destroyed, "delete answered {:?}", destroyed.status);
    ensure!(destroyed.engine_id == provisioned.engine_id, "delete answered for another engine");
    answers(&started.url, false).await?;
    Ok([provision, stop, start, delete])
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
    Ok([fresh, stop, again, last])
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
        floors: vec![Subject::new(step.floor)],
        budget: step.budget_ms.filter(|_| percent == 50).map(Budget::Most),
    }
}
