//! Erasure: removes what deletions may have left in files, step by step, alongside the turns.
//!
//! A deletion waits for it for a limited time; the rest continues in the background, also after a restart.

use std::sync::Arc;
use std::time::Duration;

use api::user_servers::{UpdateUserServer, UserServer};
use mcp::McpError;
use store::{Brain, Erasure, ErasureScope, WriteTx};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{Agent, AgentError, Services};

/// How long a deletion waits for the erasure to finish.
const ERASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of free pages returned to the disk in one commit.
const PAGES_RELEASED_PER_COMMIT: u32 = 64;
/// How long to wait for a reader of the brain's write-ahead log before truncating it is retried.
const LOG_RETRY_DELAY: Duration = Duration::from_millis(200);
/// The delay after a failure: the first one and the longest.
const FAILURE_RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Why the erasure cannot continue for now; only logged.
type EraseError = Box<dyn std::error::Error + Send + Sync>;

/// The background task that erases. Clones share its state.
#[derive(Clone)]
pub(super) struct Eraser {
    brain: Brain,
    services: Arc<Services>,
    stopping: CancellationToken,
    /// Only one erasure runs at a time.
    permit: Arc<Semaphore>,
}

impl Agent {
    /// Deletes something and erases it. Returns whether it existed.
    pub(super) async fn delete_and_erase(
        &self,
        delete: impl Fn(&WriteTx<'_>) -> Result<bool, store::StoreError> + Send + Sync + 'static,
    ) -> Result<bool, AgentError> {
        let deleted = self.brain.write(move |rows| {
            let deleted = delete(rows)?;
            if deleted {
                rows.enqueue_erasure(&ErasureScope::default())?;
            }
            Ok(deleted)
        });
        let deleted = deleted.await?;
        if deleted {
            self.erase().await;
        }
        Ok(deleted)
    }

    /// Deletes a tool server that the user has added, and erases what it and its credentials were.
    pub async fn delete_user_server(&self, name: &str) -> Result<(), McpError> {
        self.services.mcp.delete_user_server(name).await?;
        self.erase().await;
        Ok(())
    }

    /// Changes a tool server that the user has added, and erases the words that this replaces.
    pub async fn update_user_server(
        &self,
        name: &str,
        change: UpdateUserServer,
    ) -> Result<UserServer, McpError> {
        let erases = change.description.is_some();
        let changed = self.services.mcp.update_user_server(name, change).await?;
        if erases {
            self.erase().await;
        }
        Ok(changed)
    }

    /// Erases what was deleted, waiting at most [`ERASE_TIMEOUT`].
    pub(super) async fn erase(&self) {
        let eraser = self.eraser.clone();
        // Runs in a task of its own, so that it continues if the caller is gone.
        let erasing = self.tracker.spawn(async move { eraser.run().await });
        // If it takes longer or the engine is being stopped, the rest is recorded in the brain.
        tokio::time::timeout(ERASE_TIMEOUT, erasing).await.ok();
    }
}

impl Eraser {
    pub(super) fn new(brain: Brain, services: Arc<Services>, stopping: CancellationToken) -> Self {
        Self { brain, services, stopping, permit: Arc::new(Semaphore::new(1)) }
    }

    /// Erases what is pending when the engine starts, and what turns delete from then on. Stops with the engine.
    pub(super) async fn run_in_background(self) {
        loop {
            self.clone().run().await;
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return,
                () = self.brain.erasure_requested() => {}
            }
        }
    }

    /// Erases everything that is pending, or stops with the engine.
    pub(super) async fn run(self) {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => {}
            () = self.erase_all() => {}
        }
    }

    async fn erase_all(&self) {
        let Ok(_permit) = self.permit.acquire().await else { return };
        let (mut pause, max_pause) = FAILURE_RETRY_DELAY;
        loop {
            match self.erase_next().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(
                        error = &*error,
                        "Deleted data could not be erased; the erasure is retried."
                    );
                    tokio::time::sleep(pause).await;
                    pause = pause.saturating_mul(2).min(max_pause);
                }
            }
        }
    }

    /// Performs the next pending erasure. Returns whether there was one.
    async fn erase_next(&self) -> Result<bool, EraseError> {
        let erasure =
            self.brain.run_blocking(Brain::pending_erasure).await.ok_or("the engine is stopping")??;
        let Some(erasure) = erasure else { return Ok(false) };
        self.services.outputs.remove(erasure.scope.outputs.clone()).await?;
        let removed = self.brain.run_blocking(|brain| brain.remove_backups(None)).await;
        removed.ok_or("the engine is stopping")??;
        self.merge_search_index().await?;
        while self.brain.write(|rows| rows.release_pages(PAGES_RELEASED_PER_COMMIT)).await? {}
        self.scrub_pages().await?;
        self.truncate_log().await?;
        self.finish(erasure).await?;
        Ok(true)
    }

    async fn merge_search_index(&self) -> Result<(), EraseError> {
        let mut is_first = true;
        while self.brain.write(move |rows| rows.merge_search_index(is_first)).await? {
            is_first = false;
        }
        Ok(())
    }

    async fn scrub_pages(&self) -> Result<(), EraseError> {
        let mut next = Some(1);
        while let Some(from) = next {
            next = self.brain.write(move |rows| rows.scrub_pages(from)).await?;
        }
        Ok(())
    }

    async fn truncate_log(&self) -> Result<(), EraseError> {
        while !self.brain.run_blocking(Brain::truncate_wal).await.ok_or("the engine is stopping")?? {
            tokio::time::sleep(LOG_RETRY_DELAY).await;
        }
        Ok(())
    }

    async fn finish(&self, erasure: Erasure) -> Result<(), EraseError> {
        self.brain.write(move |rows| rows.complete_erasure(&erasure)).await?;
        tracing::debug!("Deleted data has been erased.");
        Ok(())
    }
}
