//! The gateway: which model answers, how often a failed call is tried again, and how the provider is doing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::engine::HEALTHY;
use contract::rpc::{CacheState, ModelState};

use super::config::NotConfigured;
use super::health::HealthTracker;
use super::{ChatModel, ModelError, ModelErrorKind, TokenUsage};

/// What a model costs, in US dollars per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prices {
    /// Of the prompt's tokens that no cache served.
    pub input: f64,
    /// Of the answer's tokens.
    pub output: f64,
    /// Of the prompt's tokens that were read from the cache.
    pub cache_read: f64,
    /// Of the prompt's tokens that were written to the cache.
    pub cache_write: f64,
}

impl Prices {
    /// What a call costs, in US dollars.
    #[expect(clippy::cast_precision_loss, reason = "no call has as many tokens as a double cannot count")]
    pub fn cost(&self, tokens: &TokenUsage) -> f64 {
        let fresh = tokens.input.saturating_sub(tokens.cache_read + tokens.cache_write);
        let parts = [
            (fresh, self.input),
            (tokens.output, self.output),
            (tokens.cache_read, self.cache_read),
            (tokens.cache_write, self.cache_write),
        ];
        parts.into_iter().map(|(count, price)| count as f64 * price / 1_000_000.0).sum()
    }
}

/// How many tokens may be spent. What is absent has no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// In one turn, its sub-agents included.
    pub tokens_per_turn: Option<u64>,
    /// In any hour.
    pub tokens_per_hour: Option<u64>,
    /// In any 24 hours.
    pub tokens_per_day: Option<u64>,
}

/// A model that can be asked.
pub struct Route {
    /// What the configuration calls it.
    pub name: String,
    /// The model.
    pub model: Arc<dyn ChatModel>,
    /// How many tokens a conversation with it may have, the answer included.
    pub context_window: u64,
    /// The most tokens that an answer may have.
    pub max_output: u64,
    /// What it costs, where that is known.
    pub prices: Option<Prices>,
}

/// The models that can be asked, and the rules for asking them: one configuration, which never changes.
pub struct Routes {
    /// The model that answers, then those that stand in for it, in their order. Never empty.
    pub chain: Vec<Arc<Route>>,
    /// The model that plans, where it is another one than the one that answers.
    pub planner: Option<Arc<Route>>,
    /// All models by their names.
    pub named: Vec<Arc<Route>>,
    /// How often a failed call is tried again.
    pub retry: RetryPolicy,
    /// How much may be spent.
    pub budgets: Budgets,
}

impl Routes {
    /// The name of the model that answers.
    pub fn model_name(&self) -> &str {
        self.chain.first().map_or("none", |route| route.model.name())
    }

    /// The model called `name` and those that stand in for it; the usual ones where there is none of that name.
    pub fn chain_for(&self, name: Option<&str>) -> Vec<Arc<Route>> {
        let first = name.and_then(|name| self.named.iter().find(|route| route.name == name));
        let others = self.chain.iter().filter(|route| first.is_none_or(|first| first.name != route.name));
        first.into_iter().chain(others).cloned().collect()
    }
}

/// See the module.
pub struct Gateway {
    state: Mutex<State>,
}

struct State {
    routes: Result<Arc<Routes>, NotConfigured>,
    health: HealthTracker,
}

impl Gateway {
    /// A gateway to these models, or to none for the reason given.
    pub fn new(routes: Result<Routes, NotConfigured>) -> Self {
        let state = State { routes: routes.map(Arc::new), health: HealthTracker::default() };
        Self { state: Mutex::new(state) }
    }

    /// Puts other models in force. Steps under way keep those that they began with.
    pub fn replace(&self, routes: Routes) {
        let mut state = self.state();
        state.routes = Ok(Arc::new(routes));
        state.health.reset_health();
    }

    /// The configuration in force. A model step keeps the one that it began with.
    ///
    /// # Errors
    /// None is configured.
    pub fn routes(&self) -> Result<Arc<Routes>, ModelError> {
        self.state().routes.clone().map_err(ModelError::from)
    }

    /// How many tokens the context window of the model that answers has; 0 where none is configured.
    pub fn context_window(&self) -> u64 {
        self.routes().ok().and_then(|routes| Some(routes.chain.first()?.context_window)).unwrap_or_default()
    }

    /// The model that answers.
    ///
    /// # Errors
    /// None is configured.
    pub fn model(&self) -> Result<Arc<dyn ChatModel>, ModelError> {
        let routes = self.routes()?;
        let first = routes.chain.first().map(|route| Arc::clone(&route.model));
        first.ok_or_else(|| ModelError::new(ModelErrorKind::NotConfigured, "no model is configured"))
    }

    /// The models that a new turn asks, as [`Routes::chain_for`] has them, but those that lately failed for good behind
    /// the others. `now` is monotonic.
    ///
    /// # Errors
    /// None is configured.
    pub fn chain(&self, name: Option<&str>, now: Duration) -> Result<Vec<Arc<Route>>, ModelError> {
        let state = self.state();
        let mut chain = state.routes.clone().map_err(ModelError::from)?.chain_for(name);
        chain.sort_by_key(|route| state.health.is_circuit_open(&route.name, now));
        Ok(chain)
    }

    /// Notes how a call of `route` went at `now`, which is monotonic. A route that is not in force any more tells
    /// nothing of the one that has its name now.
    pub fn record_outcome(&self, route: &Route, outcome: Result<&TokenUsage, &ModelError>, now: Duration) {
        let mut state = self.state();
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

    /// Notes that `route` failed as often as it was to be tried: for a while new turns ask the others first.
    pub fn open_circuit(&self, route: &Route, now: Duration) {
        let mut state = self.state();
        if state.is_active(route) {
            state.health.open_circuit(&route.name, now);
        }
    }

    /// `ok`, or what is wrong with the model that answers.
    pub fn status(&self) -> String {
        let state = self.state();
        let routes = match &state.routes {
            Ok(routes) => routes,
            Err(reason) => return reason.to_string(),
        };
        let first = routes.chain.first().and_then(|route| state.health.unhealthy_reason(&route.name));
        first.unwrap_or_else(|| HEALTHY.to_owned())
    }

    /// How the models in force are doing at `now`, which is monotonic.
    pub fn model_states(&self, now: Duration) -> Vec<ModelState> {
        let state = self.state();
        let Ok(routes) = &state.routes else { return Vec::new() };
        let of = |route: &Arc<Route>| state.health.state(&route.name, route.model.name(), now);
        routes.named.iter().map(of).collect()
    }

    /// How much of the prompts the providers' caches served.
    pub fn cache(&self) -> CacheState {
        self.state().health.cache()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_active(&self, route: &Route) -> bool {
        let is = |known: &Arc<Route>| std::ptr::eq(Arc::as_ptr(known), route);
        self.routes.as_ref().is_ok_and(|routes| routes.named.iter().chain(&routes.chain).any(is))
    }
}

/// How often and how long a failed call of one model is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The most attempts.
    pub max_attempts: u32,
    /// How long after the first failure another attempt may begin.
    pub max_elapsed: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 5, max_elapsed: Duration::from_mins(1) }
    }
}

/// How often a model is asked at most that answers with nothing.
const MAX_EMPTY_ATTEMPTS: u32 = 2;

const BASE_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// A provider that wants to be left alone for longer than this is not waited for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The attempts to get one answer out of one model.
#[derive(Clone, Copy, Debug)]
pub struct RetryState {
    policy: RetryPolicy,
    /// When the first attempt failed: a long answer that breaks off at its end is worth another try.
    failing_since: Option<Duration>,
    attempts: u32,
}

impl RetryState {
    /// The first attempt is under way.
    pub const fn new(policy: RetryPolicy) -> Self {
        Self { policy, failing_since: None, attempts: 1 }
    }

    /// The number of the attempt under way, from 1.
    pub const fn attempt(&self) -> u32 {
        self.attempts
    }

    /// The attempt failed with `error` at `now`: how long to wait before the next one, or none to give up.
    /// `jitter`, from 0 to 1, spreads the attempts of many engines by ±20 %.
    pub fn next_delay(&mut self, error: &ModelError, now: Duration, jitter: f64) -> Option<Duration> {
        let most = match error.kind {
            ModelErrorKind::Busy | ModelErrorKind::Broken => self.policy.max_attempts,
            // A second one is billed as well, and says most likely what a third would.
            ModelErrorKind::Empty => self.policy.max_attempts.min(MAX_EMPTY_ATTEMPTS),
            _ => return None,
        };
        if self.attempts >= most {
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
        let wish = |seconds| ModelError { retry_after: Some(Duration::from_secs(seconds)), ..busy() };
        let after =
            |seconds| RetryState::new(RetryPolicy::default()).next_delay(&wish(seconds), Duration::ZERO, 0.5);
        assert_eq!(after(30), Some(Duration::from_secs(30)));
        assert_eq!(after(31), None);
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
#[path = "gateway_tests.rs"]
mod gateway_tests;
