//! What products can read besides their engines: audit log, metrics, logs.

use std::sync::Arc;

use api::UserId;
use api::audit::{AuditId, AuditList, ListAudit};
use api::metrics::{FleetStatus, Metrics};
use api::orchestrator::{PageLimit, ReadLogs, TailLines};
use backend::CooperativeYield;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::audit_feed::AuditFeed;
use super::shared::Shared;
use crate::registry::{AuditFilter, Product};

/// The page size of a listing that specifies none.
pub(super) const DEFAULT_PAGE_SIZE: i64 = 100;

/// Log lines returned if the caller specifies no number.
const DEFAULT_LOG_LINES: i64 = 200;

/// The size limit of the log in a response, as JSON, because a slow reader keeps it in memory. Older lines are
/// omitted.
const MAX_LOG_BYTES: usize = 4 * 1024 * 1024;

/// The number of logs read at once. Finding the newest lines may take tens of megabytes and a core: half of the
/// cores stay free for short requests.
fn max_concurrent_log_reads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

pub(crate) struct Queries {
    shared: Arc<Shared>,
    log_read_permits: Arc<Semaphore>,
    /// Cancels the streams that would never end by themselves.
    stream_shutdown: CancellationToken,
}

impl Queries {
    pub(super) fn new(shared: Arc<Shared>, stream_shutdown: CancellationToken) -> Self {
        let log_read_permits = Arc::new(Semaphore::new(max_concurrent_log_reads()));
        Self { shared, log_read_permits, stream_shutdown }
    }

    /// Follows the product's audit log after the row `after`; by default from now on.
    pub(crate) async fn follow_audit_log(
        &self,
        product: &Product,
        after: Option<i64>,
    ) -> Result<AuditFeed, FleetError> {
        AuditFeed::new(Arc::clone(&self.shared), self.stream_shutdown.clone(), product, after).await
    }

    /// Returns a page of the product's audit rows, newest first.
    pub(crate) async fn audit(&self, product: &Product, params: ListAudit) -> Result<AuditList, FleetError> {
        let filter = AuditFilter {
            before: params.before.map(AuditId::get),
            event: params.event,
            user_id: params.user_id,
            limit: params.limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get),
        };
        Ok(AuditList { rows: self.shared.registry.audit_page(product.product_id, &filter).await? })
    }

    /// The states of the product's engines.
    pub(crate) async fn status(&self, product: &Product) -> Result<FleetStatus, FleetError> {
        Ok(FleetStatus::from_counts(self.shared.registry.count_by_status(product.product_id).await?))
    }

    /// The metrics of the product's engines.
    pub(crate) async fn metrics(&self, product: &Product) -> Result<Metrics, FleetError> {
        Ok(self.shared.registry.metrics(product.product_id, self.shared.clock.now()).await?)
    }

    /// The last lines of an engine's log: an [`EngineLogs`](api::orchestrator::EngineLogs), serialized as
    /// JSON.
    pub(crate) async fn logs(
        &self,
        product: &Product,
        user_id: UserId,
        params: ReadLogs,
    ) -> Result<String, FleetError> {
        let row = self
            .shared
            .registry
            .engine(&product.engine_owner(user_id))
            .await?
            .ok_or(FleetError::EngineNotFound)?;
        let lines =
            usize::try_from(params.tail.map_or(DEFAULT_LOG_LINES, TailLines::get)).unwrap_or_default();
        // The semaphore is never closed.
        let permit =
            Arc::clone(&self.log_read_permits).acquire_owned().await.map_err(FleetError::internal)?;
        let lines = self.shared.backend.log_tail(row.engine_id, lines).await?;
        // Serializing megabytes takes a while and would block other calls on this thread. It also runs on if the
        // caller has disconnected, so the permit is held until it is done.
        let serialized = tokio::task::spawn_blocking(move || {
            let serialized = newest_lines_json(&lines, MAX_LOG_BYTES);
            drop(permit);
            serialized
        })
        .await;
        serialized.map_err(FleetError::internal)?.map_err(FleetError::internal)
    }
}

/// The newest of `lines` that fit into `limit` bytes as JSON.
fn newest_lines_json(lines: &[String], limit: usize) -> serde_json::Result<String> {
    let (mut remaining, mut kept, mut pace) = (limit, Vec::new(), CooperativeYield::default());
    for line in lines.iter().rev() {
        // Measured as serialized: escaping may lengthen a program's output sixfold.
        let line = serde_json::to_string(line)?;
        let bytes = line.len() + 1;
        let Some(rest) = remaining.checked_sub(bytes) else { break };
        remaining = rest;
        kept.push(line);
        pace.advance(bytes);
    }
    kept.reverse();
    Ok(format!("{{\"lines\":[{}]}}", kept.join(",")))
}

#[cfg(test)]
mod tests {
    use api::orchestrator::EngineLogs;

    use super::*;

    #[test]
    fn of_a_log_that_is_too_long_the_newest_lines_are_kept() {
        let log = ["oldest", "\u{1}\u{1}", "new"].map(str::to_owned);
        // With quotes and comma they take 9, 15 and 6 bytes.
        for (limit, kept) in [(100, 3), (30, 3), (29, 2), (21, 2), (20, 1), (6, 1), (5, 0)] {
            let serialized: EngineLogs =
                serde_json::from_str(&newest_lines_json(&log, limit).unwrap()).unwrap();
            assert_eq!(serialized.lines, log[log.len() - kept..], "{limit}");
        }
    }
}
