//! What is left in memory after many turns, and what an engine does when nothing is asked of it.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::bench::Bench;
use crate::binary;
use crate::engine::{Engine, Home};
use crate::fill::fill;
use crate::paced::{Pace, Paced};
use crate::process::Memory;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::usage::Cpu;

const TURNS_PER_TASK: u32 = 20;
const PACE: Pace = Pace { deltas: 20, pause: None };
/// How many of the tasks warm an engine up: what it keeps from its first turns on is code and caches, not growth.
const WARM_UP_TASKS: u32 = 5;
/// How much more the engine may keep than it had before.
const KEPT_MIB: f64 = 4.0;
/// Processor time that is as good as none, per second.
const NOTHING_US: f64 = 100.0;

/// An engine of one round.
struct Round {
    engine: Engine,
    /// When it was last asked for anything.
    left_alone: Instant,
    before: Memory,
    warm: Memory,
}

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let tasks = bench.size.of(50, 500);
    let idle = Duration::from_secs(bench.size.of(10, 60));
    let provider = Paced::start(PACE).await?;
    let turns = tasks * TURNS_PER_TASK;
    let mut whole = quantity("PSS after turns", turns, Some(Budget::MostAboveFloor(KEPT_MIB)));
    let mut anonymous = quantity("of it anonymous", turns, None);
    let mut growth = quantity("PSS after warm-up", turns, Some(Budget::MostAboveFloor(KEPT_MIB)));
    growth.floors = vec![Subject::beside(format!("after {} turns", WARM_UP_TASKS * TURNS_PER_TASK))];
    let mut cpu = quantity("idle processor per s", turns, Some(Budget::Most(NOTHING_US)));
    (cpu.unit, cpu.floors) = (Unit::Microseconds, Vec::new());

    // Idleness takes the most time here, so the rounds' engines are idle together; their turns are not together.
    let mut rounds = Vec::new();
    for _ in 0..bench.rounds {
        let folder = bench.folder()?;
        let binary = binary::copy(&bench.binary, folder.join("roundhouse"))?;
        let (engine, _) = Home::new(&binary, folder, provider.model())?.start()?;
        let left_alone = Instant::now();
        rounds.push((engine, left_alone));
    }
    let mut used = Vec::new();
    for (engine, left_alone) in rounds {
        sleep_until(left_alone + bench.wait).await;
        let before = engine.process.memory()?;
        used.push(Round { engine, left_alone, before, warm: before });
    }
    for round in &mut used {
        fill(&round.engine, WARM_UP_TASKS, TURNS_PER_TASK).await?;
        round.left_alone = Instant::now();
    }
    for round in &mut used {
        sleep_until(round.left_alone + bench.wait).await;
        round.warm = round.engine.process.memory()?;
    }
    for (number, round) in used.iter_mut().enumerate() {
        bench.progress(&format!("many-turns, {turns} turns"), number);
        fill(&round.engine, tasks, TURNS_PER_TASK).await?;
        round.left_alone = Instant::now();
    }
    for Round { engine, left_alone, before, warm } in &used {
        sleep_until(*left_alone + bench.wait).await;
        let after = engine.process.memory()?;
        whole.add(after.pss_mib, before.pss_mib);
        growth.add(after.pss_mib, warm.pss_mib);
        anonymous.add(after.anonymous_mib, before.anonymous_mib);
    }
    let times = |used: &[Round]| {
        used.iter().map(|round| Cpu::of(&round.engine.process)).collect::<anyhow::Result<Vec<_>>>()
    };
    let before = times(&used)?;
    sleep(idle).await;
    for (after, before) in times(&used)?.into_iter().zip(before) {
        cpu.add(after.micros_since(&before) / idle.as_secs_f64(), None);
    }
    Ok(vec![whole, anonymous, growth, cpu])
}

fn quantity(what: &str, turns: u32, budget: Option<Budget>) -> Quantity {
    Quantity {
        what: what.into(),
        unit: Unit::Mebibytes,
        ours: Subject::new(format!("engine, {turns} turns")),
        floors: vec![Subject::beside("before")],
        budget,
    }
}
