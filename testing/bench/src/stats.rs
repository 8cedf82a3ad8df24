//! Statistics over samples: median, percentiles, spread. None of them assumes a distribution.

use serde::Serialize;

/// The summary of a set of samples that is printed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Returns the spread of `samples`, or `None` if there are none.
pub(crate) fn spread(samples: &[f64]) -> Option<Spread> {
    let sorted = sorted(samples);
    Some(Spread { median: median_of_sorted(&sorted)?, min: *sorted.first()?, max: *sorted.last()? })
}

/// Returns the median, which is the mean of the two middle samples if their number is even; `None` without
/// samples.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    median_of_sorted(&sorted(samples))
}

/// Returns the percentile by nearest rank: the smallest sample that at least `percent` percent of all samples do
/// not exceed. It is always a measured value; `None` without samples.
pub(crate) fn percentile(samples: &[f64], percent: usize) -> Option<f64> {
    let rank = (samples.len() * percent.min(100)).div_ceil(100);
    sorted(samples).get(rank.saturating_sub(1)).copied()
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(sorted.len() / 2 - 1)?;
    Some(f64::midpoint(lower, upper))
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "the results are samples or exact means")]
    fn medians_stand_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]).unwrap(), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]).unwrap(), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]).unwrap(), 3.0);
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the results are samples")]
    fn percentiles_are_samples_by_nearest_rank() {
        let hundred: Vec<f64> = (1..=100_u32).rev().map(f64::from).collect();
        for (percent, expected) in [(0, 1.0), (1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0), (200, 100.0)] {
            assert_eq!(percentile(&hundred, percent).unwrap(), expected, "{percent}");
        }
        assert_eq!(percentile(&[5.0, 7.0], 99).unwrap(), 7.0);
        assert_eq!(percentile(&[5.0, 7.0], 50).unwrap(), 5.0);
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn a_spread_has_both_ends() {
        let expected = Spread { median: 2.0, min: 1.0, max: 40.0 };
        assert_eq!(spread(&[2.0, 40.0, 1.0]), Some(expected));
        assert_eq!(spread(&[]), None);
    }
}
