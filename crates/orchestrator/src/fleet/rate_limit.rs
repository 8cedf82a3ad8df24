//! The rate limit on admits: an exact sliding window per product.
//!
//! In no period of 60 seconds are more admits of a product let through than its policy allows. The window is in
//! the memory of this process: a restart begins with an empty one.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use api::ProductId;
use parking_lot::Mutex;

const WINDOW: Duration = Duration::from_mins(1);

/// The admits of the last minute, for each product that has a limit.
#[derive(Default)]
pub(crate) struct RateLimiter {
    windows: Mutex<HashMap<ProductId, Window>>,
}

impl RateLimiter {
    /// Lets one admit of `product_id` through at `now` (monotonic), or returns when the next one may come.
    pub(crate) fn check(
        &self,
        product_id: ProductId,
        limit: Option<u64>,
        now: Duration,
    ) -> Result<(), OverLimit> {
        let Some(limit) = limit else { return Ok(()) };
        let mut windows = self.windows.lock();
        windows.entry(product_id).or_default().check(limit, now)
    }
}

/// The admit is over the limit. It is refused and not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverLimit {
    /// Whole seconds until an admit would pass; `None` if none ever will.
    pub(crate) retry_after_s: Option<u64>,
}

/// The times of the admits within the last window, oldest first.
#[derive(Debug, Default)]
struct Window {
    admitted: VecDeque<Duration>,
}

impl Window {
    fn check(&mut self, limit: u64, now: Duration) -> Result<(), OverLimit> {
        while self.admitted.front().is_some_and(|passed| now.saturating_sub(*passed) >= WINDOW) {
            self.admitted.pop_front();
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if self.admitted.len() < limit {
            self.admitted.push_back(now);
            return Ok(());
        }
        // An admit passes once fewer than `limit` are left: the limit may have been lowered since.
        let last_to_leave = self.admitted.len().checked_sub(limit).and_then(|at| self.admitted.get(at));
        let wait = last_to_leave.map(|passed| (*passed + WINDOW).saturating_sub(now));
        Err(OverLimit { retry_after_s: wait.map(whole_seconds) })
    }
}

/// Rounded up, so that a caller who waits that long is not refused again.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rule in its simplest form: look at every admit that ever passed.
    fn naive(passed: &mut Vec<Duration>, limit: u64, now: Duration) -> bool {
        let recent = passed.iter().filter(|at| now.saturating_sub(**at) < WINDOW).count();
        let let_through = recent < usize::try_from(limit).unwrap();
        if let_through {
            passed.push(now);
        }
        let_through
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_the_rule_and_its_advice_is_exact(
            calls in prop::collection::vec((0_u64..30_000, 0_u64..6), 1..200),
        ) {
            let (mut window, mut passed, mut now) = (Window::default(), Vec::new(), Duration::ZERO);
            for (wait_ms, limit) in calls {
                now += Duration::from_millis(wait_ms);
                let expected = naive(&mut passed, limit, now);
                match window.check(limit, now) {
                    Ok(()) => prop_assert!(expected),
                    Err(OverLimit { retry_after_s: None }) => prop_assert!(!expected && limit == 0),
                    Err(OverLimit { retry_after_s: Some(seconds) }) => {
                        prop_assert!(!expected && seconds > 0);
                        let advised = now + Duration::from_secs(seconds);
                        let earlier = advised.saturating_sub(Duration::from_secs(1));
                        prop_assert!(naive(&mut passed.clone(), limit, advised));
                        prop_assert!(!naive(&mut passed.clone(), limit, earlier));
                    }
                }
            }
        }
    }

    #[test]
    fn products_do_not_share_a_window_and_no_limit_keeps_none() {
        let limiter = RateLimiter::default();
        let (one, other, free) = (ProductId::new(), ProductId::new(), ProductId::new());
        assert!(limiter.check(one, Some(1), Duration::ZERO).is_ok());
        let over = limiter.check(one, Some(1), Duration::from_millis(500)).unwrap_err();
        assert_eq!(over.retry_after_s, Some(60));
        assert!(limiter.check(other, Some(1), Duration::ZERO).is_ok());
        for _ in 0..1_000 {
            assert!(limiter.check(free, None, Duration::ZERO).is_ok());
        }
        assert_eq!(limiter.windows.lock().len(), 2);
        let never = limiter.check(free, Some(0), Duration::ZERO).unwrap_err();
        assert_eq!(never.retry_after_s, None);
    }
}
