//! The start of an engine on a brain that has much in it, beside a fresh one.

use crate::bench::{Bench, note};
use crate::engine::{Home, Model};
use crate::fill::fill;
use crate::paced::{Pace, Paced};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::median;

/// As for `start`: each round gives the median of several.
const STARTS: usize = 3;
/// Turns of each task: a message of the user and one of the model each.
const TURNS: u32 = 100;
const PACE: Pace = Pace { deltas: 3, pause: None };

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let tasks = bench.size.of(50, 500);
    let messages = tasks * TURNS * 2;
    let provider = Paced::start(PACE).await?;
    // Made once. Its file is as an engine leaves it that is asked to end.
    let big = Home::new(&bench.binary, bench.folder()?, provider.model())?;
    let (mut engine, _) = big.start()?;
    note(&format!("big-start: {messages} messages are written"));
    fill(&engine, tasks, TURNS).await?;
    engine.process.end()?;
    drop(engine);

    let mut quantity = Quantity {
        what: "big start".into(),
        unit: Unit::Milliseconds,
        ours: Subject::new(format!("engine, {messages} messages")),
        floors: vec![Subject::beside("fresh brain")],
        budget: Some(Budget::Most(30.0)),
    };
    for round in 0..bench.rounds {
        bench.progress("big-start", round);
        let (mut ours, mut fresh) = (Vec::new(), Vec::new());
        for _ in 0..STARTS {
            ours.push(start(&big)?);
            fresh.push(start(&Home::new(&bench.binary, bench.folder()?, Model::unused())?)?);
        }
        quantity.add(median(&ours), median(&fresh));
    }
    Ok(vec![quantity])
}

fn start(home: &Home<'_>) -> anyhow::Result<f64> {
    let (mut engine, took) = home.start()?;
    engine.process.end()?;
    Ok(took.as_secs_f64() * 1_000.0)
}
