//! The audit feed of all products: streams their rows as they are committed, those of each product in order.
//!
//! The feed has a position in each product's audit log. A commit names its product, so a feed reads only where
//! something is new. Products have no common order: a client that reconnects names a time, and is sent the rows of
//! some minutes before it again, because rows are stamped before they are committed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use api::audit::AuditRow;
use api::{ProductId, Timestamp};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::audit_feed::{FEED_PAGE_SIZE, FeedItem, KEEP_ALIVE_INTERVAL, RowFeed};
use super::shared::Shared;
use crate::registry::RegistryError;

/// How much later than its time a row may be committed: longer than any operation takes to settle its engine.
const COMMIT_DELAY: Duration = Duration::from_mins(5);

/// Where a product's rows start.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// With its first one: it was registered after the feed had begun.
    First,
    /// With the first one that may have been committed after this time.
    After(Timestamp),
}

/// A subscription to the audit logs of all products.
pub(crate) struct FleetAuditFeed {
    shared: Arc<Shared>,
    /// Cancelled when the orchestrator stops.
    shutdown: CancellationToken,
    /// The id of the last row that was emitted of each product. It is looked up when the product is first read, so that
    /// a feed begins at once however many rows there are.
    positions: HashMap<ProductId, i64>,
    /// Where products start that have no position.
    start: Start,
    /// The products that may have more rows.
    unread: VecDeque<ProductId>,
    commits: broadcast::Receiver<ProductId>,
    /// Every row that was committed before this time has been emitted.
    caught_up_at: Timestamp,
    /// When the ends of all logs were last compared with the positions.
    searched_at: Duration,
}

impl FleetAuditFeed {
    /// Follows the audit logs of all products after the time `after`; by default from now on.
    pub(super) async fn new(
        shared: Arc<Shared>,
        shutdown: CancellationToken,
        after: Option<Timestamp>,
    ) -> Result<Self, FleetError> {
        // Subscribed before the ends of the logs are read, so that no later commit is missed.
        let commits = shared.registry.subscribe_to_all();
        let (now, searched_at) = (shared.clock.now(), shared.clock.monotonic());
        let ends = shared.registry.audit_ends().await?;
        let feed = |start, positions, unread, caught_up_at| Self {
            shared,
            shutdown,
            positions,
            start,
            unread,
            commits,
            caught_up_at,
            searched_at,
        };
        let Some(after) = after.map(|after| after.min(now)) else {
            return Ok(feed(Start::First, ends.into_iter().collect(), VecDeque::new(), now));
        };
        let delay = i64::try_from(COMMIT_DELAY.as_millis()).unwrap_or(i64::MAX);
        let start = Start::After(Timestamp::from_unix_ms(after.unix_ms().saturating_sub(delay)));
        let unread = ends.into_iter().map(|(product_id, _)| product_id).collect();
        Ok(feed(start, HashMap::new(), unread, after))
    }

    /// Returns the id of the product's last row that was emitted.
    async fn position(&mut self, product_id: ProductId) -> Result<i64, RegistryError> {
        if let Some(position) = self.positions.get(&product_id) {
            return Ok(*position);
        }
        let position = match self.start {
            Start::First => 0,
            // Rows are numbered as they are committed, so those before it were committed before the time, too.
            Start::After(from) => self.shared.registry.audit_row_before(product_id, from).await?,
        };
        self.positions.insert(product_id, position);
        Ok(position)
    }

    /// Collects the products of all commits so far. Returns whether there are none, so that everything committed
    /// before the call has been emitted.
    async fn is_caught_up(&mut self) -> Result<bool, RegistryError> {
        let now = self.shared.clock.now();
        loop {
            match self.commits.try_recv() {
                Ok(product_id) => self.unread.push_back(product_id),
                Err(TryRecvError::Lagged(_)) => self.find_unread().await?,
                // The registry, which holds the sender, lives as long as the fleet.
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        if self.shared.clock.monotonic().saturating_sub(self.searched_at) >= KEEP_ALIVE_INTERVAL {
            // A commit that was not confirmed was not announced either.
            self.find_unread().await?;
        }
        let is_caught_up = self.unread.is_empty();
        if is_caught_up {
            self.caught_up_at = now;
        }
        Ok(is_caught_up)
    }

    /// Looks for products with rows beyond their position.
    async fn find_unread(&mut self) -> Result<(), RegistryError> {
        self.searched_at = self.shared.clock.monotonic();
        for (product_id, end) in self.shared.registry.audit_ends().await? {
            if self.positions.get(&product_id).is_none_or(|position| *position < end) {
                self.unread.push_back(product_id);
            }
        }
        Ok(())
    }
}

impl RowFeed for FleetAuditFeed {
    async fn next(&mut self) -> Result<Option<FeedItem>, RegistryError> {
        loop {
            if self.shutdown.is_cancelled() {
                return Ok(None);
            }
            if let Some(product_id) = self.unread.pop_front() {
                let after = self.position(product_id).await?;
                let rows = self.shared.registry.audit_rows_after(product_id, after, FEED_PAGE_SIZE).await?;
                let Some(last) = rows.last() else { continue };
                self.positions.insert(product_id, last.id);
                // Behind the others: no product keeps them waiting.
                self.unread.push_back(product_id);
                return Ok(Some(FeedItem::Rows(rows)));
            }
            if !self.is_caught_up().await? {
                continue;
            }
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return Ok(None),
                commit = self.commits.recv() => match commit {
                    Ok(product_id) => self.unread.push_back(product_id),
                    Err(RecvError::Lagged(_) | RecvError::Closed) => self.find_unread().await?,
                },
                () = self.shared.clock.sleep(KEEP_ALIVE_INTERVAL) => return Ok(Some(FeedItem::KeepAlive)),
            }
        }
    }

    /// A time, because products have no common order: whatever was committed before it has been sent.
    fn event_id(&self, _: &AuditRow) -> i64 {
        self.caught_up_at.unix_ms()
    }
}
