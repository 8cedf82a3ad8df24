//! The engine's threads: a few that run all async work, and a bounded pool for blocking work.
//!
//! Blocking work runs in **lanes**: each kind of work has a bounded number of threads, and the runtime has enough
//! threads for all lanes together. Thus a kind that hangs, such as lookups with silent name servers, delays only
//! itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// The number of concurrent reads of the brain. Most wait for the same connection.
pub const BRAIN_THREADS: usize = 4;
/// The number of turns opened concurrently, apart from all other reads.
pub const TURN_OPEN_THREADS: usize = 2;
/// The number of concurrent searches for what a turn recalls: one for each turn that is being opened.
pub const RECALL_THREADS: usize = TURN_OPEN_THREADS;
/// The number of concurrent accesses to files of the workspace.
pub const FILE_THREADS: usize = 4;
/// The number of concurrent accesses to files that the user downloads or uploads.
pub const TRANSFER_THREADS: usize = 4;
/// The number of large request bodies parsed concurrently.
pub const BODY_PARSE_THREADS: usize = 2;
/// The number of web pages converted to text concurrently.
pub const PAGE_PARSE_THREADS: usize = 2;
/// The number of text documents, such as CSV and HTML, read concurrently.
pub const DOCUMENT_THREADS: usize = 2;
/// The number of concurrent lookups for web pages, whose names anybody may have chosen.
pub(crate) const PAGE_DNS_THREADS: usize = 8;
/// The number of concurrent lookups for servers that the operator named: MCP servers with their authorization
/// servers, and catalog tools.
pub(crate) const SERVER_DNS_THREADS: usize = 4;
/// The number of concurrent lookups for model providers. A name has half of them at most, so a silent one leaves
/// two for the fallback providers.
pub(crate) const PROVIDER_DNS_THREADS: usize = 4;
/// How long a blocking thread waits for more work before it ends.
pub const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The number of threads for work without a lane, which is short or rare.
const OTHER_THREADS: usize = 8;

/// The maximum number of blocking threads.
const MAX_BLOCKING_THREADS: usize = BRAIN_THREADS
    + TURN_OPEN_THREADS
    + RECALL_THREADS
    + FILE_THREADS
    + TRANSFER_THREADS
    + BODY_PARSE_THREADS
    + PAGE_PARSE_THREADS
    + DOCUMENT_THREADS
    + PAGE_DNS_THREADS
    + SERVER_DNS_THREADS
    + PROVIDER_DNS_THREADS
    + OTHER_THREADS;

/// Creates the runtime of an engine.
///
/// # Errors
/// The system cannot create threads.
pub fn runtime() -> std::io::Result<Runtime> {
    // Two workers can stream while one computes; more would only cost an idle engine memory.
    Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        // A thread that was used once keeps its memory.
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .enable_all()
        .build()
}

/// Runs short or rare blocking work on one of the threads without a lane; `None` if it panicked, or the runtime is
/// shutting down.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// A bounded number of threads for one kind of work. Clones share it. Work is started in order of arrival.
#[derive(Clone, Debug)]
pub struct Lane(Arc<Semaphore>);

impl Lane {
    /// Creates a lane with this number of threads.
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads)))
    }

    /// Runs `work` on a blocking thread, as soon as one is free. If the future is dropped before, the work never
    /// starts; if it is dropped later, the work runs to its end and keeps its thread until then.
    ///
    /// The future must be polled until it is ready, or be dropped: one that is left alone may have been given a thread
    /// that it does not use.
    ///
    /// Returns `None` if the work panicked, or the runtime is shutting down.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let permit = Arc::clone(&self.0).acquire_owned().await.ok()?;
        run_blocking(releasing(permit, work)).await
    }

    /// Starts `work` on a blocking thread at once, without a change of tasks; `None` if the lane has no thread to spare.
    /// It runs to its end even if nobody waits for it.
    pub fn try_start<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let permit = Arc::clone(&self.0).try_acquire_owned().ok()?;
        Some(tokio::task::spawn_blocking(releasing(permit, work)))
    }
}

/// `work`, which gives its thread back to the lane when it has ended.
fn releasing<T>(permit: OwnedSemaphorePermit, work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let result = work();
        drop(permit);
        result
    }
}
