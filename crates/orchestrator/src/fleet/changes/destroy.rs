//! Delete: preempts the operation under way, kills the engine, and removes everything that belongs to it.

use std::sync::Arc;

use api::orchestrator::{Destroyed, DestroyedEngine, EngineStatus};
use serde_json::json;

use super::{Changes, fulfilled};
use crate::domain::Actor;
use crate::domain::lifecycle::Change;
use crate::fleet::operation::Operation;
use crate::fleet::request::{OperationRequest, OperationResult, Outcome};
use crate::registry::{Claim, EngineRow, Event, NextState};

impl Changes {
    pub(super) async fn destroy(
        &self,
        operation: &Arc<Operation>,
        request: &OperationRequest,
        seen: EngineRow,
    ) -> Outcome {
        // If the backend is unreachable, the call fails before anything has changed.
        self.shared.backend.ping().await?;
        // Before the claim, which ends an operation under way: its key may be in doubt from then on until it is gone.
        if let Some(engine) = self.shared.running(&seen).filter(|_| seen.claim.is_none()) {
            self.usage.collect_before_end(engine).await;
        }
        let answer = DestroyedEngine { status: Destroyed::Destroyed, engine_id: seen.engine_id };
        let call = request.claiming_call_with(&answer)?;
        let claim = Claim { call, ..self.transitions.new_claim(Change::Destroy) };
        let row = self.shared.registry.claim(&seen, &claim).await??;
        self.operations.preempt(operation, row.generation);
        self.finish_destroy(&row, request.reason, request.actor).await
    }

    /// Kills and removes an engine that is `destroying`. On failure the row keeps that state and is finished
    /// later.
    pub(super) async fn finish_destroy(
        &self,
        row: &EngineRow,
        reason: &'static str,
        actor: Actor,
    ) -> Outcome {
        self.shared.backend.remove_with_data(row.target()).await?;
        let detail = json!({"from": row.settled_status(), "to": None::<EngineStatus>, "reason": reason});
        let entry = self.transitions.audit_entry(row, Event::Destroy, detail).by(actor);
        let entry = entry.of_call(Some(fulfilled(row)));
        self.settle(row, NextState::Removed, Some(&entry)).await?;
        Ok(OperationResult::Destroyed(row.engine_id))
    }
}
