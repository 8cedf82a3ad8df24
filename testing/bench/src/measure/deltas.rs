//! Measures the rate of deltas through an engine when the provider sends them as fast as it can.
//!
//! An engine may merge deltas that follow closely, so they are counted by their content: each delta of the
//! provider is a distinct number.

use anyhow::ensure;

use crate::context::BenchContext;
use crate::provider::Wire;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::median;
use crate::streamed::TimedText;

use super::streaming::StreamingSetup;

const DELTAS_PER_TURN: u32 = 2_000;
/// The length of a delta, which is a number with leading zeros.
const DIGITS_PER_DELTA: usize = 4;
/// The number of streams per round.
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
    let mut comparison =
        StreamingSetup::start_comparison(bench, wire, &answer_text(DELTAS_PER_TURN), DIGITS_PER_DELTA)
            .await?;
    let mut quantity = quantity(wire, comparison.is_some());
    for round in 0..bench.rounds {
        bench.report_round(&format!("deltas, {}", wire.name()), round);
        let (turns, others) = subject.run_turns(comparison.as_mut(), STREAMS_PER_ROUND).await?;
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
        comparison.as_ref().map_or(Ok(()), StreamingSetup::finish_round)?;
    }
    Ok(quantity)
}

/// Returns the median of the deltas per second, from the request to the last delta, so including the turn's
/// overhead.
fn delta_rate(turns: &[TimedText]) -> anyhow::Result<Option<f64>> {
    let rates = turns.iter().map(|turn| Ok(f64::from(count_deltas(&turn.text)?) / turn.last.as_secs_f64()));
    Ok(median(&rates.collect::<anyhow::Result<Vec<_>>>()?))
}

fn quantity(wire: Wire, comparison: bool) -> Quantity {
    let comparison = comparison.then(|| Subject::comparison("the other build"));
    Quantity {
        name: "deltas".into(),
        unit: Unit::PerSecond,
        subject: Subject::new(format!("engine, {}", wire.name())),
        baselines: std::iter::once(Subject::new("client to provider")).chain(comparison).collect(),
        budget: Some(Budget::AtLeast(100_000.0)),
    }
}

/// Returns the text of a delta.
fn delta_text(number: u32) -> String {
    format!("{number:0DIGITS_PER_DELTA$}")
}

/// Returns the text of an answer with this many deltas.
fn answer_text(deltas: u32) -> String {
    (0..deltas).map(delta_text).collect::<Vec<_>>().concat()
}

/// Counts the provider's deltas in `text`, which may have been merged on their way.
///
/// # Errors
/// A delta is missing, repeated, out of order or cut off.
fn count_deltas(text: &str) -> anyhow::Result<u32> {
    let mut count = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let after = rest.strip_prefix(&delta_text(count));
        ensure!(after.is_some(), "delta {count} is missing or misplaced");
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
        // The boundaries of the received pieces make no difference.
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
