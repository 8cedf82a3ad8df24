//! What products can read besides their engines: audit log, metrics, logs.

use std::sync::Arc;

use api::UserId;
use api::audit::{AuditId, AuditList, ListAudit};
use api::metrics::{FleetStatus, Metrics};
use api::orchestrator::{PageLimit, ReadLogs, TailLines};

use super::endpoints::DEFAULT_PAGE_SIZE;
use super::{Fleet, FleetError};
use crate::backend::CooperativeYield;
use crate::registry::{AuditFilter, EngineOwner, Product};

/// Log lines returned if the caller specifies no number.
const DEFAULT_LOG_LINES: i64 = 200;

/// The size limit of the log in a response, as JSON, because a slow reader keeps it in memory. Older lines are
/// omitted.
const MAX_LOG_BYTES: usize = 4 * 1024 * 1024;

/// The number of logs read at once. Finding the newest lines may take tens of megabytes and a core: half of the
/// cores stay free for short requests.
pub(super) fn max_concurrent_log_reads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

impl Fleet {
    /// Returns a page of the product's audit rows, newest first.
    pub(crate) async fn audit(&self, product: &Product, params: ListAudit) -> Result<AuditList, FleetError> {
        let filter = AuditFilter {
            before: params.before.map(AuditId::get),
            event: params.event,
            user_id: params.user_id,
            limit: params.limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get),
        };
        Ok(AuditList { rows: self.registry.audit_page(product.product_id, &filter).await? })
    }

    /// The states of the product's engines.
    pub(crate) async fn status(&self, product: &Product) -> Result<FleetStatus, FleetError> {
        Ok(FleetStatus::from_counts(self.registry.count_by_status(product.product_id).await?))
    }

    /// The metrics of the product's engines.
    pub(crate) async fn metrics(&self, product: &Product) -> Result<Metrics, FleetError> {
        Ok(self.registry.metrics(product.product_id, self.now()).await?)
    }

    /// The last lines of an engine's log: an [`EngineLogs`](api::orchestrator::EngineLogs), serialized as
    /// JSON.
    pub(crate) async fn logs(
        &self,
        product: &Product,
        user_id: UserId,
        params: ReadLogs,
    ) -> Result<String, FleetError> {
        let owner = EngineOwner { product_id: product.product_id, user_id };
        let row = self.registry.engine(&owner).await?.ok_or(FleetError::EngineNotFound)?;
        let lines =
            usize::try_from(params.tail.map_or(DEFAULT_LOG_LINES, TailLines::get)).unwrap_or_default();
        // The semaphore is never closed.
        let permit =
            Arc::clone(&self.log_read_permits).acquire_owned().await.map_err(FleetError::internal)?;
        let lines = self.backend.log_tail(row.engine_id, lines).await?;
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
