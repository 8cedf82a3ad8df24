//! A seat's first engine: row, quota and port at once, then the boot; a failure leaves nothing behind.

use std::sync::Arc;

use contract::orchestrator::EngineStatus;
use contract::{EngineId, EngineKey};
use serde_json::json;

use super::boot::{NotBooted, Wants};
use super::flight::{Ended, Flight, Outcome, Settled};
use super::lifecycle::{Change, Trigger};
use super::policies::image_denied;
use super::pursuit::Job;
use super::{Fleet, FleetError};
use crate::keys::{MasterKey, Purpose};
use crate::registry::{EngineRow, Entry, Event, NewEngine, Next, Refused};
use crate::sabotage::{self, Saboteur};

impl Fleet {
    pub(super) async fn provision_seat(self: &Arc<Self>, flight: &Arc<Flight>, job: &Job) -> Outcome {
        let engine = self.new_engine(job)?;
        self.backend.check_image(&engine.engine_version).await?;
        self.backend.check_data().await?;
        let claim = self.claim(Change::Provision);
        let mut row = match self.registry.claim_seat(&engine, &claim, &self.ports).await? {
            Ok(row) => row,
            Err(Refused::Image) => return Err(image_denied(&engine.engine_version).into()),
            Err(refused) => return Err(refused.into()),
        };
        flight.claimed(row.generation);
        let booted = match self.boot(&mut row, Wants::AllWell).await {
            Ok(booted) => booted,
            Err(failure) => return Err(self.roll_back(&row, &failure).await),
        };
        let reason = if job.trigger == Trigger::Provision { job.reason } else { "auto_provision" };
        let entry = Entry {
            duration_ms: Some(booted.took_ms),
            ..self.entry(
                &row,
                Event::Provision,
                json!({"from": null, "to": EngineStatus::Running, "reason": reason}),
            )
        };
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

    fn new_engine(&self, job: &Job) -> Result<NewEngine, FleetError> {
        let engine_id = EngineId::new();
        let owner = engine_id.to_string();
        let key = EngineKey::generate().map_err(FleetError::internal)?;
        let secrets_key = MasterKey::generate()?.expose();
        Ok(NewEngine {
            engine_id,
            seat: job.seat.clone(),
            key_hash: key.hash(),
            sealed_key: self.vault.seal(&owner, Purpose::EngineKey, key.expose())?,
            sealed_secrets_key: self.vault.seal(&owner, Purpose::EngineSecrets, &secrets_key)?,
            pinned: job.version.is_some(),
            engine_version: job.version.clone().unwrap_or_else(|| self.settings.engine_image.clone()),
            created_at: self.now(),
        })
    }

    /// Removes all traces of a provision that failed, but for its row in the ledger.
    async fn roll_back(&self, row: &EngineRow, failure: &NotBooted) -> Ended {
        tracing::warn!(
            engine.id = %row.engine_id,
            reason = failure.message(),
            "A provision failed and is rolled back."
        );
        if sabotage::by(Saboteur::ForgetRollBack) {
            return failure.error().into();
        }
        if let Err(error) = self.backend.remove(row.target()).await {
            // The row keeps its claim, and with it quota and port, until this is made good.
            tracing::warn!(engine.id = %row.engine_id, %error, "A failed provision could not be removed yet.");
            return failure.error().into();
        }
        let entry = self.entry(
            row,
            Event::ProvisionFailed,
            json!({
                "from": null, "to": null, "reason": failure.why.cause(),
                "message": failure.message(), "log": failure.log,
            }),
        );
        match self.settle(row, Next::Gone, Some(&entry)).await {
            Ok(_) => failure.error().into(),
            Err(error) => Ended::unsettled(error),
        }
    }
}
