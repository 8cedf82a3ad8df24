//! Failures of the export in the log: at most one line a minute, however many there are.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The least time between two lines.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Counts failures and says when to log them.
#[derive(Debug, Default)]
pub(crate) struct LoggedFailures(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Those that no line has counted yet.
    uncounted: u64,
    logged_at: Option<Instant>,
}

impl LoggedFailures {
    /// Counts a failure; logs it if a minute has passed since the last line.
    pub(crate) fn record(&self, reason: &str) {
        if let Some(failures) = self.count(Instant::now()) {
            tracing::warn!(
                reason,
                failures,
                "Spans could not be exported; those of failed batches are lost."
            );
        }
    }

    /// Counts a failure at `now`; returns the number of those to log.
    fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        state.uncounted += 1;
        let is_due = state.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        is_due.then(|| {
            state.logged_at = Some(now);
            std::mem::take(&mut state.uncounted)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_one_line_that_counts_all() {
        let (failures, start) = (LoggedFailures::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(failures.count(start), Some(1));
        assert_eq!(failures.count(start + second), None);
        assert_eq!(failures.count(start + 59 * second), None);
        assert_eq!(failures.count(start + 60 * second), Some(3));
        assert_eq!(failures.count(start + 61 * second), None);
    }
}
