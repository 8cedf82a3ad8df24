//! The counts of a run's events, and its violations.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Counts and violations, shared by all parts of a run.
#[derive(Debug, Default)]
pub struct Counters(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counts: BTreeMap<String, u64>,
    violations: Vec<String>,
    kills_until_first: Option<u64>,
}

/// The count of ends by SIGKILL.
pub const KILLS: &str = "kills";
/// How many violations are kept as text.
const MAX_KEPT_VIOLATIONS: usize = 50;

impl Counters {
    /// One more of `what`.
    pub fn count(&self, what: impl Into<String>) {
        self.add(what, 1);
    }

    /// `number` more of `what`.
    pub fn add(&self, what: impl Into<String>, number: u64) {
        *self.0.lock().counts.entry(what.into()).or_default() += number;
    }

    /// How often `what` happened.
    pub fn get(&self, what: &str) -> u64 {
        self.0.lock().counts.get(what).copied().unwrap_or_default()
    }

    /// Records that a guarantee was broken.
    pub fn record_violation(&self, what: impl Into<String>) {
        let mut inner = self.0.lock();
        let kills = inner.counts.get(KILLS).copied().unwrap_or_default();
        inner.kills_until_first.get_or_insert(kills);
        *inner.counts.entry("violations".into()).or_default() += 1;
        if inner.violations.len() < MAX_KEPT_VIOLATIONS {
            inner.violations.push(format!("after {kills} kills: {}", what.into()));
        }
    }

    /// The violations as text: only the first ones if there are many.
    pub fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }

    /// The number of kills when the first violation was found.
    pub fn kills_until_first(&self) -> Option<u64> {
        self.0.lock().kills_until_first
    }

    /// All counts.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().counts.clone()
    }

    /// Adds the counts of `other`.
    pub fn merge(&self, other: &Self) {
        let (counts, violations, first) = {
            let other = other.0.lock();
            (other.counts.clone(), other.violations.clone(), other.kills_until_first)
        };
        let mut inner = self.0.lock();
        for (what, number) in counts {
            *inner.counts.entry(what).or_default() += number;
        }
        inner.violations.extend(violations);
        inner.kills_until_first = inner.kills_until_first.or(first);
    }
}
