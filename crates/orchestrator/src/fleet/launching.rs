//! Start and wake: an engine at rest runs again.

use std::sync::Arc;

use contract::orchestrator::EngineStatus;
use contract::{EngineImage, ProductId};
use serde_json::{Value, json};

use super::Fleet;
use super::boot::{Booted, NotBooted, Wants, Why};
use super::flight::{Ended, Flight, Outcome, Settled};
use super::lifecycle::Change;
use super::pursuit::Job;
use crate::registry::{EngineRow, Entry, Event, Next};
use crate::sabotage::{self, Saboteur};

impl Fleet {
    pub(super) async fn launch_again(
        self: &Arc<Self>,
        flight: &Arc<Flight>,
        job: &Job,
        seen: EngineRow,
    ) -> Outcome {
        let image = self.image_for(&seen).clone();
        self.backend.check_image(&image).await?;
        self.backend.check_data_of(seen.engine_id).await?;
        let claim = self.claim(flight.change);
        let mut row = match self.registry.claim(&seen, &claim, Some(&self.ports)).await? {
            Ok(row) => row,
            Err(refused) => return Err(refused.into()),
        };
        flight.claimed(row.generation);
        let booted = match self.boot_from(&mut row, image).await {
            Ok(booted) => booted,
            Err(failure) => return Err(self.not_launched(&seen, &row, &failure).await),
        };
        let event = if flight.change == Change::Wake { Event::Wake } else { Event::Start };
        let detail = json!({"from": row.status, "to": EngineStatus::Running, "reason": job.reason});
        let entry = Entry { duration_ms: Some(booted.took_ms), ..self.entry(&row, event, detail) };
        let next = Next::Running {
            instance: booted.instance,
            image: row.engine_version.clone(),
            health_at: booted.health_at,
            wanted: true,
        };
        match self.settle(&row, next, Some(&entry)).await.map_err(Ended::unsettled)? {
            Some(row) => Ok(Settled::Found(Box::new(row))),
            None => Err(Ended::Stale),
        }
    }

    /// The image of an engine's next launch: its own if it is pinned to it, else the deployment's, as long as
    /// that is compatible and its product's policy allows it. Where there is no other image than the deployment's, an
    /// engine that stayed with its own could never be launched again: all follow, across major versions too.
    pub(super) fn image_for<'a>(&'a self, row: &'a EngineRow) -> &'a EngineImage {
        let follows = self.follows(row.seat.product_id, &row.engine_version, row.pinned);
        if follows { &self.settings.engine_image } else { &row.engine_version }
    }

    /// Whether the next launch of an engine that is on `image` is from the deployment's.
    pub(super) fn follows(&self, product_id: ProductId, image: &EngineImage, pinned: bool) -> bool {
        let default = &self.settings.engine_image;
        let pinned = pinned && !sabotage::by(Saboteur::FollowPinned);
        let may = || !pinned && self.policies.of(product_id).allows(default, default);
        self.backend.has_one_image() || (default.major() == image.major() && may())
    }

    /// Boots the engine of `row` from `image`. Across a major version, where the brain's format may be another one, its
    /// brain is copied before, and put back if it does not come up.
    pub(super) async fn boot_from(
        self: &Arc<Self>,
        row: &mut EngineRow,
        image: EngineImage,
    ) -> Result<Booted, NotBooted> {
        let crosses = image.major() != row.engine_version.major();
        if crosses {
            tracing::info!(engine.id = %row.engine_id, %image, "An engine is launched on another major version.");
            let copied = self.backend.keep_copy(row.target()).await;
            copied.map_err(|error| NotBooted { why: Why::Backend(error), log: Vec::new() })?;
        }
        row.engine_version = image;
        let booted = self.boot(row, Wants::Brain).await;
        if booted.is_err() && crosses {
            let taken_back = match self.backend.kill(row.target()).await {
                Ok(()) => self.backend.restore_copy(row.target()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = taken_back {
                tracing::error!(engine.id = %row.engine_id, %error, "A brain could not be put back yet.");
            }
        }
        booted
    }

    /// Ends what is left of a launch that failed. The engine is `failed` then, unless the backend could not be
    /// reached or had no room: that says nothing about it, and it stays as it was.
    async fn not_launched(&self, seen: &EngineRow, row: &EngineRow, failure: &NotBooted) -> Ended {
        tracing::warn!(engine.id = %row.engine_id, reason = failure.message(), "An engine did not come up.");
        if let Err(error) = self.backend.kill(row.target()).await {
            // The row keeps its claim until this is made good.
            tracing::warn!(engine.id = %row.engine_id, %error, "An engine that failed could not be ended yet.");
            return failure.error().into();
        }
        // As the registry has it: the image of a launch that failed is not what the engine runs.
        let row = EngineRow { engine_version: seen.engine_version.clone(), ..row.clone() };
        let (next, entry) = match row.status {
            // A start that a person asked for began the count of restarts anew.
            EngineStatus::Failed => (self.failed(row.restarts), None),
            _ if failure.why.is_about_the_host() => (Next::Unchanged, None),
            // Only moves into `failed` are crashes.
            _ => {
                let mut entry = self.crash(&row, &failure.message(), failure.why.cause());
                if let Value::Object(detail) = &mut entry.detail {
                    detail.insert("log".to_owned(), failure.log.clone().into());
                }
                (self.failed(row.restarts), Some(entry))
            }
        };
        match self.settle(&row, next, entry.as_ref()).await {
            Ok(_) => failure.error().into(),
            Err(error) => Ended::unsettled(error),
        }
    }
}
