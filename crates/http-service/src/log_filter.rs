//! The log filter of this process, which can be replaced for some time while it runs.
//!
//! Whether a log line is wanted is decided once for each place in the code and then remembered by `tracing`, so the
//! filter's lock is not on the way of a line, wanted or not. A new filter makes `tracing` forget what it remembers.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use api::Timestamp;
use api::log_filter::LogFilter;
use parking_lot::{Mutex, RwLock};
use tokio::task::AbortHandle;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer};

/// The filter of this process.
static CONTROL: LazyLock<Arc<LogControl>> = LazyLock::new(|| Arc::new(LogControl::new(Targets::new())));

/// Returns what controls the filter of this process.
pub fn control() -> &'static Arc<LogControl> {
    &CONTROL
}

/// A filter that can be replaced for some time.
pub struct LogControl {
    active: RwLock<Targets>,
    state: Mutex<State>,
}

struct State {
    configured: Targets,
    /// The filter that holds in its place, if one does.
    temporary: Option<Temporary>,
    /// The number of changes, by which a timer knows whether what it is to end still holds.
    changes: u64,
}

struct Temporary {
    expires_at: Timestamp,
    timer: AbortHandle,
}

impl LogControl {
    fn new(configured: Targets) -> Self {
        let state = State { configured: configured.clone(), temporary: None, changes: 0 };
        Self { active: RwLock::new(configured), state: Mutex::new(state) }
    }

    /// Sets the filter that holds unless another one does.
    pub(crate) fn configure(&self, filter: Targets) {
        let mut state = self.state.lock();
        state.configured = filter;
        self.end(&mut state);
    }

    /// What holds now.
    pub fn filter(&self) -> LogFilter {
        self.describe(&self.state.lock())
    }

    /// Replaces the filter from `now` on for `duration`. Must be called within a runtime.
    pub fn replace(self: &Arc<Self>, filter: Targets, duration: Duration, now: Timestamp) -> LogFilter {
        let mut state = self.state.lock();
        self.end(&mut state);
        let control = Arc::clone(self);
        let change = state.changes;
        let timer = tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            let mut state = control.state.lock();
            if state.changes == change {
                control.end(&mut state);
                tracing::info!(filter = %state.configured, "The configured log filter holds again.");
            }
        });
        let duration_ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let expires_at = Timestamp::from_unix_ms(now.unix_ms().saturating_add(duration_ms));
        state.temporary = Some(Temporary { expires_at, timer: timer.abort_handle() });
        self.activate(filter);
        self.describe(&state)
    }

    /// Lets the configured filter hold again.
    pub fn reset(&self) -> LogFilter {
        let mut state = self.state.lock();
        self.end(&mut state);
        self.describe(&state)
    }

    fn end(&self, state: &mut State) {
        state.changes += 1;
        if let Some(Temporary { timer, .. }) = state.temporary.take() {
            timer.abort();
        }
        self.activate(state.configured.clone());
    }

    fn activate(&self, filter: Targets) {
        *self.active.write() = filter;
        tracing::callsite::rebuild_interest_cache();
    }

    fn describe(&self, state: &State) -> LogFilter {
        LogFilter {
            active: self.active.read().to_string(),
            configured: state.configured.to_string(),
            expires_at: state.temporary.as_ref().map(|temporary| temporary.expires_at),
        }
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        self.active.read().would_enable(metadata.target(), metadata.level())
    }
}

/// The layer by which the filter of this process holds.
pub(crate) struct SwitchableFilter(pub(crate) Arc<LogControl>);

impl<S: Subscriber> Layer<S> for SwitchableFilter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.0.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.0.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let active = self.0.active.read();
        Layer::<S>::max_level_hint(&*active)
    }
}

#[cfg(test)]
#[path = "../tests/unit/log_filter.rs"]
mod tests;
