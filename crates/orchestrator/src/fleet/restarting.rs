//! Restart: one attempt to bring a failed engine back, made by the supervisor.

use std::sync::Arc;
use std::time::Duration;

use contract::orchestrator::EngineStatus;
use serde_json::{Value, json};

use super::Fleet;
use super::boot::{Booted, Wants};
use super::flight::{Ended, Flight, Outcome, Settled};
use super::lifecycle::Change;
use crate::backend::BackendError;
use crate::registry::{EngineRow, Entry, Event, Next};
use crate::sabotage::{self, Saboteur};

impl Fleet {
    /// Attempts a restart. What keeps it from being attempted at all counts as no attempt, and neither does what says
    /// nothing about the engine, such as a full host.
    pub(super) async fn restart_engine(self: &Arc<Self>, flight: &Arc<Flight>, seen: EngineRow) -> Outcome {
        let image = self.image_for(&seen).clone();
        let permanent = match self.backend.check_image(&image).await {
            Ok(()) => None,
            Err(error @ BackendError::NoImage(_)) if !sabotage::by(Saboteur::RetryForEver) => Some(error),
            Err(error) => return Err(error.into()),
        };
        self.backend.check_data_of(seen.engine_id).await?;
        if sabotage::by(Saboteur::LaunchBeforeClaim) {
            let _ = self.boot(&mut seen.clone(), Wants::Brain).await;
        }
        let ports = permanent.is_none().then_some(&self.ports);
        let mut row = match self.registry.claim(&seen, &self.claim(Change::Restart), ports).await? {
            Ok(row) => row,
            Err(refused) => return Err(refused.into()),
        };
        flight.claimed(row.generation);
        // Those who wait for it share it from here on.
        self.supervision.tell(row.engine_id);
        if let Some(error) = permanent {
            let entry = self.attempt(&row, EngineStatus::Failed, &error.to_string(), None);
            self.settle(&row, Next::Failed { restart_at: None, restarts: row.restarts }, Some(&entry))
                .await
                .map_err(Ended::unsettled)?;
            return Err(error.into());
        }
        let before = row.engine_version.clone();
        match self.boot_from(&mut row, image).await {
            Ok(booted) => self.restarted(&row, booted).await,
            Err(failure) => {
                // As the registry has it: the image of a launch that failed is not what the engine runs.
                row.engine_version = before;
                tracing::warn!(engine.id = %row.engine_id, reason = failure.message(), "A restart failed.");
                // Until it is ended, the row keeps its claim.
                self.backend.kill(row.target()).await?;
                if failure.why.is_about_the_host() {
                    let next = self.failed_for_now(row.restarts.saturating_sub(1));
                    self.settle(&row, next, None).await.map_err(Ended::unsettled)?;
                    return Err(failure.error().into());
                }
                let mut entry = self.attempt(&row, EngineStatus::Failed, &failure.message(), None);
                if let Value::Object(detail) = &mut entry.detail {
                    detail.insert("cause".to_owned(), failure.why.cause().into());
                    detail.insert("log".to_owned(), failure.log.clone().into());
                }
                let next = self.failed(row.restarts);
                self.settle(&row, next, Some(&entry)).await.map_err(Ended::unsettled)?;
                Err(failure.error().into())
            }
        }
    }

    async fn restarted(&self, row: &EngineRow, booted: Booted) -> Outcome {
        let took = Duration::from_millis(booted.took_ms.unsigned_abs());
        let entry = self.attempt(row, EngineStatus::Running, "crash", Some(took));
        let next = Next::Running {
            instance: booted.instance,
            image: row.engine_version.clone(),
            health_at: booted.health_at,
            wanted: false,
        };
        match self.settle(row, next, Some(&entry)).await.map_err(Ended::unsettled)? {
            Some(row) => Ok(Settled::Found(Box::new(row))),
            None => Err(Ended::Stale),
        }
    }

    /// The ledger's row of an attempt that has ended in `to`.
    pub(super) fn attempt(
        &self,
        row: &EngineRow,
        to: EngineStatus,
        reason: &str,
        took: Option<Duration>,
    ) -> Entry {
        let outcome = if to == EngineStatus::Running { "running" } else { "failed" };
        let detail = json!({
            "from": EngineStatus::Failed, "to": to, "reason": reason,
            "attempt": row.restarts, "outcome": outcome,
        });
        let duration_ms = took.map(|took| i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
        Entry { duration_ms, ..self.entry(row, Event::Restart, detail) }
    }
}
