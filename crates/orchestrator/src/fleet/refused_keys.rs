//! Log lines about keys that were refused, so that an operator sees who tries keys. Whoever tries many fills no log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// So many lines are written in each period; of further keys only their number is.
const MOST_LINES: u64 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// Which keys were refused lately.
#[derive(Default)]
pub(super) struct RefusedKeys {
    period: Mutex<Period>,
}

#[derive(Default)]
struct Period {
    begun: Duration,
    refused: u64,
}

impl RefusedKeys {
    /// Logs that the key in `header` was refused. The line stands in the request's span, which has the client's address.
    pub(super) fn log(&self, header: &'static str, now: Duration) {
        let unlogged = self.period.lock().unwrap_or_else(PoisonError::into_inner).add(now);
        if let Some(unlogged) = unlogged {
            tracing::warn!(header, unlogged, "A key was refused.");
        }
    }
}

impl Period {
    /// Counts one more; if a line is to be written of it, how many before it have had none since the last line.
    fn add(&mut self, now: Duration) -> Option<u64> {
        let mut unlogged = 0;
        if now.saturating_sub(self.begun) >= PERIOD {
            unlogged = self.refused.saturating_sub(MOST_LINES);
            *self = Self { begun: now, refused: 0 };
        }
        self.refused += 1;
        (self.refused <= MOST_LINES).then_some(unlogged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_in_each_period_and_the_number_of_the_others_in_the_next() {
        let mut period = Period::default();
        let lines = |period: &mut Period, seconds, keys: usize| {
            (0..keys).filter_map(|_| period.add(Duration::from_secs(seconds))).collect::<Vec<_>>()
        };
        assert_eq!(lines(&mut period, 1, 1_000), [0; 10]);
        assert!(lines(&mut period, 9, 3).is_empty());
        assert_eq!(lines(&mut period, 10, 2), [993, 0]);
        assert_eq!(lines(&mut period, 100, 1), [0]);
    }
}
