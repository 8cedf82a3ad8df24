//! How many deltas pass through an engine when the provider sends them as fast as it can.
//!
//! An engine may merge deltas that follow closely, so they are counted by what they say: each delta of the
//! provider is a number of its own.

use anyhow::ensure;

use crate::context::BenchContext;
use crate::provider::Wire;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::median;
use crate::streamed::TimedText;

use super::streaming::StreamingSetup;

const DELTAS_PER_TURN: u32 = 2_000;
/// The characters of one delta: a number with leading zeros.
const DIGITS_PER_DELTA: usize = 4;
/// Streams per round.
const STREAMS_PER_ROUND: usize = 5;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let mut quantities = Vec::new();
    for wire in Wire::ALL {
        quantities.push(measure_wire(bench, wire).await?);
    }
    Ok(quantities)
}

async fn measure_wire(bench: &BenchContext, wire: Wire) -> anyhow::Result<Quantity> {
    let mut subject =
        StreamingSetup::start(bench, wire, &answer_text(DELTAS_PER_TURN), DIGITS_PER_DELTA).await?;
    let mut beside =
        StreamingSetup::start_comparison(bench, wire, &answer_text(DELTAS_PER_TURN), DIGITS_PER_DELTA)
            .await?;
    let mut quantity = quantity(wire, beside.is_some());
    for round in 0..bench.rounds {
        bench.report_round(&format!("deltas, {}", wire.name()), round);
        let (turns, others) = subject.run_turns(beside.as_mut(), STREAMS_PER_ROUND).await?;
        let mut client = subject.connect_to_provider().await?;
        let mut direct = Vec::new();
        for _ in 0..STREAMS_PER_ROUND {
            direct.push(subject.run_direct_turn(&mut client).await?);
        }
        quantity.subject.samples.extend(delta_rate(&turns)?);
        for (other, texts) in quantity.baselines.iter_mut().zip([&direct, &others]) {
            other.samples.extend(delta_rate(texts)?);
        }
        subject.finish_round()?;
        beside.as_ref().map_or(Ok(()), StreamingSetup::finish_round)?;
    }
    Ok(quantity)
}

/// Deltas per second, from the request to the last of them: what the turn costs is in it.
fn delta_rate(turns: &[TimedText]) -> anyhow::Result<Option<f64>> {
    let rates = turns.iter().map(|turn| Ok(f64::from(count_deltas(&turn.text)?) / turn.last.as_secs_f64()));
    Ok(median(&rates.collect::<anyhow::Result<Vec<_>>>()?))
}

fn quantity(wire: Wire, beside: bool) -> Quantity {
    let beside = beside.then(|| Subject::comparison("the other build"));
    Quantity {
        name: "deltas".into(),
        unit: Unit::PerSecond,
        subject: Subject::new(format!("engine, {}", wire.name())),
        baselines: std::iter::once(Subject::new("client to provider")).chain(beside).collect(),
        budget: Some(Budget::AtLeast(100_000.0)),
    }
}

/// The text of a delta.
fn delta_text(number: u32) -> String {
    format!("{number:0DIGITS_PER_DELTA$}")
}

/// The text of an answer with this many deltas.
fn answer_text(deltas: u32) -> String {
    (0..deltas).map(delta_text).collect::<Vec<_>>().concat()
}

/// How many deltas of the provider are in `text`, however they were merged on their way.
///
/// # Errors
/// One is missing, doubled, out of place or cut.
fn count_deltas(text: &str) -> anyhow::Result<u32> {
    let mut count = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let after = rest.strip_prefix(&delta_text(count));
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
        assert_eq!(count_deltas(&answer_text(2_000)).unwrap(), 2_000);
        // However the text was cut on its way, together it is the same.
        assert_eq!(count_deltas(&["00000001", "0002", "00030004"].concat()).unwrap(), 5);
        assert_eq!(count_deltas("").unwrap(), 0);
    }

    #[test]
    fn a_delta_that_is_missing_doubled_or_cut_is_an_error() {
        for (text, delta) in [("00000002", 1), ("000000000001", 1), ("0000000100", 2), ("00010000", 0)] {
            let error = count_deltas(text).unwrap_err().to_string();
            assert!(error.contains(&format!("delta {delta} ")), "{error}");
        }
    }
}
