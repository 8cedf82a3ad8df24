//! Boots of warm engines: ahead, for nobody, and their adoption by a provision that has claimed one.

use std::time::Duration;

use backend::{Instance, Placement};

use super::boot::{BootFailure, BootFailureCause, Booted, Boots, LaunchedEngine, Purpose, wait_for_exit};
use crate::fleet::FleetError;
use crate::fleet::engine_client::Readiness;
use crate::metrics::labels::{BootOutcome, WarmClaim};
use crate::registry::{FIRST_GENERATION, PlacedEngine, WarmRow};

/// How long a warm engine may take to prove that it is healthy. One that takes longer is launched anew.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(2);

impl Boots {
    /// Launches a warm engine and waits until it is healthy.
    pub(in crate::fleet) async fn boot_warm(
        &self,
        row: &WarmRow,
        placement: Placement,
    ) -> Result<Instance, FleetError> {
        let stopwatch = self.shared.metrics.stopwatch();
        let booted = self.launch_warm(row, placement).await;
        let outcome = booted.as_ref().err().map_or(BootOutcome::Ready, BootFailureCause::measured_outcome);
        self.shared.metrics.boot(outcome, stopwatch);
        booted.map_err(|cause| BootFailure { cause, log: Vec::new() }.to_fleet_error())
    }

    async fn launch_warm(&self, row: &WarmRow, placement: Placement) -> Result<Instance, BootFailureCause> {
        // Subscribed before the launch: an engine may exit before its launch has returned.
        let exits = self.exits.subscribe();
        let key = self.shared.keys.unseal(row.engine_id, &row.sealed_key).map_err(BootFailureCause::Keys)?;
        let engine = LaunchedEngine {
            engine_id: row.engine_id,
            product_id: row.product_id,
            generation: FIRST_GENERATION,
            is_first: true,
            image: &row.image,
            key_hash: row.key_hash,
            sealed_secrets_key: &row.sealed_secrets_key,
        };
        let launch = self.launch_spec(engine, placement, Purpose::Work).await?;
        let launched = self.shared.backend.launch(launch).await;
        let instance = launched.map_err(BootFailureCause::Backend)?;
        let mut last_error = "its health was not checked yet".to_owned();
        let ready =
            self.wait_until_ready(row.engine_id, placement, &key, Readiness::AllSubsystems, &mut last_error);
        tokio::select! {
            biased;
            reason = wait_for_exit(exits, row.engine_id, &instance) => {
                return Err(BootFailureCause::Exited(reason));
            }
            () = ready => return Ok(instance),
            () = self.shared.clock.sleep(self.boot_timeout) => {}
        }
        Err(BootFailureCause::TimedOut(last_error))
    }

    /// Adopts the instance of a new engine that was a warm one when it was claimed. Returns `None` if it was none, or is
    /// not healthy any more: then it is booted as any new engine is.
    pub(super) async fn adopt_warm(&self, engine: &PlacedEngine) -> Option<Booted> {
        let Some(instance) = &engine.row.instance else {
            self.warm.record_miss(engine.row.owner.product_id);
            return None;
        };
        self.warm.record_claim(&engine.row);
        let adopted = self.check_adopted(engine, instance).await;
        let outcome = if adopted.is_ok() { WarmClaim::Hit } else { WarmClaim::Unhealthy };
        self.shared.metrics.warm_claim(outcome);
        match adopted {
            Ok(booted) => Some(booted),
            Err(reason) => {
                tracing::warn!(
                    engine_id = %engine.row.engine_id,
                    reason,
                    "A warm engine is not healthy any more; it is launched anew."
                );
                None
            }
        }
    }

    async fn check_adopted(&self, engine: &PlacedEngine, instance: &Instance) -> Result<Booted, String> {
        let clock = &self.shared.clock;
        let started = clock.monotonic();
        let exits = self.exits.subscribe();
        let engine_id = engine.row.engine_id;
        // From here on it may have its user's data, also for a registry that loses this change.
        let unmarked = self.shared.backend.remove_warm_mark(engine_id).await;
        unmarked.map_err(|error| error.to_string())?;
        let key = self.shared.keys.key(&engine.row).map_err(|error| error.to_string())?;
        let readiness = Readiness::AllSubsystems;
        tokio::select! {
            biased;
            reason = wait_for_exit(exits, engine_id, instance) => {
                return Err(format!("it exited ({})", reason.as_deref().unwrap_or("exit status unknown")));
            }
            checked = self.client.check_launched(engine_id, engine.placement(), &key, readiness) => checked?,
            () = clock.sleep(ADOPTION_TIMEOUT) => {
                return Err(format!("it did not answer within {} s", ADOPTION_TIMEOUT.as_secs()));
            }
        }
        Ok(self.booted(instance.clone(), started))
    }
}
