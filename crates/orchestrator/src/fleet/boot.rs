//! Boots an engine: launches it and polls its health until it is healthy, has exited, or the deadline has passed.
//!
//! The process that answers on the engine's port need not be the engine: another program on the host, such as
//! another deployment's engine, may have taken the port first. A healthy answer therefore counts only if it proves
//! possession of the engine's key.

use std::sync::Arc;
use std::time::Duration;

use api::engine::{EngineHealth, HEALTHY};
use api::orchestrator::EngineStatus;
use api::{EngineId, EngineKey, Timestamp};
use secrecy::SecretString;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{Fleet, FleetError};
use crate::backend::{BackendError, Instance, InstanceExit, LaunchSpec, ProbeError, ResourceLimits};
use crate::keys::{KeyError, Purpose};
use crate::registry::{ClaimRefused, EngineRow, RegistryError};

/// The variable with the base URL to which authorization servers redirect users.
const OAUTH_REDIRECT_BASE_URL_VAR: &str = "OAUTH_REDIRECT_BASE_URL";
/// The variable with the key under which an engine encrypts its own credentials.
const ENCRYPTION_KEY_VAR: &str = "AD_ENCRYPTION_KEY";

/// The shortest and the longest pause between two health checks of a boot.
const POLL_INTERVAL_RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// The timeout of one health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

/// How many of the log's last lines the audit log keeps of a failed boot or an exited engine.
pub(super) const FAILURE_LOG_LINES: usize = 20;

/// How many ports are tried when ports turn out to be taken.
const MAX_PORT_ATTEMPTS: usize = 16;

/// The subsystems that a boot waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Readiness {
    /// Every subsystem must be healthy.
    AllSubsystems,
    /// Only the brain must be healthy, so that a provider's outage never fails an engine that was healthy before.
    BrainOnly,
}

/// An engine that booted.
#[derive(Debug)]
pub(super) struct Booted {
    pub(super) instance: Instance,
    pub(super) health_at: Timestamp,
    pub(super) took_ms: i64,
}

/// A boot that failed.
#[derive(Debug)]
pub(super) struct BootFailure {
    pub(super) cause: BootFailureCause,
    /// The last lines of the engine's log.
    pub(super) log: Vec<String>,
}

/// Why a boot failed.
#[derive(Clone, Debug)]
pub(super) enum BootFailureCause {
    /// The backend did not launch the engine.
    Backend(BackendError),
    /// The engine exited.
    Exited(Option<String>),
    /// The engine was not healthy in time; this is the result of its last check.
    TimedOut(String),
    /// The engine's keys cannot be decrypted.
    Keys(KeyError),
    /// Every port that was tried is in use by something that is not an engine.
    NoFreePort,
    /// Another port could not be leased.
    Registry(Arc<RegistryError>),
}

impl BootFailureCause {
    /// Whether the cause lies with the host and says nothing about the engine.
    pub(super) const fn is_host_failure(&self) -> bool {
        match self {
            Self::Backend(error) => error.is_host_problem(),
            Self::Keys(_) | Self::NoFreePort | Self::Registry(_) => true,
            Self::Exited(_) | Self::TimedOut(_) => false,
        }
    }

    /// The cause as the audit log names it.
    pub(super) const fn audit_cause(&self) -> &'static str {
        match self {
            Self::Backend(_) | Self::Keys(_) | Self::NoFreePort | Self::Registry(_) => "backend",
            Self::Exited(_) => "exit",
            Self::TimedOut(_) => "boot_timeout",
        }
    }
}

impl BootFailure {
    /// A message for people.
    pub(super) fn message(&self) -> String {
        match &self.cause {
            BootFailureCause::Backend(error) => error.to_string(),
            BootFailureCause::Keys(error) => error.to_string(),
            BootFailureCause::TimedOut(last) => last.clone(),
            BootFailureCause::NoFreePort => FleetError::PortExhaustion.to_string(),
            BootFailureCause::Registry(error) => error.to_string(),
            BootFailureCause::Exited(reason) => {
                let reason = reason.as_deref().unwrap_or("exit status unknown");
                let last = self.log.last().map(|line| format!("; its last log line: {line}"));
                format!("the engine exited while booting ({reason}){}", last.unwrap_or_default())
            }
        }
    }

    /// The error that callers get.
    pub(super) fn to_fleet_error(&self) -> FleetError {
        match &self.cause {
            BootFailureCause::TimedOut(last) => FleetError::BootTimeout(last.clone()),
            BootFailureCause::Keys(error) => (*error).into(),
            BootFailureCause::Backend(error) => error.clone().into(),
            BootFailureCause::NoFreePort => FleetError::PortExhaustion,
            BootFailureCause::Registry(error) => FleetError::internal(Arc::clone(error)),
            BootFailureCause::Exited(_) => FleetError::Backend(self.message()),
        }
    }
}

impl Fleet {
    /// Launches the engine of `row`, whose port is leased, and waits until it meets `readiness`. If the port
    /// turns out to be taken, `row` gets another one.
    pub(super) async fn boot(
        self: &Arc<Self>,
        row: &mut EngineRow,
        readiness: Readiness,
    ) -> Result<Booted, BootFailure> {
        match self.launch_and_wait(row, readiness).await {
            Ok(booted) => Ok(booted),
            Err(cause) => {
                // Best effort: a backend that fails here too has already reported its failure.
                let log = self.backend.log_tail(row.engine_id, FAILURE_LOG_LINES).await.unwrap_or_default();
                Err(BootFailure { cause, log })
            }
        }
    }

    async fn launch_and_wait(
        self: &Arc<Self>,
        row: &mut EngineRow,
        readiness: Readiness,
    ) -> Result<Booted, BootFailureCause> {
        let started = self.clock.monotonic();
        // Subscribed before the launch: an engine may exit before its launch has returned.
        let exits = self.exits.subscribe();
        let key = self.engine_key(row).map_err(BootFailureCause::Keys)?;
        let instance = self.launch(row).await?;
        let port = row.port.unwrap_or_default();
        let mut last_error = "its health was not checked yet".to_owned();
        tokio::select! {
            biased;
            reason = wait_for_exit(exits, row.engine_id, &instance) => {
                return Err(BootFailureCause::Exited(reason));
            }
            () = self.wait_until_ready(port, &key, readiness, &mut last_error) => {}
            () = self.clock.sleep(self.settings.boot_timeout) => {
                return Err(BootFailureCause::TimedOut(last_error));
            }
        }
        let took = self.clock.monotonic().saturating_sub(started);
        let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        Ok(Booted { instance, health_at: self.now(), took_ms })
    }

    /// Launches the engine of `row`, on another port if its own is taken.
    async fn launch(&self, row: &mut EngineRow) -> Result<Instance, BootFailureCause> {
        for _ in 0..MAX_PORT_ATTEMPTS {
            let launch = LaunchSpec {
                engine_id: row.engine_id,
                product_id: row.owner.product_id,
                generation: row.generation,
                is_first: row.status == EngineStatus::Provisioning,
                image: row.engine_version.clone(),
                port: row.port.unwrap_or_default(),
                key_hash: row.key_hash,
                env: self.engine_env(row).map_err(BootFailureCause::Keys)?,
                limits: ResourceLimits::from_policy(&self.policies.get(row.owner.product_id)),
            };
            match self.backend.launch(launch).await {
                Err(BackendError::PortTaken(port)) => {
                    tracing::info!(engine_id = %row.engine_id, port, "A port is in use; trying another one.");
                }
                launched => return launched.map_err(BootFailureCause::Backend),
            }
            let leased = self.registry.lease_another_port(row, &self.ports).await;
            match leased.map_err(|error| BootFailureCause::Registry(Arc::new(error)))? {
                Ok(port) => row.port = Some(port),
                Err(ClaimRefused::NoPort) => return Err(BootFailureCause::NoFreePort),
                Err(
                    ClaimRefused::Stale
                    | ClaimRefused::Quota { .. }
                    | ClaimRefused::Suspended
                    | ClaimRefused::ImageNotAllowed,
                ) => {
                    return Err(BootFailureCause::Registry(Arc::new(RegistryError::ClaimLost {
                        engine_id: row.engine_id,
                    })));
                }
            }
        }
        Err(BootFailureCause::NoFreePort)
    }

    /// The environment variables of this engine beyond those of the container contract.
    fn engine_env(&self, row: &EngineRow) -> Result<Vec<(String, SecretString)>, KeyError> {
        let mut env = self.settings.engine_env.clone();
        if env.iter().all(|(name, _)| name != ENCRYPTION_KEY_VAR) {
            let owner = row.engine_id.to_string();
            let key = self.vault.open(&owner, Purpose::EngineSecrets, &row.sealed_secrets_key)?;
            env.push((ENCRYPTION_KEY_VAR.to_owned(), SecretString::from(key.as_str())));
        }
        if let Some(base) = &self.policies.get(row.owner.product_id).oauth_redirect_base_url {
            env.retain(|(name, _)| name != OAUTH_REDIRECT_BASE_URL_VAR);
            env.push((OAUTH_REDIRECT_BASE_URL_VAR.to_owned(), SecretString::from(base.as_str())));
        }
        Ok(env)
    }

    /// Polls until the engine that holds `key` meets `readiness`. `last_error` holds the error of the last poll.
    async fn wait_until_ready(
        &self,
        port: u16,
        key: &EngineKey,
        readiness: Readiness,
        last_error: &mut String,
    ) {
        let started = self.clock.monotonic();
        loop {
            let result = tokio::select! {
                result = self.check_readiness(port, key, readiness) => result,
                () = self.clock.sleep(HEALTH_TIMEOUT) => {
                    Err(format!("it did not answer within {} s", HEALTH_TIMEOUT.as_secs()))
                }
            };
            match result {
                Ok(()) => return,
                Err(error) => *last_error = error,
            }
            // An eighth of the time so far: a quick boot is noticed at once, and a slow one is not polled too
            // often.
            let waited = self.clock.monotonic().saturating_sub(started);
            self.clock.sleep((waited / 8).clamp(POLL_INTERVAL_RANGE.0, POLL_INTERVAL_RANGE.1)).await;
        }
    }

    /// Polls once. Fails with a message if the answer does not meet `readiness` or is not from the engine that
    /// holds `key`.
    async fn check_readiness(&self, port: u16, key: &EngineKey, readiness: Readiness) -> Result<(), String> {
        let describe = |error: ProbeError| error.to_string();
        let response = self.probe.check_health(port, key.hash()).await.map_err(describe)?;
        check_health(&response.health, readiness)?;
        self.verify_launched_identity(port, key, response.proof).await.map_err(describe)
    }
}

/// Waits for the exit of `instance`.
async fn wait_for_exit(
    mut exits: broadcast::Receiver<InstanceExit>,
    engine_id: EngineId,
    instance: &Instance,
) -> Option<String> {
    loop {
        match exits.recv().await {
            Ok(exit) if exit.engine_id == engine_id && exit.instance == *instance => return exit.reason,
            // If its exit was lost in the lag, the boot still ends at its deadline.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Checks `health` against `readiness`; fails with the unhealthy subsystem and the reason.
pub(super) fn check_health(health: &EngineHealth, readiness: Readiness) -> Result<(), String> {
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
