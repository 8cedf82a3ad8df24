//! The time from a turn's request to its first delta at the client.

use crate::bench::Bench;
use crate::provider::Wire;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;
use crate::told::Text;

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
    let mut beside = Streaming::start_beside(bench, wire, TEXT, CHARS_PER_DELTA).await?;
    let mut quantities = PERCENTILES.map(|percent| quantity(wire, percent, beside.is_some()));
    for round in 0..bench.rounds {
        bench.progress(&format!("turn, {}", wire.name()), round);
        let (turns, others) = subject.turns(beside.as_mut(), WARM_UP + TURNS).await?;
        let mut client = subject.to_provider().await?;
        let mut direct = Vec::new();
        for _ in 0..WARM_UP + TURNS {
            direct.push(subject.direct(&mut client).await?);
        }
        for (quantity, percent) in quantities.iter_mut().zip(PERCENTILES) {
            quantity.ours.samples.extend(first(&turns, percent));
            for (other, texts) in quantity.floors.iter_mut().zip([&direct, &others]) {
                other.samples.extend(first(texts, percent));
            }
        }
        subject.settle()?;
        beside.as_ref().map_or(Ok(()), Streaming::settle)?;
    }
    Ok(quantities.into())
}

/// When the first delta came, in milliseconds.
fn first(turns: &[Text], percent: usize) -> Option<f64> {
    let warm = turns.get(WARM_UP..)?.iter().map(|turn| turn.first.as_secs_f64() * 1_000.0);
    percentile(&warm.collect::<Vec<_>>(), percent)
}

fn quantity(wire: Wire, percent: usize, beside: bool) -> Quantity {
    let beside = beside.then(|| Subject::beside("the other build"));
    Quantity {
        what: format!("first delta p{percent}"),
        unit: Unit::Milliseconds,
        ours: Subject::new(format!("engine, {}", wire.name())),
        floors: std::iter::once(Subject::new("client to provider")).chain(beside).collect(),
        budget: (percent == 50).then_some(Budget::MostAboveFloor(1.0)),
    }
}
