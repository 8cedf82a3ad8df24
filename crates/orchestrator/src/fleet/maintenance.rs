//! Maintenance: whoever needs an engine that runs gets it, and nothing else changes an engine.
//!
//! An engine that crashes is restarted as ever, because its user has it and wants it back. No engine is put to sleep for
//! being idle, because nobody could wake it.

use std::sync::Arc;

use api::maintenance::{BeginMaintenance, Maintenance, MaintenanceStatus};

use super::FleetError;
use super::execute::Executor;
use super::idempotency::Call;
use super::shared::Shared;
use super::switch::Switch;
use crate::domain::lifecycle::Change;

/// Whether the deployment is under maintenance.
pub(super) type MaintenanceState = Switch<Maintenance>;

impl MaintenanceState {
    /// Checks that engines may be changed like this.
    pub(super) fn check_permits(&self, change: Change) -> Result<(), FleetError> {
        match change {
            Change::Restart | Change::Stop | Change::Sleep => Ok(()),
            Change::Provision | Change::Start | Change::Wake | Change::Rotate | Change::Destroy => {
                self.get().map_or(Ok(()), |maintenance| Err(FleetError::Maintenance(maintenance)))
            }
        }
    }
}

/// Begins and ends a maintenance.
pub(crate) struct Maintenances {
    shared: Arc<Shared>,
    executor: Arc<Executor>,
    state: Arc<MaintenanceState>,
}

impl Maintenances {
    pub(super) fn new(shared: &Arc<Shared>, executor: &Arc<Executor>, state: &Arc<MaintenanceState>) -> Self {
        Self { shared: Arc::clone(shared), executor: Arc::clone(executor), state: Arc::clone(state) }
    }

    /// Begins a maintenance, or replaces the message of one.
    pub(crate) async fn begin(
        &self,
        request: BeginMaintenance,
        call: Option<Call>,
    ) -> Result<MaintenanceStatus, FleetError> {
        let at = self.shared.clock.now();
        let next = move |known: Option<Maintenance>| {
            let since = known.map_or(at, |known| known.since);
            Some(Maintenance { since, message: request.message })
        };
        self.set(next, call).await
    }

    /// Ends the maintenance, if there is one.
    pub(crate) async fn end(&self, call: Option<Call>) -> Result<MaintenanceStatus, FleetError> {
        self.set(|_| None, call).await
    }

    /// The maintenance, if there is one, and what is still under way.
    pub(crate) fn status(&self) -> MaintenanceStatus {
        let changes_under_way = u64::try_from(self.executor.operations.len()).unwrap_or(u64::MAX);
        MaintenanceStatus { maintenance: self.state.get(), changes_under_way }
    }

    async fn set(
        &self,
        next: impl FnOnce(Option<Maintenance>) -> Option<Maintenance> + Send + 'static,
        call: Option<Call>,
    ) -> Result<MaintenanceStatus, FleetError> {
        let on_change = |maintenance: Option<&Maintenance>| {
            if let Some(maintenance) = maintenance {
                tracing::warn!(
                    message = maintenance.message.as_str(),
                    "An operator keeps the deployment under maintenance: no engine is changed."
                );
            } else {
                tracing::warn!("An operator has ended the maintenance.");
            }
        };
        self.state.set(&self.shared, next, on_change, call).await?;
        Ok(self.status())
    }
}
