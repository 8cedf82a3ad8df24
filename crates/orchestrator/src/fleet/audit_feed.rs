//! The audit feed: streams a product's audit rows in order as they are committed, each exactly once.
//!
//! A feed is a position in the audit log. It reads pages from there, and when no row is left it waits for the
//! notification of a commit. A slow reader therefore costs one page of memory and delays nobody, and a reader that
//! reconnects continues at its position.

use std::sync::Arc;
use std::time::Duration;

use api::ProductId;
use api::audit::AuditRow;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::shared::Shared;
use crate::registry::{Product, RegistryError};

/// Rows per page.
pub(super) const FEED_PAGE_SIZE: i64 = 100;

/// The interval after which an idle feed emits a keep-alive, so that nobody takes its connection for dead.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A subscription to a product's audit log.
pub(crate) struct AuditFeed {
    shared: Arc<Shared>,
    /// Cancelled when the orchestrator stops.
    shutdown: CancellationToken,
    product_id: ProductId,
    /// The id of the last row that was emitted.
    after: i64,
    commits: watch::Receiver<()>,
}

/// An item of the feed.
#[derive(Debug)]
pub(crate) enum FeedItem {
    /// The next rows in order.
    Rows(Vec<AuditRow>),
    /// Nothing was committed for [`KEEP_ALIVE_INTERVAL`].
    KeepAlive,
}

/// What an event stream of audit rows is made of.
pub(crate) trait RowFeed: Send + 'static {
    /// Returns the next item; `None` once the orchestrator stops.
    fn next(&mut self) -> impl Future<Output = Result<Option<FeedItem>, RegistryError>> + Send;

    /// Returns the id of the event of `row`, at which a client that reconnects continues.
    fn event_id(&self, row: &AuditRow) -> i64;
}

impl AuditFeed {
    /// Follows the product's audit log after the row `after`; by default from now on.
    pub(super) async fn new(
        shared: Arc<Shared>,
        shutdown: CancellationToken,
        product: &Product,
        after: Option<i64>,
    ) -> Result<Self, FleetError> {
        let product_id = product.product_id;
        // Subscribed before the end of the log is read, so that no later commit is missed.
        let commits = shared.registry.subscribe(product_id);
        let end = shared.registry.last_audit_id(product_id).await?;
        let after = after.unwrap_or(end);
        if after > end {
            return Err(FleetError::BeyondAuditLog { after, end });
        }
        Ok(Self { shared, shutdown, product_id, after, commits })
    }
}

impl RowFeed for AuditFeed {
    async fn next(&mut self) -> Result<Option<FeedItem>, RegistryError> {
        loop {
            if self.shutdown.is_cancelled() {
                return Ok(None);
            }
            // Marked before the read, so that a commit after it is not missed.
            self.commits.mark_unchanged();
            let rows =
                self.shared.registry.audit_rows_after(self.product_id, self.after, FEED_PAGE_SIZE).await?;
            if let Some(last) = rows.last() {
                self.after = last.id;
                return Ok(Some(FeedItem::Rows(rows)));
            }
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return Ok(None),
                // The registry, which holds the sender, lives as long as the fleet.
                _ = self.commits.changed() => {}
                () = self.shared.clock.sleep(KEEP_ALIVE_INTERVAL) => return Ok(Some(FeedItem::KeepAlive)),
            }
        }
    }

    fn event_id(&self, row: &AuditRow) -> i64 {
        row.id
    }
}
