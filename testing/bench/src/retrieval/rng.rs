//! The random number generator from which corpora are generated.

use fastrand::Rng;

/// A generator that returns the same sequence for the same seed.
#[derive(Debug)]
pub(crate) struct SeededRng(Rng);

impl SeededRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// Returns true with a probability of `percent` percent.
    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.0.u32(0..100) < percent
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { self.0.usize(0..end) }
    }

    /// Returns a number from `from` to `to`, both inclusive.
    pub(crate) fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// Returns one of the texts; an empty one if there are none.
    pub(crate) fn pick<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts.get(self.below(texts.len())).copied().unwrap_or_default()
    }

    /// Returns one of the texts in a comma-separated list.
    pub(crate) fn pick_from_list<'a>(&mut self, list: &'a str) -> &'a str {
        let nth = self.below(list.split(", ").count());
        list.split(", ").nth(nth).unwrap_or_default()
    }
}
