//! Changes under way: one per seat, each a task of its own whose outcome anyone may await.
//!
//! The row's claim is what counts; this map only tells who works on it, so that others can wait. A flight is
//! in the map before it claims and leaves it after the row is settled. So a claimed row without a flight is one
//! that nobody works on.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::EngineId;
use contract::orchestrator::DenialReason;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::FleetError;
use super::error::TaskAborted;
use super::lifecycle::Change;
use super::policies::suspended_error;
use super::version_move::MoveOutcome;
use crate::registry::{ClaimRefused, EngineOwner, EngineRow, RegistryError};

/// Where something that was asked has ended.
#[derive(Clone, Debug)]
pub(super) enum OperationResult {
    /// The engine as it was asked for: it runs, or it is merely looked at.
    Engine(Box<EngineRow>),
    /// The engine is at rest.
    NotRunning,
    /// The engine is no more.
    Destroyed(EngineId),
    /// Nothing was changed, and the user is not admitted.
    Denied(DenialReason),
    /// The engine was moved to another version, or taken back: who did not ask for that looks again.
    Moved(Box<MoveOutcome>),
}

/// Why a change ended without settling what its callers asked for.
#[derive(Clone, Debug)]
pub(super) enum OperationError {
    /// The engine was not as it seemed, or was only put in order: look again.
    Stale,
    /// A delete took the engine over.
    Preempted,
    /// It failed.
    Failed(FleetError),
}

/// What a flight comes to.
pub(super) type Outcome = Result<OperationResult, OperationError>;

impl From<ClaimRefused> for OperationError {
    fn from(refused: ClaimRefused) -> Self {
        match refused {
            // Of an engine that there is, the image is not judged here.
            ClaimRefused::Stale | ClaimRefused::ImageNotAllowed => Self::Stale,
            ClaimRefused::NoPort => FleetError::PortExhaustion.into(),
            ClaimRefused::Quota { max_engines } => FleetError::QuotaExceeded { max_engines }.into(),
            ClaimRefused::Suspended => suspended_error().into(),
        }
    }
}

impl<E: Into<FleetError>> From<E> for OperationError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl OperationError {
    /// The end of a change whose row could not be settled.
    pub(super) fn from_settle_error(error: RegistryError) -> Self {
        match error {
            RegistryError::ClaimLost { .. } => Self::Preempted,
            error => error.into(),
        }
    }
}

/// How far a flight is.
#[derive(Clone, Debug)]
enum Progress {
    /// The row does not show it yet.
    Claiming,
    /// The row is its own, in this generation.
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
    fn new(seat: EngineOwner, change: Change, progress: Progress) -> Arc<Self> {
        Arc::new(Self {
            engine_owner: seat,
            change,
            progress: watch::Sender::new(progress),
            preempted: CancellationToken::new(),
        })
    }

    /// Says that the row is claimed, in this generation.
    pub(super) fn mark_claimed(&self, generation: i64) {
        self.progress.send_replace(Progress::Claimed(generation));
    }

    /// The generation in which it holds the row; none before it does, and after.
    pub(super) fn claimed_generation(&self) -> Option<i64> {
        match *self.progress.borrow() {
            Progress::Claimed(generation) => Some(generation),
            Progress::Claiming | Progress::Done(_) => None,
        }
    }

    /// Waits until the row shows the change, or it is over.
    pub(super) async fn wait_until_claimed(&self) {
        let mut progress = self.progress.subscribe();
        // The sender lives as long as the flight.
        let _ = progress.wait_for(|progress| !matches!(progress, Progress::Claiming)).await;
    }

    /// Waits for the outcome.
    pub(super) async fn outcome(&self) -> Outcome {
        let mut progress = self.progress.subscribe();
        let over = progress.wait_for(|progress| matches!(progress, Progress::Done(_))).await;
        match over.as_deref() {
            Ok(Progress::Done(outcome)) => outcome.clone(),
            _ => Err(FleetError::internal(TaskAborted).into()),
        }
    }
}

/// Who works on a seat.
#[derive(Default)]
struct Slot {
    active: Option<Arc<Operation>>,
    /// A delete that is about to take the seat over.
    pending_delete: Option<Arc<Operation>>,
}

/// All changes under way.
#[derive(Default)]
pub(super) struct Operations {
    slots: Mutex<HashMap<EngineOwner, Slot>>,
    tasks: TaskTracker,
    /// Set when the registry has been taken over.
    aborted: AtomicBool,
}

impl Operations {
    /// Who works on `seat`, if anyone.
    pub(super) fn get(&self, seat: &EngineOwner) -> Option<Arc<Operation>> {
        let slots = self.slots();
        let slot = slots.get(seat)?;
        slot.active.as_ref().or(slot.pending_delete.as_ref()).cloned()
    }

    /// How many seats are worked on.
    pub(super) fn len(&self) -> usize {
        self.slots().len()
    }

    /// Begins a change, unless someone works on the seat: then it is given back who. A delete only waits for
    /// another delete.
    pub(super) fn begin(&self, seat: &EngineOwner, change: Change) -> Result<Arc<Operation>, Arc<Operation>> {
        self.register(Operation::new(seat.clone(), change, Progress::Claiming))
    }

    /// Begins to put an engine in order as it stands in `row`.
    pub(super) fn begin_for_row(
        &self,
        row: &EngineRow,
        change: Change,
    ) -> Result<Arc<Operation>, Arc<Operation>> {
        self.register(Operation::new(row.owner.clone(), change, Progress::Claimed(row.generation)))
    }

    fn register(&self, flight: Arc<Operation>) -> Result<Arc<Operation>, Arc<Operation>> {
        let mut slots = self.slots();
        let slot = slots.entry(flight.engine_owner.clone()).or_default();
        if let Some(pending_delete) = &slot.pending_delete {
            return Err(Arc::clone(pending_delete));
        }
        // A delete that is still claiming stands beside the flight that it will overtake.
        if flight.change == Change::Destroy && flight.claimed_generation().is_none() {
            slot.pending_delete = Some(Arc::clone(&flight));
            return Ok(flight);
        }
        if let Some(other) = &slot.active {
            return Err(Arc::clone(other));
        }
        slot.active = Some(Arc::clone(&flight));
        Ok(flight)
    }

    /// The row is the delete's: whoever worked on it is told to stop.
    pub(super) fn preempt(&self, pending_delete: &Arc<Operation>, generation: i64) {
        pending_delete.mark_claimed(generation);
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&pending_delete.engine_owner) else { return };
        slot.pending_delete = None;
        if let Some(overtaken) = slot.active.replace(Arc::clone(pending_delete)) {
            overtaken.preempted.cancel();
        }
    }

    /// Lets `change` fly: as a task of its own, until it is over or overtaken. Its log lines are those of the
    /// request that began it.
    pub(super) fn spawn(
        self: &Arc<Self>,
        flight: Arc<Operation>,
        change: impl Future<Output = Outcome> + Send + 'static,
    ) {
        // Lands the flight even if the task panics or is dropped.
        let landing = CompletionGuard { operations: Arc::clone(self), operation: flight, outcome: None };
        let task = async move {
            let outcome = tokio::select! {
                biased;
                () = landing.operation.preempted.cancelled() => Err(landing.operations.preemption_error()),
                outcome = change => outcome,
            };
            landing.finish(outcome);
        };
        self.tasks.spawn(task.in_current_span());
    }

    /// Waits until nothing is under way, at most for `limit`.
    pub(super) async fn drained(&self, limit: Duration) {
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                flights = self.tasks.len(),
                "Changes of engines are still under way; they are left."
            );
        }
        self.tasks.reopen();
    }

    fn complete(&self, flight: &Arc<Operation>, outcome: Outcome) {
        {
            let mut slots = self.slots();
            if let Some(slot) = slots.get_mut(&flight.engine_owner) {
                let is_it = |other: &mut Arc<Operation>| Arc::ptr_eq(other, flight);
                slot.active.take_if(is_it);
                slot.pending_delete.take_if(is_it);
                if slot.active.is_none() && slot.pending_delete.is_none() {
                    slots.remove(&flight.engine_owner);
                }
            }
        }
        // After it has left the map: who is woken by this finds the seat free.
        flight.progress.send_replace(Progress::Done(outcome));
    }

    /// Why a change was dropped: for a delete, or because another orchestrator goes on with it.
    fn preemption_error(&self) -> OperationError {
        if self.aborted.load(Ordering::Relaxed) {
            RegistryError::LostLeadership.into()
        } else {
            OperationError::Preempted
        }
    }

    /// Drops every change where it stands.
    pub(super) fn abort_all(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        for slot in self.slots().values() {
            for flight in slot.active.iter().chain(&slot.pending_delete) {
                flight.preempted.cancel();
            }
        }
    }

    /// How many callers await the changes under way.
    #[cfg(test)]
    pub(super) fn waiter_count(&self) -> usize {
        self.slots()
            .values()
            .flat_map(|slot| &slot.active)
            .map(|flight| flight.progress.receiver_count())
            .sum()
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<EngineOwner, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct CompletionGuard {
    operations: Arc<Operations>,
    operation: Arc<Operation>,
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
        self.operations.complete(&self.operation, outcome);
    }
}
