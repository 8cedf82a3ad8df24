//! What the orchestrator and its engines log, changed while they run.

use std::sync::Arc;
use std::time::Duration;

use api::UserId;
use api::log_filter::{DEFAULT_FILTER_SECONDS, FilterSeconds, LogFilter, SetLogFilter};
use http_service::log_filter::control;
use http_service::logging::{InvalidFilter, parse_filter};
use serde_json::{Value, json};

use super::FleetError;
use super::caller::Caller;
use super::engine_client::EngineClient;
use super::shared::Shared;
use crate::registry::{AuditEntry, Event};

/// Reads and changes log filters.
pub(crate) struct LogFilters {
    shared: Arc<Shared>,
    client: Arc<EngineClient>,
}

/// What to do with a log filter.
#[derive(Clone, Debug)]
pub(crate) enum FilterRequest {
    /// Return it.
    Read,
    /// Replace it for some seconds.
    Replace { filter: String, seconds: i64 },
    /// Return to the configured one.
    Reset,
}

impl FilterRequest {
    /// Parses a request to replace a filter.
    pub(crate) fn replace(request: SetLogFilter) -> Result<Self, InvalidFilter> {
        let SetLogFilter { filter, for_s } = request;
        parse_filter(&filter)?;
        Ok(Self::Replace { filter, seconds: for_s.map_or(DEFAULT_FILTER_SECONDS, FilterSeconds::get) })
    }

    /// The command that an engine is sent.
    fn command(&self) -> Value {
        match self {
            Self::Read => json!({"subsystem": "control", "op": "get_log_filter"}),
            Self::Replace { filter, seconds } => {
                json!({"subsystem": "control", "op": "set_log_filter", "filter": filter, "for_s": seconds})
            }
            Self::Reset => json!({"subsystem": "control", "op": "reset_log_filter"}),
        }
    }

    /// What the audit log says; `None` if nothing is changed.
    fn detail(&self) -> Option<Value> {
        match self {
            Self::Read => None,
            Self::Replace { filter, seconds } => Some(json!({"filter": filter, "for_s": seconds})),
            Self::Reset => Some(json!({"filter": null})),
        }
    }
}

impl LogFilters {
    pub(super) const fn new(shared: Arc<Shared>, client: Arc<EngineClient>) -> Self {
        Self { shared, client }
    }

    /// Reads or changes what this orchestrator logs.
    pub(crate) fn of_orchestrator(&self, request: &FilterRequest) -> Result<LogFilter, InvalidFilter> {
        let control = control();
        match request {
            FilterRequest::Read => Ok(control.filter()),
            FilterRequest::Replace { filter, seconds } => {
                let parsed = parse_filter(filter)?;
                // Before it holds: it may be one that hides this line.
                tracing::warn!(filter, seconds, "An operator changes the log filter.");
                let duration = Duration::from_secs(seconds.unsigned_abs());
                Ok(control.replace(parsed, duration, self.shared.clock.now()))
            }
            FilterRequest::Reset => {
                let filter = control.reset();
                tracing::warn!("An operator has ended the log filter before its time.");
                Ok(filter)
            }
        }
    }

    /// Reads or changes what a user's engine logs. A change is in the audit log.
    pub(crate) async fn of_engine(
        self: &Arc<Self>,
        caller: &Caller,
        user_id: UserId,
        request: FilterRequest,
    ) -> Result<LogFilter, FleetError> {
        let (owner, actor, call) = (caller.engine_owner(user_id), caller.actor(), caller.call().cloned());
        let filters = Arc::clone(self);
        // In a task of its own: whoever disconnects does not keep a change out of the audit log.
        let done = tokio::spawn(async move {
            let Shared { registry, clock, keys, .. } = &*filters.shared;
            let row = registry.engine(&owner).await?.ok_or(FleetError::EngineNotFound)?;
            let engine = filters.shared.running(&row).ok_or(FleetError::EngineNotRunning)?;
            let answered = filters.client.log_filter(engine, &keys.key(&row)?, &request.command()).await;
            let filter = answered.map_err(|error| {
                FleetError::Backend(format!("what the engine logs could not be read or changed: {error}"))
            })?;
            if let Some(detail) = request.detail() {
                let engine = Some((row.engine_id, row.owner.user_id.clone()));
                let entry = AuditEntry {
                    at: clock.now(),
                    event: Event::LogFilter,
                    engine,
                    duration_ms: None,
                    detail,
                    call: call.map(|call| call.applied_with(&filter)).transpose()?,
                };
                registry.append_audit(row.owner.product_id, &entry.by(actor)).await?;
            }
            Ok(filter)
        });
        done.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }
}
