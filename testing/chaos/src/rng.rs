//! Chance that can be repeated: every choice comes from the run's seed and a label.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A source of choices.
#[derive(Debug)]
pub(crate) struct SeededRng(fastrand::Rng);

impl SeededRng {
    /// The choices that belong to `label` in the run of `seed`.
    pub(crate) fn new(seed: u64, label: impl Hash) -> Self {
        Self(fastrand::Rng::with_seed(stable_hash((seed, label))))
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.0.f64() < probability
    }

    /// A number of the range.
    pub(crate) fn between(&mut self, range: RangeInclusive<u64>) -> u64 {
        self.0.u64(range)
    }

    /// A time of the range of milliseconds, in steps of a microsecond.
    pub(crate) fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_micros(self.0.u64(range.start() * 1_000..=range.end() * 1_000))
    }

    /// One of them; none where there is none.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        (!choices.is_empty()).then(|| self.0.usize(..choices.len())).and_then(|index| choices.get(index))
    }
}

/// A fingerprint that is the same in every run.
pub(crate) fn stable_hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
