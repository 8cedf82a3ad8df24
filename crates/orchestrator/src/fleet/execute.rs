//! From what is asked to its end: look, decide, and make a change, share one or wait for one; then again.

use std::sync::Arc;
use std::time::Duration;

use contract::orchestrator::{DenialReason, EngineStatus};
use contract::{EngineId, EngineImage};
use futures::future::{Either, select};

use super::boot_limiter::BootRequest;
use super::lifecycle::{Change, Decision, EngineView, Trigger, can_share, decide};
use super::operation::{Operation, OperationError, OperationResult, Outcome};
use super::supervision::{RestartState, to_mono_millis};
use super::{Fleet, FleetError};
use crate::fault_injection::{self, Mutation};
use crate::registry::{EngineOwner, EngineRow};

/// What is asked, and all that is needed to do it.
#[derive(Clone, Debug)]
pub(super) struct OperationRequest {
    pub(super) engine_owner: EngineOwner,
    pub(super) trigger: Trigger,
    /// The image asked for, for a provision.
    pub(super) image: Option<EngineImage>,
    /// Why, as the ledger has it.
    pub(super) reason: &'static str,
    /// The only change of the row after which this is to be done, for a restart.
    pub(super) expected_generation: Option<i64>,
}

impl OperationRequest {
    /// A job that provisions nothing.
    pub(super) const fn new(seat: EngineOwner, trigger: Trigger, reason: &'static str) -> Self {
        Self { engine_owner: seat, trigger, image: None, reason, expected_generation: None }
    }
}

/// One round of a pursuit.
enum Iteration {
    Done(OperationResult),
    Retry,
}

impl Fleet {
    /// Does what `job` asks, and waits for its end.
    pub(super) async fn execute(
        self: &Arc<Self>,
        job: &OperationRequest,
    ) -> Result<OperationResult, FleetError> {
        let row = self.registry.engine(&job.engine_owner).await?;
        match (self.decide(row.as_ref(), job.trigger), row) {
            // Most admits end here, and need no timer.
            (Decision::Pass, Some(row))
                if self.note_activity(job.trigger, row.engine_id, &job.engine_owner) =>
            {
                Ok(OperationResult::Engine(Box::new(row)))
            }
            (Decision::Deny(reason), _) => Ok(OperationResult::Denied(reason)),
            (_, row) => {
                let rounds = Box::pin(self.execute_until_done(job, row));
                match select(rounds, self.clock.sleep(self.operation_timeout())).await {
                    Either::Left((settled, _)) => settled,
                    Either::Right(_) => Err(FleetError::OperationTimeout),
                }
            }
        }
    }

    async fn execute_until_done(
        self: &Arc<Self>,
        job: &OperationRequest,
        row: Option<EngineRow>,
    ) -> Result<OperationResult, FleetError> {
        let mut row = row;
        let until = self.clock.monotonic().saturating_add(self.settings.boot_timeout);
        loop {
            if let Iteration::Done(settled) = self.execute_once(job, row, until).await? {
                return Ok(settled);
            }
            // However often it looks again, others get on, and patience ends.
            tokio::task::yield_now().await;
            row = self.registry.engine(&job.engine_owner).await?;
        }
    }

    /// What the table says, given the engine as the registry and the supervisor know it.
    fn decide(&self, row: Option<&EngineRow>, trigger: Trigger) -> Decision {
        let view = row.map(|row| EngineView {
            status: row.status,
            change: row.claim,
            restart_due: row.status == EngineStatus::Failed && self.restarts_soon(row),
        });
        decide(view, trigger)
    }

    /// Whether a restart of a failed engine is due before a caller has to give up.
    fn restarts_soon(&self, row: &EngineRow) -> bool {
        let Some(at) = row.restart_at else { return false };
        let due_in = match self.supervision.restart_state(row.engine_id) {
            Some(RestartState::Due(at)) => at.saturating_sub(self.now_mono_millis()),
            // As soon as it is its turn.
            Some(RestartState::InProgress) => return true,
            // The supervisor is just about to hear of it.
            None => at.unix_ms().saturating_sub(self.now().unix_ms()),
        };
        due_in <= to_mono_millis(self.settings.boot_timeout)
    }

    /// Notes an admit of a running engine, or a call passed on to it. False if the engine is just being put to
    /// sleep: then this has come too late to be noted, and looks again.
    pub(super) fn note_activity(&self, trigger: Trigger, engine_id: EngineId, seat: &EngineOwner) -> bool {
        let is_look = !matches!(trigger, Trigger::Admit { .. } | Trigger::Proxy);
        if is_look && !fault_injection::active(Mutation::LooksAreActivity) {
            return true;
        }
        self.supervision.record_admit(engine_id, self.now_mono_millis(), self.now());
        // Who puts an engine to sleep first takes the seat and then looks for admits. So either this admit
        // sees the flight, or the flight sees this admit.
        self.operations.get(seat).is_none_or(|flight| flight.change != Change::Sleep)
    }

    async fn execute_once(
        self: &Arc<Self>,
        job: &OperationRequest,
        row: Option<EngineRow>,
        until: Duration,
    ) -> Result<Iteration, FleetError> {
        let decision = self.decide(row.as_ref(), job.trigger);
        // Someone claimed it and is gone: what they began is finished first. A delete needs no such help.
        if let Some(row) = row.as_ref().filter(|row| row.claim.is_some())
            && decision != Decision::Perform(Change::Destroy)
            && (job.trigger != Trigger::Get || decision == Decision::Wait)
            // Its end is certain: who is refused because of it need not wait for whoever finishes it.
            && !(row.status == EngineStatus::Destroying && matches!(decision, Decision::Refuse(_)))
            && self.operations.get(&job.engine_owner).is_none()
        {
            return match self.repair(row).await {
                Err(OperationError::Failed(error)) => Err(error),
                Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => Ok(Iteration::Retry),
            };
        }
        if let (Trigger::Admit { .. }, Decision::Share | Decision::AwaitRestart, Some(row)) =
            (job.trigger, decision, &row)
        {
            // A restart is made for nobody, and counts as no use: who waits for one uses it from now on.
            self.supervision.record_admit(row.engine_id, self.now_mono_millis(), self.now());
        }
        // The restart that is due is that of the engine as the supervisor saw it fail; any change since has set
        // another, or none.
        if let (Trigger::Restart, Some(row)) = (job.trigger, &row)
            && (row.restart_at.is_none()
                || job.expected_generation.is_some_and(|seen| seen != row.generation))
        {
            return Err(FleetError::EngineNotRunning);
        }
        match (decision, row) {
            (Decision::Pass, Some(row))
                if self.note_activity(job.trigger, row.engine_id, &job.engine_owner) =>
            {
                Ok(Iteration::Done(OperationResult::Engine(Box::new(row))))
            }
            (Decision::Deny(reason), _) => Ok(Iteration::Done(OperationResult::Denied(reason))),
            (Decision::Refuse(refusal), _) => Err(refusal.into()),
            (Decision::Perform(change), row) => self.begin_change(job, change, row).await,
            (Decision::Share, row) => self.join(job, row, true).await,
            (Decision::Pass | Decision::Wait, row) => self.join(job, row, false).await,
            (Decision::AwaitRestart, Some(row)) => self.await_restart(&row, until).await,
            // The table awaits nothing for a user without an engine.
            (Decision::AwaitRestart, None) => Ok(Iteration::Retry),
        }
    }

    /// Makes `change`, or waits for whoever came first.
    async fn begin_change(
        self: &Arc<Self>,
        job: &OperationRequest,
        change: Change,
        row: Option<EngineRow>,
    ) -> Result<Iteration, FleetError> {
        let flight = match self.operations.begin(&job.engine_owner, change) {
            Ok(flight) => flight,
            Err(other) => return self.wait_for_other(job, &other).await,
        };
        let change = {
            let (fleet, flight, job) = (Arc::clone(self), Arc::clone(&flight), job.clone());
            async move { fleet.run_change(&flight, &job, row).await }
        };
        self.operations.spawn(Arc::clone(&flight), change);
        conclude(job, flight.change, flight.outcome().await)
    }

    /// Waits until the restart of a failed engine has begun or something else has come of it, at most `until`.
    async fn await_restart(&self, row: &EngineRow, until: Duration) -> Result<Iteration, FleetError> {
        let Some(news) = self.supervision.prioritize(row.engine_id) else { return Ok(Iteration::Retry) };
        if !fault_injection::active(Mutation::NoHurry) {
            self.boot_limiter.prioritize(row.engine_id);
        }
        let changed = news.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if let Some(flight) = self.operations.get(&row.owner) {
            self.wait_until_visible(&row.owner, &flight).await?;
            return Ok(Iteration::Retry);
        }
        // What happened before this was enabled shows in the row.
        let seen = self.registry.engine(&row.owner).await?;
        if seen.is_none_or(|seen| seen.generation != row.generation) {
            return Ok(Iteration::Retry);
        }
        let left = until.saturating_sub(self.clock.monotonic());
        tokio::select! {
            () = changed => Ok(Iteration::Retry),
            () = self.clock.sleep(left) => Ok(Iteration::Done(OperationResult::Denied(DenialReason::EngineUnhealthy))),
        }
    }

    /// What each change does.
    async fn run_change(
        self: Arc<Self>,
        flight: &Arc<Operation>,
        job: &OperationRequest,
        row: Option<EngineRow>,
    ) -> Outcome {
        // Before anything is claimed or has a deadline; a restart has its permit already.
        let _permit = match flight.change {
            Change::Provision | Change::Start | Change::Wake => {
                Some(self.boot_limiter.acquire(job.engine_owner.product_id, BootRequest::OnDemand).await)
            }
            Change::Stop | Change::Sleep | Change::Restart | Change::Rotate | Change::Destroy => None,
        };
        match (flight.change, row) {
            (Change::Start, Some(row)) if job.trigger == Trigger::ChangeVersion => {
                self.move_engine(flight, job, row).await
            }
            (Change::Provision, _) => self.provision_engine(flight, job).await,
            (Change::Start | Change::Wake, Some(row)) => self.relaunch_engine(flight, job, row).await,
            (Change::Stop | Change::Sleep, Some(row)) => self.stop_engine(flight, job, row).await,
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
            ) => Err(OperationError::Stale),
        }
    }

    /// Waits for the flight that was at the seat first.
    async fn wait_for_other(
        self: &Arc<Self>,
        job: &OperationRequest,
        other: &Operation,
    ) -> Result<Iteration, FleetError> {
        if fault_injection::active(Mutation::RefuseToShare) {
            return Err(FleetError::EngineAlreadyExists);
        }
        if other.claimed_generation().is_none() && can_share(job.trigger, other.change) {
            return conclude(job, other.change, other.outcome().await);
        }
        self.wait_until_visible(&job.engine_owner, other).await?;
        Ok(Iteration::Retry)
    }

    /// Waits until the row shows what `flight` does, or will not any more: looking again leads on then.
    async fn wait_until_visible(&self, seat: &EngineOwner, flight: &Operation) -> Result<(), FleetError> {
        flight.wait_until_claimed().await;
        let Some(held) = flight.claimed_generation() else { return Ok(()) };
        // Read after the claim was seen. A row without it has been settled or taken over just now, or is
        // worked on without a claim: all that can be waited for is the end.
        let row = self.registry.engine(seat).await?;
        if row.is_none_or(|row| row.claim.is_none() || row.generation != held) {
            let _ = flight.outcome().await;
        }
        Ok(())
    }

    /// Waits for the change that `row` shows. Shares its outcome if `share`; else, well or not, looks again.
    async fn join(
        self: &Arc<Self>,
        job: &OperationRequest,
        row: Option<EngineRow>,
        share: bool,
    ) -> Result<Iteration, FleetError> {
        let Some(flight) = self.operations.get(&job.engine_owner) else { return Ok(Iteration::Retry) };
        if flight.claimed_generation() != row.map(|row| row.generation) {
            // Not the change that the row showed.
            self.wait_until_visible(&job.engine_owner, &flight).await?;
            return Ok(Iteration::Retry);
        }
        match flight.outcome().await {
            // Made for nobody, too: it may just be put to sleep again, as any other that runs.
            Ok(OperationResult::Engine(row))
                if flight.change == Change::Restart
                    && !self.note_activity(job.trigger, row.engine_id, &job.engine_owner) =>
            {
                Ok(Iteration::Retry)
            }
            outcome if share => conclude(job, flight.change, outcome),
            _ => Ok(Iteration::Retry),
        }
    }
}

/// What a flight's outcome means to one who shares it.
fn conclude(job: &OperationRequest, change: Change, outcome: Outcome) -> Result<Iteration, FleetError> {
    match outcome {
        // The supervisor tries again; who is to be admitted is told that the engine is unwell.
        Err(OperationError::Failed(_))
            if change == Change::Restart && matches!(job.trigger, Trigger::Admit { .. }) =>
        {
            Ok(Iteration::Done(OperationResult::Denied(DenialReason::EngineUnhealthy)))
        }
        Ok(OperationResult::Moved(_)) if job.trigger != Trigger::ChangeVersion => Ok(Iteration::Retry),
        Ok(settled) => Ok(Iteration::Done(settled)),
        Err(OperationError::Failed(error)) => Err(error),
        Err(OperationError::Stale) => Ok(Iteration::Retry),
        Err(OperationError::Preempted) => match job.trigger {
            // For one who is to be admitted the engine's end is a new beginning.
            Trigger::Admit { .. } | Trigger::Get => Ok(Iteration::Retry),
            Trigger::Provision
            | Trigger::Start
            | Trigger::Stop
            | Trigger::Rotate
            | Trigger::Sleep { .. }
            | Trigger::Restart
            | Trigger::Destroy
            | Trigger::Proxy
            | Trigger::ChangeVersion => Err(FleetError::EngineNotFound),
        },
    }
}
