//! The health of the models, kept in memory: reading it costs neither tokens nor writes.

use std::collections::BTreeMap;
use std::time::Duration;

use api::rpc::{CacheState, CacheUse, ModelFailure, ModelState};

use super::{ModelError, ModelErrorKind, TokenUsage};

/// The number of consecutive failures that make a model unhealthy.
const UNHEALTHY_AFTER_FAILURES: u32 = 3;
/// How long new turns try the other models first after a model's circuit was opened.
const COOL_DOWN: Duration = Duration::from_mins(1);

/// The health of all models, and the usage of their prompt caches.
#[derive(Default)]
pub(super) struct HealthTracker {
    /// By the name in the configuration.
    models: BTreeMap<String, ModelHealth>,
    /// By the vendor's name.
    cache: BTreeMap<String, CacheUse>,
}

/// The health of one model. Times are monotonic.
#[derive(Default)]
struct ModelHealth {
    consecutive_failures: u32,
    last_failure: Option<Failure>,
    cool_down_until: Option<Duration>,
    retry_at: Option<Duration>,
}

struct Failure {
    kind: ModelErrorKind,
    message: String,
    at: Duration,
}

impl HealthTracker {
    /// Forgets all health when the configuration is replaced: its names may refer to other models.
    pub(super) fn reset_health(&mut self) {
        self.models.clear();
    }

    /// Records the cache usage of an answer.
    pub(super) fn record_usage(&mut self, model: &str, tokens: &TokenUsage) {
        let counts = self.cache.entry(model.to_owned()).or_default();
        counts.calls += 1;
        counts.input_tokens = counts.input_tokens.saturating_add(tokens.input);
        counts.cache_read_tokens = counts.cache_read_tokens.saturating_add(tokens.cache_read);
        counts.cache_write_tokens = counts.cache_write_tokens.saturating_add(tokens.cache_write);
    }

    /// Records a successful call: one success resets the model's failures.
    pub(super) fn record_success(&mut self, name: &str) {
        if let Some(health) = self.models.get_mut(name) {
            *health = ModelHealth { last_failure: health.last_failure.take(), ..ModelHealth::default() };
        }
    }

    /// Records a failed call.
    pub(super) fn record_failure(&mut self, name: &str, error: &ModelError, now: Duration) {
        use ModelErrorKind::{Auth, NoSuchModel, Quota};
        let health = self.models.entry(name.to_owned()).or_default();
        health.consecutive_failures = health.consecutive_failures.saturating_add(1);
        health.last_failure = Some(Failure { kind: error.kind, message: error.message.clone(), at: now });
        health.retry_at = error.retry_after.map(|delay| now.saturating_add(delay));
        // An immediate retry is useless.
        if matches!(error.kind, Auth | NoSuchModel | Quota) {
            self.open_circuit(name, now);
        }
    }

    /// Makes new turns avoid a model for the cool-down time.
    pub(super) fn open_circuit(&mut self, name: &str, now: Duration) {
        let health = self.models.entry(name.to_owned()).or_default();
        health.cool_down_until = Some(now.saturating_add(COOL_DOWN));
    }

    /// Whether the other models are to be tried first.
    pub(super) fn is_circuit_open(&self, name: &str, now: Duration) -> bool {
        let until = self.models.get(name).and_then(|health| health.cool_down_until);
        until.is_some_and(|until| until > now)
    }

    /// The reason why a model is unhealthy; `None` if it is healthy.
    pub(super) fn unhealthy_reason(&self, name: &str) -> Option<String> {
        let health =
            self.models.get(name).filter(|health| health.consecutive_failures >= UNHEALTHY_AFTER_FAILURES)?;
        let last = health.last_failure.as_ref().map_or("", |last| last.message.as_str());
        Some(format!("the last {} calls failed: {last}", health.consecutive_failures))
    }

    /// The health of a model as the API reports it.
    pub(super) fn state(&self, name: &str, model: &str, now: Duration) -> ModelState {
        let default = ModelHealth::default();
        let health = self.models.get(name).unwrap_or(&default);
        let remaining = |until: Option<Duration>| {
            until.map(|until| until.saturating_sub(now)).filter(|remaining| !remaining.is_zero())
        };
        ModelState {
            name: name.to_owned(),
            model: model.to_owned(),
            cool_down_seconds: remaining(health.cool_down_until).unwrap_or_default().as_secs_f64(),
            retry_after_seconds: remaining(health.retry_at).map(|remaining| remaining.as_secs_f64()),
            failures_in_a_row: health.consecutive_failures,
            last_failure: health.last_failure.as_ref().map(|last| ModelFailure {
                kind: failure_kind_name(last.kind).to_owned(),
                message: last.message.clone(),
                seconds_ago: now.saturating_sub(last.at).as_secs_f64(),
            }),
        }
    }

    /// How many prompt tokens the caches served.
    pub(super) fn cache(&self) -> CacheState {
        let mut total = CacheUse::default();
        for counts in self.cache.values() {
            total.calls += counts.calls;
            total.input_tokens = total.input_tokens.saturating_add(counts.input_tokens);
            total.cache_read_tokens = total.cache_read_tokens.saturating_add(counts.cache_read_tokens);
            total.cache_write_tokens = total.cache_write_tokens.saturating_add(counts.cache_write_tokens);
        }
        let models =
            self.cache.iter().map(|(model, counts)| (model.clone(), with_cache_share(*counts))).collect();
        CacheState { total: with_cache_share(total), models }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share need not be exact")]
fn with_cache_share(counts: CacheUse) -> CacheUse {
    let share =
        (counts.input_tokens > 0).then(|| counts.cache_read_tokens as f64 / counts.input_tokens as f64);
    CacheUse { share, ..counts }
}

/// The kind of a failure as the field `quota_state` reports it.
const fn failure_kind_name(kind: ModelErrorKind) -> &'static str {
    match kind {
        ModelErrorKind::NotConfigured => "not_configured",
        ModelErrorKind::Auth => "auth",
        ModelErrorKind::NoSuchModel => "no_such_model",
        ModelErrorKind::Refused => "refused",
        ModelErrorKind::TooLong => "too_long",
        ModelErrorKind::BrokenHistory => "broken_history",
        ModelErrorKind::Quota => "quota",
        ModelErrorKind::Empty => "empty",
        ModelErrorKind::Busy => "busy",
        ModelErrorKind::Broken => "broken",
    }
}
