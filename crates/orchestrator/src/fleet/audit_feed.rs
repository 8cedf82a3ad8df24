//! The ledger, followed: a product's rows as they are committed, none lost, none twice, in order.
//!
//! A follower is a position in the ledger. It reads from there page by page, and where nothing is left it waits for
//! word of a commit. So a slow one costs a page of memory and holds up nobody, and one that comes back reads on
//! where it was.

use std::sync::Arc;
use std::time::Duration;

use contract::ProductId;
use contract::audit::AuditRow;
use tokio::sync::watch;

use super::{Fleet, FleetError};
use crate::registry::{Product, RegistryError};

/// Rows read at a time.
const FEED_PAGE_SIZE: i64 = 100;

/// After how long a follower is told that there is nothing to tell, so that nobody takes its connection for dead.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// One who follows a product's ledger.
pub(crate) struct AuditFeed {
    fleet: Arc<Fleet>,
    product_id: ProductId,
    /// The last row that was told.
    after: i64,
    commits: watch::Receiver<()>,
}

/// What a follower is told.
#[derive(Debug)]
pub(crate) enum FeedItem {
    /// The next rows.
    Rows(Vec<AuditRow>),
    /// That there was nothing for a while.
    KeepAlive,
}

impl Fleet {
    /// Follows the product's ledger after the row `after`, by default from now on.
    pub(crate) async fn follow_audit_log(
        self: &Arc<Self>,
        product: &Product,
        after: Option<i64>,
    ) -> Result<AuditFeed, FleetError> {
        let product_id = product.product_id;
        // Before the end is read: what is committed from then on is heard of.
        let news = self.registry.subscribe(product_id);
        let end = self.registry.last_audit_id(product_id).await?;
        let after = after.unwrap_or(end);
        if after > end {
            return Err(FleetError::BeyondAuditLog { after, end });
        }
        Ok(AuditFeed { fleet: Arc::clone(self), product_id, after, commits: news })
    }
}

impl AuditFeed {
    /// What comes next; none once the orchestrator stops.
    pub(crate) async fn next(&mut self) -> Result<Option<FeedItem>, RegistryError> {
        loop {
            if self.fleet.stream_shutdown.is_cancelled() {
                return Ok(None);
            }
            // Before the read: a commit after it is not missed.
            self.commits.mark_unchanged();
            let rows =
                self.fleet.registry.audit_rows_after(self.product_id, self.after, FEED_PAGE_SIZE).await?;
            if let Some(last) = rows.last() {
                self.after = last.id;
                return Ok(Some(FeedItem::Rows(rows)));
            }
            tokio::select! {
                biased;
                () = self.fleet.stream_shutdown.cancelled() => return Ok(None),
                // The registry, which tells, lives as long as the fleet.
                _ = self.commits.changed() => {}
                () = self.fleet.clock.sleep(KEEP_ALIVE_INTERVAL) => return Ok(Some(FeedItem::KeepAlive)),
            }
        }
    }
}
