//! The gateway: chooses the model for a request, decides on retries, and tracks the health of the models.

use std::sync::Arc;
use std::time::Duration;

use api::engine::HEALTHY;
use api::rpc::{CacheState, ModelState};
use http_service::backoff;
use parking_lot::Mutex;

use super::health::HealthTracker;
use super::usage_limits::UsageLimits;
use super::{ChatModel, ModelError, ModelErrorKind, NotConfigured, TokenUsage};

/// The prices of a model, in US dollars per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prices {
    /// Price of prompt tokens that were not served from a cache.
    pub input: f64,
    /// Price of output tokens.
    pub output: f64,
    /// Price of prompt tokens read from the cache.
    pub cache_read: f64,
    /// Price of prompt tokens written to the cache.
    pub cache_write: f64,
}

impl Prices {
    /// The cost of a call, in US dollars.
    #[expect(clippy::cast_precision_loss, reason = "no call has as many tokens as a double cannot count")]
    pub fn cost(&self, tokens: &TokenUsage) -> f64 {
        let uncached = tokens.input.saturating_sub(tokens.cache_read + tokens.cache_write);
        let parts = [
            (uncached, self.input),
            (tokens.output, self.output),
            (tokens.cache_read, self.cache_read),
            (tokens.cache_write, self.cache_write),
        ];
        parts.into_iter().map(|(count, price)| count as f64 * price / 1_000_000.0).sum()
    }

    /// The most that a call with a prompt and an answer of that many tokens costs, in US dollars.
    #[expect(clippy::cast_precision_loss, reason = "no call has as many tokens as a double cannot count")]
    pub fn highest_cost(&self, prompt: u64, output: u64) -> f64 {
        (prompt as f64 * self.uncached_input() + output as f64 * self.output) / 1_000_000.0
    }

    /// The price of prompt tokens none of which come from a cache.
    const fn uncached_input(&self) -> f64 {
        self.input.max(self.cache_write)
    }

    /// The most output tokens that `usd` US dollars pay for after a prompt of `prompt` tokens, none of which come from
    /// a cache.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the conversion to an integer saturates"
    )]
    pub fn affordable_output(&self, prompt: u64, usd: f64) -> u64 {
        let left = usd - prompt as f64 * self.uncached_input() / 1_000_000.0;
        if left <= 0.0 {
            0
        } else if self.output > 0.0 {
            (left * 1_000_000.0 / self.output) as u64
        } else {
            u64::MAX
        }
    }
}

/// Token budgets. An absent budget is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// The budget of one turn, including its sub-agents.
    pub tokens_per_turn: Option<u64>,
    /// The budget of any hour.
    pub tokens_per_hour: Option<u64>,
    /// The budget of any 24 hours.
    pub tokens_per_day: Option<u64>,
}

/// A configured model.
pub struct Route {
    /// The model's name in the configuration.
    pub name: String,
    /// The model itself.
    pub model: Arc<dyn ChatModel>,
    /// What the semantic conventions for traces call its provider.
    pub provider: &'static str,
    /// The context window in tokens, including the answer.
    pub context_window: u64,
    /// The output limit in tokens.
    pub max_output: u64,
    /// The prices, if they are known.
    pub prices: Option<Prices>,
}

/// An immutable gateway configuration: the models, and the rules for calling them.
pub struct Routes {
    /// The primary model, followed by its fallbacks in order. Never empty.
    pub chain: Vec<Arc<Route>>,
    /// The model that plans, if it is not the primary model.
    pub planner: Option<Arc<Route>>,
    /// The model that makes titles of conversations; none are made without it.
    pub titles: Option<Arc<Route>>,
    /// All models, by their names in the configuration.
    pub named: Vec<Arc<Route>>,
    /// How often and how long failed calls are retried.
    pub retry: RetryPolicy,
    /// The token budgets.
    pub budgets: Budgets,
    /// The caps on usage.
    pub caps: UsageLimits,
}

impl Routes {
    /// The vendor's name of the primary model.
    pub fn model_name(&self) -> &str {
        self.chain.first().map_or("none", |route| route.model.name())
    }

    /// Returns the model called `name` followed by the usual chain, or just the usual chain if there is no such
    /// model.
    pub fn chain_for(&self, name: Option<&str>) -> Vec<Arc<Route>> {
        let first = name.and_then(|name| self.named.iter().find(|route| route.name == name));
        let others = self.chain.iter().filter(|route| first.is_none_or(|first| first.name != route.name));
        first.into_iter().chain(others).cloned().collect()
    }
}

/// The models in use and their health. The configuration can be replaced while turns are running.
pub struct Gateway {
    state: Mutex<State>,
}

struct State {
    routes: Result<Arc<Routes>, NotConfigured>,
    health: HealthTracker,
}

impl Gateway {
    /// Creates a gateway with these models, or without any for the given reason.
    pub fn new(routes: Result<Routes, NotConfigured>) -> Self {
        let state = State { routes: routes.map(Arc::new), health: HealthTracker::default() };
        Self { state: Mutex::new(state) }
    }

    /// Replaces the configuration and resets the health. Model steps that are under way keep the one they began
    /// with.
    pub fn replace(&self, routes: Routes) {
        let mut state = self.state.lock();
        state.routes = Ok(Arc::new(routes));
        state.health.reset_health();
    }

    /// Returns the active configuration. A model step keeps the one it began with.
    ///
    /// # Errors
    /// [`ModelErrorKind::NotConfigured`] if there is none.
    pub fn routes(&self) -> Result<Arc<Routes>, ModelError> {
        self.state.lock().routes.clone().map_err(ModelError::from)
    }

    /// The context window of the primary model in tokens; 0 if none is configured.
    pub fn context_window(&self) -> u64 {
        self.routes().ok().and_then(|routes| Some(routes.chain.first()?.context_window)).unwrap_or_default()
    }

    /// Returns the primary model.
    ///
    /// # Errors
    /// [`ModelErrorKind::NotConfigured`] if there is none.
    pub fn model(&self) -> Result<Arc<dyn ChatModel>, ModelError> {
        let routes = self.routes()?;
        let first = routes.chain.first().map(|route| Arc::clone(&route.model));
        first.ok_or_else(|| ModelError::new(ModelErrorKind::NotConfigured, "no model is configured"))
    }

    /// Returns the models for a new turn: those of [`Routes::chain_for`], with models whose circuit is open moved
    /// to the end. `now` is monotonic.
    ///
    /// # Errors
    /// [`ModelErrorKind::NotConfigured`] if there are none.
    pub fn chain(&self, name: Option<&str>, now: Duration) -> Result<Vec<Arc<Route>>, ModelError> {
        let state = self.state.lock();
        let mut chain = state.routes.clone().map_err(ModelError::from)?.chain_for(name);
        chain.sort_by_key(|route| state.health.is_circuit_open(&route.name, now));
        Ok(chain)
    }

    /// Records the outcome of a call of `route` at `now`, which is monotonic. The outcome of a route that is no
    /// longer active is ignored for health: its name may belong to another model now.
    pub fn record_outcome(&self, route: &Route, outcome: Result<&TokenUsage, &ModelError>, now: Duration) {
        let mut state = self.state.lock();
        match outcome {
            Ok(tokens) => {
                state.health.record_usage(route.model.name(), tokens);
                if state.is_active(route) {
                    state.health.record_success(&route.name);
                }
            }
            // A request that the provider refuses says nothing about the provider.
            Err(error) if error.is_request_error() => {}
            Err(error) => {
                if state.is_active(route) {
                    state.health.record_failure(&route.name, error, now);
                }
            }
        }
    }

    /// Opens the circuit of `route` after its last attempt failed: for a while, new turns try the other models
    /// first.
    pub fn open_circuit(&self, route: &Route, now: Duration) {
        let mut state = self.state.lock();
        if state.is_active(route) {
            state.health.open_circuit(&route.name, now);
        }
    }

    /// Returns [`HEALTHY`], or what is wrong with the primary model.
    pub fn status(&self) -> String {
        let state = self.state.lock();
        let routes = match &state.routes {
            Ok(routes) => routes,
            Err(reason) => return reason.to_string(),
        };
        let first = routes.chain.first().and_then(|route| state.health.unhealthy_reason(&route.name));
        first.unwrap_or_else(|| HEALTHY.to_owned())
    }

    /// The health of the active models at `now`, which is monotonic.
    pub fn model_states(&self, now: Duration) -> Vec<ModelState> {
        let state = self.state.lock();
        let Ok(routes) = &state.routes else { return Vec::new() };
        let to_state = |route: &Arc<Route>| state.health.state(&route.name, route.model.name(), now);
        routes.named.iter().map(to_state).collect()
    }

    /// How many prompt tokens the providers' caches served.
    pub fn cache(&self) -> CacheState {
        self.state.lock().health.cache()
    }
}

impl State {
    fn is_active(&self, route: &Route) -> bool {
        let is_same = |known: &Arc<Route>| std::ptr::eq(Arc::as_ptr(known), route);
        self.routes.as_ref().is_ok_and(|routes| routes.named.iter().chain(&routes.chain).any(is_same))
    }
}

/// How often and for how long a failed call of one model is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The maximum number of attempts.
    pub max_attempts: u32,
    /// How long after the first failure another attempt may begin.
    pub max_elapsed: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 5, max_elapsed: Duration::from_mins(1) }
    }
}

/// The maximum number of attempts if a model's answers are empty.
const MAX_EMPTY_ATTEMPTS: u32 = 2;

const BASE_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// A provider that asks for a longer delay than this is not waited for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The state of the attempts to get one answer from one model.
#[derive(Clone, Copy, Debug)]
pub struct RetryState {
    policy: RetryPolicy,
    /// When the first attempt failed. The time before it does not count, so that a long answer that breaks off at
    /// its end is retried.
    failing_since: Option<Duration>,
    attempts: u32,
}

impl RetryState {
    /// Begins with the first attempt under way.
    pub const fn new(policy: RetryPolicy) -> Self {
        Self { policy, failing_since: None, attempts: 1 }
    }

    /// The number of the attempt under way, from 1.
    pub const fn attempt(&self) -> u32 {
        self.attempts
    }

    /// Records that the attempt failed with `error` at `now`. Returns the delay before the next attempt, or `None`
    /// to give up. `jitter`, from 0 to 1, spreads the attempts of many engines by ±20 %.
    pub fn next_delay(&mut self, error: &ModelError, now: Duration, jitter: f64) -> Option<Duration> {
        let max_attempts = match error.kind {
            ModelErrorKind::Busy | ModelErrorKind::Broken => self.policy.max_attempts,
            // A second attempt is billed as well, and its result most likely predicts that of a third.
            ModelErrorKind::Empty => self.policy.max_attempts.min(MAX_EMPTY_ATTEMPTS),
            _ => return None,
        };
        if self.attempts >= max_attempts {
            return None;
        }
        let failing_since = *self.failing_since.get_or_insert(now);
        let delay = match error.retry_after {
            Some(requested) if requested > MAX_RETRY_AFTER => return None,
            Some(requested) => requested,
            None => backoff::delay(BASE_DELAY, MAX_DELAY, self.attempts - 1, jitter),
        };
        if now.saturating_sub(failing_since) + delay > self.policy.max_elapsed {
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
        let mut retry = RetryState::new(RetryPolicy::default());
        let delays: Vec<_> = std::iter::from_fn(|| retry.next_delay(&busy(), Duration::ZERO, 0.5)).collect();
        let expected = [500, 1_000, 2_000, 4_000].map(Duration::from_millis);
        assert_eq!(delays, expected);
        let mut retry = RetryState::new(RetryPolicy::default());
        assert_eq!(retry.next_delay(&busy(), Duration::ZERO, 0.0), Some(Duration::from_millis(400)));
        assert_eq!(retry.next_delay(&busy(), Duration::from_mins(1), 0.0), None);
        // The minute begins with the first failure.
        assert!(
            RetryState::new(RetryPolicy::default())
                .next_delay(&busy(), Duration::from_hours(1), 0.0)
                .is_some()
        );
    }

    #[test]
    fn the_providers_wish_is_honoured_up_to_half_a_minute() {
        let error_with_delay =
            |seconds| ModelError { retry_after: Some(Duration::from_secs(seconds)), ..busy() };
        let next_delay_for = |seconds| {
            RetryState::new(RetryPolicy::default()).next_delay(
                &error_with_delay(seconds),
                Duration::ZERO,
                0.5,
            )
        };
        assert_eq!(next_delay_for(30), Some(Duration::from_secs(30)));
        assert_eq!(next_delay_for(31), None);
    }

    #[test]
    fn what_cannot_pass_is_not_tried_again() {
        use ModelErrorKind::{Auth, Broken, NotConfigured, Quota, Refused};
        for kind in [Auth, NotConfigured, Quota, Refused] {
            let error = ModelError::new(kind, "no");
            assert_eq!(
                RetryState::new(RetryPolicy::default()).next_delay(&error, Duration::ZERO, 0.5),
                None,
                "{kind:?}"
            );
        }
        assert!(
            RetryState::new(RetryPolicy::default())
                .next_delay(&ModelError::new(Broken, ""), Duration::ZERO, 0.5)
                .is_some()
        );
    }
}

#[cfg(test)]
#[path = "../tests/unit/gateway.rs"]
mod gateway_tests;
