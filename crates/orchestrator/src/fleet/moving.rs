//! Another version for an engine: stopped, its brain copied, launched on the other image, and taken back with the copy
//! if it does not become healthy.
//!
//! It is claimed like a start, which is what it is for everybody else. The row names the other image as soon as the
//! copy is there: whoever finishes a move that was cut off goes forward.

use std::sync::Arc;

use contract::EngineImage;
use contract::orchestrator::EngineStatus;
use serde_json::{Value, json};

use super::boot::{Booted, NotBooted, Wants, Why};
use super::flight::{Ended, Flight, Outcome, Settled};
use super::lifecycle::Change;
use super::policies::image_denied;
use super::pursuit::Job;
use super::resting::{GRACE, resting_as};
use super::{Fleet, FleetError};
use crate::backend::BrainCopy;
use crate::registry::{Claim, EngineRow, Entry, Event, Next, Refused};

/// What came of a move.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    /// The engine as it is now.
    pub(super) row: EngineRow,
    /// The image that it ran before.
    pub(super) from: EngineImage,
    /// The copy of its brain; none if the image is the same.
    pub(super) copy: Option<BrainCopy>,
    /// Why it is on the image of before.
    pub(super) failure: Option<FleetError>,
}

/// A move under way.
struct Move {
    /// The engine as it was before.
    before: EngineRow,
    image: EngineImage,
    pinned: bool,
    copy: Option<BrainCopy>,
}

impl Fleet {
    /// Moves an engine to the image that `job` asks for, which it stays with; to the deployment's, which it follows, if
    /// it asks for none.
    pub(super) async fn move_engine(
        self: &Arc<Self>,
        flight: &Arc<Flight>,
        job: &Job,
        seen: EngineRow,
    ) -> Outcome {
        let pinned = job.version.is_some();
        let image = job.version.clone().unwrap_or_else(|| self.settings.engine_image.clone());
        let (same, runs) = (image == seen.engine_version, seen.status == EngineStatus::Running);
        if !same {
            self.backend.check_image(&image).await?;
            self.backend.check_data_of(seen.engine_id).await?;
        }
        let claim = Claim { image: Some(image.clone()), ..self.claim(Change::Start) };
        // One that runs has its port.
        let ports = (!same && !runs).then_some(&self.ports);
        let mut row = match self.registry.claim(&seen, &claim, ports).await? {
            Ok(row) => row,
            Err(Refused::Image) => return Err(image_denied(&image).into()),
            Err(refused) => return Err(refused.into()),
        };
        flight.claimed(row.generation);
        let mut moving = Move { before: seen, image, pinned, copy: None };
        if same {
            self.registry.set_version(&row, &moving.image, pinned).await.map_err(Ended::unsettled)?;
            return self.settle_move(row, &moving, Next::Unchanged, None).await;
        }
        if runs
            && let Err(error) = self.backend.stop(row.target(), GRACE).await
            && !self.has_ended(&row).await
        {
            // The row keeps its claim until it is known what has become of the engine.
            return Err(error.into());
        }
        match self.boot_moved(&mut row, &mut moving).await? {
            Ok(booted) => self.arrived(row, &moving, booted).await,
            Err(failure) => self.take_back(row, &moving, &failure).await,
        }
    }

    async fn boot_moved(
        self: &Arc<Self>,
        row: &mut EngineRow,
        moving: &mut Move,
    ) -> Result<Result<Booted, NotBooted>, Ended> {
        match self.backend.keep_copy(row.target()).await {
            Ok(copy) => moving.copy = Some(copy),
            Err(error) => return Ok(Err(NotBooted { why: Why::Backend(error), log: Vec::new() })),
        }
        self.registry.set_version(row, &moving.image, moving.pinned).await.map_err(Ended::unsettled)?;
        row.engine_version.clone_from(&moving.image);
        Ok(self.boot(row, Wants::Brain).await)
    }

    /// The engine is healthy on the other image: it stays up if it ran before or had failed, else it rests again.
    async fn arrived(self: &Arc<Self>, row: EngineRow, moving: &Move, booted: Booted) -> Outcome {
        let rests = match moving.before.status {
            status @ (EngineStatus::Stopped | EngineStatus::Sleeping) => Some(status),
            EngineStatus::Provisioning
            | EngineStatus::Running
            | EngineStatus::Failed
            | EngineStatus::Destroying => None,
        };
        let next = match rests {
            Some(status) => {
                self.backend.stop(row.target(), GRACE).await?;
                Next::AtRest(status)
            }
            None => running(&row, booted),
        };
        self.settle_move(row, moving, next, None).await
    }

    /// Takes a move back that did not lead to a healthy engine.
    async fn take_back(self: &Arc<Self>, mut row: EngineRow, moving: &Move, failure: &NotBooted) -> Outcome {
        tracing::warn!(engine.id = %row.engine_id, reason = failure.message(), "A move to another version failed.");
        self.backend.kill(row.target()).await?;
        if moving.copy.is_some() {
            self.backend.restore_copy(row.target()).await?;
        }
        let before = &moving.before;
        self.registry
            .set_version(&row, &before.engine_version, before.pinned)
            .await
            .map_err(Ended::unsettled)?;
        row.engine_version.clone_from(&before.engine_version);
        let next = match before.status {
            EngineStatus::Running => match self.boot(&mut row, Wants::Brain).await {
                Ok(booted) => running(&row, booted),
                Err(again) => {
                    tracing::warn!(engine.id = %row.engine_id, reason = again.message(), "Nor does it come up as before.");
                    self.backend.kill(row.target()).await?;
                    self.failed(0)
                }
            },
            EngineStatus::Failed => self.failed(0),
            status => Next::AtRest(status),
        };
        self.settle_move(row, moving, next, Some(failure)).await
    }

    async fn settle_move(
        &self,
        mut row: EngineRow,
        moving: &Move,
        next: Next,
        failure: Option<&NotBooted>,
    ) -> Outcome {
        row.pinned = if failure.is_some() { moving.before.pinned } else { moving.pinned };
        let entry = self.moved_entry(&row, moving, &next, failure);
        let settled = self.settle(&row, next, Some(&entry)).await.map_err(Ended::unsettled)?;
        let row = settled.ok_or(Ended::Stale)?;
        let from = moving.before.engine_version.clone();
        let failure = failure.map(|failure| taken_back(failure.error(), &from));
        Ok(Settled::Moved(Box::new(Moved { row, from, copy: moving.copy, failure })))
    }

    /// The audit log's row of a move, under the event of the state that the engine ends in.
    fn moved_entry(&self, row: &EngineRow, moving: &Move, next: &Next, failure: Option<&NotBooted>) -> Entry {
        let from = moving.before.status;
        let to = match next {
            Next::Running { .. } => EngineStatus::Running,
            Next::AtRest(status) => *status,
            Next::Failed { .. } => EngineStatus::Failed,
            Next::Unchanged | Next::Rotated(_) | Next::Gone => from,
        };
        let event = match to {
            EngineStatus::Sleeping => resting_as(Change::Sleep).0,
            EngineStatus::Stopped => resting_as(Change::Stop).0,
            EngineStatus::Failed if from != EngineStatus::Failed => Event::Crash,
            _ => Event::Start,
        };
        let mut detail = json!({
            "from": from, "to": to, "reason": "version",
            "version": {"from": moving.before.engine_version, "to": moving.image, "pinned": moving.pinned},
            "outcome": if failure.is_some() { "taken_back" } else { "moved" },
        });
        if let (Value::Object(detail), Some(failure)) = (&mut detail, failure) {
            detail.insert("cause".to_owned(), failure.why.cause().into());
            detail.insert("message".to_owned(), failure.message().into());
            detail.insert("log".to_owned(), failure.log.clone().into());
        }
        self.entry(row, event, detail)
    }
}

fn running(row: &EngineRow, booted: Booted) -> Next {
    Next::Running {
        instance: booted.instance,
        image: row.engine_version.clone(),
        health_at: booted.health_at,
        wanted: true,
    }
}

/// What the caller of a move is answered that was taken back.
fn taken_back(error: FleetError, to: &EngineImage) -> FleetError {
    let add = |why: String| format!("{why}; the engine is on {to} again, with its brain as it was");
    match error {
        FleetError::BootTimeout(why) => FleetError::BootTimeout(add(why)),
        FleetError::Backend(why) => FleetError::Backend(add(why)),
        FleetError::CapacityExhausted(why) => FleetError::CapacityExhausted(add(why)),
        error => error,
    }
}
