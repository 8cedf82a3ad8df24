//! Delete: preempts the operation under way, kills the engine, and removes everything that belongs to it.

use std::sync::Arc;

use api::orchestrator::EngineStatus;
use serde_json::json;

use super::Fleet;
use super::lifecycle::Change;
use super::operation::{Operation, OperationError, OperationResult, Outcome};
use crate::registry::{EngineRow, Event, NextState};

impl Fleet {
    pub(super) async fn destroy_engine(
        self: &Arc<Self>,
        operation: &Arc<Operation>,
        seen: EngineRow,
    ) -> Outcome {
        // If the backend is unreachable, the call fails before anything has changed.
        self.backend.ping().await?;
        let Ok(row) = self.registry.claim(&seen, &self.new_claim(Change::Destroy), None).await? else {
            return Err(OperationError::Stale);
        };
        self.operations.preempt(operation, row.generation);
        self.finish_destroy(&row, "requested").await
    }

    /// Kills and removes an engine that is `destroying`. On failure the row keeps that state and is finished
    /// later.
    pub(super) async fn finish_destroy(&self, row: &EngineRow, reason: &'static str) -> Outcome {
        self.backend.remove_with_data(row.target()).await?;
        let detail = json!({"from": row.settled_status(), "to": None::<EngineStatus>, "reason": reason});
        let entry = self.audit_entry(row, Event::Destroy, detail);
        self.settle(row, NextState::Removed, Some(&entry))
            .await
            .map_err(OperationError::from_settle_error)?;
        Ok(OperationResult::Destroyed(row.engine_id))
    }
}
