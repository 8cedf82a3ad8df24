//! The rules of the orchestrator: who gets an engine, which transitions are legal, and what waits for what.
//!
//! Every change of an engine follows claim → act → settle: its row is claimed by compare-and-swap, the backend
//! acts, and the next state is committed together with its audit row. The table in [`lifecycle`] decides which
//! change is legal. Each change runs in a task of its own ([`operation`]), so that callers share it and a caller
//! who disconnects does not cancel it.

mod audit_feed;
mod auth_failure_log;
mod boot;
mod boot_limiter;
mod destroy;
mod endpoints;
mod engine_identity;
mod error;
mod execute;
mod exits;
mod explain;
mod key_rotation;
mod launch;
pub(crate) mod lifecycle;
mod operation;
mod policies;
mod products;
mod provision;
mod queries;
mod rate_limit;
mod reconcile;
mod repair;
mod restart;
mod settle_retry;
mod stop;
mod stream_limiter;
mod supervision;
mod supervisor;
mod telemetry;
mod version_move;
mod versions;
mod views;

#[cfg(test)]
#[path = "../tests/unit/fleet/mod.rs"]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{EngineImage, Timestamp};
use http_service::clock::Clock;
use secrecy::SecretString;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use audit_feed::{AuditFeed, FeedItem};
pub(crate) use endpoints::EngineEndpoint;
pub use error::FleetError;
pub(crate) use policies::check_not_suspended;
pub(crate) use stream_limiter::{StreamLimiter, StreamPermit};

use self::auth_failure_log::AuthFailureLog;
use self::boot_limiter::BootLimiter;
use self::operation::Operations;
use self::policies::PolicyCache;
use self::products::ProductCache;
use self::queries::max_concurrent_log_reads;
use self::rate_limit::RateLimiter;
use self::supervision::Supervision;
pub use self::supervision::SupervisionRules;
pub(crate) use self::telemetry::Telemetry;
use crate::backend::{DataRoot, DeadlineBackend, EngineBackend, InstanceExit, Probe};
use crate::config::PortRange;
use crate::keys::Vault;
use crate::registry::{AuditEntry, EngineRow, NextState, PortAllocator, Registry, RegistryError};

/// Time that an operation may take beyond its boot: at least the sum of the timeouts of the backend calls around
/// it.
const OPERATION_OVERHEAD: Duration = Duration::from_secs(40);

/// Exits by which a booting engine may lag behind the channel before it misses its own; it reads the channel once
/// per poll.
const EXIT_CHANNEL_CAPACITY: usize = 4_096;

/// All engines of one deployment.
pub struct Fleet {
    settings: Settings,
    registry: Registry,
    vault: Vault,
    backend: DeadlineBackend,
    probe: Arc<dyn Probe>,
    ports: PortAllocator,
    clock: Arc<dyn Clock>,
    products: ProductCache,
    /// Serializes policy replacements.
    policy_update_lock: Arc<tokio::sync::Mutex<()>>,
    rate_limiter: RateLimiter,
    operations: Arc<Operations>,
    supervision: Supervision,
    boot_limiter: BootLimiter,
    policies: PolicyCache,
    telemetry: Telemetry,
    log_read_permits: Arc<Semaphore>,
    stream_limiter: StreamLimiter,
    auth_failures: AuthFailureLog,
    exits: broadcast::Sender<InstanceExit>,
    ready: watch::Sender<bool>,
    /// Cancels the streams that would never end by themselves.
    stream_shutdown: CancellationToken,
}

/// The part of the configuration that the rules depend on.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The name of this process in claims.
    pub(crate) claim_owner: String,
    /// The image of engines that do not request one.
    pub(crate) engine_image: EngineImage,
    /// Environment variables passed through to every engine.
    pub(crate) engine_env: Vec<(String, SecretString)>,
    pub(crate) boot_timeout: Duration,
    pub(crate) ports: PortRange,
    /// The host in engine URLs, as callers reach it.
    pub(crate) url_host: String,
    pub(crate) rules: SupervisionRules,
}

/// The dependencies of a fleet.
pub(crate) struct FleetDeps {
    pub(crate) registry: Registry,
    pub(crate) vault: Vault,
    pub(crate) backend: Arc<dyn EngineBackend>,
    pub(crate) data: DataRoot,
    pub(crate) probe: Arc<dyn Probe>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Fleet {
    pub(crate) fn new(settings: Settings, deps: FleetDeps) -> Arc<Self> {
        let FleetDeps { registry, vault, backend, data, probe, clock } = deps;
        let port_backend = Arc::clone(&backend);
        let ports = PortAllocator::new(settings.ports, move |port| port_backend.port_is_free(port));
        let (exits, _) = broadcast::channel(EXIT_CHANNEL_CAPACITY);
        Arc::new(Self {
            supervision: Supervision::new(settings.rules),
            boot_limiter: BootLimiter::new(),
            policies: PolicyCache::default(),
            telemetry: Telemetry::new(),
            log_read_permits: Arc::new(Semaphore::new(max_concurrent_log_reads())),
            stream_limiter: StreamLimiter::new(),
            auth_failures: AuthFailureLog::default(),
            settings,
            registry,
            vault,
            backend: DeadlineBackend::new(backend, Arc::clone(&clock), data),
            probe,
            ports,
            clock,
            products: ProductCache::default(),
            policy_update_lock: Arc::default(),
            rate_limiter: RateLimiter::default(),
            operations: Arc::default(),
            exits,
            ready: watch::Sender::new(false),
            stream_shutdown: CancellationToken::new(),
        })
    }

    /// Whether the registry has been compared with the running instances. Nothing is served before that.
    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Waits until the first reconciliation is done.
    pub async fn ready(&self) {
        // The sender lives as long as the fleet.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Records that the key in `header` of the current request was refused.
    pub(crate) fn log_auth_failure(&self, header: &'static str, client: Option<IpAddr>) {
        self.auth_failures.log(header, client, self.clock.monotonic());
    }

    /// The longest time that any caller waits for an operation.
    fn operation_timeout(&self) -> Duration {
        self.settings.boot_timeout + OPERATION_OVERHEAD
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Settles a change in the registry and notifies the supervisor.
    async fn settle(
        &self,
        row: &EngineRow,
        next: NextState,
        entry: Option<&AuditEntry>,
    ) -> Result<Option<EngineRow>, RegistryError> {
        // Read before the commit, so that a change of the wall clock does not move what is due.
        let (now, wall) = (self.now_mono_millis(), self.now());
        let on_demand = matches!(next, NextState::Running { on_demand: true, .. });
        let changes_state = !matches!(next, NextState::Unchanged | NextState::KeyRotated(_));
        let rotates_key = matches!(next, NextState::KeyRotated(_));
        let settled = self.settle_with_retry(row, next, entry).await?;
        if let (Some(settled), true) = (&settled, rotates_key) {
            self.supervision.set_key_hash(settled.engine_id, settled.key_hash);
        }
        match &settled {
            None => self.supervision.forget(row.engine_id),
            Some(settled) if changes_state => self.supervision.track(settled, on_demand, now, wall),
            Some(_) => {}
        }
        Ok(settled)
    }

    /// The limiter of long-lived responses.
    pub(crate) const fn stream_limiter(&self) -> &StreamLimiter {
        &self.stream_limiter
    }

    /// The metrics for the operator's monitoring.
    pub(crate) const fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// The operator's metrics in the `OpenMetrics` text format.
    pub(crate) fn open_metrics(&self) -> String {
        self.telemetry.encode(self.supervision.len(), self.operations.len())
    }

    /// Ends the streams that would never end by themselves.
    pub(crate) fn end_streams(&self) {
        self.stream_shutdown.cancel();
    }

    /// Waits for the operations under way, for `limit` at most.
    pub(crate) async fn drained(&self, limit: Duration) {
        self.operations.drained(limit).await;
    }

    /// Returns when another orchestrator has taken over the registry.
    pub(crate) async fn lost_leadership(&self) {
        self.registry.lost_leadership().await;
    }

    /// Closes the registry.
    pub(crate) async fn close(&self) {
        self.registry.close().await;
    }

    /// Whether the registry and the disks have no work in progress.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.registry.is_idle() && self.backend.is_idle()
    }

    #[cfg(test)]
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Aborts every operation at its current await point, as a kill does.
    pub(crate) fn abort_operations(&self) {
        self.operations.abort_all();
    }
}
