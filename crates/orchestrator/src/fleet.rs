//! The rules of the orchestrator: who gets an engine, which transitions are legal, and what waits for what.
//!
//! Every change of an engine follows claim → act → settle: its row is claimed by compare-and-swap, the backend
//! acts, and the next state is committed together with its audit row. The table in `domain` decides which
//! change is legal. Each change runs in a task of its own ([`operation`]), so that callers share it and a caller
//! who disconnects does not cancel it.

mod admission;
mod admit_counters;
mod audit_feed;
mod auth_failure_log;
mod backup_transfers;
mod backups;
mod boot_limiter;
mod browser;
mod caller;
mod catalog_fingerprint;
mod changes;
mod drain;
mod drift;
mod engine_client;
mod engine_keys;
mod engines;
mod error;
mod execute;
mod explain;
mod failures;
mod fleet_audit_feed;
mod idempotency;
mod inbox;
mod log_filters;
mod maintenance;
mod operation;
mod overview;
mod platform_keys;
mod policies;
mod product_lives;
mod products;
mod queries;
mod rate_limit;
mod reconcile;
mod records;
mod request;
mod rollouts;
mod scheduled_wakes;
mod settle_retry;
mod shared;
mod start_failed;
mod stream_limiter;
mod supervision;
mod supervisor;
mod switch;
mod telemetry;
mod transitions;
mod usage;
mod versions;
mod warm_pool;
mod warm_stock;
mod webhooks;

#[cfg(test)]
#[path = "../tests/unit/fleet/mod.rs"]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::Policy;
use api::{DisplayName, EngineImage, PlatformKey, ProductId, Slug};
use backend::{Addressing, DataRoot, DeadlineBackend, EngineBackend, Probe};
use http_service::clock::Clock;
use secrecy::SecretString;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use admission::Admission;
pub(crate) use audit_feed::{FeedItem, RowFeed};
pub use backup_transfers::BackupSettings;
pub(crate) use backup_transfers::BackupSetup;
pub(crate) use caller::Caller;
pub(crate) use engines::EngineEndpoint;
pub use error::FleetError;
pub(crate) use idempotency::{Begun, Call, CallAnswer, CallPermit, IdempotentCalls, KeyedRequest};
pub(crate) use log_filters::FilterRequest;
pub(crate) use stream_limiter::{StreamHolder, StreamPermit};
pub(crate) use warm_stock::WarmPoolSettings;

use self::backup_transfers::BackupTransfers;
use self::backups::Backups;
use self::browser::Browsers;
use self::changes::Changes;
use self::changes::boot::Boots;
use self::drain::{DrainState, Drains};
use self::drift::Drifts;
use self::engine_client::EngineClient;
use self::engine_keys::EngineKeys;
use self::engines::Engines;
use self::execute::Executor;
use self::explain::Explainer;
use self::inbox::Inbox;
use self::log_filters::LogFilters;
use self::maintenance::{MaintenanceState, Maintenances};
use self::operation::Operations;
use self::overview::Overview;
use self::policies::Policies;
use self::product_lives::ProductLives;
use self::products::Products;
use self::queries::Queries;
use self::reconcile::Reconciler;
use self::records::Records;
use self::rollouts::{RolloutState, Rollouts};
use self::scheduled_wakes::ScheduledWakes;
use self::shared::Shared;
use self::start_failed::FailedStarts;
use self::supervision::Supervision;
use self::supervisor::Supervisor;
use self::telemetry::Telemetry;
use self::transitions::Transitions;
use self::usage::{UsageCollector, UsageReports};
use self::versions::Versions;
use self::warm_pool::{WarmPool, WarmPoolParts};
use self::warm_stock::WarmStock;
use self::webhooks::Webhooks;
use crate::config::PortRange;
use crate::domain::{SupervisionRules, WebhookRules};
use crate::keys::Vault;
use crate::metrics::{FleetGauges, Metrics, ObservedRegistry};
use crate::registry::{Placements, PortAllocator, ProductCounts, Registry, RegistryError};

/// Time that an operation may take beyond its boot: at least the sum of the timeouts of the backend calls around
/// it.
const OPERATION_OVERHEAD: Duration = Duration::from_secs(40);

/// Exits by which a booting engine may lag behind the channel before it misses its own; it reads the channel once
/// per poll.
const EXIT_CHANNEL_CAPACITY: usize = 4_096;

/// All engines of one deployment. Each part has one task; callers use the parts that answer them.
pub struct Fleet {
    pub(crate) admission: Arc<Admission>,
    pub(crate) products: Arc<Products>,
    pub(crate) product_lives: Arc<ProductLives>,
    pub(crate) browsers: Arc<Browsers>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) log_filters: Arc<LogFilters>,
    pub(crate) engines: Engines,
    pub(crate) versions: Versions,
    pub(crate) rollouts: Arc<Rollouts>,
    pub(crate) queries: Queries,
    pub(crate) usage: UsageReports,
    pub(crate) overview: Overview,
    pub(crate) drains: Arc<Drains>,
    pub(crate) drifts: Drifts,
    pub(crate) maintenances: Maintenances,
    pub(crate) backups: Arc<Backups>,
    pub(crate) failed_starts: FailedStarts,
    pub(crate) explainer: Explainer,
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) idempotent_calls: Arc<IdempotentCalls>,
    pub(crate) telemetry: Arc<Telemetry>,
    shared: Arc<Shared>,
    policies: Arc<Policies>,
    supervision: Arc<Supervision>,
    executor: Arc<Executor>,
    supervisor: Arc<Supervisor>,
    reconciler: Arc<Reconciler>,
    scheduled_wakes: Arc<ScheduledWakes>,
    usage_collector: Arc<UsageCollector>,
    warm_pool: Arc<WarmPool>,
    /// Whether the registry has been compared with the running instances.
    ready: watch::Receiver<bool>,
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
    pub(crate) rules: SupervisionRules,
    pub(crate) webhooks: WebhookRules,
    pub(crate) warm_pool: WarmPoolSettings,
    /// `None`: no backups are made.
    pub(crate) backups: Option<BackupSetup>,
}

/// The dependencies of a fleet.
pub(crate) struct FleetDeps {
    pub(crate) registry: Registry,
    pub(crate) vault: Arc<Vault>,
    pub(crate) backend: Arc<dyn EngineBackend>,
    pub(crate) data: DataRoot,
    pub(crate) probe: Arc<dyn Probe>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
}

/// Returns what places the engines of `backend`: `ports` are leased if its engines listen on ports of the host.
fn placements(ports: PortRange, backend: &Arc<dyn EngineBackend>) -> Placements {
    match backend.addressing() {
        Addressing::HostPort => {
            let backend = Arc::clone(backend);
            Placements::HostPorts(PortAllocator::new(ports, move |port| backend.port_is_free(port)))
        }
        Addressing::OwnAddress => Placements::OwnAddresses,
    }
}

/// What the parts of a fleet are built on.
struct Foundation {
    shared: Arc<Shared>,
    supervision: Arc<Supervision>,
    telemetry: Arc<Telemetry>,
    records: Arc<Records>,
    client: Arc<EngineClient>,
    browsers: Arc<Browsers>,
    inbox: Arc<Inbox>,
    usage: Arc<UsageCollector>,
    log_filters: Arc<LogFilters>,
    policies: Arc<Policies>,
    products: Arc<Products>,
    admission: Arc<Admission>,
}

impl Foundation {
    fn new(rules: SupervisionRules, engine_image: EngineImage, deps: FleetDeps) -> Self {
        let FleetDeps { registry, vault, backend, data, probe, clock, metrics } = deps;
        let telemetry = Arc::new(Telemetry::new(metrics.clone()));

        let supervision = Arc::new(Supervision::new(rules, backend.addressing(), Arc::clone(&clock)));
        let refusals = metrics.clone();
        let backend = DeadlineBackend::new(backend, Arc::clone(&clock), data)
            .reporting_refusals(move |error| refusals.backend_error(error));
        let registry = ObservedRegistry::new(registry, metrics.clone());
        let keys = EngineKeys::new(Arc::clone(&vault));
        let shared = Arc::new(Shared { registry, backend, keys, vault, clock, metrics });
        let records = Arc::new(Records::new(Arc::clone(&shared)));
        let client = Arc::new(EngineClient::new(Arc::clone(&shared), probe, Arc::clone(&supervision)));
        let browsers = Arc::new(Browsers::new(Arc::clone(&shared), Arc::clone(&client)));
        let inbox = Arc::new(Inbox::new(Arc::clone(&shared), Arc::clone(&client)));
        let usage = Arc::new(UsageCollector::new(&shared, &client));
        let log_filters = Arc::new(LogFilters::new(Arc::clone(&shared), Arc::clone(&client)));
        let policies = Arc::new(Policies::new(Arc::clone(&shared), Arc::clone(&supervision), engine_image));
        let products = Arc::new(Products::new(Arc::clone(&shared), Arc::clone(&policies)));
        let admission = Arc::new(Admission::new(Arc::clone(&shared), Arc::clone(&products)));
        Self {
            shared,
            supervision,
            telemetry,
            records,
            client,
            browsers,
            inbox,
            usage,
            log_filters,
            policies,
            products,
            admission,
        }
    }

    fn transitions(&self, claim_owner: String, timeout: Duration) -> Arc<Transitions> {
        let (shared, supervision) = (Arc::clone(&self.shared), Arc::clone(&self.supervision));
        Arc::new(Transitions::new(shared, supervision, claim_owner, Arc::clone(&self.policies), timeout))
    }

    fn warm_pool_parts(&self, executor: &Arc<Executor>) -> WarmPoolParts {
        WarmPoolParts {
            shared: Arc::clone(&self.shared),
            policies: Arc::clone(&self.policies),
            supervision: Arc::clone(&self.supervision),
            executor: Arc::clone(executor),
        }
    }

    fn supervisor(
        &self,
        transitions: &Arc<Transitions>,
        executor: &Arc<Executor>,
        maintenance: &Arc<MaintenanceState>,
        (ready, exits): (watch::Receiver<bool>, broadcast::Sender<backend::InstanceExit>),
    ) -> Arc<Supervisor> {
        Arc::new(Supervisor {
            shared: Arc::clone(&self.shared),
            supervision: Arc::clone(&self.supervision),
            transitions: Arc::clone(transitions),
            executor: Arc::clone(executor),
            client: Arc::clone(&self.client),
            inbox: Arc::clone(&self.inbox),
            usage: Arc::clone(&self.usage),
            telemetry: Arc::clone(&self.telemetry),
            maintenance: Arc::clone(maintenance),
            ready,
            exits,
        })
    }

    fn reconciler(
        &self,
        transitions: Arc<Transitions>,
        executor: &Arc<Executor>,
        (drain, maintenance, rollout): (&Arc<DrainState>, &Arc<MaintenanceState>, &Arc<RolloutState>),
        ready: watch::Sender<bool>,
    ) -> Arc<Reconciler> {
        Arc::new(Reconciler {
            shared: Arc::clone(&self.shared),
            supervision: Arc::clone(&self.supervision),
            transitions,
            policies: Arc::clone(&self.policies),
            products: Arc::clone(&self.products),
            browsers: Arc::clone(&self.browsers),
            drain: Arc::clone(drain),
            maintenance: Arc::clone(maintenance),
            rollout: Arc::clone(rollout),
            executor: Arc::clone(executor),
            telemetry: Arc::clone(&self.telemetry),
            ready,
        })
    }
}

impl Fleet {
    pub(crate) fn new(settings: Settings, deps: FleetDeps) -> Arc<Self> {
        let Settings { claim_owner, engine_image, engine_env, boot_timeout, ports, rules, .. } = settings;
        let metrics = deps.metrics.clone();
        let operation_timeout = boot_timeout + OPERATION_OVERHEAD;
        let backend = metrics.observe_backend(Arc::clone(&deps.backend));
        let placements = placements(ports, &backend);
        let ports = matches!(placements, Placements::HostPorts(_)).then(|| ports.count());
        let (exits, _) = broadcast::channel(EXIT_CHANNEL_CAPACITY);
        let (ready, is_ready) = watch::channel(false);
        let stream_shutdown = CancellationToken::new();
        let operations = Arc::new(Operations::new(metrics.clone()));
        let foundation = Foundation::new(rules, engine_image, FleetDeps { backend, metrics, ..deps });
        let Foundation { shared, supervision, records, client, inbox, usage, .. } = &foundation;
        let Foundation { policies, products, .. } = &foundation;
        let transitions = foundation.transitions(claim_owner, operation_timeout);
        let warm = WarmStock::new(shared, settings.warm_pool);
        let boots = Boots {
            shared: Arc::clone(shared),
            policies: Arc::clone(policies),
            client: Arc::clone(client),
            placements,
            exits: exits.clone(),
            engine_env,
            boot_timeout,
            warm: Arc::clone(&warm),
        };
        let transfers = Arc::new(BackupTransfers::new(Arc::clone(shared), settings.backups));
        let changes = Changes {
            shared: Arc::clone(shared),
            supervision: Arc::clone(supervision),
            backups: Arc::clone(&transfers),
            transitions: Arc::clone(&transitions),
            policies: Arc::clone(policies),
            client: Arc::clone(client),
            inbox: Arc::clone(inbox),
            usage: Arc::clone(usage),
            operations,
            boots,
        };
        let drain = Arc::new(DrainState::new());
        let maintenance = Arc::new(MaintenanceState::new());
        let rollout = Arc::new(RolloutState::new());
        let executor = Arc::new(Executor::new(
            changes,
            Arc::clone(&drain),
            Arc::clone(&maintenance),
            boot_timeout,
            operation_timeout,
        ));
        let supervisor =
            foundation.supervisor(&transitions, &executor, &maintenance, (is_ready.clone(), exits));
        let switches = (&drain, &maintenance, &rollout);
        let reconciler = foundation.reconciler(transitions, &executor, switches, ready);
        let modes = (Arc::clone(&drain), Arc::clone(&maintenance));
        let warm_pool = WarmPool::new(foundation.warm_pool_parts(&executor), warm, modes, is_ready.clone());
        Arc::new(Self {
            engines: Engines::new(shared, supervision, &foundation.admission, policies, &executor, records),
            failed_starts: FailedStarts { shared: Arc::clone(shared), executor: Arc::clone(&executor) },
            product_lives: ProductLives::new(shared, products, &executor, &is_ready),
            drains: Arc::new(Drains::new(shared, &executor, &drain, &is_ready)),
            drifts: Drifts::new(&reconciler),
            backups: Backups::new(shared, &executor, &transfers, &is_ready, &stream_shutdown),
            maintenances: Maintenances::new(shared, &executor, &maintenance),
            overview: Overview::new(
                shared,
                policies,
                &executor,
                records,
                (drain, maintenance),
                &stream_shutdown,
                ports,
            ),
            versions: Versions::new(shared, policies, &executor, records),
            rollouts: Rollouts::new(shared, policies, &executor, &rollout, &is_ready),
            explainer: Explainer::new(shared, supervision, policies, client),
            webhooks: Webhooks::new(shared, &is_ready, settings.webhooks),
            idempotent_calls: IdempotentCalls::new(shared, products, &executor, operation_timeout),
            queries: Queries::new(Arc::clone(shared), stream_shutdown.clone()),
            scheduled_wakes: ScheduledWakes::new(shared, &executor, &is_ready),
            usage: UsageReports::new(shared),
            usage_collector: Arc::clone(usage),
            admission: foundation.admission,
            products: foundation.products,
            browsers: foundation.browsers,
            inbox: foundation.inbox,
            log_filters: foundation.log_filters,
            telemetry: foundation.telemetry,
            shared: foundation.shared,
            policies: foundation.policies,
            supervision: foundation.supervision,
            executor,
            supervisor,
            reconciler,
            warm_pool,
            ready: is_ready,
            stream_shutdown,
        })
    }

    /// Starts the tasks that keep the fleet in order until `shutdown`.
    pub(crate) fn spawn_tasks(&self, tasks: &TaskTracker, shutdown: &CancellationToken) {
        tasks.spawn(Arc::clone(&self.supervisor).watch_exits(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.reconciler).reconcile_periodically(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.supervisor).supervise(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.supervisor).save_activity_periodically(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.browsers).tell_engines(self.ready.clone(), shutdown.clone()));
        tasks.spawn(Arc::clone(&self.scheduled_wakes).run(shutdown.clone()));
        let ready = || self.ready.clone();
        tasks.spawn(Arc::clone(&self.usage_collector).prune_periodically(ready(), shutdown.clone()));
        tasks.spawn(Arc::clone(&self.admission.counters).save_periodically(ready(), shutdown.clone()));
        tasks.spawn(Arc::clone(&self.drains).run(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.webhooks).run(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.product_lives).run(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.rollouts).run(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.idempotent_calls).sweep(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.backups).run(shutdown.clone()));
        tasks.spawn(Arc::clone(&self.warm_pool).run(shutdown.clone()));
    }

    /// Whether this orchestrator serves: the registry has been compared with the running instances, and no other
    /// orchestrator can have taken over since.
    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow() && self.shared.registry.is_leading()
    }

    /// Whether a call is served: like [`Fleet::is_ready`], but a short loss of the registry's server is waited for.
    pub(crate) async fn serves(&self) -> bool {
        *self.ready.borrow() && self.shared.registry.is_leading_again().await
    }

    /// Checks that a product is in use.
    pub(crate) fn check_product_in_use(&self, product_id: ProductId) -> Result<(), FleetError> {
        self.policies.check_in_use(product_id)
    }

    /// Checks that a product may make a call that does more than read.
    pub(crate) fn check_product_not_suspended(&self, product_id: ProductId) -> Result<(), FleetError> {
        if self.policies.get(product_id).is_suspended() { Err(FleetError::suspended()) } else { Ok(()) }
    }

    /// Waits until the first reconciliation is done.
    pub async fn ready(&self) {
        // The sender lives as long as the fleet.
        let _ = self.ready.clone().wait_for(|ready| *ready).await;
    }

    /// Registers a product under a key that the caller has generated and keeps. It may be called again: if the
    /// product exists with that key, nothing changes; if it exists with another key, the slug is taken.
    pub async fn register_with_key(
        &self,
        slug: Slug,
        display_name: DisplayName,
        policy: Policy,
        key: &PlatformKey,
    ) -> Result<ProductId, FleetError> {
        self.products.register_with_key(slug, display_name, policy, key).await
    }

    /// Puts all running engines to sleep at once, each with the grace period of a stop. Returns the number of
    /// engines that were put to sleep. `reason` is recorded in the audit log.
    pub async fn sleep_all(&self, reason: &'static str) -> Result<usize, FleetError> {
        self.executor.sleep_all(reason).await
    }

    /// The operator's metrics in the `OpenMetrics` text format.
    pub(crate) fn open_metrics(&self) -> String {
        self.telemetry.encode(self.supervision.len(), self.executor.operations.len())
    }

    /// The metrics that are recorded.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// The gauges of the metrics.
    pub(crate) fn gauges(&self) -> FleetGauges {
        FleetGauges {
            supervised_engines: self.supervision.len(),
            operations_in_progress: self.executor.operations.len(),
            webhook_lag: self.webhooks.lag(),
            backup_age: self.backups.age(),
            backup_interval: self.backups.interval().unwrap_or_default(),
        }
    }

    /// The engines of every product by state, sorted by product.
    pub(crate) async fn count_engines(&self) -> Result<Vec<ProductCounts>, RegistryError> {
        Ok(self.shared.registry.fleet_counts().await?.0)
    }

    /// Ends the streams that would never end by themselves.
    pub(crate) fn end_streams(&self) {
        self.stream_shutdown.cancel();
    }

    /// Waits for the operations under way, for `limit` at most.
    pub(crate) async fn drained(&self, limit: Duration) {
        self.executor.operations.drained(limit).await;
    }

    /// Aborts every operation at its current await point, as a kill does.
    pub(crate) fn abort_operations(&self) {
        self.executor.operations.abort_all();
    }

    /// Returns when another orchestrator has taken over the registry.
    pub(crate) async fn lost_leadership(&self) {
        self.shared.registry.lost_leadership().await;
    }

    /// Closes the registry.
    pub(crate) async fn close(&self) {
        self.shared.registry.close().await;
    }

    /// Whether the registry and the disks have no work in progress.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.shared.registry.is_idle() && self.shared.backend.is_idle()
    }

    #[cfg(test)]
    pub(crate) fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// What every task of the fleet holds.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
