//! The gateway: which model answers, how often a failed call is tried again, and how the provider is doing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::engine::HEALTHY;

use super::config::NotConfigured;
use super::{ChatModel, ModelError, ModelErrorKind};

/// How many failures in a row make the provider unwell.
const UNWELL_AFTER: u32 = 3;

/// See the module.
pub struct Gateway {
    model: Result<Arc<dyn ChatModel>, NotConfigured>,
    failures: Mutex<Failures>,
}

/// The failures since the last success. Kept in memory: health spends no tokens and no writes.
#[derive(Default)]
struct Failures {
    in_a_row: u32,
    last: Option<String>,
}

impl Gateway {
    /// A gateway to `model`, or to none for the reason given.
    pub fn new(model: Result<Arc<dyn ChatModel>, NotConfigured>) -> Self {
        Self { model, failures: Mutex::default() }
    }

    /// The model to ask.
    ///
    /// # Errors
    /// None is configured.
    pub fn model(&self) -> Result<Arc<dyn ChatModel>, ModelError> {
        self.model.clone().map_err(ModelError::from)
    }

    /// Notes how a call went.
    pub fn note(&self, outcome: Result<(), &ModelError>) {
        let mut failures = self.failures();
        match outcome {
            Ok(()) => *failures = Failures::default(),
            // A request that the provider refuses says nothing about the provider.
            Err(error) if error.kind == ModelErrorKind::Refused => {}
            Err(error) => {
                failures.in_a_row += 1;
                failures.last = Some(error.message.clone());
            }
        }
    }

    /// `ok`, or what is wrong with the provider.
    pub fn status(&self) -> String {
        if let Err(reason) = &self.model {
            return reason.to_string();
        }
        let failures = self.failures();
        match &failures.last {
            Some(last) if failures.in_a_row >= UNWELL_AFTER => {
                format!("the last {} calls failed: {last}", failures.in_a_row)
            }
            _ => HEALTHY.to_owned(),
        }
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const MAX_ATTEMPTS: u32 = 5;
const MAX_ELAPSED: Duration = Duration::from_mins(1);
const BASE_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// A provider that wants to be left alone for longer than this is not waited for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The attempts at one model step.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// When the first attempt failed: a long answer that breaks off at its end is worth another try.
    failing_since: Option<Duration>,
    attempts: u32,
}

impl Retry {
    /// The first attempt is under way.
    pub const fn first() -> Self {
        Self { failing_since: None, attempts: 1 }
    }

    /// The number of the attempt under way, from 1.
    pub const fn attempt(&self) -> u32 {
        self.attempts
    }

    /// The attempt failed with `error` at `now`: how long to wait before the next one, or none to give up.
    /// `jitter`, from 0 to 1, spreads the attempts of many engines by ±20 %.
    pub fn after(&mut self, error: &ModelError, now: Duration, jitter: f64) -> Option<Duration> {
        if !matches!(error.kind, ModelErrorKind::Busy | ModelErrorKind::Broken)
            || self.attempts >= MAX_ATTEMPTS
        {
            return None;
        }
        let failing_since = *self.failing_since.get_or_insert(now);
        let delay = match error.retry_after {
            Some(wish) if wish > MAX_RETRY_AFTER => return None,
            Some(wish) => wish,
            None => {
                let doubled = BASE_DELAY.saturating_mul(1 << (self.attempts - 1).min(8));
                doubled.min(MAX_DELAY).mul_f64(0.8 + 0.4 * jitter.clamp(0.0, 1.0))
            }
        };
        if now.saturating_sub(failing_since) + delay > MAX_ELAPSED {
            return None;
        }
        self.attempts += 1;
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> ModelError {
        ModelError::new(ModelErrorKind::Busy, "busy")
    }

    #[test]
    fn delays_double_and_attempts_end() {
        let mut retry = Retry::first();
        let delays: Vec<_> = std::iter::from_fn(|| retry.after(&busy(), Duration::ZERO, 0.5)).collect();
        let expected = [500, 1_000, 2_000, 4_000].map(Duration::from_millis);
        assert_eq!(delays, expected);
        let mut retry = Retry::first();
        assert_eq!(retry.after(&busy(), Duration::ZERO, 0.0), Some(Duration::from_millis(400)));
        assert_eq!(retry.after(&busy(), Duration::from_mins(1), 0.0), None);
        // The minute begins with the first failure.
        assert!(Retry::first().after(&busy(), Duration::from_hours(1), 0.0).is_some());
    }

    #[test]
    fn the_providers_wish_is_honoured_up_to_half_a_minute() {
        let wish = |seconds| ModelError { retry_after: Some(Duration::from_secs(seconds)), ..busy() };
        let after = |seconds| Retry::first().after(&wish(seconds), Duration::ZERO, 0.5);
        assert_eq!(after(30), Some(Duration::from_secs(30)));
        assert_eq!(after(31), None);
    }

    #[test]
    fn what_cannot_pass_is_not_tried_again() {
        use ModelErrorKind::{Auth, Broken, NotConfigured, Quota, Refused};
        for kind in [Auth, NotConfigured, Quota, Refused] {
            let error = ModelError::new(kind, "no");
            assert_eq!(Retry::first().after(&error, Duration::ZERO, 0.5), None, "{kind:?}");
        }
        assert!(Retry::first().after(&ModelError::new(Broken, ""), Duration::ZERO, 0.5).is_some());
    }

    #[test]
    fn three_failures_in_a_row_are_unwell_and_one_success_mends() {
        let gateway =
            Gateway::new(Err(super::super::config::model(&std::collections::BTreeMap::new()).err().unwrap()));
        assert!(gateway.status().contains("LLM_PROVIDER"));
        let env = std::collections::BTreeMap::from([("LLM_PROVIDER".to_owned(), "scripted".to_owned())]);
        let gateway = Gateway::new(super::super::config::model(&env));
        for _ in 0..3 {
            assert_eq!(gateway.status(), HEALTHY);
            gateway.note(Err(&busy()));
            gateway.note(Err(&ModelError::new(ModelErrorKind::Refused, "bad request")));
        }
        assert!(gateway.status().contains("busy"));
        gateway.note(Ok(()));
        assert_eq!(gateway.status(), HEALTHY);
    }
}
