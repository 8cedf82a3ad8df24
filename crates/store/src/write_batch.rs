//! What is written to the brain: batches, each stored completely or not at all.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::StoreError;
use super::write_tx::WriteTx;

/// The failures that a commit must survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// A kill of the process. A power loss may cost the last moments, but never integrity.
    #[default]
    ProcessKill,
    /// A power loss too: the commit waits for the disk.
    PowerLoss,
}

/// A failed write: nothing of its batch is stored.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the brain could not be written: {reason}")]
pub struct WriteError {
    /// The error that SQLite reported.
    pub reason: Arc<str>,
}

/// A source of writes for the brain. Its writes are collected only when the writer gets to it, so that everything
/// that accumulates until then is part of the same commit.
///
/// It is written and completed on some thread that may block, never two at once. It must not block on a runtime: the
/// thread may be doing that already.
///
/// Each time it is queued, the writer calls [`WriteBatch::collect`] once, [`WriteBatch::write`] at least once, and
/// [`WriteBatch::complete`] once.
pub trait WriteBatch: Send + Sync {
    /// Moves what has accumulated into the commit, and returns the durability that it needs. Both happen at once:
    /// what arrives later waits for the next commit, and so does its durability.
    fn collect(&self) -> Durability;

    /// Writes what was collected; called again if an attempt was rolled back.
    fn write(&self, tx: &WriteTx<'_>) -> Result<(), StoreError>;

    /// Reports that what was collected is stored completely, or not at all.
    fn complete(&self, result: &Result<(), WriteError>);
}

/// A batch of a single write, whose caller waits for its return value.
pub(super) struct SingleWrite<T, F> {
    write: F,
    durability: Durability,
    output: Mutex<Option<T>>,
    completion: Mutex<Option<oneshot::Sender<Result<T, WriteError>>>>,
}

impl<T, F> SingleWrite<T, F>
where
    T: Send + 'static,
    F: Fn(&WriteTx<'_>) -> Result<T, StoreError> + Send + Sync + 'static,
{
    /// Creates the batch, and a receiver of its result.
    pub(super) fn create(
        write: F,
        durability: Durability,
    ) -> (Arc<dyn WriteBatch>, oneshot::Receiver<Result<T, WriteError>>) {
        let (sender, receiver) = oneshot::channel();
        let completion = Mutex::new(Some(sender));
        (Arc::new(Self { write, durability, output: Mutex::new(None), completion }), receiver)
    }
}

impl<T, F> WriteBatch for SingleWrite<T, F>
where
    T: Send,
    F: Fn(&WriteTx<'_>) -> Result<T, StoreError> + Send + Sync,
{
    fn collect(&self) -> Durability {
        self.durability
    }

    fn write(&self, tx: &WriteTx<'_>) -> Result<(), StoreError> {
        *self.output.lock() = Some((self.write)(tx)?);
        Ok(())
    }

    fn complete(&self, result: &Result<(), WriteError>) {
        // A batch that is stored was written and has returned a value.
        let output = self
            .output
            .lock()
            .take()
            .ok_or_else(|| WriteError { reason: "the write was not executed".into() });
        if let Some(sender) = self.completion.lock().take() {
            // The caller may be gone.
            let _ = sender.send(result.clone().and(output));
        }
    }
}
