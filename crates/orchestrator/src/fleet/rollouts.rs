//! Rollouts: all engines that follow the deployment's image are moved to another one.
//!
//! Some go first and are watched, the others follow: those at rest at once, those that run when they sleep next, or after
//! a time. If too many fail, all go back. While a rollout is under way, nobody follows the deployment's image, so that
//! each engine stays on the version that the rollout has decided for it. How far it is, is in the registry: whichever
//! orchestrator leads goes on with it.

mod mover;
mod state;

use std::sync::Arc;
use std::time::Duration;

use api::rollout::{
    ListRolloutEngines, OnFailure, Percent, RollBackRollout, Rollout, RolloutConcurrency, RolloutCounts,
    RolloutEngine, RolloutEngineList, RolloutList, RolloutPhase, RolloutPlan, RolloutSeconds, StartRollout,
};
use api::{EngineId, RolloutId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(super) use self::state::RolloutState;
use super::FleetError;
use super::execute::Executor;
use super::idempotency::Call;
use super::policies::Policies;
use super::shared::Shared;
use crate::domain::rollout::{
    PAUSED_BY_OPERATOR, ROLLED_BACK_BY_OPERATOR, RolloutAct, RolloutChange, RolloutStep, RolloutView, act,
    failures, is_stopped_by_failures, next_step,
};
use crate::metrics::RolloutFigures;
use crate::registry::RolloutRow;

/// The plan of a rollout that specifies nothing.
const DEFAULT_CANARY_PERCENT: i64 = 5;
const DEFAULT_BAKE_S: i64 = 600;
const DEFAULT_WINDOW_S: i64 = 86_400;
const DEFAULT_MAX_ERROR_PERCENT: i64 = 5;
const DEFAULT_CONCURRENCY: i64 = 4;

/// The rollouts that are listed.
const LISTED: i64 = 50;
/// The engines on a page, if the caller specifies nothing.
const DEFAULT_PAGE: i64 = 100;

/// How often a rollout is looked at while nothing can be done, and after something has failed.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) struct Rollouts {
    shared: Arc<Shared>,
    policies: Arc<Policies>,
    executor: Arc<Executor>,
    state: Arc<RolloutState>,
    /// Whether the registry has been compared with the running instances.
    ready: watch::Receiver<bool>,
}

impl Rollouts {
    pub(super) fn new(
        shared: &Arc<Shared>,
        policies: &Arc<Policies>,
        executor: &Arc<Executor>,
        state: &Arc<RolloutState>,
        ready: &watch::Receiver<bool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            policies: Arc::clone(policies),
            executor: Arc::clone(executor),
            state: Arc::clone(state),
            ready: ready.clone(),
        })
    }

    /// Begins a rollout, unless one is under way.
    pub(crate) async fn start(
        self: &Arc<Self>,
        request: StartRollout,
        call: Option<Call>,
    ) -> Result<Rollout, FleetError> {
        if self.shared.backend.has_single_image() {
            return Err(FleetError::SingleImage);
        }
        self.shared.backend.check_image(&request.engine_version).await?;
        let rollouts = Arc::clone(self);
        // In a task of its own: a caller who disconnects must not leave registry and memory with different states.
        let started = tokio::spawn(async move {
            let _lock = rollouts.state.change_lock.lock().await;
            if let Some(other) = rollouts.state.under_way() {
                return Err(FleetError::RolloutUnderWay { rollout_id: other.rollout_id });
            }
            let registry = &rollouts.shared.registry;
            let waiting = registry.count_rollout_waiting(&request.engine_version, None).await?;
            let now = rollouts.shared.clock.now();
            let row = RolloutRow {
                rollout_id: RolloutId::new(),
                plan: plan(&request, waiting),
                image: request.engine_version,
                previous_image: rollouts.policies.default_image(),
                phase: RolloutPhase::Canary,
                phase_since: now,
                paused: false,
                discards_turns: false,
                reason: None,
                started_at: now,
                ended_at: None,
            };
            let answer = answer(row.clone(), RolloutCounts { waiting, ..RolloutCounts::default() });
            let call = call.map(|call| call.applied_with(&answer)).transpose()?;
            registry.insert_rollout(&row, call.as_ref()).await?;
            tracing::warn!(rollout_id = %row.rollout_id, image = %row.image, "An operator has started a rollout.");
            rollouts.state.apply(&rollouts.policies, Some(row));
            Ok(answer)
        });
        started.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }

    /// Returns the last rollouts, newest first.
    pub(crate) async fn list(&self) -> Result<RolloutList, FleetError> {
        let mut rollouts = Vec::new();
        for row in self.shared.registry.rollouts(LISTED).await? {
            rollouts.push(self.details(row).await?);
        }
        Ok(RolloutList { rollouts })
    }

    /// Returns a rollout.
    pub(crate) async fn get(&self, rollout_id: RolloutId) -> Result<Rollout, FleetError> {
        self.details(self.find(rollout_id).await?).await
    }

    async fn find(&self, rollout_id: RolloutId) -> Result<RolloutRow, FleetError> {
        self.shared.registry.rollout(rollout_id).await?.ok_or(FleetError::RolloutNotFound)
    }

    async fn details(&self, row: RolloutRow) -> Result<Rollout, FleetError> {
        let engines = self.shared.registry.rollout_counts(&row).await?;
        Ok(answer(row, engines))
    }

    /// Returns a page of a rollout's engines.
    pub(crate) async fn engines(
        &self,
        rollout_id: RolloutId,
        params: ListRolloutEngines,
    ) -> Result<RolloutEngineList, FleetError> {
        self.find(rollout_id).await?;
        let limit = params.limit.map_or(DEFAULT_PAGE, Into::into);
        let found =
            self.shared.registry.rollout_engines(rollout_id, params.state, params.after, limit).await?;
        let is_full = i64::try_from(found.len()).is_ok_and(|found| found == limit);
        let next = found.last().filter(|_| is_full).map(|engine| engine.engine_id);
        let engines = found.into_iter().map(|engine| RolloutEngine {
            engine_id: engine.engine_id,
            product_id: engine.owner.product_id,
            user_id: engine.owner.user_id,
            previous_version: engine.previous_image,
            state: engine.state,
            since: engine.since,
            error: engine.error,
        });
        Ok(RolloutEngineList { engines: engines.collect(), next })
    }

    /// Pauses a rollout: nothing is moved until it is resumed.
    pub(crate) async fn pause(
        self: &Arc<Self>,
        rollout_id: RolloutId,
        call: Option<Call>,
    ) -> Result<Rollout, FleetError> {
        self.act(rollout_id, RolloutAct::Pause, RollBackRollout::default(), call).await
    }

    /// Resumes a rollout. What has failed so far is accepted.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        rollout_id: RolloutId,
        call: Option<Call>,
    ) -> Result<Rollout, FleetError> {
        self.act(rollout_id, RolloutAct::Resume, RollBackRollout::default(), call).await
    }

    /// Lets the engines of a rollout go back: of the one that is under way, or of the last one.
    pub(crate) async fn roll_back(
        self: &Arc<Self>,
        rollout_id: RolloutId,
        params: RollBackRollout,
        call: Option<Call>,
    ) -> Result<Rollout, FleetError> {
        self.act(rollout_id, RolloutAct::RollBack, params, call).await
    }

    async fn act(
        self: &Arc<Self>,
        rollout_id: RolloutId,
        what: RolloutAct,
        params: RollBackRollout,
        call: Option<Call>,
    ) -> Result<Rollout, FleetError> {
        let rollouts = Arc::clone(self);
        // In a task of its own, like a start.
        let acted = tokio::spawn(async move {
            let _lock = rollouts.state.change_lock.lock().await;
            let row = rollouts.find(rollout_id).await?;
            if call.as_ref().is_some_and(Call::is_applied) {
                return Ok(row);
            }
            let engines = rollouts.shared.registry.rollout_counts(&row).await?;
            let change = act(row.phase, row.paused, &engines, what)?;
            if change == RolloutChange::RollBack {
                rollouts.check_is_last(&row).await?;
            }
            rollouts.apply_change(row, (&engines, change), params, call.as_ref()).await
        });
        let row = acted.await.unwrap_or_else(|error| Err(FleetError::internal(error)))?;
        self.details(row).await
    }

    /// Checks that no later rollout has built on this one.
    async fn check_is_last(&self, row: &RolloutRow) -> Result<(), FleetError> {
        let last = self.shared.registry.rollouts(1).await?;
        match last.first() {
            Some(last) if last.rollout_id != row.rollout_id => {
                Err(FleetError::RolloutSuperseded { rollout_id: last.rollout_id })
            }
            _ => Ok(()),
        }
    }

    async fn apply_change(
        &self,
        mut row: RolloutRow,
        (engines, change): (&RolloutCounts, RolloutChange),
        params: RollBackRollout,
        call: Option<&Call>,
    ) -> Result<RolloutRow, FleetError> {
        let mut image = None;
        match change {
            RolloutChange::None => return Ok(row),
            RolloutChange::Pause(true) => {
                row.paused = true;
                row.reason = Some(PAUSED_BY_OPERATOR.to_owned());
            }
            RolloutChange::Pause(false) => {
                row.paused = false;
                row.reason = None;
                row.plan.max_failures = row.plan.max_failures.max(failures(engines));
            }
            RolloutChange::RollBack => {
                // New engines are not to begin on a version that is taken back.
                image = row.phase.is_over().then(|| row.previous_image.clone());
                row = RolloutRow {
                    paused: false,
                    discards_turns: params.discard_new_turns,
                    ended_at: None,
                    ..self.in_phase(&row, RolloutPhase::RollingBack)
                };
                row.reason = Some(ROLLED_BACK_BY_OPERATOR.to_owned());
                self.shared.registry.retry_stuck_rollout_engines(&row).await?;
            }
        }
        tracing::warn!(rollout_id = %row.rollout_id, ?change, "An operator has changed a rollout.");
        self.state.store(&self.shared, &self.policies, row.clone(), image, call).await?;
        Ok(row)
    }

    /// The rollout in another phase, which begins now.
    fn in_phase(&self, row: &RolloutRow, phase: RolloutPhase) -> RolloutRow {
        let now = self.shared.clock.now();
        let ended_at = phase.is_over().then_some(now);
        RolloutRow { phase, phase_since: now, ended_at, ..row.clone() }
    }

    /// Notes a proxied call to an engine, and whether the engine has failed to answer it.
    pub(crate) fn note_call(&self, engine_id: EngineId, failed: bool) {
        self.state.note_call(engine_id, failed);
    }

    /// Goes on with the rollout that is under way, until `shutdown`.
    pub(super) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let (mut under_way, mut ready) = (self.state.subscribe(), self.ready.clone());
        let run = async {
            // The senders live as long as the fleet.
            let _ = ready.wait_for(|ready| *ready).await;
            loop {
                if self.state.under_way().is_none() {
                    self.shared.metrics.set_rollout(None);
                }
                let _ = under_way.wait_for(Option::is_some).await;
                let pause = match Box::pin(self.pass()).await {
                    Ok(true) => continue,
                    Ok(false) => LOOK_INTERVAL,
                    Err(error) => {
                        tracing::warn!(%error, "A rollout does not get on; retrying.");
                        RETRY_INTERVAL
                    }
                };
                tokio::select! {
                    () = self.shared.clock.sleep(pause) => {}
                    // An operator has changed it.
                    _ = under_way.changed() => {}
                }
            }
        };
        shutdown.run_until_cancelled(run).await;
    }

    /// Does what is next for the rollout under way. Returns whether there may be more to do at once.
    async fn pass(&self) -> Result<bool, FleetError> {
        let Some(rollout) = self.state.under_way() else { return Ok(false) };
        self.settle_interrupted(&rollout).await?;
        if rollout.phase != RolloutPhase::RollingBack {
            self.note_unhealthy(&rollout).await?;
        }
        let view = RolloutView {
            plan: rollout.plan,
            phase: rollout.phase,
            phase_since: rollout.phase_since,
            paused: rollout.paused,
            engines: self.shared.registry.rollout_counts(&rollout).await?,
            calls: self.state.call_counts(),
        };
        self.shared.metrics.set_rollout(Some(&RolloutFigures {
            phase: view.phase,
            is_paused: view.paused,
            has_failed: is_stopped_by_failures(view.phase, view.paused, rollout.reason.as_deref()),
            engines: view.engines,
        }));
        match next_step(&view, self.shared.clock.now()) {
            RolloutStep::Wait => Ok(false),
            RolloutStep::Move { limit, running } => self.move_engines(&rollout, limit, running).await,
            RolloutStep::MoveBack => self.move_back(&rollout).await,
            RolloutStep::Enter(phase) => self.enter(&rollout, phase).await,
            RolloutStep::Fail(reason) => self.fail(&rollout, reason).await,
        }
    }

    async fn enter(&self, rollout: &Arc<RolloutRow>, phase: RolloutPhase) -> Result<bool, FleetError> {
        let image = match phase {
            RolloutPhase::Completed => {
                self.pin_failed(rollout).await?;
                Some(rollout.image.clone())
            }
            RolloutPhase::RolledBack => {
                self.pin_newcomers(rollout).await?;
                None
            }
            RolloutPhase::Canary
            | RolloutPhase::Baking
            | RolloutPhase::Rolling
            | RolloutPhase::RollingBack => None,
        };
        let next = self.in_phase(rollout, phase);
        self.store_if_unchanged(rollout, next, image).await
    }

    async fn fail(&self, rollout: &Arc<RolloutRow>, reason: String) -> Result<bool, FleetError> {
        tracing::error!(rollout_id = %rollout.rollout_id, reason, "A rollout has failed.");
        self.shared.metrics.rollout_failed();
        let next = match rollout.plan.on_failure {
            OnFailure::RollBack => self.in_phase(rollout, RolloutPhase::RollingBack),
            OnFailure::Pause => RolloutRow { paused: true, ..(**rollout).clone() },
        };
        self.store_if_unchanged(rollout, RolloutRow { reason: Some(reason), ..next }, None).await
    }

    /// Stores a change, unless an operator was first.
    async fn store_if_unchanged(
        &self,
        seen: &Arc<RolloutRow>,
        next: RolloutRow,
        image: Option<api::EngineImage>,
    ) -> Result<bool, FleetError> {
        let _lock = self.state.change_lock.lock().await;
        if self.is_under_way(seen) {
            tracing::info!(rollout_id = %next.rollout_id, phase = next.phase.as_str(), "A rollout gets on.");
            self.state.store(&self.shared, &self.policies, next, image, None).await?;
        }
        Ok(true)
    }

    /// Whether a rollout is still under way as it was seen.
    fn is_under_way(&self, seen: &Arc<RolloutRow>) -> bool {
        self.state.under_way().is_some_and(|now| Arc::ptr_eq(&now, seen))
    }
}

fn answer(row: RolloutRow, engines: RolloutCounts) -> Rollout {
    Rollout {
        rollout_id: row.rollout_id,
        engine_version: row.image,
        previous_version: row.previous_image,
        plan: row.plan,
        phase: row.phase,
        phase_since: row.phase_since,
        paused: row.paused,
        reason: row.reason,
        started_at: row.started_at,
        ended_at: row.ended_at,
        engines,
    }
}

/// The plan of a rollout of which `waiting` engines are to be moved.
fn plan(request: &StartRollout, waiting: u64) -> RolloutPlan {
    let seconds =
        |value: Option<RolloutSeconds>, default| value.map_or(default, RolloutSeconds::get).unsigned_abs();
    let percent = |value: Option<Percent>, default| value.map_or(default, Percent::get).unsigned_abs();
    RolloutPlan {
        canaries: waiting
            .saturating_mul(percent(request.canary_percent, DEFAULT_CANARY_PERCENT))
            .div_ceil(100),
        bake_s: seconds(request.bake_s, DEFAULT_BAKE_S),
        window_s: seconds(request.window_s, DEFAULT_WINDOW_S),
        max_failures: request.max_failures.map_or(0, |max| max.get().unsigned_abs()),
        max_error_percent: percent(request.max_error_percent, DEFAULT_MAX_ERROR_PERCENT),
        concurrency: request.concurrency.map_or(DEFAULT_CONCURRENCY, RolloutConcurrency::get).unsigned_abs(),
        on_failure: request.on_failure.unwrap_or_default(),
    }
}
