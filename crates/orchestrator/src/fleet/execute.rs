//! Executes a request on an engine until it is done: load the row, decide, then perform an operation, share one or
//! wait for one; repeat until the decision is final.

use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::{DenialReason, EngineStatus};
use api::{EngineId, ProductId};
use futures::future::{Either, select};

use super::FleetError;
use super::boot_limiter::{BootLimiter, BootRequest};
use super::changes::Changes;
use super::changes::boot::Boots;
use super::drain::DrainState;
use super::maintenance::MaintenanceState;
use super::operation::{Operation, Operations};
use super::request::{OperationError, OperationRequest, OperationResult, Outcome, RequestKind};
use super::shared::Shared;
use super::supervision::{RestartState, Supervision, to_mono_millis};
use crate::domain::EngineOwner;
use crate::domain::lifecycle::{Change, Decision, EngineView, Trigger, can_share, decide};
use crate::registry::EngineRow;

/// How long operations under way may take before all engines are put to sleep.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Drives requests to their ends.
pub(super) struct Executor {
    shared: Arc<Shared>,
    supervision: Arc<Supervision>,
    changes: Changes,
    pub(super) operations: Arc<Operations>,
    pub(super) boot_limiter: BootLimiter,
    drain: Arc<DrainState>,
    maintenance: Arc<MaintenanceState>,
    boot_timeout: Duration,
    /// The longest time that any caller waits for an operation.
    operation_timeout: Duration,
}

/// The result of one iteration of [`Executor::execute`].
enum Iteration {
    Done(OperationResult),
    Retry,
}

impl Executor {
    pub(super) fn new(
        changes: Changes,
        drain: Arc<DrainState>,
        maintenance: Arc<MaintenanceState>,
        boot_timeout: Duration,
        operation_timeout: Duration,
    ) -> Self {
        Self {
            shared: Arc::clone(&changes.shared),
            supervision: Arc::clone(&changes.supervision),
            operations: Arc::clone(&changes.operations),
            boot_limiter: BootLimiter::new(changes.shared.backend.concurrent_launches()),
            changes,
            drain,
            maintenance,
            boot_timeout,
            operation_timeout,
        }
    }

    /// What launches engines.
    pub(super) const fn boots(&self) -> &Boots {
        &self.changes.boots
    }

    /// Performs `request` and waits for its result.
    pub(super) async fn execute(
        self: &Arc<Self>,
        request: &OperationRequest,
    ) -> Result<OperationResult, FleetError> {
        let row = self.shared.registry.engine(&request.engine_owner).await?;
        match (self.decide(row.as_ref(), request.trigger()), row) {
            // The common case of an admit, which needs no timer.
            (Decision::Pass, Some(row))
                if self.note_activity(request.trigger(), row.engine_id, &request.engine_owner) =>
            {
                Ok(OperationResult::Engine(Box::new(row)))
            }
            (Decision::Deny(reason), _) => Ok(OperationResult::Denied(reason)),
            (_, row) => {
                let iterations = Box::pin(self.execute_until_done(request, row));
                match select(iterations, self.shared.clock.sleep(self.operation_timeout)).await {
                    Either::Left((result, _)) => result,
                    Either::Right(_) => Err(FleetError::OperationTimeout),
                }
            }
        }
    }

    async fn execute_until_done(
        self: &Arc<Self>,
        request: &OperationRequest,
        row: Option<EngineRow>,
    ) -> Result<OperationResult, FleetError> {
        let mut row = row;
        let deadline = self.shared.clock.monotonic().saturating_add(self.boot_timeout);
        loop {
            if let Iteration::Done(result) = self.execute_once(request, row, deadline).await? {
                return Ok(result);
            }
            // However many iterations follow, other tasks proceed and the timeout can fire.
            tokio::task::yield_now().await;
            row = self.shared.registry.engine(&request.engine_owner).await?;
        }
    }

    /// The decision of the table for the engine as the registry and the supervisor know it.
    fn decide(&self, row: Option<&EngineRow>, trigger: Trigger) -> Decision {
        let view = row.map(|row| EngineView {
            status: row.status,
            change: row.claim,
            restart_due: row.status == EngineStatus::Failed && self.restarts_soon(row),
        });
        decide(view, trigger)
    }

    /// Whether a restart of a failed engine is due before the caller's timeout.
    fn restarts_soon(&self, row: &EngineRow) -> bool {
        let Some(at) = row.restart_at else { return false };
        let due_in = match self.supervision.restart_state(row.engine_id) {
            Some(RestartState::Due(at)) => at.saturating_sub(self.supervision.mono_now()),
            // As soon as it gets a permit.
            Some(RestartState::InProgress) => return true,
            // The supervisor is about to be notified of it.
            None => at.unix_ms().saturating_sub(self.shared.clock.now().unix_ms()),
        };
        due_in <= to_mono_millis(self.boot_timeout)
    }

    /// Records an admit of a running engine, or a call proxied to it. Returns false if the engine is being put to
    /// sleep: then it was too late to record it, and the caller decides again.
    pub(super) fn note_activity(&self, trigger: Trigger, engine_id: EngineId, owner: &EngineOwner) -> bool {
        let is_read = !matches!(trigger, Trigger::Admit { .. } | Trigger::Proxy);
        if is_read {
            return true;
        }
        self.supervision.record_admit(engine_id);
        // A sleep first registers its operation and then checks for admits. So either this admit sees the
        // operation, or the operation sees this admit.
        self.operations.get(owner).is_none_or(|operation| operation.change != Change::Sleep)
    }

    async fn execute_once(
        self: &Arc<Self>,
        request: &OperationRequest,
        row: Option<EngineRow>,
        deadline: Duration,
    ) -> Result<Iteration, FleetError> {
        let decision = self.decide(row.as_ref(), request.trigger());
        // The claim's holder is gone: its operation is finished first. A delete does not need that.
        if let Some(row) = row.as_ref().filter(|row| row.claim.is_some())
            && decision != Decision::Perform(Change::Destroy)
            && (request.trigger() != Trigger::Get || decision == Decision::Wait)
            // The outcome is certain: a refused caller need not wait until the delete is finished.
            && !(row.status == EngineStatus::Destroying && matches!(decision, Decision::Refuse(_)))
            && self.operations.get(&request.engine_owner).is_none()
        {
            return match self.repair(row).await {
                Err(OperationError::Failed(error)) => Err(error),
                Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => Ok(Iteration::Retry),
            };
        }
        if let (Trigger::Admit { .. }, Decision::Share | Decision::AwaitRestart, Some(row)) =
            (request.trigger(), decision, &row)
        {
            // A restart has no caller and does not count as activity; a caller who waits for one uses the engine
            // from now on.
            self.supervision.record_admit(row.engine_id);
        }
        // The due restart belongs to the failure that the supervisor saw; any change since then has scheduled
        // another one, or none.
        if let (RequestKind::Restart { generation }, Some(row)) = (&request.kind, &row)
            && (row.restart_at.is_none() || row.generation != *generation)
        {
            return Err(FleetError::EngineNotRunning);
        }
        match (decision, row) {
            (Decision::Pass, Some(row))
                if self.note_activity(request.trigger(), row.engine_id, &request.engine_owner) =>
            {
                Ok(Iteration::Done(OperationResult::Engine(Box::new(row))))
            }
            (Decision::Deny(reason), _) => Ok(Iteration::Done(OperationResult::Denied(reason))),
            (Decision::Refuse(refusal), _) => Err(refusal.into()),
            (Decision::Perform(change), row) => self.begin_change(request, change, row).await,
            (Decision::Share, row) => self.join(request, row, true).await,
            (Decision::Pass | Decision::Wait, row) => self.join(request, row, false).await,
            (Decision::AwaitRestart, Some(row)) => {
                self.check_may_start(row.owner.product_id)?;
                self.await_restart(&row, deadline).await
            }
            // The table never awaits a restart for a user without an engine.
            (Decision::AwaitRestart, None) => Ok(Iteration::Retry),
        }
    }

    /// Checks that engines of a product may be started, as far as is known.
    fn check_may_start(&self, product_id: ProductId) -> Result<(), FleetError> {
        self.drain.check_may_start()?;
        self.changes.policies.check_in_use(product_id)
    }

    /// Performs `change`, or waits for the operation that was registered first.
    async fn begin_change(
        self: &Arc<Self>,
        request: &OperationRequest,
        change: Change,
        row: Option<EngineRow>,
    ) -> Result<Iteration, FleetError> {
        let operation = match self.operations.begin(&request.engine_owner, change) {
            Ok(operation) => operation,
            Err(other) => return self.wait_for_other(request, &other).await,
        };
        let change = {
            let (executor, operation, request) = (Arc::clone(self), Arc::clone(&operation), request.clone());
            async move { executor.perform(&operation, &request, row).await }
        };
        self.operations.spawn(Arc::clone(&operation), change);
        conclude(request, operation.change, operation.outcome().await)
    }

    /// Waits until the restart of a failed engine has begun or its state has changed, until `deadline` at the
    /// latest.
    async fn await_restart(&self, row: &EngineRow, deadline: Duration) -> Result<Iteration, FleetError> {
        let Some(notify) = self.supervision.prioritize(row.engine_id) else { return Ok(Iteration::Retry) };
        self.boot_limiter.prioritize(row.engine_id);
        let changed = notify.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if let Some(operation) = self.operations.get(&row.owner) {
            self.wait_until_visible(&row.owner, &operation).await?;
            return Ok(Iteration::Retry);
        }
        // A change that happened before this was enabled is visible in the row.
        let seen = self.shared.registry.engine(&row.owner).await?;
        if seen.is_none_or(|seen| seen.generation != row.generation) {
            return Ok(Iteration::Retry);
        }
        let remaining = deadline.saturating_sub(self.shared.clock.monotonic());
        tokio::select! {
            () = changed => Ok(Iteration::Retry),
            () = self.shared.clock.sleep(remaining) => {
                Ok(Iteration::Done(OperationResult::Denied(DenialReason::EngineUnhealthy)))
            }
        }
    }

    async fn perform(
        &self,
        operation: &Arc<Operation>,
        request: &OperationRequest,
        row: Option<EngineRow>,
    ) -> Outcome {
        // Acquired before anything is claimed or has a deadline; a restart has its permit already.
        let _permit = match operation.change {
            Change::Provision | Change::Start | Change::Wake => {
                Some(self.boot_limiter.acquire(request.engine_owner.product_id, BootRequest::OnDemand).await)
            }
            Change::Stop | Change::Sleep | Change::Restart | Change::Rotate | Change::Destroy => None,
        };
        if matches!(request.kind, RequestKind::Maintain(_)) {
            // An operator's own work, without the agent: only a drain, which wants nothing to run, is in its way.
            self.drain.check_may_start()?;
        } else {
            self.maintenance.check_permits(operation.change)?;
            if operation.change.starts_engine() {
                self.check_may_start(request.engine_owner.product_id)?;
            }
        }
        self.changes.perform(operation, request, row).await
    }

    /// Waits for the operation that was registered first for the engine owner.
    async fn wait_for_other(
        self: &Arc<Self>,
        request: &OperationRequest,
        other: &Operation,
    ) -> Result<Iteration, FleetError> {
        if other.claimed_generation().is_none() && can_share(request.trigger(), other.change) {
            return conclude(request, other.change, other.outcome().await);
        }
        self.wait_until_visible(&request.engine_owner, other).await?;
        Ok(Iteration::Retry)
    }

    /// Waits until the row shows the change of `operation`, or the operation is over: then a new decision makes
    /// progress.
    async fn wait_until_visible(&self, owner: &EngineOwner, operation: &Operation) -> Result<(), FleetError> {
        operation.wait_until_claimed().await;
        let Some(claimed) = operation.claimed_generation() else { return Ok(()) };
        // Read after the claim was seen. A row without a claim has just been settled or taken over, or its
        // operation needs no claim: all that can be waited for is the outcome.
        let row = self.shared.registry.engine(owner).await?;
        if row.is_none_or(|row| row.claim.is_none() || row.generation != claimed) {
            let _ = operation.outcome().await;
        }
        Ok(())
    }

    /// Waits for the change that `row` shows. Shares its outcome if `share`; otherwise, whether it succeeded or
    /// not, decides again.
    async fn join(
        self: &Arc<Self>,
        request: &OperationRequest,
        row: Option<EngineRow>,
        share: bool,
    ) -> Result<Iteration, FleetError> {
        let Some(operation) = self.operations.get(&request.engine_owner) else { return Ok(Iteration::Retry) };
        if operation.claimed_generation() != row.map(|row| row.generation) {
            // This is not the change that the row showed.
            self.wait_until_visible(&request.engine_owner, &operation).await?;
            return Ok(Iteration::Retry);
        }
        match operation.outcome().await {
            // The restart had no caller either, so the engine may be about to sleep again, like any running
            // engine.
            Ok(OperationResult::Engine(row))
                if operation.change == Change::Restart
                    && !self.note_activity(request.trigger(), row.engine_id, &request.engine_owner) =>
            {
                Ok(Iteration::Retry)
            }
            outcome if share => conclude(request, operation.change, outcome),
            _ => Ok(Iteration::Retry),
        }
    }

    /// Waits for the end of the change that `row` shows. If nobody is at it, ends it.
    pub(super) async fn end_change(self: &Arc<Self>, row: &EngineRow) -> Result<(), FleetError> {
        if let Some(operation) = self.operations.get(&row.owner) {
            let _ = operation.outcome().await;
            return Ok(());
        }
        match self.repair(row).await {
            Err(OperationError::Failed(error)) => Err(error),
            Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => Ok(()),
        }
    }

    /// Repairs the engine of `row`: ends the change that its claim names, or removes a process that should not
    /// exist. On success the outcome is [`OperationError::Stale`], so that the caller reads the row again.
    pub(super) async fn repair(self: &Arc<Self>, row: &EngineRow) -> Outcome {
        let operation = match self.operations.begin_for_row(row, row.claim.unwrap_or(Change::Stop)) {
            Ok(operation) => operation,
            // Another operation was registered first.
            Err(other) => {
                other.wait_until_claimed().await;
                return Err(OperationError::Stale);
            }
        };
        let (executor, seen) = (Arc::clone(self), row.clone());
        self.operations.spawn(Arc::clone(&operation), async move { executor.changes.repair(&seen).await });
        operation.outcome().await
    }

    /// Puts all running engines to sleep at once, each with the grace period of a stop. Returns the number of
    /// engines that were put to sleep. `reason` is recorded in the audit log.
    pub(super) async fn sleep_all(self: &Arc<Self>, reason: &'static str) -> Result<usize, FleetError> {
        self.operations.drained(DRAIN_TIMEOUT).await;
        let running = self.shared.registry.running_engines().await?;
        let sleeps = running.into_iter().map(|row| {
            let request = OperationRequest::new(row.owner, RequestKind::Sleep { if_idle: false }, reason);
            async move { self.execute(&request).await }
        });
        let mut asleep = 0;
        for result in futures::future::join_all(sleeps).await {
            match result {
                Ok(_) => asleep += 1,
                // Stopped or deleted by another call at the same time.
                Err(FleetError::EngineNotRunning | FleetError::EngineNotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(asleep)
    }
}

/// The result of an operation's outcome for a caller who shares it.
fn conclude(request: &OperationRequest, change: Change, outcome: Outcome) -> Result<Iteration, FleetError> {
    match outcome {
        // The supervisor retries; a caller who wants an admit is told that the engine is unhealthy.
        Err(OperationError::Failed(_))
            if change == Change::Restart && matches!(request.trigger(), Trigger::Admit { .. }) =>
        {
            Ok(Iteration::Done(OperationResult::Denied(DenialReason::EngineUnhealthy)))
        }
        Ok(OperationResult::Moved(_)) if request.trigger() != Trigger::ChangeVersion => Ok(Iteration::Retry),
        Ok(OperationResult::Maintained(_)) if request.trigger() != Trigger::Maintain => Ok(Iteration::Retry),
        Ok(result) => Ok(Iteration::Done(result)),
        Err(OperationError::Failed(error)) => Err(error),
        Err(OperationError::Stale) => Ok(Iteration::Retry),
        Err(OperationError::Preempted) => match request.trigger() {
            // For an admit, the end of the engine means a new decision.
            Trigger::Admit { .. } | Trigger::Get => Ok(Iteration::Retry),
            Trigger::Provision
            | Trigger::Start
            | Trigger::Stop
            | Trigger::Rotate
            | Trigger::Sleep { .. }
            | Trigger::Restart
            | Trigger::Destroy
            | Trigger::Proxy
            | Trigger::ChangeVersion
            | Trigger::Maintain => Err(FleetError::EngineNotFound),
        },
    }
}
