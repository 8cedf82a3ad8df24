//! The time from a turn's request to its first delta at the client.

use crate::bench::Bench;
use crate::provider::Wire;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;
use crate::told::Text;

use super::streaming::{Message, Streaming};

const TEXT: &str = "A short answer, as most answers in a conversation are: some twenty deltas long.";
const CHARS_PER_DELTA: usize = 4;
const TURNS: usize = 200;
/// What a new connection's first turns cost is not looked at.
const WARM_UP: usize = 10;

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let mut quantities = Vec::new();
    for wire in Wire::ALL {
        for message in [Message::Same, Message::Wordless, Message::Named] {
            quantities.extend(of(bench, wire, message).await?);
        }
    }
    Ok(quantities)
}

async fn of(bench: &Bench, wire: Wire, message: Message) -> anyhow::Result<Vec<Quantity>> {
    let subject = Streaming::start(bench, wire, TEXT, CHARS_PER_DELTA).await?;
    let beside = Streaming::start_beside(bench, wire, TEXT, CHARS_PER_DELTA).await?;
    let (mut subject, mut beside) = (subject.saying(message), beside.map(|beside| beside.saying(message)));
    let mut quantities: Vec<Quantity> = percentiles(message)
        .iter()
        .map(|percent| quantity(wire, message, *percent, beside.is_some()))
        .collect();
    for round in 0..bench.rounds {
        bench.progress(&format!("turn, {}{}", wire.name(), told(message)), round);
        let (turns, others) = subject.turns(beside.as_mut(), WARM_UP + TURNS).await?;
        let direct = subject.directly(WARM_UP + TURNS).await?;
        let direct_beside = match &mut beside {
            Some(beside) => beside.directly(WARM_UP + TURNS).await?,
            None => Vec::new(),
        };
        for (quantity, percent) in quantities.iter_mut().zip(percentiles(message)) {
            quantity.ours.samples.extend(first(&turns, *percent));
            for (other, texts) in quantity.floors.iter_mut().zip([&direct, &others, &direct_beside]) {
                other.samples.extend(first(texts, *percent));
            }
        }
        subject.settle()?;
        beside.as_ref().map_or(Ok(()), Streaming::settle)?;
    }
    Ok(quantities)
}

/// What a report says of turns with such a message.
const fn told(message: Message) -> &'static str {
    match message {
        Message::Same => "",
        Message::Wordless => ", nothing to search for",
        Message::Named => ", turns recalled",
    }
}

/// What is reported of them.
const fn percentiles(message: Message) -> &'static [usize] {
    match message {
        Message::Same => &[50, 99],
        Message::Wordless | Message::Named => &[50],
    }
}

/// When the first delta came, in milliseconds.
fn first(turns: &[Text], percent: usize) -> Option<f64> {
    let warm = turns.get(WARM_UP..)?.iter().map(|turn| turn.first.as_secs_f64() * 1_000.0);
    percentile(&warm.collect::<Vec<_>>(), percent)
}

fn quantity(wire: Wire, message: Message, percent: usize, beside: bool) -> Quantity {
    // The other build may send the provider something else, which costs the provider something else.
    let beside = if beside { &["the other build", "the other build's client to provider"][..] } else { &[] };
    let beside = beside.iter().map(|name| Subject::beside(*name));
    Quantity {
        what: format!("first delta p{percent}{}", told(message)),
        unit: Unit::Milliseconds,
        ours: Subject::new(format!("engine, {}", wire.name())),
        floors: std::iter::once(Subject::new("client to provider")).chain(beside).collect(),
        budget: (percent == 50 && message == Message::Same).then_some(Budget::MostAboveFloor(1.0)),
    }
}
