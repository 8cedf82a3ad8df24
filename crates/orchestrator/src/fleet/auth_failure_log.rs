//! Log lines about keys that were refused, so that an operator sees who tries keys. Whoever tries many fills no log.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A period begins with a refusal, and has one line for each address, of so many addresses at most.
const LOG_PERIOD: Duration = Duration::from_secs(10);
const MAX_LOGGED_ADDRESSES: usize = 10;

/// The refusals of the present period.
#[derive(Default)]
pub(super) struct AuthFailureLog {
    period: Mutex<Period>,
}

#[derive(Default)]
struct Period {
    /// None before the first refusal.
    started_at: Option<Duration>,
    addresses: BTreeSet<Option<IpAddr>>,
    suppressed: u64,
}

/// What is to be logged of a refusal.
#[derive(Debug, PartialEq, Eq)]
struct LogDecision {
    /// The refusal itself.
    log_this: bool,
    /// How many had no line of their own in the period that it ends.
    suppressed: u64,
}

impl AuthFailureLog {
    /// Logs that the key in `header` was refused. The line stands in the request's span, which has its client's address.
    pub(super) fn log(&self, header: &'static str, client: Option<IpAddr>, now: Duration) {
        let lines = self.period.lock().unwrap_or_else(PoisonError::into_inner).record(client, now);
        if lines.suppressed > 0 {
            let unlogged = lines.suppressed;
            tracing::warn!(parent: None, unlogged, "More keys were refused before, of the same addresses or of many.");
        }
        if lines.log_this {
            tracing::warn!(header, "A key was refused.");
        }
    }
}

impl Period {
    fn record(&mut self, client: Option<IpAddr>, now: Duration) -> LogDecision {
        let mut before = 0;
        if self.started_at.is_none_or(|began| now.saturating_sub(began) >= LOG_PERIOD) {
            before = self.suppressed;
            *self = Self { started_at: Some(now), ..Self::default() };
        }
        let itself = self.addresses.len() < MAX_LOGGED_ADDRESSES && self.addresses.insert(client);
        self.suppressed += u64::from(!itself);
        LogDecision { log_this: itself, suppressed: before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_a_line_in_a_period_and_the_rest_a_number() {
        let mut period = Period::default();
        let mut at = |seconds, last| {
            period.record(Some(IpAddr::from([192, 0, 2, last])), Duration::from_secs(seconds))
        };
        assert_eq!(at(3, 1), LogDecision { log_this: true, suppressed: 0 });
        for _ in 0..1_000 {
            assert_eq!(at(4, 1), LogDecision { log_this: false, suppressed: 0 });
        }
        // Who tries few is seen beside who tries many.
        assert_eq!(at(5, 2), LogDecision { log_this: true, suppressed: 0 });
        for last in 3..=10 {
            assert_eq!(at(6, last), LogDecision { log_this: true, suppressed: 0 });
        }
        assert_eq!(at(12, 11), LogDecision { log_this: false, suppressed: 0 });
        assert_eq!(at(13, 1), LogDecision { log_this: true, suppressed: 1_001 });
        assert_eq!(at(99, 1), LogDecision { log_this: true, suppressed: 0 });
    }
}
