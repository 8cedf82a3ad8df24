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
use super::error::BrokenOff;
use super::lifecycle::Change;
use super::moving::Moved;
use super::policies::suspended;
use crate::registry::{EngineRow, Refused, RegistryError, Seat};

/// Where something that was asked has ended.
#[derive(Clone, Debug)]
pub(super) enum Settled {
    /// The engine as it was asked for: it runs, or it is merely looked at.
    Found(Box<EngineRow>),
    /// The engine is at rest.
    AtRest,
    /// The engine is no more.
    Destroyed(EngineId),
    /// Nothing was changed, and the user is not admitted.
    Denied(DenialReason),
    /// The engine was moved to another version, or taken back: who did not ask for that looks again.
    Moved(Box<Moved>),
}

/// Why a change ended without settling what its callers asked for.
#[derive(Clone, Debug)]
pub(super) enum Ended {
    /// The engine was not as it seemed, or was only put in order: look again.
    Stale,
    /// A delete took the engine over.
    Overtaken,
    /// It failed.
    Failed(FleetError),
}

/// What a flight comes to.
pub(super) type Outcome = Result<Settled, Ended>;

impl From<Refused> for Ended {
    fn from(refused: Refused) -> Self {
        match refused {
            // Of an engine that there is, the image is not judged here.
            Refused::Stale | Refused::Image => Self::Stale,
            Refused::NoPort => FleetError::PortExhaustion.into(),
            Refused::Quota { max_engines } => FleetError::QuotaExceeded { max_engines }.into(),
            Refused::Suspended => suspended().into(),
        }
    }
}

impl<E: Into<FleetError>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Ended {
    /// The end of a change whose row could not be settled.
    pub(super) fn unsettled(error: RegistryError) -> Self {
        match error {
            RegistryError::ClaimLost { .. } => Self::Overtaken,
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
    Over(Outcome),
}

/// A change under way.
pub(super) struct Flight {
    pub(super) seat: Seat,
    pub(super) change: Change,
    progress: watch::Sender<Progress>,
    overtaken: CancellationToken,
}

impl Flight {
    fn new(seat: Seat, change: Change, progress: Progress) -> Arc<Self> {
        Arc::new(Self {
            seat,
            change,
            progress: watch::Sender::new(progress),
            overtaken: CancellationToken::new(),
        })
    }

    /// Says that the row is claimed, in this generation.
    pub(super) fn claimed(&self, generation: i64) {
        self.progress.send_replace(Progress::Claimed(generation));
    }

    /// The generation in which it holds the row; none before it does, and after.
    pub(super) fn generation(&self) -> Option<i64> {
        match *self.progress.borrow() {
            Progress::Claimed(generation) => Some(generation),
            Progress::Claiming | Progress::Over(_) => None,
        }
    }

    /// Waits until the row shows the change, or it is over.
    pub(super) async fn past_claiming(&self) {
        let mut progress = self.progress.subscribe();
        // The sender lives as long as the flight.
        let _ = progress.wait_for(|progress| !matches!(progress, Progress::Claiming)).await;
    }

    /// Waits for the outcome.
    pub(super) async fn over(&self) -> Outcome {
        let mut progress = self.progress.subscribe();
        let over = progress.wait_for(|progress| matches!(progress, Progress::Over(_))).await;
        match over.as_deref() {
            Ok(Progress::Over(outcome)) => outcome.clone(),
            _ => Err(FleetError::internal(BrokenOff).into()),
        }
    }
}

/// Who works on a seat.
#[derive(Default)]
struct Slot {
    flight: Option<Arc<Flight>>,
    /// A delete that is about to take the seat over.
    heir: Option<Arc<Flight>>,
}

/// All changes under way.
#[derive(Default)]
pub(super) struct Flights {
    slots: Mutex<HashMap<Seat, Slot>>,
    tasks: TaskTracker,
    /// Set when the registry has been taken over.
    abandoned: AtomicBool,
}

impl Flights {
    /// Who works on `seat`, if anyone.
    pub(super) fn at(&self, seat: &Seat) -> Option<Arc<Flight>> {
        let slots = self.slots();
        let slot = slots.get(seat)?;
        slot.flight.as_ref().or(slot.heir.as_ref()).cloned()
    }

    /// How many seats are worked on.
    pub(super) fn len(&self) -> usize {
        self.slots().len()
    }

    /// Begins a change, unless someone works on the seat: then it is given back who. A delete only waits for
    /// another delete.
    pub(super) fn begin(&self, seat: &Seat, change: Change) -> Result<Arc<Flight>, Arc<Flight>> {
        self.enter(Flight::new(seat.clone(), change, Progress::Claiming))
    }

    /// Begins to put an engine in order as it stands in `row`.
    pub(super) fn begin_on(&self, row: &EngineRow, change: Change) -> Result<Arc<Flight>, Arc<Flight>> {
        self.enter(Flight::new(row.seat.clone(), change, Progress::Claimed(row.generation)))
    }

    fn enter(&self, flight: Arc<Flight>) -> Result<Arc<Flight>, Arc<Flight>> {
        let mut slots = self.slots();
        let slot = slots.entry(flight.seat.clone()).or_default();
        if let Some(heir) = &slot.heir {
            return Err(Arc::clone(heir));
        }
        // A delete that is still claiming stands beside the flight that it will overtake.
        if flight.change == Change::Destroy && flight.generation().is_none() {
            slot.heir = Some(Arc::clone(&flight));
            return Ok(flight);
        }
        if let Some(other) = &slot.flight {
            return Err(Arc::clone(other));
        }
        slot.flight = Some(Arc::clone(&flight));
        Ok(flight)
    }

    /// The row is the delete's: whoever worked on it is told to stop.
    pub(super) fn take_over(&self, heir: &Arc<Flight>, generation: i64) {
        heir.claimed(generation);
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&heir.seat) else { return };
        slot.heir = None;
        if let Some(overtaken) = slot.flight.replace(Arc::clone(heir)) {
            overtaken.overtaken.cancel();
        }
    }

    /// Lets `change` fly: as a task of its own, until it is over or overtaken. Its log lines are those of the
    /// request that began it.
    pub(super) fn fly(
        self: &Arc<Self>,
        flight: Arc<Flight>,
        change: impl Future<Output = Outcome> + Send + 'static,
    ) {
        // Lands the flight even if the task panics or is dropped.
        let landing = Landing { flights: Arc::clone(self), flight, outcome: None };
        let task = async move {
            let outcome = tokio::select! {
                biased;
                () = landing.flight.overtaken.cancelled() => Err(landing.flights.overtaken()),
                outcome = change => outcome,
            };
            landing.with(outcome);
        };
        self.tasks.spawn(task.in_current_span());
    }

    /// Waits until nothing is under way, at most for `limit`.
    pub(super) async fn landed(&self, limit: Duration) {
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                flights = self.tasks.len(),
                "Changes of engines are still under way; they are left."
            );
        }
        self.tasks.reopen();
    }

    fn land(&self, flight: &Arc<Flight>, outcome: Outcome) {
        {
            let mut slots = self.slots();
            if let Some(slot) = slots.get_mut(&flight.seat) {
                let is_it = |other: &mut Arc<Flight>| Arc::ptr_eq(other, flight);
                slot.flight.take_if(is_it);
                slot.heir.take_if(is_it);
                if slot.flight.is_none() && slot.heir.is_none() {
                    slots.remove(&flight.seat);
                }
            }
        }
        // After it has left the map: who is woken by this finds the seat free.
        flight.progress.send_replace(Progress::Over(outcome));
    }

    /// Why a change was dropped: for a delete, or because another orchestrator goes on with it.
    fn overtaken(&self) -> Ended {
        if self.abandoned.load(Ordering::Relaxed) { RegistryError::Deposed.into() } else { Ended::Overtaken }
    }

    /// Drops every change where it stands.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        for slot in self.slots().values() {
            for flight in slot.flight.iter().chain(&slot.heir) {
                flight.overtaken.cancel();
            }
        }
    }

    /// How many callers await the changes under way.
    #[cfg(test)]
    pub(super) fn awaited(&self) -> usize {
        self.slots()
            .values()
            .flat_map(|slot| &slot.flight)
            .map(|flight| flight.progress.receiver_count())
            .sum()
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Seat, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Landing {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    outcome: Option<Outcome>,
}

impl Landing {
    fn with(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Err(FleetError::internal(BrokenOff).into()));
        self.flights.land(&self.flight, outcome);
    }
}
