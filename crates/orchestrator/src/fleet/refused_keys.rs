//! Log lines about keys that were refused, so that an operator sees who tries keys. Whoever tries many fills no log.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A period begins with a refusal, and has one line for each address, of so many addresses at most.
const PERIOD: Duration = Duration::from_secs(10);
const ADDRESSES: usize = 10;

/// The refusals of the present period.
#[derive(Default)]
pub(super) struct RefusedKeys {
    period: Mutex<Period>,
}

#[derive(Default)]
struct Period {
    /// None before the first refusal.
    began: Option<Duration>,
    addresses: BTreeSet<Option<IpAddr>>,
    unlogged: u64,
}

/// What is to be logged of a refusal.
#[derive(Debug, PartialEq, Eq)]
struct Lines {
    /// The refusal itself.
    itself: bool,
    /// How many had no line of their own in the period that it ends.
    unlogged: u64,
}

impl RefusedKeys {
    /// Logs that the key in `header` was refused. The line stands in the request's span, which has its client's address.
    pub(super) fn log(&self, header: &'static str, client: Option<IpAddr>, now: Duration) {
        let lines = self.period.lock().unwrap_or_else(PoisonError::into_inner).add(client, now);
        if lines.unlogged > 0 {
            let unlogged = lines.unlogged;
            tracing::warn!(parent: None, unlogged, "More keys were refused before, of the same addresses or of many.");
        }
        if lines.itself {
            tracing::warn!(header, "A key was refused.");
        }
    }
}

impl Period {
    fn add(&mut self, client: Option<IpAddr>, now: Duration) -> Lines {
        let mut before = 0;
        if self.began.is_none_or(|began| now.saturating_sub(began) >= PERIOD) {
            before = self.unlogged;
            *self = Self { began: Some(now), ..Self::default() };
        }
        let itself = self.addresses.len() < ADDRESSES && self.addresses.insert(client);
        self.unlogged += u64::from(!itself);
        Lines { itself, unlogged: before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_a_line_in_a_period_and_the_rest_a_number() {
        let mut period = Period::default();
        let mut at =
            |seconds, last| period.add(Some(IpAddr::from([192, 0, 2, last])), Duration::from_secs(seconds));
        assert_eq!(at(3, 1), Lines { itself: true, unlogged: 0 });
        for _ in 0..1_000 {
            assert_eq!(at(4, 1), Lines { itself: false, unlogged: 0 });
        }
        // Who tries few is seen beside who tries many.
        assert_eq!(at(5, 2), Lines { itself: true, unlogged: 0 });
        for last in 3..=10 {
            assert_eq!(at(6, last), Lines { itself: true, unlogged: 0 });
        }
        assert_eq!(at(12, 11), Lines { itself: false, unlogged: 0 });
        assert_eq!(at(13, 1), Lines { itself: true, unlogged: 1_001 });
        assert_eq!(at(99, 1), Lines { itself: true, unlogged: 0 });
    }
}
