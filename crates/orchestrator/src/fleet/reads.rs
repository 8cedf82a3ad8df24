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
        Ok(EngineLogs { lines: self.backend.log_tail(row.engine_id, lines).await? })
    }
}
