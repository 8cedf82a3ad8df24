//! Measures the start of an engine on a large brain, compared with a fresh one.

use crate::context::{BenchContext, log_progress};
use crate::engine::{EngineSetup, ModelConfig};
use crate::paced_provider::{Pace, PacedProvider};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::median;
use crate::turns::run_turns;

/// The number of starts per round, whose median is the sample.
const STARTS_PER_ROUND: usize = 3;
/// The number of turns per task, each with a message of the user and one of the model.
const TURNS_PER_TASK: u32 = 100;
const PACE: Pace = Pace { deltas: 3, pause: None };

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let tasks = bench.size.choose(50, 500);
    let messages = tasks * TURNS_PER_TASK * 2;
    let provider = PacedProvider::start(PACE).await?;
    // Created once. The file is in the state after a clean shutdown.
    let big = EngineSetup::new(&bench.binary, bench.new_folder()?, provider.model_config())?;
    let (mut engine, _) = big.start()?;
    log_progress(&format!("big-start: writing {messages} messages"));
    run_turns(&engine, tasks, TURNS_PER_TASK).await?;
    engine.process.stop()?;
    drop(engine);

    let mut quantity = Quantity {
        name: "big start".into(),
        unit: Unit::Milliseconds,
        subject: Subject::new(format!("engine, {messages} messages")),
        baselines: vec![Subject::comparison("fresh brain")],
        budget: Some(Budget::AtMost(30.0)),
    };
    for round in 0..bench.rounds {
        bench.report_round("big-start", round);
        let (mut ours, mut fresh) = (Vec::new(), Vec::new());
        for _ in 0..STARTS_PER_ROUND {
            ours.push(start_ms(&big)?);
            fresh.push(start_ms(&EngineSetup::new(
                &bench.binary,
                bench.new_folder()?,
                ModelConfig::unused(),
            )?)?);
        }
        quantity.add(median(&ours), median(&fresh));
    }
    Ok(vec![quantity])
}

fn start_ms(setup: &EngineSetup<'_>) -> anyhow::Result<f64> {
    let (mut engine, took) = setup.start()?;
    engine.process.stop()?;
    Ok(took.as_secs_f64() * 1_000.0)
}
