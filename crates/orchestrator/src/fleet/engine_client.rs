//! Asks engines where they listen: for their health, to verify that they are who they should be, and with commands.
//!
//! The process at an engine's address has to prove that it holds the engine's key; only if it gives no proof, as
//! engines of earlier versions do, is the key sent to it. An engine that must be able to give a proof is never sent
//! the key.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::browser::BrowserAccess;
use api::engine::{EngineHealth, HEALTHY};
use api::inbox::WaitingQuestions;
use api::log_filter::LogFilter;
use api::usage::Day;
use api::usage_days::UsageDays;
use api::{EngineId, EngineKey, KeyHash, Timestamp};
use backend::{HealthReport, KeyProof, Placement, Probe, ProbeError};
use serde_json::{Value, json};

use super::shared::Shared;
use super::supervision::{KeyState, Supervision};
use crate::registry::RunningEngine;

/// The timeout of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// The subsystems that have to be healthy.
#[derive(Clone, Copy, Debug)]
pub(super) enum Readiness {
    /// Every subsystem must be healthy.
    AllSubsystems,
    /// Only the brain must be healthy, so that a provider's outage never fails an engine that was healthy before.
    BrainOnly,
}

/// What a healthy answer says beside its health.
pub(super) struct CheckedHealth {
    /// Where it comes from.
    pub(super) address: SocketAddr,
    /// Whether it comes from the engine.
    pub(super) proof: KeyProof,
    /// The tag of the questions that wait for a person.
    pub(super) waiting: Option<String>,
    /// The tag of what it has used.
    pub(super) usage: Option<String>,
}

pub(super) struct EngineClient {
    shared: Arc<Shared>,
    probe: Arc<dyn Probe>,
    supervision: Arc<Supervision>,
}

impl EngineClient {
    pub(super) const fn new(
        shared: Arc<Shared>,
        probe: Arc<dyn Probe>,
        supervision: Arc<Supervision>,
    ) -> Self {
        Self { shared, probe, supervision }
    }

    /// Where the engine can be reached now.
    fn address(&self, engine_id: EngineId, placement: Placement) -> Result<SocketAddr, ProbeError> {
        self.shared.backend.address(engine_id, placement).ok_or(ProbeError::NoAddress)
    }

    /// Checks that what answers for the engine meets `readiness`, and returns what it proves to have the key with this
    /// hash with. Fails with a message.
    pub(super) async fn check_health(
        &self,
        engine_id: EngineId,
        placement: Placement,
        key_hash: KeyHash,
        readiness: Readiness,
    ) -> Result<CheckedHealth, String> {
        let address = self.address(engine_id, placement).map_err(|error| error.to_string())?;
        let response = self.probe.check_health(address, key_hash).await.map_err(|error| error.to_string())?;
        check_health(&response.health, readiness)?;
        let HealthReport { proof, waiting, usage, .. } = response;
        Ok(CheckedHealth { address, proof, waiting, usage })
    }

    /// Checks that what answers for the engine, just launched, meets `readiness` and holds `key`. Fails with a message.
    pub(super) async fn check_launched(
        &self,
        engine_id: EngineId,
        placement: Placement,
        key: &EngineKey,
        readiness: Readiness,
    ) -> Result<(), String> {
        let CheckedHealth { address, proof, .. } =
            self.check_health(engine_id, placement, key.hash(), readiness).await?;
        let verified = if proof == KeyProof::Absent && self.shared.backend.has_single_image() {
            // The engine is this very program, which gives a proof.
            Err(ProbeError::Unproven { address })
        } else {
            self.verify_proof(address, key, proof).await
        };
        verified.map_err(|error| error.to_string())
    }

    /// Verifies that what answers for the engine holds `key`.
    pub(super) async fn verify_identity(
        &self,
        engine_id: EngineId,
        placement: Placement,
        key: &EngineKey,
    ) -> Result<(), ProbeError> {
        let address = self.address(engine_id, placement)?;
        let response = self.probe.check_health(address, key.hash()).await?;
        self.verify_proof(address, key, response.proof).await
    }

    /// Verifies it like [`EngineClient::verify_identity`], within the time of a command.
    pub(super) async fn verify_identity_in_time(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
    ) -> Result<(), ProbeError> {
        let verified = self.verify_identity(engine.row.engine_id, engine.placement, key);
        self.with_command_timeout(verified).await
    }

    /// Verifies an engine that has answered with this `proof`.
    async fn verify_proof(
        &self,
        address: SocketAddr,
        key: &EngineKey,
        proof: KeyProof,
    ) -> Result<(), ProbeError> {
        match proof {
            KeyProof::Valid => Ok(()),
            KeyProof::Invalid => Err(ProbeError::KeyRefused { address }),
            KeyProof::Absent => self.probe.identify(address, key).await,
        }
    }

    /// Asks `engine` to refuse new turns from now on. Returns whether it agrees: it does if it has no work.
    pub(super) async fn quiesce(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
    ) -> Result<bool, ProbeError> {
        let response =
            self.send_command(engine, key, &json!({"subsystem": "control", "op": "quiesce"})).await?;
        Ok(response.get("quiesced") == Some(&true.into()))
    }

    /// Has `engine` refuse new turns and changes of schedules from now on, whatever it does: it is about to be stopped.
    /// One of an earlier version does so only if it has no work.
    pub(super) async fn force_quiesce(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
    ) -> Result<(), ProbeError> {
        let command = json!({"subsystem": "control", "op": "quiesce", "force": true});
        self.send_command(engine, key, &command).await.map(drop)
    }

    /// When `engine` has to be awake next for its schedules; `None` if it need not, also with an engine of an earlier
    /// version, which has no schedules.
    pub(super) async fn next_due_at(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
    ) -> Result<Option<Timestamp>, ProbeError> {
        let command = json!({"subsystem": "telemetry", "op": "next_due"});
        match self.send_command(engine, key, &command).await {
            Ok(response) => {
                let next_due_at = response.get("next_due_at").and_then(Value::as_str);
                let parsed = next_due_at.map(str::parse).transpose();
                parsed.map_err(|_| ProbeError::Malformed("an unknown time".to_owned()))
            }
            Err(ProbeError::UnknownCommand { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells `engine` what it has to know about browsers. One of an earlier version accepts no tokens and needs nothing.
    pub(super) async fn set_browser_access(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
        access: &BrowserAccess,
    ) -> Result<(), ProbeError> {
        let BrowserAccess { revision, origins, revoked } = access;
        let command = json!({
            "subsystem": "control", "op": "set_browser_access",
            "revision": revision, "origins": origins, "revoked": revoked,
        });
        match self.send_command(engine, key, &command).await {
            Ok(_) | Err(ProbeError::UnknownCommand { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What waits for a person at `engine`; nothing with one of an earlier version, which does not say.
    pub(super) async fn waiting_questions(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
    ) -> Result<WaitingQuestions, ProbeError> {
        match self.send_command(engine, key, &json!({"subsystem": "telemetry", "op": "waiting"})).await {
            Ok(response) => {
                serde_json::from_value(response).map_err(|error| ProbeError::Malformed(error.to_string()))
            }
            Err(ProbeError::UnknownCommand { .. }) => Ok(WaitingQuestions::default()),
            Err(error) => Err(error),
        }
    }

    /// What `engine` has used by day, from the day `from` on; `None` with one of an earlier version, which does not say.
    pub(super) async fn usage_days(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
        from: Option<Day>,
    ) -> Result<Option<UsageDays>, ProbeError> {
        let command = json!({"subsystem": "telemetry", "op": "usage_days", "from": from});
        match self.send_command(engine, key, &command).await {
            Ok(response) => serde_json::from_value(response)
                .map(Some)
                .map_err(|error| ProbeError::Malformed(error.to_string())),
            Err(ProbeError::UnknownCommand { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads or changes what `engine` logs, by `command`.
    pub(super) async fn log_filter(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
        command: &Value,
    ) -> Result<LogFilter, ProbeError> {
        let response = self.send_command(engine, key, command).await?;
        serde_json::from_value(response).map_err(|error| ProbeError::Malformed(error.to_string()))
    }

    /// Lets a quiesced engine accept turns again.
    pub(super) async fn lift_quiesce(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
    ) -> Result<(), ProbeError> {
        let command = json!({"subsystem": "control", "op": "quiesce", "lift": true});
        self.send_command(engine, key, &command).await.map(drop)
    }

    /// Replaces the key that `engine` accepts, which is `key` so far.
    pub(super) async fn replace_key(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
        next: &EngineKey,
    ) -> Result<(), ProbeError> {
        let hash = next.hash().to_hex();
        let command = json!({"subsystem": "control", "op": "set_key_hash", "key_hash": hash});
        self.send_command(engine, key, &command).await.map(drop)
    }

    /// What `engine` is doing, in numbers.
    pub(super) async fn activity(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
    ) -> Result<Value, ProbeError> {
        self.send_command(engine, key, &json!({"subsystem": "telemetry", "op": "activity"})).await
    }

    /// Sends `command` to the `/rpc` of `engine`.
    async fn send_command(
        &self,
        engine: RunningEngine<'_>,
        key: &EngineKey,
        command: &Value,
    ) -> Result<Value, ProbeError> {
        let address = self.address(engine.row.engine_id, engine.placement)?;
        let response = self.with_command_timeout(self.probe.rpc(address, key, command)).await;
        if matches!(response, Err(ProbeError::KeyRefused { .. })) {
            self.supervision.set_key_state(engine.row.engine_id, KeyState::Refused);
        }
        response
    }

    async fn with_command_timeout<T>(
        &self,
        call: impl Future<Output = Result<T, ProbeError>>,
    ) -> Result<T, ProbeError> {
        tokio::select! {
            response = call => response,
            () = self.shared.clock.sleep(COMMAND_TIMEOUT) => {
                Err(ProbeError::TimedOut { seconds: COMMAND_TIMEOUT.as_secs() })
            }
        }
    }
}

/// Checks `health` against `readiness`; fails with the unhealthy subsystem and the reason.
fn check_health(health: &EngineHealth, readiness: Readiness) -> Result<(), String> {
    let subsystems = &health.subsystems;
    let all = [
        ("database", &subsystems.database),
        ("llm_provider", &subsystems.llm_provider),
        ("asset_directory", &subsystems.asset_directory),
    ];
    let required = match readiness {
        Readiness::AllSubsystems => all.as_slice(),
        Readiness::BrainOnly => all.get(..1).unwrap_or_default(),
    };
    let unhealthy: Vec<_> = required.iter().filter(|(_, state)| *state != HEALTHY).collect();
    if unhealthy.is_empty() {
        return match readiness {
            Readiness::AllSubsystems if health.status != HEALTHY => {
                Err(format!("its status is {}", health.status))
            }
            Readiness::AllSubsystems | Readiness::BrainOnly => Ok(()),
        };
    }
    Err(unhealthy.iter().map(|(name, state)| format!("{name}: {state}")).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use api::engine::Subsystems;

    use super::*;

    fn health(status: &str, database: &str, llm_provider: &str) -> EngineHealth {
        EngineHealth {
            status: status.into(),
            uptime_seconds: 0.1,
            subsystems: Subsystems {
                database: database.into(),
                llm_provider: llm_provider.into(),
                asset_directory: "ok".into(),
            },
        }
    }

    #[test]
    fn a_provision_waits_for_all_and_names_what_is_unwell() {
        assert_eq!(check_health(&health("ok", "ok", "ok"), Readiness::AllSubsystems), Ok(()));
        let error = check_health(&health("degraded", "ok", "no key"), Readiness::AllSubsystems).unwrap_err();
        assert_eq!(error, "llm_provider: no key");
        assert!(check_health(&health("starting", "ok", "ok"), Readiness::AllSubsystems).is_err());
    }

    #[test]
    fn a_wake_waits_for_the_brain_alone() {
        assert_eq!(check_health(&health("degraded", "ok", "provider is down"), Readiness::BrainOnly), Ok(()));
        let error = check_health(&health("degraded", "disk full", "ok"), Readiness::BrainOnly).unwrap_err();
        assert_eq!(error, "database: disk full");
    }
}
