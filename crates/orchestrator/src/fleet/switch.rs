//! A state of the whole deployment that an operator sets and lifts. It is kept in the registry, so that an orchestrator
//! that starts or takes over goes on with it.

use std::sync::Arc;

use api::Timestamp;
use api::maintenance::Maintenance;
use tokio::sync::watch;

use super::FleetError;
use super::idempotency::Call;
use super::shared::Shared;
use crate::registry::RegistryError;

/// What a switch is set to, as the registry stores it.
pub(super) trait SwitchValue: Clone + PartialEq + Send + Sync + 'static {
    /// Its name in the registry.
    const NAME: &'static str;

    fn to_text(&self) -> String;

    /// Parses what [`SwitchValue::to_text`] returns.
    fn parse(text: &str) -> Option<Self>;
}

/// Since when the deployment is drained.
impl SwitchValue for Timestamp {
    const NAME: &'static str = "drained_since";

    fn to_text(&self) -> String {
        self.unix_ms().to_string()
    }

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self::from_unix_ms)
    }
}

impl SwitchValue for Maintenance {
    const NAME: &'static str = "maintenance";

    fn to_text(&self) -> String {
        serde_json::json!(self).to_string()
    }

    fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

pub(super) struct Switch<T> {
    value: watch::Sender<Option<T>>,
    /// Serializes changes, so that memory and registry agree.
    change_lock: tokio::sync::Mutex<()>,
}

impl<T: SwitchValue> Switch<T> {
    pub(super) fn new() -> Self {
        Self { value: watch::Sender::new(None), change_lock: tokio::sync::Mutex::default() }
    }

    /// What it is set to; `None` if it is not.
    pub(super) fn get(&self) -> Option<T> {
        self.value.borrow().clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<T>> {
        self.value.subscribe()
    }

    /// Loads what the registry says.
    pub(super) async fn load(&self, shared: &Shared) -> Result<(), RegistryError> {
        let stored = shared.registry.meta(T::NAME).await?;
        let value = stored.map(|text| T::parse(&text).ok_or(RegistryError::Unreadable { column: "value" }));
        self.value.send_replace(value.transpose()?);
        Ok(())
    }

    /// Changes it to `next` of what it is, in the registry and then in memory. Then calls `on_change`, if that was a
    /// change. Returns what it is set to. If it was changed for `call` before, what the registry says is loaded.
    pub(super) async fn set(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        next: impl FnOnce(Option<T>) -> Option<T> + Send + 'static,
        on_change: impl FnOnce(Option<&T>) + Send + 'static,
        call: Option<Call>,
    ) -> Result<Option<T>, FleetError> {
        let (switch, shared) = (Arc::clone(self), Arc::clone(shared));
        // In a task of its own: a caller who disconnects must not leave registry and memory with different states.
        let set = tokio::spawn(async move {
            let _lock = switch.change_lock.lock().await;
            if call.as_ref().is_some_and(Call::is_applied) {
                // It may have been committed without a confirmation, and then memory lacks it.
                switch.load(&shared).await?;
                return Ok(switch.get());
            }
            let call = call.as_ref().map(Call::applied);
            let (before, next) = (switch.get(), next(switch.get()));
            let text = next.as_ref().map(T::to_text);
            // Also if it is the same: a change that was not confirmed may have been committed, and is then undone.
            let call = call.as_ref().map(|call| (call, shared.clock.now()));
            shared.registry.replace_meta(T::NAME, text.as_deref(), call).await?;
            if before != next {
                switch.value.send_replace(next.clone());
                on_change(next.as_ref());
            }
            Ok(next)
        });
        set.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }
}
