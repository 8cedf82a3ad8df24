//! Measures the memory that an engine retains after many turns, and its processor time when idle.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::binary;
use crate::context::BenchContext;
use crate::engine::{Engine, EngineSetup};
use crate::paced_provider::{Pace, PacedProvider};
use crate::process::Memory;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::turns::run_turns;
use crate::usage::CpuUsage;

const TURNS_PER_TASK: u32 = 20;
const PACE: Pace = Pace { deltas: 20, pause: None };
/// The number of warm-up tasks. Memory retained from an engine's first turns is code and caches, not growth.
const WARM_UP_TASKS: u32 = 5;
/// How much more memory the engine may retain, in MiB.
const MAX_RETAINED_MIB: f64 = 4.0;
/// The limit for idle processor time, in microseconds per second.
const MAX_IDLE_CPU_US: f64 = 100.0;

/// The engine of one round.
struct Round {
    engine: Engine,
    /// The time of the last request.
    idle_since: Instant,
    memory_before: Memory,
    memory_warm: Memory,
}

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let tasks = bench.size.choose(50, 500);
    let idle = Duration::from_secs(bench.size.choose(10, 60));
    let provider = PacedProvider::start(PACE).await?;
    let turns = tasks * TURNS_PER_TASK;
    let mut total = quantity("PSS after turns", turns, Some(Budget::AboveBaseline(MAX_RETAINED_MIB)));
    let mut anonymous = quantity("of it anonymous", turns, None);
    let mut growth = quantity("PSS after warm-up", turns, Some(Budget::AboveBaseline(MAX_RETAINED_MIB)));
    growth.baselines = vec![Subject::comparison(format!("after {} turns", WARM_UP_TASKS * TURNS_PER_TASK))];
    let mut cpu = quantity("idle processor per s", turns, Some(Budget::AtMost(MAX_IDLE_CPU_US)));
    (cpu.unit, cpu.baselines) = (Unit::Microseconds, Vec::new());

    // Waiting takes the most time, so the engines of all rounds idle together; their turns run one after another.
    let mut rounds = Vec::new();
    for _ in 0..bench.rounds {
        let folder = bench.new_folder()?;
        let binary = binary::copy_private(&bench.binary, folder.join("roundhouse"))?;
        let (engine, _) = EngineSetup::new(&binary, folder, provider.model_config())?.start()?;
        let idle_since = Instant::now();
        rounds.push((engine, idle_since));
    }
    let mut used = Vec::new();
    for (engine, idle_since) in rounds {
        sleep_until(idle_since + bench.idle_wait).await;
        let before = engine.process.memory()?;
        used.push(Round { engine, idle_since, memory_before: before, memory_warm: before });
    }
    for round in &mut used {
        run_turns(&round.engine, WARM_UP_TASKS, TURNS_PER_TASK).await?;
        round.idle_since = Instant::now();
    }
    for round in &mut used {
        sleep_until(round.idle_since + bench.idle_wait).await;
        round.memory_warm = round.engine.process.memory()?;
    }
    for (number, round) in used.iter_mut().enumerate() {
        bench.report_round(&format!("many-turns, {turns} turns"), number);
        run_turns(&round.engine, tasks, TURNS_PER_TASK).await?;
        round.idle_since = Instant::now();
    }
    for Round { engine, idle_since, memory_before: before, memory_warm } in &used {
        sleep_until(*idle_since + bench.idle_wait).await;
        let after = engine.process.memory()?;
        total.add(after.pss_mib, before.pss_mib);
        growth.add(after.pss_mib, memory_warm.pss_mib);
        anonymous.add(after.anonymous_mib, before.anonymous_mib);
    }
    let times = |used: &[Round]| {
        used.iter().map(|round| CpuUsage::measure(&round.engine.process)).collect::<anyhow::Result<Vec<_>>>()
    };
    let before = times(&used)?;
    sleep(idle).await;
    for (after, before) in times(&used)?.into_iter().zip(before) {
        cpu.add(after.micros_since(&before) / idle.as_secs_f64(), None);
    }
    Ok(vec![total, anonymous, growth, cpu])
}

fn quantity(what: &str, turns: u32, budget: Option<Budget>) -> Quantity {
    Quantity {
        name: what.into(),
        unit: Unit::Mebibytes,
        subject: Subject::new(format!("engine, {turns} turns")),
        baselines: vec![Subject::comparison("before")],
        budget,
    }
}
