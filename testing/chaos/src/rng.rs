//! Reproducible random choices, derived from the run's seed and a label.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A seeded random number generator.
#[derive(Debug)]
pub(crate) struct SeededRng(fastrand::Rng);

impl SeededRng {
    /// Creates the generator for `label` in the run with `seed`.
    pub(crate) fn new(seed: u64, label: impl Hash) -> Self {
        Self(fastrand::Rng::with_seed(stable_hash((seed, label))))
    }

    /// Returns true with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.0.f64() < probability
    }

    /// Returns a number in the range.
    pub(crate) fn between(&mut self, range: RangeInclusive<u64>) -> u64 {
        self.0.u64(range)
    }

    /// Returns a duration in the range of milliseconds, with microsecond resolution.
    pub(crate) fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_micros(self.0.u64(range.start() * 1_000..=range.end() * 1_000))
    }

    /// Returns one of the choices; `None` if there are none.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        (!choices.is_empty()).then(|| self.0.usize(..choices.len())).and_then(|index| choices.get(index))
    }
}

/// Returns a hash that is the same in every run.
pub(crate) fn stable_hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
