//! Operations under way: one per engine owner, each a task of its own whose outcome anyone may await.
//!
//! The claim in the row is authoritative; this map only says who works on it, so that others can wait. An
//! operation is in the map before it claims the row and leaves it after the row is settled. So nobody works on a
//! claimed row without an operation in the map.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use traces::{Details, Kind, Span};
use tracing::Instrument as _;

use super::FleetError;
use super::error::TaskAborted;
use super::request::{OperationError, OperationResult, Outcome};
use crate::domain::EngineOwner;
use crate::domain::lifecycle::Change;
use crate::metrics::labels::{Label as _, OperationOutcome};
use crate::metrics::{Metrics, Stopwatch};
use crate::registry::{EngineRow, RegistryError};

/// The progress of an operation.
#[derive(Clone, Debug)]
enum Progress {
    /// The row does not show the change yet.
    Claiming,
    /// The operation holds the row in this generation.
    Claimed(i64),
    Done(Outcome),
}

/// A change under way.
pub(super) struct Operation {
    pub(super) engine_owner: EngineOwner,
    pub(super) change: Change,
    progress: watch::Sender<Progress>,
    preempted: CancellationToken,
}

impl Operation {
    fn new(owner: EngineOwner, change: Change, progress: Progress) -> Arc<Self> {
        Arc::new(Self {
            engine_owner: owner,
            change,
            progress: watch::Sender::new(progress),
            preempted: CancellationToken::new(),
        })
    }

    /// Marks the row as claimed in this generation.
    pub(super) fn mark_claimed(&self, generation: i64) {
        self.progress.send_replace(Progress::Claimed(generation));
    }

    /// The generation in which it holds the row; `None` before the claim and after the end.
    pub(super) fn claimed_generation(&self) -> Option<i64> {
        match *self.progress.borrow() {
            Progress::Claimed(generation) => Some(generation),
            Progress::Claiming | Progress::Done(_) => None,
        }
    }

    /// Waits until the row shows the change, or the operation is over.
    pub(super) async fn wait_until_claimed(&self) {
        let mut progress = self.progress.subscribe();
        // The sender lives as long as the operation.
        let _ = progress.wait_for(|progress| !matches!(progress, Progress::Claiming)).await;
    }

    /// Waits for the outcome.
    pub(super) async fn outcome(&self) -> Outcome {
        let mut progress = self.progress.subscribe();
        let done = progress.wait_for(|progress| matches!(progress, Progress::Done(_))).await;
        match done.as_deref() {
            Ok(Progress::Done(outcome)) => outcome.clone(),
            _ => Err(FleetError::internal(TaskAborted).into()),
        }
    }
}

/// The operations of one engine owner.
#[derive(Default)]
struct Slot {
    active: Option<Arc<Operation>>,
    /// A delete that is about to preempt the current operation.
    pending_delete: Option<Arc<Operation>>,
}

/// All operations under way in this process.
#[derive(Default)]
pub(super) struct Operations {
    slots: Mutex<HashMap<EngineOwner, Slot>>,
    tasks: TaskTracker,
    /// Set once another orchestrator has taken over the registry.
    aborted: AtomicBool,
    metrics: Metrics,
}

impl Operations {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// The operation of the engine owner, if any.
    pub(super) fn get(&self, owner: &EngineOwner) -> Option<Arc<Operation>> {
        let slots = self.slots();
        let slot = slots.get(owner)?;
        slot.active.as_ref().or(slot.pending_delete.as_ref()).cloned()
    }

    /// The number of engine owners with an operation under way.
    pub(super) fn len(&self) -> usize {
        self.slots().len()
    }

    /// Registers an operation. If another one is registered for the engine owner, fails with that one; a delete
    /// waits only for another delete.
    pub(super) fn begin(
        &self,
        owner: &EngineOwner,
        change: Change,
    ) -> Result<Arc<Operation>, Arc<Operation>> {
        self.register(Operation::new(owner.clone(), change, Progress::Claiming))
    }

    /// Registers a repair of the engine in the state of `row`.
    pub(super) fn begin_for_row(
        &self,
        row: &EngineRow,
        change: Change,
    ) -> Result<Arc<Operation>, Arc<Operation>> {
        self.register(Operation::new(row.owner.clone(), change, Progress::Claimed(row.generation)))
    }

    fn register(&self, operation: Arc<Operation>) -> Result<Arc<Operation>, Arc<Operation>> {
        let mut slots = self.slots();
        let slot = slots.entry(operation.engine_owner.clone()).or_default();
        if let Some(pending_delete) = &slot.pending_delete {
            return Err(Arc::clone(pending_delete));
        }
        // A delete that is still claiming is registered beside the operation that it will preempt.
        if operation.change == Change::Destroy && operation.claimed_generation().is_none() {
            slot.pending_delete = Some(Arc::clone(&operation));
            return Ok(operation);
        }
        if let Some(other) = &slot.active {
            return Err(Arc::clone(other));
        }
        slot.active = Some(Arc::clone(&operation));
        Ok(operation)
    }

    /// The delete holds the row: the operation that worked on it is cancelled.
    pub(super) fn preempt(&self, pending_delete: &Arc<Operation>, generation: i64) {
        pending_delete.mark_claimed(generation);
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&pending_delete.engine_owner) else { return };
        slot.pending_delete = None;
        if let Some(previous) = slot.active.replace(Arc::clone(pending_delete)) {
            previous.preempted.cancel();
        }
    }

    /// Runs `change` in a task of its own until it is over or preempted. Its log lines belong to the span of the
    /// request that began it.
    pub(super) fn spawn(
        self: &Arc<Self>,
        operation: Arc<Operation>,
        change: impl Future<Output = Outcome> + Send + 'static,
    ) {
        // Completes the operation even if the task panics or is dropped.
        let stopwatch = self.metrics.stopwatch();
        let guard = CompletionGuard { operations: Arc::clone(self), operation, stopwatch, outcome: None };
        let span = start_span(&guard.operation);
        let task = async move {
            let change = traces::in_span(&span, change);
            let outcome = tokio::select! {
                biased;
                () = guard.operation.preempted.cancelled() => Err(guard.operations.preemption_error()),
                outcome = change => outcome,
            };
            end_span(&span, &outcome);
            drop(span);
            guard.finish(outcome);
        };
        self.tasks.spawn(task.in_current_span());
    }

    /// Waits until no operation is under way, for `limit` at most.
    pub(super) async fn drained(&self, limit: Duration) {
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                operations = self.tasks.len(),
                "Operations on engines are still under way; no longer waiting for them."
            );
        }
        self.tasks.reopen();
    }

    fn complete(&self, operation: &Arc<Operation>, outcome: Outcome) {
        {
            let mut slots = self.slots();
            if let Some(slot) = slots.get_mut(&operation.engine_owner) {
                let is_same = |other: &mut Arc<Operation>| Arc::ptr_eq(other, operation);
                slot.active.take_if(is_same);
                slot.pending_delete.take_if(is_same);
                if slot.active.is_none() && slot.pending_delete.is_none() {
                    slots.remove(&operation.engine_owner);
                }
            }
        }
        // Sent after it has left the map, so that a woken waiter can register an operation.
        operation.progress.send_replace(Progress::Done(outcome));
    }

    /// Why an operation was dropped: for a delete, or because another orchestrator continues it.
    fn preemption_error(&self) -> OperationError {
        if self.aborted.load(Ordering::Relaxed) {
            RegistryError::LostLeadership.into()
        } else {
            OperationError::Preempted
        }
    }

    /// Drops every operation at its current await point.
    pub(super) fn abort_all(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        for slot in self.slots().values() {
            for operation in slot.active.iter().chain(&slot.pending_delete) {
                operation.preempted.cancel();
            }
        }
    }

    /// The number of callers that await operations.
    #[cfg(test)]
    pub(super) fn waiter_count(&self) -> usize {
        self.slots()
            .values()
            .flat_map(|slot| &slot.active)
            .map(|operation| operation.progress.receiver_count())
            .sum()
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<EngineOwner, Slot>> {
        self.slots.lock()
    }
}

struct CompletionGuard {
    operations: Arc<Operations>,
    operation: Arc<Operation>,
    stopwatch: Stopwatch,
    outcome: Option<Outcome>,
}

impl CompletionGuard {
    fn finish(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Err(FleetError::internal(TaskAborted).into()));
        let measured = measured_outcome(&outcome);
        self.operations.metrics.operation(self.operation.change, measured, self.stopwatch);
        self.operations.complete(&self.operation, outcome);
    }
}

/// Begins the span of an operation, within that of the request that began it, if one did.
fn start_span(operation: &Operation) -> Span {
    Span::start(Kind::Internal, || {
        let change = operation.change.as_str();
        Details::new(format!("engine {change}"))
            .with("roundhouse.operation", change)
            .with("roundhouse.product.id", operation.engine_owner.product_id.to_string())
    })
}

fn end_span(span: &Span, outcome: &Outcome) {
    span.set("roundhouse.operation.outcome", || measured_outcome(outcome).value());
    match outcome {
        Ok(OperationResult::Engine(row)) => {
            span.set("roundhouse.engine.id", || row.engine_id.to_string());
        }
        Ok(OperationResult::Destroyed(id)) => span.set("roundhouse.engine.id", || id.to_string()),
        Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => {}
        Err(OperationError::Failed(_)) => span.fail("failed"),
    }
}

/// The outcome as the metrics name it.
const fn measured_outcome(outcome: &Outcome) -> OperationOutcome {
    match outcome {
        Ok(OperationResult::Moved(moved)) if moved.failure.is_some() => OperationOutcome::RolledBack,
        Ok(OperationResult::Maintained(Err(_))) => OperationOutcome::RolledBack,
        Ok(_) => OperationOutcome::Done,
        Err(OperationError::Stale) => OperationOutcome::Stale,
        Err(OperationError::Preempted) => OperationOutcome::Preempted,
        Err(OperationError::Failed(_)) => OperationOutcome::Failed,
    }
}
