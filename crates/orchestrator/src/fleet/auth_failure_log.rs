//! Log lines about refused keys, which show an operator who is trying keys. They are limited, so that many
//! attempts do not fill the log.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

/// The length of a period, which begins with a refusal, and the number of client addresses that get a line of
/// their own in it.
const LOG_PERIOD: Duration = Duration::from_secs(10);
const MAX_LOGGED_ADDRESSES: usize = 10;

/// The refusals of the current period.
#[derive(Default)]
pub(super) struct AuthFailureLog {
    period: Mutex<Period>,
}

#[derive(Default)]
struct Period {
    /// When the current period began; `None` before the first refusal.
    started_at: Option<Duration>,
    addresses: BTreeSet<Option<IpAddr>>,
    suppressed: u64,
}

/// What to log about a refusal.
#[derive(Debug, PartialEq, Eq)]
struct LogDecision {
    /// Whether the refusal itself is logged.
    log_this: bool,
    /// How many refusals of the period that this one ended were not logged.
    suppressed: u64,
}

impl AuthFailureLog {
    /// Logs that the key in `header` was refused. The line is logged in the request's span, which names the
    /// client's address.
    pub(super) fn log(&self, header: &'static str, client: Option<IpAddr>, now: Duration) {
        let decision = self.period.lock().record(client, now);
        if decision.suppressed > 0 {
            let suppressed = decision.suppressed;
            tracing::warn!(parent: None, suppressed, "More keys were refused in the previous period.");
        }
        if decision.log_this {
            tracing::warn!(header, "A key was refused.");
        }
    }
}

impl Period {
    fn record(&mut self, client: Option<IpAddr>, now: Duration) -> LogDecision {
        let mut suppressed = 0;
        if self.started_at.is_none_or(|start| now.saturating_sub(start) >= LOG_PERIOD) {
            suppressed = self.suppressed;
            *self = Self { started_at: Some(now), ..Self::default() };
        }
        let log_this = self.addresses.len() < MAX_LOGGED_ADDRESSES && self.addresses.insert(client);
        self.suppressed += u64::from(!log_this);
        LogDecision { log_this, suppressed }
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
        // A client with few attempts is logged next to one with many.
        assert_eq!(at(5, 2), LogDecision { log_this: true, suppressed: 0 });
        for last in 3..=10 {
            assert_eq!(at(6, last), LogDecision { log_this: true, suppressed: 0 });
        }
        assert_eq!(at(12, 11), LogDecision { log_this: false, suppressed: 0 });
        assert_eq!(at(13, 1), LogDecision { log_this: true, suppressed: 1_001 });
        assert_eq!(at(99, 1), LogDecision { log_this: true, suppressed: 0 });
    }
}
