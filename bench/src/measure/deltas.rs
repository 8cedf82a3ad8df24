//! How many deltas pass through an engine when the provider sends them as fast as it can.
//!
//! An engine may merge deltas that follow closely, so they are counted by what they say: each delta of the
//! provider is a number of its own.

use anyhow::ensure;

use crate::bench::Bench;
use crate::provider::Wire;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::median;
use crate::told::Text;

use super::streaming::Streaming;

const DELTAS: u32 = 2_000;
/// The characters of one delta: a number with leading zeros.
const DIGITS: usize = 4;
/// Streams per round.
const STREAMS: usize = 5;

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let mut quantities = Vec::new();
    for wire in Wire::ALL {
        quantities.push(on(bench, wire).await?);
    }
    Ok(quantities)
}

async fn on(bench: &Bench, wire: Wire) -> anyhow::Result<Quantity> {
    let mut subject = Streaming::start(bench, wire, &numbers(DELTAS), DIGITS).await?;
    let mut beside = Streaming::start_beside(bench, wire, &numbers(DELTAS), DIGITS).await?;
    let mut quantity = quantity(wire, beside.is_some());
    for round in 0..bench.rounds {
        bench.progress(&format!("deltas, {}", wire.name()), round);
        let (turns, others) = subject.turns(beside.as_mut(), STREAMS).await?;
        let mut client = subject.to_provider().await?;
        let mut direct = Vec::new();
        for _ in 0..STREAMS {
            direct.push(subject.direct(&mut client).await?);
        }
        quantity.ours.samples.extend(rate(&turns)?);
        for (other, texts) in quantity.floors.iter_mut().zip([&direct, &others]) {
            other.samples.extend(rate(texts)?);
        }
        subject.settle()?;
        beside.as_ref().map_or(Ok(()), Streaming::settle)?;
    }
    Ok(quantity)
}

/// Deltas per second, from the request to the last of them: what the turn costs is in it.
fn rate(turns: &[Text]) -> anyhow::Result<Option<f64>> {
    let rates = turns.iter().map(|turn| Ok(f64::from(count(&turn.text)?) / turn.last.as_secs_f64()));
    Ok(median(&rates.collect::<anyhow::Result<Vec<_>>>()?))
}

fn quantity(wire: Wire, beside: bool) -> Quantity {
    let beside = beside.then(|| Subject::beside("the other build"));
    Quantity {
        what: "deltas".into(),
        unit: Unit::PerSecond,
        ours: Subject::new(format!("engine, {}", wire.name())),
        floors: std::iter::once(Subject::new("client to provider")).chain(beside).collect(),
        budget: Some(Budget::Least(100_000.0)),
    }
}

/// The text of a delta.
fn delta(number: u32) -> String {
    format!("{number:0DIGITS$}")
}

/// The text of an answer with this many deltas.
fn numbers(deltas: u32) -> String {
    (0..deltas).map(delta).collect::<Vec<_>>().concat()
}

/// How many deltas of the provider are in `text`, however they were merged on their way.
///
/// # Errors
/// One is missing, doubled, out of place or cut.
fn count(text: &str) -> anyhow::Result<u32> {
    let mut count = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let after = rest.strip_prefix(&delta(count));
        ensure!(after.is_some(), "delta {count} is not where it belongs");
        rest = after.unwrap_or_default();
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_deltas_are_counted_by_what_they_say() {
        assert_eq!(count(&numbers(2_000)).unwrap(), 2_000);
        // However the text was cut on its way, together it is the same.
        assert_eq!(count(&["00000001", "0002", "00030004"].concat()).unwrap(), 5);
        assert_eq!(count("").unwrap(), 0);
    }

    #[test]
    fn a_delta_that_is_missing_doubled_or_cut_is_an_error() {
        for (text, delta) in [("00000002", 1), ("000000000001", 1), ("0000000100", 2), ("00010000", 0)] {
            let error = count(text).unwrap_err().to_string();
            assert!(error.contains(&format!("delta {delta} ")), "{error}");
        }
    }
}
