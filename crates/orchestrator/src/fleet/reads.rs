//! What products can look at beside their engines: the ledger, figures, logs.

use contract::UserId;
use contract::audit::{AuditId, AuditList, ListAudit};
use contract::figures::{FleetStatus, Metrics};
use contract::orchestrator::{EngineLogs, PageLimit, ReadLogs, TailLines};

use super::calls::PAGE;
use super::{Fleet, FleetError};
use crate::registry::{AuditFilter, Product, Seat};

/// How many lines of a log are shown to one who asks for no number.
const TAIL: i64 = 200;

/// The longest log in an answer, as JSON: whoever reads it slowly keeps it in memory. Older lines are left out.
const LOG_BYTES: usize = 4 * 1024 * 1024;

/// Logs that are read at once: each may take tens of megabytes until its newest lines are found.
pub(super) const LOG_READERS: usize = 2;

impl Fleet {
    /// A page of the product's rows in the ledger, newest first.
    pub(crate) async fn audit(&self, product: &Product, ask: ListAudit) -> Result<AuditList, FleetError> {
        let filter = AuditFilter {
            before: ask.before.map(AuditId::get),
            event: ask.event,
            user_id: ask.user_id,
            limit: ask.limit.map_or(PAGE, PageLimit::get),
        };
        Ok(AuditList { rows: self.registry.audit(product.product_id, &filter).await? })
    }

    /// How the product's engines are.
    pub(crate) async fn status(&self, product: &Product) -> Result<FleetStatus, FleetError> {
        Ok(FleetStatus::of(self.registry.count_by_status(product.product_id).await?))
    }

    /// What happened to the product's engines.
    pub(crate) async fn metrics(&self, product: &Product) -> Result<Metrics, FleetError> {
        Ok(self.registry.metrics(product.product_id, self.now()).await?)
    }

    /// The last lines of an engine's log.
    pub(crate) async fn logs(
        &self,
        product: &Product,
        user_id: UserId,
        ask: ReadLogs,
    ) -> Result<EngineLogs, FleetError> {
        let seat = Seat { product_id: product.product_id, user_id };
        let row = self.registry.engine(&seat).await?.ok_or(FleetError::EngineNotFound)?;
        let lines = usize::try_from(ask.tail.map_or(TAIL, TailLines::get)).unwrap_or_default();
        // The permits are never withdrawn.
        let _permit = self.log_readers.acquire().await.map_err(FleetError::internal)?;
        let mut lines = self.backend.log_tail(row.engine_id, lines).await?;
        keep_newest(&mut lines, LOG_BYTES);
        Ok(EngineLogs { lines })
    }
}

/// Drops the oldest lines until what is left takes at most `limit` bytes as JSON.
fn keep_newest(lines: &mut Vec<String>, limit: usize) {
    let mut left = limit;
    let kept = lines.iter().rev().take_while(|line| {
        // As it is sent: what a talkative program writes may take six times as much there.
        let escaped = serde_json::to_string(line).map_or(usize::MAX, |text| text.len()).saturating_add(1);
        left.checked_sub(escaped).inspect(|rest| left = *rest).is_some()
    });
    let kept = kept.count();
    lines.drain(..lines.len().saturating_sub(kept));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_log_that_is_too_long_the_newest_lines_are_kept() {
        let mut log = ["oldest", "\u{1}\u{1}", "new"].map(str::to_owned).to_vec();
        // With quotes and comma they take 9, 15 and 6 bytes.
        for (limit, kept) in [(100, 3), (30, 3), (29, 2), (21, 2), (20, 1), (6, 1), (5, 0)] {
            keep_newest(&mut log, limit);
            assert_eq!(log.len(), kept, "{limit}");
        }
    }
}
