//! Erasing: works off what deletions may have left in files, one step after the other beside the turns.
//!
//! A deletion waits for it, but not for long: what is not done by then goes on by itself, also after a restart.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{Agent, AgentError, Services};
use crate::store::{Brain, Erasure, ErasureScope, SearchIndex, WriteTx};

/// How long a deletion waits until nothing is left of what it deleted.
const ERASE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many free pages are given back to the disk in one commit.
const PAGES_RELEASED_PER_COMMIT: u32 = 64;
/// How long to wait for whoever reads the brain's log before its end is tried again.
const LOG_RETRY_DELAY: Duration = Duration::from_millis(200);
/// How long to wait after a failure, the first time and at most.
const FAILURE_RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Why nothing more can be erased for now, for the log.
type EraseError = Box<dyn std::error::Error + Send + Sync>;

/// See the module. Clones share it.
#[derive(Clone)]
pub(super) struct Eraser {
    brain: Brain,
    services: Arc<Services>,
    stopping: CancellationToken,
    /// One erases at a time.
    permit: Arc<Semaphore>,
}

impl Agent {
    /// Deletes something that an index for searches may have the words of, and erases it; whether there was one.
    pub(super) async fn delete_and_erase(
        &self,
        index: impl Into<Option<SearchIndex>>,
        delete: impl Fn(&WriteTx<'_>) -> Result<bool, rusqlite::Error> + Send + Sync + 'static,
    ) -> Result<bool, AgentError> {
        let remains = ErasureScope { indexes: index.into().into_iter().collect(), ..ErasureScope::default() };
        let deleted = self.brain.write(move |rows| {
            let deleted = delete(rows)?;
            if deleted {
                rows.enqueue_erasure(&remains)?;
            }
            Ok(deleted)
        });
        let deleted = deleted.await?;
        if deleted {
            self.erase().await;
        }
        Ok(deleted)
    }

    /// Erases what was deleted, and waits for that as long as a caller may be kept waiting.
    pub(super) async fn erase(&self) {
        let eraser = self.eraser.clone();
        // Goes on by itself, also if the caller is gone.
        let erasing = self.tracker.spawn(async move { eraser.run().await });
        // Where it takes longer, or the engine is being stopped, what is left is on record.
        tokio::time::timeout(ERASE_TIMEOUT, erasing).await.ok();
    }
}

impl Eraser {
    pub(super) fn new(brain: Brain, means: Arc<Services>, stopping: CancellationToken) -> Self {
        Self { brain, services: means, stopping, permit: Arc::new(Semaphore::new(1)) }
    }

    /// Erases all that is to be erased, or stops with the engine.
    pub(super) async fn run(self) {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => {}
            () = self.erase_all() => {}
        }
    }

    async fn erase_all(&self) {
        let Ok(_permit) = self.permit.acquire().await else { return };
        let (mut pause, longest_prefix) = FAILURE_RETRY_DELAY;
        loop {
            match self.erase_next().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(
                        error = &*error,
                        "What was deleted could not be erased; this is tried again."
                    );
                    tokio::time::sleep(pause).await;
                    pause = pause.saturating_mul(2).min(longest_prefix);
                }
            }
        }
    }

    /// Erases what is to be erased now; whether there was something.
    async fn erase_next(&self) -> Result<bool, EraseError> {
        let erasure =
            self.brain.run_blocking(Brain::pending_erasure).await.ok_or("the engine is being stopped")??;
        let Some(erasure) = erasure else { return Ok(false) };
        self.services.outputs.remove(erasure.scope.outputs.clone()).await?;
        let copies = self.brain.run_blocking(|brain| brain.remove_backups(None)).await;
        copies.ok_or("the engine is being stopped")??;
        for index in &erasure.scope.indexes {
            self.merge_index(*index).await?;
        }
        while self.brain.write(|rows| rows.release_pages(PAGES_RELEASED_PER_COMMIT)).await? {}
        self.scrub_pages().await?;
        self.truncate_log().await?;
        self.finish(erasure).await?;
        Ok(true)
    }

    async fn merge_index(&self, index: SearchIndex) -> Result<(), EraseError> {
        let mut begins = true;
        while self.brain.write(move |rows| rows.merge_index(index, begins)).await? {
            begins = false;
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
        while !self.brain.run_blocking(Brain::truncate_wal).await.ok_or("the engine is being stopped")?? {
            tokio::time::sleep(LOG_RETRY_DELAY).await;
        }
        Ok(())
    }

    async fn finish(&self, erasure: Erasure) -> Result<(), EraseError> {
        self.brain.write(move |rows| rows.complete_erasure(&erasure)).await?;
        tracing::debug!("What was deleted has been erased.");
        Ok(())
    }
}
