//! Boots an engine: launches it and polls its health until it is healthy, has exited, or the deadline has passed.
//!
//! The process that answers at the engine's address need not be the engine: another program on the host, such as
//! another deployment's engine, may have taken its port first. A healthy answer therefore counts only if it proves
//! possession of the engine's key.

use std::sync::Arc;
use std::time::Duration;

use api::backup::MAINTENANCE_VAR;
use api::browser::{BROWSER_ACCESS_VAR, TOKEN_SECRET_VAR};
use api::orchestrator::EngineStatus;
use api::{EngineId, EngineImage, EngineKey, KeyHash, ProductId, Timestamp};
use backend::{BackendError, Instance, InstanceExit, LaunchSpec, Placement, ResourceLimits};
use secrecy::SecretString;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::fleet::FleetError;
use crate::fleet::browser::token_secret;
use crate::fleet::engine_client::{EngineClient, Readiness};
use crate::fleet::policies::Policies;
use crate::fleet::shared::Shared;
use crate::fleet::transitions::FAILURE_LOG_LINES;
use crate::fleet::warm_stock::WarmStock;
use crate::keys::KeyError;
use crate::metrics::labels::BootOutcome;
use crate::registry::{
    Claim, ClaimRefused, EngineRow, NewEngine, NextState, PlacedEngine, Placements, RegistryError,
};

/// The variable with the base URL to which authorization servers redirect users.
const OAUTH_REDIRECT_BASE_URL_VAR: &str = "OAUTH_REDIRECT_BASE_URL";
/// The variable with the engine's own id.
const ENGINE_ID_VAR: &str = "ENGINE_ID";
/// The variable with the key under which an engine encrypts its own credentials.
const ENCRYPTION_KEY_VAR: &str = "AD_ENCRYPTION_KEY";

/// The shortest and the longest pause between two health checks of a boot.
const POLL_INTERVAL_RANGE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// The timeout of one health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

/// How many ports are tried when ports turn out to be taken.
const MAX_PORT_ATTEMPTS: usize = 16;

/// An engine that booted.
#[derive(Debug)]
pub(super) struct Booted {
    pub(super) instance: Instance,
    pub(super) health_at: Timestamp,
    pub(super) took_ms: i64,
}

/// What an engine is launched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To work.
    Work,
    /// To be backed up or restored.
    Maintenance {
        /// Whether it has no data yet.
        creates_data: bool,
    },
}

/// An engine as a launch needs to know it.
#[derive(Clone, Copy)]
pub(super) struct LaunchedEngine<'a> {
    pub(super) engine_id: EngineId,
    pub(super) product_id: ProductId,
    pub(super) generation: i64,
    /// Whether it has no data yet.
    pub(super) is_first: bool,
    pub(super) image: &'a EngineImage,
    pub(super) key_hash: KeyHash,
    pub(super) sealed_secrets_key: &'a str,
}

impl<'a> LaunchedEngine<'a> {
    /// The engine of `row`, launched for this purpose.
    fn of_row(row: &'a EngineRow, purpose: Purpose) -> Self {
        Self {
            engine_id: row.engine_id,
            product_id: row.owner.product_id,
            generation: row.generation,
            is_first: row.status == EngineStatus::Provisioning
                || purpose == (Purpose::Maintenance { creates_data: true }),
            image: &row.engine_version,
            key_hash: row.key_hash,
            sealed_secrets_key: &row.sealed_secrets_key,
        }
    }
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
    /// The registry could not be asked for what a launch needs.
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

impl BootFailureCause {
    /// The outcome of the boot as the metrics name it.
    pub(super) const fn measured_outcome(&self) -> BootOutcome {
        match self {
            Self::Backend(_) => BootOutcome::Backend,
            Self::Exited(_) => BootOutcome::Exited,
            Self::TimedOut(_) => BootOutcome::TimedOut,
            Self::Keys(_) => BootOutcome::Keys,
            Self::NoFreePort => BootOutcome::NoFreePort,
            Self::Registry(_) => BootOutcome::Registry,
        }
    }
}

impl BootFailure {
    /// The backend's failure before the engine was launched.
    pub(super) const fn of_backend(error: BackendError) -> Self {
        Self { cause: BootFailureCause::Backend(error), log: Vec::new() }
    }

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
            BootFailureCause::Registry(error) => Arc::clone(error).into(),
            BootFailureCause::Exited(_) => FleetError::Backend(self.message()),
        }
    }
}

impl Booted {
    /// The state of the engine that booted. `on_demand`: a caller requested it.
    pub(super) fn into_state(self, engine: &PlacedEngine, on_demand: bool) -> NextState {
        NextState::Running {
            instance: self.instance,
            image: engine.row.engine_version.clone(),
            health_at: self.health_at,
            on_demand,
        }
    }
}

pub(in crate::fleet) struct Boots {
    pub(in crate::fleet) shared: Arc<Shared>,
    pub(in crate::fleet) policies: Arc<Policies>,
    pub(in crate::fleet) client: Arc<EngineClient>,
    pub(in crate::fleet) placements: Placements,
    /// The exits that the backend has reported.
    pub(in crate::fleet) exits: broadcast::Sender<InstanceExit>,
    /// Environment variables passed through to every engine.
    pub(in crate::fleet) engine_env: Vec<(String, SecretString)>,
    pub(in crate::fleet) boot_timeout: Duration,
    /// The engines that were booted ahead.
    pub(in crate::fleet) warm: Arc<WarmStock>,
}

impl Boots {
    /// Claims the row of a new engine, with a place for it. If there is none, a warm engine gives up its own.
    pub(super) async fn claim_new_engine(
        &self,
        engine: &NewEngine,
        claim: &Claim,
    ) -> Result<Result<PlacedEngine, ClaimRefused>, RegistryError> {
        loop {
            let claimed = self.shared.registry.claim_new_engine(engine, claim, &self.placements).await?;
            if !(matches!(claimed, Err(ClaimRefused::NoPort)) && self.warm.give_way().await) {
                return Ok(claimed.inspect_err(|refused| self.measure_refusal(refused)));
            }
        }
    }

    /// Claims the row of an engine that is to be launched, with a place for it, as for a new one.
    pub(super) async fn claim_and_place(
        &self,
        seen: &EngineRow,
        claim: &Claim,
    ) -> Result<Result<PlacedEngine, ClaimRefused>, RegistryError> {
        loop {
            let claimed = self.shared.registry.claim_and_place(seen, claim, &self.placements).await?;
            if !(matches!(claimed, Err(ClaimRefused::NoPort)) && self.warm.give_way().await) {
                return Ok(claimed.inspect_err(|refused| self.measure_refusal(refused)));
            }
        }
    }

    /// A host whose ports are all leased is full, although no boot begins: it is measured as one that failed.
    fn measure_refusal(&self, refused: &ClaimRefused) {
        if matches!(refused, ClaimRefused::NoPort) {
            let metrics = &self.shared.metrics;
            metrics.boot(BootOutcome::NoFreePort, metrics.stopwatch());
        }
    }

    /// Launches `engine` and waits until it meets `readiness`. If its port turns out to be taken, it gets another
    /// one.
    pub(super) async fn boot(
        &self,
        engine: &mut PlacedEngine,
        readiness: Readiness,
    ) -> Result<Booted, BootFailure> {
        let stopwatch = self.shared.metrics.stopwatch();
        let booted = self.launch_and_wait(engine, readiness, Purpose::Work).await;
        let outcome = booted.as_ref().err().map_or(BootOutcome::Ready, BootFailureCause::measured_outcome);
        self.shared.metrics.boot(outcome, stopwatch);
        match booted {
            Ok(booted) => Ok(booted),
            Err(cause) => {
                // Best effort: a backend that fails here too has already reported its failure.
                let log = self.shared.backend.log_tail(engine.row.engine_id, FAILURE_LOG_LINES).await;
                Err(BootFailure { cause, log: log.unwrap_or_default() })
            }
        }
    }

    /// Launches `engine` for maintenance, in which it runs no agent. `creates_data`: it has no data yet.
    pub(super) async fn boot_for_maintenance(
        &self,
        engine: &mut PlacedEngine,
        creates_data: bool,
    ) -> Result<(), FleetError> {
        let purpose = Purpose::Maintenance { creates_data };
        match self.launch_and_wait(engine, Readiness::BrainOnly, purpose).await {
            Ok(_) => Ok(()),
            Err(cause) => Err(BootFailure { cause, log: Vec::new() }.to_fleet_error()),
        }
    }

    async fn launch_and_wait(
        &self,
        engine: &mut PlacedEngine,
        readiness: Readiness,
        purpose: Purpose,
    ) -> Result<Booted, BootFailureCause> {
        let clock = &self.shared.clock;
        let started = clock.monotonic();
        // Subscribed before the launch: an engine may exit before its launch has returned.
        let exits = self.exits.subscribe();
        let key = self.shared.keys.key(&engine.row).map_err(BootFailureCause::Keys)?;
        let instance = self.launch(engine, purpose).await?;
        let mut last_error = "its health was not checked yet".to_owned();
        tokio::select! {
            biased;
            reason = wait_for_exit(exits, engine.row.engine_id, &instance) => {
                return Err(BootFailureCause::Exited(reason));
            }
            () = self.wait_until_ready(engine.row.engine_id, engine.placement(), &key, readiness, &mut last_error) => {}
            () = clock.sleep(self.boot_timeout) => {
                return Err(BootFailureCause::TimedOut(last_error));
            }
        }
        Ok(self.booted(instance, started))
    }

    /// An engine whose boot began at `started` and has just ended.
    pub(super) fn booted(&self, instance: Instance, started: Duration) -> Booted {
        let clock = &self.shared.clock;
        let took = clock.monotonic().saturating_sub(started);
        let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        Booted { instance, health_at: clock.now(), took_ms }
    }

    /// Launches `engine`, on another port if its own is taken.
    async fn launch(
        &self,
        engine: &mut PlacedEngine,
        purpose: Purpose,
    ) -> Result<Instance, BootFailureCause> {
        for _ in 0..MAX_PORT_ATTEMPTS {
            let row = &engine.row;
            let launch =
                self.launch_spec(LaunchedEngine::of_row(row, purpose), engine.placement(), purpose).await?;
            let ports = match (self.shared.backend.launch(launch).await, &self.placements) {
                (Err(BackendError::PortTaken(port)), Placements::HostPorts(ports)) => {
                    tracing::info!(engine_id = %row.engine_id, port, "A port is in use; trying another one.");
                    ports
                }
                (launched, _) => return launched.map_err(BootFailureCause::Backend),
            };
            let leased = self.shared.registry.lease_another_port(engine, ports).await;
            match leased.map_err(|error| BootFailureCause::Registry(Arc::new(error)))? {
                Ok(()) => {}
                Err(ClaimRefused::NoPort) => return Err(BootFailureCause::NoFreePort),
                Err(
                    ClaimRefused::Stale
                    | ClaimRefused::Quota { .. }
                    | ClaimRefused::Suspended
                    | ClaimRefused::ImageNotAllowed,
                ) => {
                    return Err(BootFailureCause::Registry(Arc::new(RegistryError::ClaimLost {
                        engine_id: engine.row.engine_id,
                    })));
                }
            }
        }
        Err(BootFailureCause::NoFreePort)
    }

    /// What `engine` is launched with.
    pub(super) async fn launch_spec(
        &self,
        engine: LaunchedEngine<'_>,
        placement: Placement,
        purpose: Purpose,
    ) -> Result<LaunchSpec, BootFailureCause> {
        let mut env = self.engine_env(engine).await?;
        if purpose != Purpose::Work {
            env.push((MAINTENANCE_VAR.to_owned(), SecretString::from("true")));
        }
        Ok(LaunchSpec {
            engine_id: engine.engine_id,
            product_id: engine.product_id,
            generation: engine.generation,
            is_first: engine.is_first,
            image: engine.image.clone(),
            placement,
            key_hash: engine.key_hash,
            env,
            limits: ResourceLimits::from_policy(&self.policies.get(engine.product_id)),
        })
    }

    /// The environment variables of this engine beyond those of the container contract.
    async fn engine_env(
        &self,
        engine: LaunchedEngine<'_>,
    ) -> Result<Vec<(String, SecretString)>, BootFailureCause> {
        let LaunchedEngine { engine_id, product_id, sealed_secrets_key, .. } = engine;
        let mut env = self.engine_env.clone();
        if env.iter().all(|(name, _)| name != ENCRYPTION_KEY_VAR) {
            let key = self.shared.keys.secrets_key(engine_id, sealed_secrets_key);
            let key = key.map_err(BootFailureCause::Keys)?;
            env.push((ENCRYPTION_KEY_VAR.to_owned(), key));
        }
        if let Some(base) = &self.policies.get(product_id).oauth_redirect_base_url {
            env.retain(|(name, _)| name != OAUTH_REDIRECT_BASE_URL_VAR);
            env.push((OAUTH_REDIRECT_BASE_URL_VAR.to_owned(), SecretString::from(base.as_str())));
        }
        // For what the engine reports to the product's webhook. The user's name is not to be found on the host.
        env.push((ENGINE_ID_VAR.to_owned(), SecretString::from(engine_id.to_string())));
        let token_secret = token_secret(&self.shared, engine_id, sealed_secrets_key);
        let token_secret = token_secret.map_err(BootFailureCause::Keys)?;
        env.push((TOKEN_SECRET_VAR.to_owned(), SecretString::from(token_secret.expose())));
        // Read under the claim of this launch: whatever is revoked later finds the claim, and tells the engine.
        let now = self.shared.clock.now();
        let access = self.shared.registry.browser_access(engine_id, product_id, now).await;
        let access = access.map_err(|error| BootFailureCause::Registry(Arc::new(error)))?;
        let access = serde_json::to_string(&access).unwrap_or_default();
        env.push((BROWSER_ACCESS_VAR.to_owned(), SecretString::from(access)));
        Ok(env)
    }

    /// Polls until the engine that holds `key` meets `readiness`. `last_error` holds the error of the last poll.
    pub(super) async fn wait_until_ready(
        &self,
        engine_id: EngineId,
        placement: Placement,
        key: &EngineKey,
        readiness: Readiness,
        last_error: &mut String,
    ) {
        let clock = &self.shared.clock;
        let started = clock.monotonic();
        loop {
            let check = self.client.check_launched(engine_id, placement, key, readiness);
            let result = tokio::select! {
                result = check => result,
                () = clock.sleep(HEALTH_TIMEOUT) => {
                    Err(format!("it did not answer within {} s", HEALTH_TIMEOUT.as_secs()))
                }
            };
            match result {
                Ok(()) => return,
                Err(error) => *last_error = error,
            }
            // An eighth of the time so far: a quick boot is noticed at once, and a slow one is not polled too
            // often.
            let waited = clock.monotonic().saturating_sub(started);
            clock.sleep((waited / 8).clamp(POLL_INTERVAL_RANGE.0, POLL_INTERVAL_RANGE.1)).await;
        }
    }
}

/// Waits for the exit of `instance`.
pub(super) async fn wait_for_exit(
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
