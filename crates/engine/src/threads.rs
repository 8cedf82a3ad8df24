//! The engine's threads: few that run everything, and those where work may block.
//!
//! Work that blocks is done in **lanes**: each kind has a bounded number of threads, and the runtime has enough for all
//! lanes together. So a kind that hangs, as names do whose servers do not answer, waits for itself alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

/// How many reads of the brain run at once. Most wait for the same connection.
pub(crate) const BRAIN_THREADS: usize = 4;
/// How many turns are opened at once, apart from all other reads.
pub(crate) const TURN_OPEN_THREADS: usize = 2;
/// How many accesses to files of the workspace run at once.
pub(crate) const FILE_THREADS: usize = 4;
/// How many large bodies of requests are parsed at once.
pub(crate) const BODY_PARSE_THREADS: usize = 2;
/// How many web pages are turned into text at once.
pub(crate) const PAGE_PARSE_THREADS: usize = 2;
/// How many names are looked up at once for web pages, whose names anybody may have chosen.
pub(crate) const PAGE_DNS_THREADS: usize = 8;
/// The same for servers that the operator named: tool servers with their authorization servers, and catalog tools.
pub(crate) const SERVER_DNS_THREADS: usize = 4;
/// The same for model providers: a name has half of them at most, so one that is silent leaves two for those that stand in
/// for it.
pub(crate) const PROVIDER_DNS_THREADS: usize = 4;
/// How many are left for what has no lane: it is short, or there is little of it at once.
const OTHER_THREADS: usize = 8;

/// How many there may be.
const MAX_BLOCKING_THREADS: usize = BRAIN_THREADS
    + TURN_OPEN_THREADS
    + FILE_THREADS
    + BODY_PARSE_THREADS
    + PAGE_PARSE_THREADS
    + PAGE_DNS_THREADS
    + SERVER_DNS_THREADS
    + PROVIDER_DNS_THREADS
    + OTHER_THREADS;

/// What an engine runs on.
///
/// # Errors
/// The system gives no threads.
pub fn runtime() -> std::io::Result<Runtime> {
    // Two workers stream while one computes; more would only cost an idle engine memory.
    Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        // A thread that was once needed keeps its memory.
        .thread_keep_alive(Duration::from_secs(1))
        .enable_all()
        .build()
}

/// A bounded number of threads for one kind of work. Clones share it. Who comes first is served first.
#[derive(Clone, Debug)]
pub(crate) struct Lane(Arc<Semaphore>);

impl Lane {
    /// A lane in which so many works run at once.
    pub(crate) fn new(threads: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads)))
    }

    /// Runs `work` where it may block, as soon as there is a thread for it. Dropped before, it is not begun; dropped
    /// later, it runs to its end and has its thread until then.
    ///
    /// None if it panicked, or the runtime is shutting down.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let thread = Arc::clone(&self.0).acquire_owned().await.ok()?;
        let working = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(thread);
            done
        });
        working.await.ok()
    }
}
