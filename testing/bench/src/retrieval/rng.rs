//! What makes one seed's life another than the next one's.

use fastrand::Rng;

/// Chance, the same for the same seed.
#[derive(Debug)]
pub(crate) struct SeededRng(Rng);

impl SeededRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// True so many times in a hundred.
    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.0.u32(0..100) < percent
    }

    /// A number below `end`; 0 where there is none.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { self.0.usize(0..end) }
    }

    /// From `from` to `to`, both of them possible.
    pub(crate) fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// A number from 0 to 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        self.0.f64()
    }

    /// One of several texts; nothing where there are none.
    pub(crate) fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of.get(self.below(of.len())).copied().unwrap_or_default()
    }

    /// One of the texts in a list with commas.
    pub(crate) fn pick_from_list<'a>(&mut self, list: &'a str) -> &'a str {
        let nth = self.below(list.split(", ").count());
        list.split(", ").nth(nth).unwrap_or_default()
    }
}
