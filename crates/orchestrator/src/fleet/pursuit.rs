//! From what is asked to its end: look, decide, and make a change, share one or wait for one; then again.

use std::sync::Arc;

use contract::EngineImage;
use futures::future::{Either, select};

use super::flight::{Ended, Flight, Outcome, Settled};
use super::lifecycle::{Change, Decision, Trigger, View, decide, shares};
use super::{Fleet, FleetError};
use crate::registry::{EngineRow, Seat};

/// What is asked, and all that is needed to do it.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) seat: Seat,
    pub(super) trigger: Trigger,
    /// The product's limit, for a provision.
    pub(super) max_engines: Option<u64>,
    /// The image asked for, for a provision.
    pub(super) version: Option<EngineImage>,
    /// Why, as the ledger has it.
    pub(super) reason: &'static str,
}

impl Job {
    /// A job that provisions nothing.
    pub(super) const fn new(seat: Seat, trigger: Trigger, reason: &'static str) -> Self {
        Self { seat, trigger, max_engines: None, version: None, reason }
    }
}

/// One round of a pursuit.
enum Round {
    Over(Settled),
    Again,
}

impl Fleet {
    /// Does what `job` asks, and waits for its end.
    pub(super) async fn pursue(self: &Arc<Self>, job: &Job) -> Result<Settled, FleetError> {
        let row = self.registry.engine(&job.seat).await?;
        match (decide(row.as_ref().map(view), job.trigger), row) {
            // Most admits end here, and need no timer.
            (Decision::Pass, Some(row)) => Ok(Settled::Running(Box::new(row))),
            (Decision::Deny(reason), _) => Ok(Settled::Denied(reason)),
            (_, row) => {
                let rounds = Box::pin(self.rounds(job, row));
                match select(rounds, self.clock.sleep(self.patience())).await {
                    Either::Left((settled, _)) => settled,
                    Either::Right(_) => Err(FleetError::TooSlow),
                }
            }
        }
    }

    async fn rounds(self: &Arc<Self>, job: &Job, row: Option<EngineRow>) -> Result<Settled, FleetError> {
        let mut row = row;
        loop {
            if let Round::Over(settled) = self.round(job, row).await? {
                return Ok(settled);
            }
            row = self.registry.engine(&job.seat).await?;
        }
    }

    async fn round(self: &Arc<Self>, job: &Job, row: Option<EngineRow>) -> Result<Round, FleetError> {
        let decision = decide(row.as_ref().map(view), job.trigger);
        // Someone claimed it and is gone: what they began is finished first. A delete needs no such help.
        if let Some(row) = row.as_ref().filter(|row| row.claim.is_some())
            && decision != Decision::Make(Change::Destroy)
            && self.flights.at(&job.seat).is_none()
        {
            return match self.put_in_order(row).await {
                Err(Ended::Failed(error)) => Err(error),
                Ok(_) | Err(Ended::Stale | Ended::Overtaken) => Ok(Round::Again),
            };
        }
        match (decision, row) {
            (Decision::Pass, Some(row)) => Ok(Round::Over(Settled::Running(Box::new(row)))),
            // The table passes no user without an engine.
            (Decision::Pass, None) => Ok(Round::Again),
            (Decision::Deny(reason), _) => Ok(Round::Over(Settled::Denied(reason))),
            (Decision::Refuse(refusal), _) => Err(refusal.into()),
            (Decision::Make(change), row) => self.make(job, change, row).await,
            (Decision::Share, row) => self.join(job, row, true).await,
            (Decision::Wait, row) => self.join(job, row, false).await,
        }
    }

    /// Makes `change`, or waits for whoever came first.
    async fn make(
        self: &Arc<Self>,
        job: &Job,
        change: Change,
        row: Option<EngineRow>,
    ) -> Result<Round, FleetError> {
        let flight = match self.flights.begin(&job.seat, change) {
            Ok(flight) => flight,
            Err(other) => return self.after(job, &other).await,
        };
        let change = {
            let (fleet, flight, job) = (Arc::clone(self), Arc::clone(&flight), job.clone());
            async move { fleet.change(&flight, &job, row).await }
        };
        self.flights.fly(Arc::clone(&flight), change);
        conclude(job, flight.over().await)
    }

    /// What each change does.
    async fn change(self: Arc<Self>, flight: &Arc<Flight>, job: &Job, row: Option<EngineRow>) -> Outcome {
        match (flight.change, row) {
            (Change::Provision, _) => self.provision_seat(flight, job).await,
            (Change::Start | Change::Wake, Some(row)) => self.launch_again(flight, job, row).await,
            (Change::Stop | Change::Sleep, Some(row)) => self.put_to_rest(flight, job, row).await,
            (Change::Destroy, Some(row)) => self.destroy_engine(flight, row).await,
            // The table changes no engine that is not there.
            (Change::Start | Change::Wake | Change::Stop | Change::Sleep | Change::Destroy, None) => {
                Err(Ended::Stale)
            }
        }
    }

    /// Waits for the flight that was at the seat first.
    async fn after(self: &Arc<Self>, job: &Job, other: &Flight) -> Result<Round, FleetError> {
        if other.generation().is_none() && shares(job.trigger, other.change) {
            return conclude(job, other.over().await);
        }
        self.until_shown(&job.seat, other).await?;
        Ok(Round::Again)
    }

    /// Waits until the row shows what `flight` does, or will not any more: looking again leads on then.
    async fn until_shown(&self, seat: &Seat, flight: &Flight) -> Result<(), FleetError> {
        flight.past_claiming().await;
        let Some(held) = flight.generation() else { return Ok(()) };
        // Read after the claim was seen. A row without it has been settled or taken over just now, or is
        // worked on without a claim: all that can be waited for is the end.
        let row = self.registry.engine(seat).await?;
        if row.is_none_or(|row| row.claim.is_none() || row.generation != held) {
            let _ = flight.over().await;
        }
        Ok(())
    }

    /// Waits for the change that `row` shows. Shares its outcome if `share`; else, well or not, looks again.
    async fn join(
        self: &Arc<Self>,
        job: &Job,
        row: Option<EngineRow>,
        share: bool,
    ) -> Result<Round, FleetError> {
        let Some(flight) = self.flights.at(&job.seat) else { return Ok(Round::Again) };
        if flight.generation() != row.map(|row| row.generation) {
            // Not the change that the row showed.
            self.until_shown(&job.seat, &flight).await?;
            return Ok(Round::Again);
        }
        let outcome = flight.over().await;
        if share { conclude(job, outcome) } else { Ok(Round::Again) }
    }
}

/// What a flight's outcome means to one who shares it.
fn conclude(job: &Job, outcome: Outcome) -> Result<Round, FleetError> {
    match outcome {
        Ok(settled) => Ok(Round::Over(settled)),
        Err(Ended::Failed(error)) => Err(error),
        Err(Ended::Stale) => Ok(Round::Again),
        Err(Ended::Overtaken) => match job.trigger {
            // For one who is to be admitted the engine's end is a new beginning.
            Trigger::Admit { .. } => Ok(Round::Again),
            Trigger::Provision | Trigger::Start | Trigger::Stop | Trigger::Sleep | Trigger::Destroy => {
                Err(FleetError::EngineNotFound)
            }
        },
    }
}

fn view(row: &EngineRow) -> View {
    View { status: row.status, change: row.claim }
}
