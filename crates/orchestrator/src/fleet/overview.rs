//! What an operator sees of all products together.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Timestamp;
use api::fleet::{
    AuditCursor, DrainProgress, DrainStatus, FleetAuditList, FleetCapacity, FleetEngine, FleetEngineList,
    FleetOverview, ListFleetAudit, ListFleetEngines, ProductStatus, StatusFilter,
};
use api::metrics::FleetStatus;
use api::orchestrator::{EngineStatus, PageLimit};

use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::drain::DrainState;
use super::execute::Executor;
use super::fleet_audit_feed::FleetAuditFeed;
use super::maintenance::MaintenanceState;
use super::policies::Policies;
use super::queries::DEFAULT_PAGE_SIZE;
use super::records::Records;
use super::shared::Shared;
use crate::registry::{AuditFilter, FleetFilter, ListedEngine, ProductCounts};

pub(crate) struct Overview {
    shared: Arc<Shared>,
    policies: Arc<Policies>,
    executor: Arc<Executor>,
    drain: Arc<DrainState>,
    maintenance: Arc<MaintenanceState>,
    records: Arc<Records>,
    /// Cancels the streams that would never end by themselves.
    stream_shutdown: CancellationToken,
    /// The number of ports that engines may lease, if they do.
    ports: Option<u64>,
    /// Since when this process has held the registry.
    active_since: Timestamp,
}

impl Overview {
    /// `ports` are those that engines may lease, if they do.
    pub(super) fn new(
        shared: &Arc<Shared>,
        policies: &Arc<Policies>,
        executor: &Arc<Executor>,
        records: &Arc<Records>,
        (drain, maintenance): (Arc<DrainState>, Arc<MaintenanceState>),
        stream_shutdown: &CancellationToken,
        ports: Option<u64>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            policies: Arc::clone(policies),
            executor: Arc::clone(executor),
            drain,
            maintenance,
            records: Arc::clone(records),
            stream_shutdown: stream_shutdown.clone(),
            ports,
            active_since: shared.clock.now(),
        }
    }

    /// Returns a page of the engines of all products, without their keys.
    pub(crate) async fn engines(&self, params: ListFleetEngines) -> Result<FleetEngineList, FleetError> {
        let ListFleetEngines { product_id, status, engine_version, user_prefix, limit, after } = params;
        let states = status.as_ref().map(StatusFilter::states).unwrap_or_default().to_vec();
        let filter = FleetFilter { product_id, states, image: engine_version, user_prefix };
        let limit = limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get);
        let (engines, next) = self.shared.registry.fleet_engines(&filter, after, limit).await?;
        Ok(FleetEngineList { engines: engines.into_iter().map(|engine| self.listed(engine)).collect(), next })
    }

    fn listed(&self, engine: ListedEngine) -> FleetEngine {
        let ListedEngine { row, since, failed_checks } = engine;
        FleetEngine {
            product_id: row.owner.product_id,
            pinned: row.pinned,
            port: row.port,
            since,
            failed_checks,
            restarts: row.restarts.unsigned_abs(),
            restart_at: row.restart_at,
            summary: self.records.summary(row),
        }
    }

    /// Returns a page of the audit rows of all products, newest first.
    pub(crate) async fn audit(&self, params: ListFleetAudit) -> Result<FleetAuditList, FleetError> {
        let ListFleetAudit { product_id, user_id, event, limit, before } = params;
        let limit = limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get);
        let filter = AuditFilter { before: None, event, user_id, limit };
        let rows = self.shared.registry.fleet_audit_page(product_id, before, &filter).await?;
        let is_full = i64::try_from(rows.len()).is_ok_and(|found| found == limit);
        let next = rows.last().filter(|_| is_full);
        let next = next.map(|row| AuditCursor { at: row.at, product_id: row.product_id, id: row.id });
        Ok(FleetAuditList { rows, next })
    }

    /// Follows the audit logs of all products after the time `after`; by default from now on.
    pub(crate) async fn follow_audit_logs(&self, after: Option<i64>) -> Result<FleetAuditFeed, FleetError> {
        let after = after.map(Timestamp::from_unix_ms);
        FleetAuditFeed::new(Arc::clone(&self.shared), self.stream_shutdown.clone(), after).await
    }

    /// Returns whether the deployment is drained, and how many engines still run or are being changed.
    pub(crate) async fn drain_status(&self) -> Result<DrainStatus, FleetError> {
        let (left, _) = self.shared.registry.count_awake_and_asleep().await?;
        Ok(DrainStatus { drained_since: self.drain.since(), left })
    }

    /// Returns how far a drain is, and what it could not put to sleep.
    pub(crate) async fn drain_progress(&self) -> Result<DrainProgress, FleetError> {
        let (left, asleep) = self.shared.registry.count_awake_and_asleep().await?;
        let (failing, failures) = self.drain.failures.named(None);
        Ok(DrainProgress { drained_since: self.drain.since(), left, asleep, failing, failures })
    }

    /// Returns the states of all engines, by product and in total.
    pub(crate) async fn status(&self) -> Result<FleetOverview, FleetError> {
        let (counts, leased_ports) = self.shared.registry.fleet_counts().await?;
        let mut by_status = BTreeMap::<EngineStatus, u64>::new();
        for (status, engines) in counts.iter().flat_map(|product| &product.by_status) {
            *by_status.entry(*status).or_default() += engines;
        }
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Ok(FleetOverview {
            active_since: self.active_since,
            drained_since: self.drain.since(),
            maintenance: self.maintenance.get(),
            engines: FleetStatus::from_counts(by_status),
            changes_under_way: count(self.executor.operations.len()),
            capacity: FleetCapacity {
                ports: self.ports,
                leased_ports,
                concurrent_boots: count(self.shared.backend.concurrent_launches()),
            },
            products: counts.into_iter().map(|product| self.product_status(product)).collect(),
        })
    }

    fn product_status(&self, product: ProductCounts) -> ProductStatus {
        let ProductCounts { product_id, slug, state, by_status } = product;
        let policy = self.policies.get(product_id);
        ProductStatus {
            product_id,
            slug,
            total: by_status.iter().map(|(_, engines)| engines).sum(),
            by_status: by_status.into_iter().collect(),
            max_engines: policy.max_engines,
            suspended: policy.is_suspended(),
            state,
        }
    }
}
