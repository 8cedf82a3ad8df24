//! Measures turns through the other protocols that an engine speaks, beside the same turns through `/execute`.

use anyhow::ensure;

use crate::context::BenchContext;
use crate::front::Front;
use crate::provider::Wire;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::median;
use crate::streamed::TimedText;

use super::streaming::StreamingSetup;

const SHORT_TEXT: &str = "A short answer, as most answers in a conversation are: some twenty deltas long.";
const SHORT_TURNS: usize = 100;
/// The first turns of a new connection are not counted.
const WARM_UP: usize = 10;
const CHARS_PER_DELTA: usize = 4;
const DELTAS: u32 = 2_000;
const LONG_TURNS: usize = 5;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let mut quantities = Vec::new();
    for front in Front::ALL {
        quantities.push(measure_first_delta(bench, front).await?);
        quantities.push(measure_rate(bench, front).await?);
    }
    Ok(quantities)
}

async fn measure_first_delta(bench: &BenchContext, front: Front) -> anyhow::Result<Quantity> {
    let mut setup = StreamingSetup::start(bench, Wire::Anthropic, SHORT_TEXT, CHARS_PER_DELTA).await?;
    let budget = Budget::AboveBaseline(0.3);
    let mut quantity = quantity("front, first delta", Unit::Milliseconds, front.path(), budget);
    for round in 0..bench.rounds {
        bench.report_round(&format!("first delta, {}", front.path()), round);
        let (fronts, turns) = run_both(&mut setup, front, WARM_UP + SHORT_TURNS).await?;
        add_samples(&mut quantity, [&fronts, &turns], |turns| {
            let warm = turns.get(WARM_UP..)?.iter().map(|turn| turn.first.as_secs_f64() * 1_000.0);
            median(&warm.collect::<Vec<_>>())
        });
        setup.finish_round()?;
    }
    Ok(quantity)
}

async fn measure_rate(bench: &BenchContext, front: Front) -> anyhow::Result<Quantity> {
    let text = (0..DELTAS).map(|number| format!("{number:04}")).collect::<Vec<_>>().concat();
    let mut setup = StreamingSetup::start(bench, Wire::Anthropic, &text, CHARS_PER_DELTA).await?;
    let mut quantity =
        quantity("front, deltas", Unit::PerSecond, front.path(), Budget::AtLeastTimesBaseline(0.8));
    for round in 0..bench.rounds {
        bench.report_round(&format!("deltas, {}", front.path()), round);
        let (fronts, turns) = run_both(&mut setup, front, LONG_TURNS).await?;
        add_samples(&mut quantity, [&fronts, &turns], |turns| {
            let rates = turns.iter().map(|turn| f64::from(DELTAS) / turn.last.as_secs_f64());
            median(&rates.collect::<Vec<_>>())
        });
        setup.finish_round()?;
    }
    Ok(quantity)
}

/// Runs turns through a front and through `/execute`, alternately; the text of each is checked.
async fn run_both(
    setup: &mut StreamingSetup,
    front: Front,
    count: usize,
) -> anyhow::Result<(Vec<TimedText>, Vec<TimedText>)> {
    let (mut client, mut other) = (setup.connect().await?, setup.connect().await?);
    let (mut fronts, mut turns) = (Vec::new(), Vec::new());
    for _ in 0..count {
        fronts.push(setup.run_front_turn(&mut client, front).await?);
        turns.push(setup.run_turn(&mut other).await?);
    }
    ensure!(fronts.len() == turns.len(), "a turn is missing");
    Ok((fronts, turns))
}

fn add_samples(
    quantity: &mut Quantity,
    [fronts, turns]: [&[TimedText]; 2],
    sample: impl Fn(&[TimedText]) -> Option<f64>,
) {
    quantity.subject.samples.extend(sample(fronts));
    if let Some(other) = quantity.baselines.first_mut() {
        other.samples.extend(sample(turns));
    }
}

fn quantity(name: &str, unit: Unit, path: &str, budget: Budget) -> Quantity {
    Quantity {
        name: name.into(),
        unit,
        subject: Subject::new(path),
        baselines: vec![Subject::comparison("/execute")],
        budget: Some(budget),
    }
}
