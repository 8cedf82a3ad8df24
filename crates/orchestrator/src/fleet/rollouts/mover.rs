//! Moves the engines of a rollout, and moves them back.
//!
//! What is about to happen to an engine is stored first, and what became of it afterwards. If an orchestrator dies in
//! between, the next one looks at the engine itself: its row says which version it is on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::orchestrator::EngineStatus;
use api::rollout::RolloutEngineState;
use api::{EngineImage, ErrorCode, ErrorDetail};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};

use super::Rollouts;
use crate::domain::Actor;
use crate::fleet::FleetError;
use crate::fleet::request::{OperationRequest, OperationResult, RequestKind, VersionMove};
use crate::registry::{Candidates, EngineRow, MovedRow, RolloutEngineRow, RolloutRow};

/// Engines that are read at once.
const PAGE: i64 = 100;

impl Rollouts {
    /// Moves at most `limit` engines, and no more than are moved at the same time, so that the first failures are seen
    /// before more follow: those at rest, then, if `running`, those that run. Returns whether any was moved.
    pub(super) async fn move_engines(
        &self,
        rollout: &Arc<RolloutRow>,
        limit: u64,
        running: bool,
    ) -> Result<bool, FleetError> {
        let limit = i64::try_from(limit.min(rollout.plan.concurrency)).unwrap_or(PAGE);
        let registry = &self.shared.registry;
        let mut if_idle = true;
        let mut found = registry.rollout_candidates(rollout, Candidates::AtRest, limit).await?;
        if found.is_empty() && running {
            found = registry.rollout_candidates(rollout, Candidates::Running, limit).await?;
            if_idle = false;
        }
        let moves = found.into_iter().map(|row| self.move_engine(rollout, row, if_idle).boxed());
        self.all(rollout, moves.collect()).await
    }

    /// Does these with the rollout's concurrency, until one fails: then it fails when those that have begun are done.
    /// Returns whether any made a difference.
    async fn all(
        &self,
        rollout: &RolloutRow,
        moves: Vec<BoxFuture<'_, Result<bool, FleetError>>>,
    ) -> Result<bool, FleetError> {
        let concurrency = usize::try_from(rollout.plan.concurrency).unwrap_or(1).max(1);
        let has_failed = &AtomicBool::new(false);
        let moves: Vec<_> = moves.into_iter().map(|next| until_failure(next, has_failed)).collect();
        let results: Vec<_> = futures::stream::iter(moves).buffer_unordered(concurrency).collect().await;
        results.into_iter().try_fold(false, |any, moved| Ok(moved? || any))
    }

    async fn move_engine(
        &self,
        rollout: &Arc<RolloutRow>,
        row: EngineRow,
        if_idle: bool,
    ) -> Result<bool, FleetError> {
        // An operator may have paused it meanwhile.
        if !self.is_under_way(rollout) {
            return Ok(false);
        }
        let record = RolloutEngineRow {
            engine_id: row.engine_id,
            owner: row.owner,
            previous_image: row.engine_version,
            state: RolloutEngineState::Moving,
            since: self.shared.clock.now(),
            brain_format: None,
            moved: None,
            error: None,
        };
        self.shared.registry.put_rollout_engine(rollout.rollout_id, &record).await?;
        let image = rollout.image.clone();
        match self.change_version(&record, VersionMove::RollOut { image, if_idle }, "rollout").await {
            Ok(OperationResult::Moved(moved)) => match moved.failure {
                None => {
                    let brain_format = moved.brain_copy.and_then(|copy| copy.format);
                    let record =
                        RolloutEngineRow { brain_format, moved: Some(MovedRow::of(&moved.row)), ..record };
                    self.note_moved(rollout, record).await?;
                    Ok(true)
                }
                Some(error) if !moved.is_host_failure => {
                    self.note(rollout, record, RolloutEngineState::Failed, Some(detail(&error))).await?;
                    Ok(true)
                }
                Some(error) => {
                    self.settle_record(rollout, record).await?;
                    Err(error)
                }
            },
            Err(error @ (FleetError::PolicyDenied(_) | FleetError::ProductDisabled { .. })) => {
                self.note(rollout, record, RolloutEngineState::Skipped, Some(detail(&error))).await?;
                Ok(true)
            }
            // It runs, or was deleted.
            Ok(_) | Err(FleetError::EngineAlreadyRunning | FleetError::EngineNotFound) => {
                self.settle_record(rollout, record).await.map(|()| false)
            }
            Err(error) => {
                self.settle_record(rollout, record).await?;
                Err(error)
            }
        }
    }

    async fn change_version(
        &self,
        record: &RolloutEngineRow,
        to: VersionMove,
        reason: &'static str,
    ) -> Result<OperationResult, FleetError> {
        let kind = RequestKind::ChangeVersion(to);
        let request = OperationRequest::new(record.owner.clone(), kind, reason).by(Actor::Operator);
        self.executor.execute(&request).await
    }

    async fn note_moved(&self, rollout: &RolloutRow, record: RolloutEngineRow) -> Result<(), FleetError> {
        self.state.watch_calls(record.engine_id);
        self.note(rollout, record, RolloutEngineState::Moved, None).await
    }

    async fn note(
        &self,
        rollout: &RolloutRow,
        record: RolloutEngineRow,
        state: RolloutEngineState,
        error: Option<ErrorDetail>,
    ) -> Result<(), FleetError> {
        if let Some(error) = &error {
            tracing::warn!(
                rollout_id = %rollout.rollout_id,
                engine_id = %record.engine_id,
                state = state.as_str(),
                error = error.message,
                "An engine of a rollout is not on its version."
            );
        }
        let record = RolloutEngineRow { state, since: self.shared.clock.now(), error, ..record };
        Ok(self.shared.registry.put_rollout_engine(rollout.rollout_id, &record).await?)
    }

    /// The engine of a record, if it is still the same one.
    async fn engine_of(&self, record: &RolloutEngineRow) -> Result<Option<EngineRow>, FleetError> {
        let row = self.shared.registry.engine(&record.owner).await?;
        Ok(row.filter(|row| row.engine_id == record.engine_id && row.status != EngineStatus::Destroying))
    }

    async fn forget(&self, rollout: &RolloutRow, record: &RolloutEngineRow) -> Result<(), FleetError> {
        let removed = self.shared.registry.remove_rollout_engine(rollout.rollout_id, record.engine_id);
        Ok(removed.await?)
    }

    /// Settles the engines whose moves were interrupted.
    pub(super) async fn settle_interrupted(&self, rollout: &RolloutRow) -> Result<(), FleetError> {
        let moving = Some(RolloutEngineState::Moving);
        for record in self.records(rollout, moving).await? {
            self.settle_record(rollout, record).await?;
        }
        Ok(())
    }

    /// All engines of a rollout in a state.
    async fn records(
        &self,
        rollout: &RolloutRow,
        state: Option<RolloutEngineState>,
    ) -> Result<Vec<RolloutEngineRow>, FleetError> {
        let (mut records, mut after) = (Vec::new(), None);
        loop {
            let page = self.shared.registry.rollout_engines(rollout.rollout_id, state, after, PAGE).await?;
            after = page.last().map(|record| record.engine_id);
            records.extend(page);
            if after.is_none() {
                return Ok(records);
            }
        }
    }

    /// Notes what became of an engine whose move was interrupted, or may be: its row tells. Nothing is noted while it
    /// is being changed.
    async fn settle_record(&self, rollout: &RolloutRow, record: RolloutEngineRow) -> Result<(), FleetError> {
        let Some(row) = self.engine_of(&record).await? else { return self.forget(rollout, &record).await };
        if row.claim.is_some() {
            return Ok(());
        }
        if row.engine_version != rollout.image {
            return self.forget(rollout, &record).await;
        }
        match row.status {
            // The move was interrupted while it ran; it is about to be restarted on the new version.
            EngineStatus::Failed if row.restart_at.is_some() => Ok(()),
            EngineStatus::Failed => {
                self.note(rollout, record, RolloutEngineState::Unhealthy, Some(unhealthy())).await
            }
            EngineStatus::Provisioning
            | EngineStatus::Running
            | EngineStatus::Sleeping
            | EngineStatus::Stopped
            | EngineStatus::Destroying => {
                // Nobody knows whether it was used meanwhile.
                let moved = Some(MovedRow { generation: -1, ..MovedRow::of(&row) });
                self.note_moved(rollout, RolloutEngineRow { moved, ..record }).await
            }
        }
    }

    /// Notes the engines that have failed since they were moved.
    pub(super) async fn note_unhealthy(&self, rollout: &RolloutRow) -> Result<(), FleetError> {
        for record in self.shared.registry.unhealthy_rollout_engines(rollout, PAGE).await? {
            self.note(rollout, record, RolloutEngineState::Unhealthy, Some(unhealthy())).await?;
        }
        Ok(())
    }

    /// Moves a page of engines back. Returns whether any was.
    pub(super) async fn move_back(&self, rollout: &Arc<RolloutRow>) -> Result<bool, FleetError> {
        let registry = &self.shared.registry;
        let mut found = Vec::new();
        for state in [RolloutEngineState::Unhealthy, RolloutEngineState::Moved] {
            found.extend(registry.rollout_engines(rollout.rollout_id, Some(state), None, PAGE).await?);
        }
        let moves = found.into_iter().map(|record| self.move_engine_back(rollout, record).boxed());
        self.all(rollout, moves.collect()).await
    }

    async fn move_engine_back(
        &self,
        rollout: &Arc<RolloutRow>,
        record: RolloutEngineRow,
    ) -> Result<bool, FleetError> {
        if !self.is_under_way(rollout) {
            return Ok(false);
        }
        let Some(row) = self.engine_of(&record).await? else {
            return self.forget(rollout, &record).await.map(|()| true);
        };
        if row.claim.is_some() {
            return Ok(false);
        }
        if row.engine_version != rollout.image {
            // It is back already: the orchestrator that moved it could not note that any more.
            self.note(rollout, record, RolloutEngineState::RolledBack, None).await?;
            return Ok(true);
        }
        let to = VersionMove::RollBack {
            image: record.previous_image.clone(),
            brain_format: record.brain_format,
            may_discard: rollout.discards_turns || !was_used_since(&row, &record),
        };
        match self.change_version(&record, to, "rollback").await {
            Ok(OperationResult::Moved(moved)) => match moved.failure {
                None => self.note(rollout, record, RolloutEngineState::RolledBack, None).await?,
                Some(error) if !moved.is_host_failure => {
                    self.pin(&record, &rollout.image).await?;
                    self.note(rollout, record, RolloutEngineState::Stuck, Some(detail(&error))).await?;
                }
                Some(error) => return Err(error),
            },
            Err(error @ (FleetError::PolicyDenied(_) | FleetError::ProductDisabled { .. })) => {
                self.note(rollout, record, RolloutEngineState::Stuck, Some(detail(&error))).await?;
            }
            Ok(_) | Err(FleetError::EngineNotFound) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Pins an engine to the image that it is on, if it is.
    async fn pin(&self, record: &RolloutEngineRow, image: &EngineImage) -> Result<(), FleetError> {
        match self.engine_of(record).await? {
            Some(row) if row.engine_version == *image && !row.pinned => {}
            _ => return Ok(()),
        }
        match self.change_version(record, VersionMove::Pin(image.clone()), "rollout").await {
            // An engine of a product that is out of use cannot be launched either.
            Ok(_)
            | Err(
                FleetError::EngineNotFound | FleetError::PolicyDenied(_) | FleetError::ProductDisabled { .. },
            ) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Pins the engines that did not become healthy on a rollout's image to the one that they are on, before that image
    /// becomes the deployment's: they would follow it at their next launch.
    pub(super) async fn pin_failed(&self, rollout: &RolloutRow) -> Result<(), FleetError> {
        for record in self.records(rollout, Some(RolloutEngineState::Failed)).await? {
            self.pin(&record, &record.previous_image).await?;
        }
        Ok(())
    }

    /// Pins the engines that are on a rollout's image without having been moved to it: there is no version that they
    /// could go back to.
    pub(super) async fn pin_newcomers(&self, rollout: &RolloutRow) -> Result<(), FleetError> {
        loop {
            let found = self.shared.registry.rollout_newcomers(rollout, PAGE).await?;
            if found.is_empty() {
                return Ok(());
            }
            for row in found {
                let record = RolloutEngineRow {
                    engine_id: row.engine_id,
                    owner: row.owner,
                    previous_image: row.engine_version,
                    state: RolloutEngineState::Stuck,
                    since: self.shared.clock.now(),
                    brain_format: None,
                    moved: None,
                    error: None,
                };
                self.pin(&record, &rollout.image).await?;
                let message = "it was launched on this version, not moved to it".to_owned();
                let error = ErrorDetail { code: ErrorCode::BackendError, message };
                self.note(rollout, record, RolloutEngineState::Stuck, Some(error)).await?;
            }
        }
    }
}

/// Does this, unless something has failed.
async fn until_failure(
    next: BoxFuture<'_, Result<bool, FleetError>>,
    has_failed: &AtomicBool,
) -> Result<bool, FleetError> {
    if has_failed.load(Ordering::Relaxed) {
        return Ok(false);
    }
    next.await.inspect_err(|_| has_failed.store(true, Ordering::Relaxed))
}

/// Whether somebody may have used an engine since it was moved.
fn was_used_since(row: &EngineRow, record: &RolloutEngineRow) -> bool {
    let is_at_rest = matches!(row.status, EngineStatus::Sleeping | EngineStatus::Stopped);
    !(is_at_rest && record.moved.is_some_and(|moved| moved.generation == row.generation))
}

fn detail(error: &FleetError) -> ErrorDetail {
    ErrorDetail { code: error.code(), message: error.to_string() }
}

fn unhealthy() -> ErrorDetail {
    let message = "it has failed since it was moved; its audit log says why".to_owned();
    ErrorDetail { code: ErrorCode::BackendError, message }
}
