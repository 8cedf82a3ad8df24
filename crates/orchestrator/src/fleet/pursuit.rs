//! From what is asked to its end: look, decide, and make a change, share one or wait for one; then again.

use std::sync::Arc;
use std::time::Duration;

use contract::orchestrator::{DenialReason, EngineStatus};
use contract::{EngineId, EngineImage};
use futures::future::{Either, select};

use super::boot_gate::Boot;
use super::flight::{Ended, Flight, Outcome, Settled};
use super::lifecycle::{Change, Decision, Trigger, View, decide, shares};
use super::supervision::{Restart, moment};
use super::{Fleet, FleetError};
use crate::registry::{EngineRow, Seat};
use crate::sabotage::{self, Saboteur};

/// What is asked, and all that is needed to do it.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) seat: Seat,
    pub(super) trigger: Trigger,
    /// The image asked for, for a provision.
    pub(super) version: Option<EngineImage>,
    /// Why, as the ledger has it.
    pub(super) reason: &'static str,
    /// The only change of the row after which this is to be done, for a restart.
    pub(super) generation: Option<i64>,
}

impl Job {
    /// A job that provisions nothing.
    pub(super) const fn new(seat: Seat, trigger: Trigger, reason: &'static str) -> Self {
        Self { seat, trigger, version: None, reason, generation: None }
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
        match (self.decide(row.as_ref(), job.trigger), row) {
            // Most admits end here, and need no timer.
            (Decision::Pass, Some(row)) if self.passes(job.trigger, row.engine_id, &job.seat) => {
                Ok(Settled::Found(Box::new(row)))
            }
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
        let until = self.clock.monotonic().saturating_add(self.settings.boot_timeout);
        loop {
            if let Round::Over(settled) = self.round(job, row, until).await? {
                return Ok(settled);
            }
            // However often it looks again, others get on, and patience ends.
            tokio::task::yield_now().await;
            row = self.registry.engine(&job.seat).await?;
        }
    }

    /// What the table says, given the engine as the registry and the supervisor know it.
    fn decide(&self, row: Option<&EngineRow>, trigger: Trigger) -> Decision {
        let view = row.map(|row| View {
            status: row.status,
            change: row.claim,
            restart_due: row.status == EngineStatus::Failed && self.restarts_soon(row),
        });
        decide(view, trigger)
    }

    /// Whether a restart of a failed engine is due before a caller has to give up.
    fn restarts_soon(&self, row: &EngineRow) -> bool {
        let Some(at) = row.restart_at else { return false };
        let due_in = match self.supervision.restart(row.engine_id) {
            Some(Restart::Due(at)) => at.saturating_sub(self.moment()),
            // As soon as it is its turn.
            Some(Restart::Taken) => return true,
            // The supervisor is just about to hear of it.
            None => at.unix_ms().saturating_sub(self.now().unix_ms()),
        };
        due_in <= moment(self.settings.boot_timeout)
    }

    /// Notes an admit of a running engine, or a call passed on to it. False if the engine is just being put to
    /// sleep: then this has come too late to be noted, and looks again.
    pub(super) fn passes(&self, trigger: Trigger, engine_id: EngineId, seat: &Seat) -> bool {
        let is_look = !matches!(trigger, Trigger::Admit { .. } | Trigger::Reach);
        if is_look && !sabotage::by(Saboteur::LooksAreActivity) {
            return true;
        }
        self.supervision.admitted(engine_id, self.moment(), self.now());
        // Who puts an engine to sleep first takes the seat and then looks for admits. So either this admit
        // sees the flight, or the flight sees this admit.
        self.flights.at(seat).is_none_or(|flight| flight.change != Change::Sleep)
    }

    async fn round(
        self: &Arc<Self>,
        job: &Job,
        row: Option<EngineRow>,
        until: Duration,
    ) -> Result<Round, FleetError> {
        let decision = self.decide(row.as_ref(), job.trigger);
        // Someone claimed it and is gone: what they began is finished first. A delete needs no such help.
        if let Some(row) = row.as_ref().filter(|row| row.claim.is_some())
            && decision != Decision::Make(Change::Destroy)
            && (job.trigger != Trigger::Look || decision == Decision::Wait)
            // Its end is certain: who is refused because of it need not wait for whoever finishes it.
            && !(row.status == EngineStatus::Destroying && matches!(decision, Decision::Refuse(_)))
            && self.flights.at(&job.seat).is_none()
        {
            return match self.put_in_order(row).await {
                Err(Ended::Failed(error)) => Err(error),
                Ok(_) | Err(Ended::Stale | Ended::Overtaken) => Ok(Round::Again),
            };
        }
        if let (Trigger::Admit { .. }, Decision::Share | Decision::AwaitRestart, Some(row)) =
            (job.trigger, decision, &row)
        {
            // A restart is made for nobody, and counts as no use: who waits for one uses it from now on.
            self.supervision.admitted(row.engine_id, self.moment(), self.now());
        }
        // The restart that is due is that of the engine as the supervisor saw it fail; any change since has set
        // another, or none.
        if let (Trigger::Restart, Some(row)) = (job.trigger, &row)
            && (row.restart_at.is_none() || job.generation.is_some_and(|seen| seen != row.generation))
        {
            return Err(FleetError::EngineNotRunning);
        }
        match (decision, row) {
            (Decision::Pass, Some(row)) if self.passes(job.trigger, row.engine_id, &job.seat) => {
                Ok(Round::Over(Settled::Found(Box::new(row))))
            }
            (Decision::Deny(reason), _) => Ok(Round::Over(Settled::Denied(reason))),
            (Decision::Refuse(refusal), _) => Err(refusal.into()),
            (Decision::Make(change), row) => self.make(job, change, row).await,
            (Decision::Share, row) => self.join(job, row, true).await,
            (Decision::Pass | Decision::Wait, row) => self.join(job, row, false).await,
            (Decision::AwaitRestart, Some(row)) => self.await_restart(&row, until).await,
            // The table awaits nothing for a user without an engine.
            (Decision::AwaitRestart, None) => Ok(Round::Again),
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
        conclude(job, flight.change, flight.over().await)
    }

    /// Waits until the restart of a failed engine has begun or something else has come of it, at most `until`.
    async fn await_restart(&self, row: &EngineRow, until: Duration) -> Result<Round, FleetError> {
        let Some(news) = self.supervision.hurry(row.engine_id) else { return Ok(Round::Again) };
        if !sabotage::by(Saboteur::NoHurry) {
            self.boot_gate.hurry(row.engine_id);
        }
        let changed = news.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if let Some(flight) = self.flights.at(&row.seat) {
            self.until_shown(&row.seat, &flight).await?;
            return Ok(Round::Again);
        }
        // What happened before this was enabled shows in the row.
        let seen = self.registry.engine(&row.seat).await?;
        if seen.is_none_or(|seen| seen.generation != row.generation) {
            return Ok(Round::Again);
        }
        let left = until.saturating_sub(self.clock.monotonic());
        tokio::select! {
            () = changed => Ok(Round::Again),
            () = self.clock.sleep(left) => Ok(Round::Over(Settled::Denied(DenialReason::EngineUnhealthy))),
        }
    }

    /// What each change does.
    async fn change(self: Arc<Self>, flight: &Arc<Flight>, job: &Job, row: Option<EngineRow>) -> Outcome {
        // Before anything is claimed or has a deadline; a restart has its permit already.
        let _permit = match flight.change {
            Change::Provision | Change::Start | Change::Wake => {
                Some(self.boot_gate.permit(job.seat.product_id, Boot::Requested).await)
            }
            Change::Stop | Change::Sleep | Change::Restart | Change::Rotate | Change::Destroy => None,
        };
        match (flight.change, row) {
            (Change::Start, Some(row)) if job.trigger == Trigger::Version => {
                self.move_engine(flight, job, row).await
            }
            (Change::Provision, _) => self.provision_seat(flight, job).await,
            (Change::Start | Change::Wake, Some(row)) => self.launch_again(flight, job, row).await,
            (Change::Stop | Change::Sleep, Some(row)) => self.put_to_rest(flight, job, row).await,
            (Change::Restart, Some(row)) => self.restart_engine(flight, row).await,
            (Change::Rotate, Some(row)) => self.rotate_key(flight, row).await,
            (Change::Destroy, Some(row)) => self.destroy_engine(flight, row).await,
            // The table changes no engine that is not there.
            (
                Change::Start
                | Change::Wake
                | Change::Stop
                | Change::Sleep
                | Change::Restart
                | Change::Rotate
                | Change::Destroy,
                None,
            ) => Err(Ended::Stale),
        }
    }

    /// Waits for the flight that was at the seat first.
    async fn after(self: &Arc<Self>, job: &Job, other: &Flight) -> Result<Round, FleetError> {
        if sabotage::by(Saboteur::RefuseToShare) {
            return Err(FleetError::EngineAlreadyExists);
        }
        if other.generation().is_none() && shares(job.trigger, other.change) {
            return conclude(job, other.change, other.over().await);
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
        match flight.over().await {
            // Made for nobody, too: it may just be put to sleep again, as any other that runs.
            Ok(Settled::Found(row))
                if flight.change == Change::Restart
                    && !self.passes(job.trigger, row.engine_id, &job.seat) =>
            {
                Ok(Round::Again)
            }
            outcome if share => conclude(job, flight.change, outcome),
            _ => Ok(Round::Again),
        }
    }
}

/// What a flight's outcome means to one who shares it.
fn conclude(job: &Job, change: Change, outcome: Outcome) -> Result<Round, FleetError> {
    match outcome {
        // The supervisor tries again; who is to be admitted is told that the engine is unwell.
        Err(Ended::Failed(_))
            if change == Change::Restart && matches!(job.trigger, Trigger::Admit { .. }) =>
        {
            Ok(Round::Over(Settled::Denied(DenialReason::EngineUnhealthy)))
        }
        Ok(Settled::Moved(_)) if job.trigger != Trigger::Version => Ok(Round::Again),
        Ok(settled) => Ok(Round::Over(settled)),
        Err(Ended::Failed(error)) => Err(error),
        Err(Ended::Stale) => Ok(Round::Again),
        Err(Ended::Overtaken) => match job.trigger {
            // For one who is to be admitted the engine's end is a new beginning.
            Trigger::Admit { .. } | Trigger::Look => Ok(Round::Again),
            Trigger::Provision
            | Trigger::Start
            | Trigger::Stop
            | Trigger::Rotate
            | Trigger::Sleep { .. }
            | Trigger::Restart
            | Trigger::Destroy
            | Trigger::Reach
            | Trigger::Version => Err(FleetError::EngineNotFound),
        },
    }
}
