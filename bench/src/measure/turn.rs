//! The time from a turn's request to its first delta at the client.

use crate::bench::Bench;
use crate::provider::Wire;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;

use super::streaming::Streaming;

const TEXT: &str = "A short answer, as most answers in a conversation are: some twenty deltas long.";
const CHARS_PER_DELTA: usize = 4;
const TURNS: usize = 200;
/// What a new connection's first turns cost is not looked at.
const WARM_UP: usize = 10;
const PERCENTILES: [usize; 2] = [50, 99];

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let mut quantities = Vec::new();
    for wire in Wire::ALL {
        quantities.extend(on(bench, wire).await?);
    }
    Ok(quantities)
}

async fn on(bench: &Bench, wire: Wire) -> anyhow::Result<Vec<Quantity>> {
    let mut subject = Streaming::start(bench, wire, TEXT, CHARS_PER_DELTA).await?;
    let mut quantities = PERCENTILES.map(|percent| quantity(wire, percent));
    for round in 0..bench.rounds {
        bench.progress(&format!("turn, {}", wire.name()), round);
        let mut client = subject.to_engine().await?;
        let mut turns = Vec::new();
        for _ in 0..WARM_UP + TURNS {
            turns.push(subject.turn(&mut client).await?.first.as_secs_f64() * 1_000.0);
        }
        let mut client = subject.to_provider().await?;
        let mut direct = Vec::new();
        for _ in 0..WARM_UP + TURNS {
            direct.push(subject.direct(&mut client).await?.first.as_secs_f64() * 1_000.0);
        }
        for (quantity, percent) in quantities.iter_mut().zip(PERCENTILES) {
            quantity.ours.samples.extend(warm(&turns, percent));
            if let Some(floor) = quantity.floors.first_mut() {
                floor.samples.extend(warm(&direct, percent));
            }
        }
        subject.settle()?;
    }
    Ok(quantities.into())
}

fn warm(samples: &[f64], percent: usize) -> Option<f64> {
    percentile(samples.get(WARM_UP..)?, percent)
}

fn quantity(wire: Wire, percent: usize) -> Quantity {
    Quantity {
        what: format!("first delta p{percent}"),
        unit: Unit::Milliseconds,
        ours: Subject::new(format!("engine, {}", wire.name())),
        floors: vec![Subject::new("client to provider")],
        budget: (percent == 50).then_some(Budget::MostAboveFloor(1.0)),
    }
}
