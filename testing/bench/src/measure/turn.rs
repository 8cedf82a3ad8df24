//! Measures the time from a turn's request to its first delta at the client.

use crate::context::BenchContext;
use crate::provider::Wire;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;
use crate::streamed::TimedText;

use super::streaming::{Message, StreamingSetup};

const TEXT: &str = "A short answer, as most answers in a conversation are: some twenty deltas long.";
const CHARS_PER_DELTA: usize = 4;
const TURNS_PER_ROUND: usize = 200;
/// The first turns of a new connection are not counted.
const WARM_UP: usize = 10;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let mut quantities = Vec::new();
    for wire in Wire::ALL {
        for message in [Message::Same, Message::Wordless, Message::Named] {
            quantities.extend(measure_wire(bench, wire, message).await?);
        }
    }
    Ok(quantities)
}

async fn measure_wire(bench: &BenchContext, wire: Wire, message: Message) -> anyhow::Result<Vec<Quantity>> {
    let subject = StreamingSetup::start(bench, wire, TEXT, CHARS_PER_DELTA).await?;
    let comparison = StreamingSetup::start_comparison(bench, wire, TEXT, CHARS_PER_DELTA).await?;
    let (mut subject, mut comparison) =
        (subject.with_message(message), comparison.map(|comparison| comparison.with_message(message)));
    let mut quantities: Vec<Quantity> = percentiles(message)
        .iter()
        .map(|percent| quantity(wire, message, *percent, comparison.is_some()))
        .collect();
    for round in 0..bench.rounds {
        bench.report_round(&format!("turn, {}{}", wire.name(), message_label(message)), round);
        let (turns, others) = subject.run_turns(comparison.as_mut(), WARM_UP + TURNS_PER_ROUND).await?;
        let direct = subject.run_direct_turns(WARM_UP + TURNS_PER_ROUND).await?;
        let comparison_direct = match &mut comparison {
            Some(comparison) => comparison.run_direct_turns(WARM_UP + TURNS_PER_ROUND).await?,
            None => Vec::new(),
        };
        for (quantity, percent) in quantities.iter_mut().zip(percentiles(message)) {
            quantity.subject.samples.extend(first_delta_ms(&turns, *percent));
            for (other, texts) in quantity.baselines.iter_mut().zip([&direct, &others, &comparison_direct]) {
                other.samples.extend(first_delta_ms(texts, *percent));
            }
        }
        subject.finish_round()?;
        comparison.as_ref().map_or(Ok(()), StreamingSetup::finish_round)?;
    }
    Ok(quantities)
}

/// Returns the label of turns with such messages.
const fn message_label(message: Message) -> &'static str {
    match message {
        Message::Same => "",
        Message::Wordless => ", nothing to search for",
        Message::Named => ", turns recalled",
    }
}

/// Returns the percentiles that are reported.
const fn percentiles(message: Message) -> &'static [usize] {
    match message {
        Message::Same => &[50, 99],
        Message::Wordless | Message::Named => &[50],
    }
}

/// Returns a percentile of the time to the first delta, in milliseconds, without the warm-up turns.
fn first_delta_ms(turns: &[TimedText], percent: usize) -> Option<f64> {
    let warm_times = turns.get(WARM_UP..)?.iter().map(|turn| turn.first.as_secs_f64() * 1_000.0);
    percentile(&warm_times.collect::<Vec<_>>(), percent)
}

fn quantity(wire: Wire, message: Message, percent: usize, comparison: bool) -> Quantity {
    // The other build may send different requests, which may take the provider a different time.
    let comparison =
        if comparison { &["the other build", "the other build's client to provider"][..] } else { &[] };
    let comparison = comparison.iter().map(|name| Subject::comparison(*name));
    Quantity {
        name: format!("first delta p{percent}{}", message_label(message)),
        unit: Unit::Milliseconds,
        subject: Subject::new(format!("engine, {}", wire.name())),
        baselines: std::iter::once(Subject::new("client to provider")).chain(comparison).collect(),
        budget: (percent == 50 && message == Message::Same).then_some(Budget::AboveBaseline(1.0)),
    }
}
