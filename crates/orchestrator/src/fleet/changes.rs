//! The changes of engines: each claims the row, lets the backend act, and settles the row in its next state.

pub(super) mod boot;
mod destroy;
mod key_rotation;
mod maintenance;
mod provision;
mod relaunch;
mod repair;
mod restart;
mod stop;
mod version_move;
mod warm_boot;

use std::sync::Arc;

use self::boot::Boots;
use super::backup_transfers::BackupTransfers;
use super::engine_client::EngineClient;
use super::inbox::Inbox;
use super::operation::{Operation, Operations};
use super::policies::Policies;
use super::request::{OperationError, OperationRequest, OperationResult, Outcome, RequestKind};
use super::shared::Shared;
use super::supervision::Supervision;
use super::transitions::Transitions;
use super::usage::UsageCollector;
use crate::domain::lifecycle::Change;
use crate::registry::{AuditEntry, CallMark, EngineRow, NextState};

pub(super) struct Changes {
    pub(super) shared: Arc<Shared>,
    pub(super) supervision: Arc<Supervision>,
    pub(super) transitions: Arc<Transitions>,
    pub(super) policies: Arc<Policies>,
    pub(super) client: Arc<EngineClient>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) usage: Arc<UsageCollector>,
    pub(super) operations: Arc<Operations>,
    pub(super) boots: Boots,
    pub(super) backups: Arc<BackupTransfers>,
}

/// Marks the call with an `Idempotency-Key`, if there is one, for which `row` was claimed: its change is made, whoever
/// completes it.
fn fulfilled(row: &EngineRow) -> CallMark {
    CallMark::ClaimFulfilled(row.claimed())
}

impl Changes {
    /// Performs the change of `operation` on the engine of `row`.
    pub(super) async fn perform(
        &self,
        operation: &Arc<Operation>,
        request: &OperationRequest,
        row: Option<EngineRow>,
    ) -> Outcome {
        match (operation.change, row) {
            (Change::Provision, _) => self.provision(operation, request).await,
            // The table performs no other change on an engine that does not exist.
            (_, None) => Err(OperationError::Stale),
            (Change::Start, Some(row)) if let RequestKind::ChangeVersion(to) = &request.kind => {
                self.move_to_version(operation, request, to, row).await
            }
            (Change::Start, Some(row)) if let RequestKind::Maintain(order) = &request.kind => {
                self.maintain(operation, request.actor, order, row).await
            }
            (Change::Start | Change::Wake, Some(row)) => self.relaunch(operation, request, row).await,
            (Change::Stop | Change::Sleep, Some(row)) => self.stop(operation, request, row).await,
            (Change::Restart, Some(row)) => self.restart(operation, row).await,
            (Change::Rotate, Some(row)) => self.rotate_key(operation, request, row).await,
            (Change::Destroy, Some(row)) => self.destroy(operation, request, row).await,
        }
    }

    async fn settle(
        &self,
        row: &EngineRow,
        next: NextState,
        entry: Option<&AuditEntry>,
    ) -> Result<Option<EngineRow>, OperationError> {
        self.transitions.settle(row, next, entry).await.map_err(OperationError::from_settle_error)
    }

    /// Settles a change whose outcome is the engine in its next state.
    async fn settle_engine(&self, row: &EngineRow, next: NextState, entry: Option<&AuditEntry>) -> Outcome {
        match self.settle(row, next, entry).await? {
            Some(row) => Ok(OperationResult::Engine(Box::new(row))),
            None => Err(OperationError::Stale),
        }
    }
}
