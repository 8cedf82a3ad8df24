//! Export and import of the engine's memory.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::transfer::{ImportMode, Imported, ImportedStatus};
use bytes::{Buf as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use resources::memory_budget::{GrowingReservation, MAX_UNCOUNTED_BYTES, MemoryBudget, MemoryUse, NoMemory};
use store::{Brain, ExportError, ImportError};
use tokio::runtime::Handle;
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit, RwLock, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::{Agent, AgentError};

/// The most exports that may run at once.
const MAX_CONCURRENT_EXPORTS: usize = 2;
/// The size of a chunk of a document in bytes, and the number of chunks that may be queued.
const CHUNK_BYTES: usize = 64 * 1024;
const CHUNK_QUEUE_CAPACITY: usize = 4;
/// How long a turn waits for an import that is being applied before it is refused.
const IMPORT_WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take for the next chunk. A stalled export would keep the brain's write-ahead log from
/// being reset, and a stalled import would block other imports.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take in total: this long, plus one second per so many bytes.
const TRANSFER_GRACE: Duration = Duration::from_mins(1);
const MIN_BYTES_PER_SECOND: u64 = 64 * 1024;
/// The size of a record in memory relative to the document, including what is parsed from it.
const RECORD_MEMORY_FACTOR: usize = 3;
/// The bytes of a rejected document that are read and discarded: a client that is still sending would not see
/// the response.
const MAX_DRAINED_BYTES: usize = 32 * 1024 * 1024;

/// The permits and locks of exports and imports. Clones share them.
#[derive(Clone)]
pub(super) struct Transfers {
    export_permits: Arc<Semaphore>,
    import_permits: Arc<Semaphore>,
    /// Read-locked when a turn begins or a task is deleted, from before the task is looked up until the commit.
    /// An import that is being applied holds the write lock.
    tasks_lock: Arc<RwLock<()>>,
}

impl Default for Transfers {
    fn default() -> Self {
        let (exports, imports) = (Semaphore::new(MAX_CONCURRENT_EXPORTS), Semaphore::new(1));
        Self {
            export_permits: Arc::new(exports),
            import_permits: Arc::new(imports),
            tasks_lock: Arc::default(),
        }
    }
}

impl Transfers {
    /// Keeps an import from being applied while the guard is held.
    ///
    /// # Errors
    /// If an import is being applied and takes too long.
    pub(super) async fn lock_tasks(&self) -> Result<OwnedRwLockReadGuard<()>, AgentError> {
        let lock = timeout(IMPORT_WAIT_TIMEOUT, Arc::clone(&self.tasks_lock).read_owned()).await;
        lock.map_err(|_| AgentError::TooManyTransfers)
    }
}

/// A document that is being written. The last chunk is an error if it could not be completed.
pub struct Export {
    chunks: mpsc::Receiver<Result<Bytes, ExportError>>,
}

impl Export {
    /// The next chunk; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Bytes, ExportError>> {
        self.chunks.recv().await
    }
}

impl Agent {
    /// Returns whether an import is running.
    pub(crate) fn is_importing(&self) -> bool {
        self.transfers.import_permits.available_permits() == 0
    }

    /// Writes the current memory as a document. Turns continue meanwhile.
    pub fn export(&self) -> Result<Export, AgentError> {
        let permit = try_acquire(&self.transfers.export_permits)?;
        let (sender, chunks) = mpsc::channel(CHUNK_QUEUE_CAPACITY);
        let (brain, runtime) = (self.brain.clone(), Handle::current());
        let writing = move || {
            write_export(
                &brain,
                ChunkWriter {
                    buffer: BytesMut::new(),
                    sender,
                    runtime,
                    chunk_timeout: STALL_TIMEOUT,
                    slow_client: SlowClientGuard::default(),
                },
            );
            drop(permit);
        };
        spawn_thread("export", writing).map_err(|_| AgentError::TooManyTransfers)?;
        Ok(Export { chunks })
    }

    /// Returns the whole document if it has at most that many bytes.
    pub async fn export_to_vec(&self, max_bytes: usize) -> Result<Vec<u8>, AgentError> {
        let mut export = self.export()?;
        let mut document = Vec::new();
        while let Some(chunk) = export.next().await {
            document.extend_from_slice(&chunk?);
            if document.len() > max_bytes {
                let max_bytes = max_bytes / 1024 / 1024;
                let message =
                    format!("the export is larger than {max_bytes} MiB; GET /memory/export streams it");
                return Err(AgentError::Invalid(message));
            }
        }
        Ok(document)
    }

    /// Imports a document, either all of it or nothing.
    pub async fn import<E: std::fmt::Display>(
        &self,
        mode: ImportMode,
        document: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<Imported, AgentError> {
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        // Before the check for quiesce: from here on the engine cannot be quiesced.
        let permit = try_acquire(&self.transfers.import_permits)?;
        self.registry.lock().check_not_quiesced(self.services.clock.monotonic())?;
        let (sender, chunks) = mpsc::channel(CHUNK_QUEUE_CAPACITY);
        let brain = self.brain.clone();
        let mut memory = RecordMemory::new(self.services.memory_budget.clone());
        let staging = run_on_thread(move || {
            let document = ChunkReader { chunks, chunk: Bytes::new() };
            (brain.stage_import(document, |bytes| memory.reserve(bytes)), permit)
        });
        let (staged, ()) = tokio::join!(staging, forward_chunks(document, sender));
        let (staged, permit) = staged.ok_or(AgentError::Stopping)?;
        let staged = staged?;

        let outputs = self.services.outputs.spilled_calls().await?;
        let (brain, registry, event_logs) =
            (self.brain.clone(), self.registry.clone(), self.event_logs.clone());
        let mcp = self.services.mcp.clone();
        let (tasks_lock, stopping) = (Arc::clone(&self.transfers.tasks_lock), self.stopping.clone());
        // Runs in a task of its own, even if the caller is gone: no turn may begin before it is done.
        let applying = self.tracker.spawn(async move {
            let _exclusive = tasks_lock.write_owned().await;
            if stopping.is_cancelled() {
                return Err(AgentError::Stopping);
            }
            if mode == ImportMode::Replace {
                let turns = registry.lock();
                if turns.any_open() || !turns.queue.is_empty() {
                    return Err(AgentError::TurnsInProgress);
                }
            }
            let counts = brain.apply_import(staged, mode, outputs).await?;
            // The event logs still describe the tasks before the import.
            event_logs.remove_idle();
            brain.notify_schedules_changed();
            if let Err(error) = mcp.reload_user_servers().await {
                tracing::warn!(%error, "The imported tool servers of the user can be used after a restart only.");
            }
            drop(permit);
            Ok(Imported { status: ImportedStatus::Imported, mode, counts })
        });
        let imported = applying.await.unwrap_or(Err(AgentError::Stopping))?;
        if mode == ImportMode::Replace {
            self.erase().await;
        }
        Ok(imported)
    }
}

/// Runs work that waits for a client on a thread of its own, because turns need the few blocking threads.
/// `None` if no more threads can be created.
async fn run_on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    // The receiver is gone if the caller has left.
    let work = move || drop(done.send(work()));
    spawn_thread("import", work).ok()?;
    result.await.ok()
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// The total time spent waiting for a client, and the bytes transferred. A client that sends a byte now and
/// then would hold its permit forever.
#[derive(Default)]
struct SlowClientGuard {
    time: Duration,
    bytes: u64,
}

impl SlowClientGuard {
    /// Returns whether the client is too slow, after another wait of that length for that many bytes.
    fn is_too_slow(&mut self, time: Duration, bytes: usize) -> bool {
        self.time += time;
        self.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        self.time > TRANSFER_GRACE + Duration::from_secs(self.bytes / MIN_BYTES_PER_SECOND)
    }
}

fn try_acquire(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, AgentError> {
    Arc::clone(permits).try_acquire_owned().map_err(|_| AgentError::TooManyTransfers)
}

/// Writes the export of a brain to its end, or sends the error that cut it short.
fn write_export(brain: &Brain, mut writer: ChunkWriter) {
    let written = brain.export(&mut writer).and_then(|()| Ok(writer.flush()?));
    if let Err(error) = written {
        // A client that has left does not receive the error.
        let _ = writer.send(Err(error));
    }
}

/// Writes a document to a client in chunks.
struct ChunkWriter {
    buffer: BytesMut,
    sender: mpsc::Sender<Result<Bytes, ExportError>>,
    runtime: Handle,
    /// How long the client may take for one chunk.
    chunk_timeout: Duration,
    slow_client: SlowClientGuard,
}

impl ChunkWriter {
    fn send(&mut self, chunk: Result<Bytes, ExportError>) -> io::Result<()> {
        let (started, bytes) = (Instant::now(), chunk.as_ref().map_or(0, Bytes::len));
        let sent =
            self.runtime.block_on(async { timeout(self.chunk_timeout, self.sender.send(chunk)).await });
        if self.slow_client.is_too_slow(started.elapsed(), bytes) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let capacity = CHUNK_BYTES - self.buffer.len().min(CHUNK_BYTES);
        let accepted = bytes.get(..capacity.min(bytes.len())).unwrap_or_default();
        self.buffer.extend_from_slice(accepted);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(accepted.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.buffer);
        self.send(Ok(chunk.freeze()))
    }
}

/// Forwards a document as it arrives. Its end closes the channel; an error that interrupts it is the last
/// chunk.
async fn forward_chunks<E: std::fmt::Display>(
    document: impl Stream<Item = Result<Bytes, E>>,
    sender: mpsc::Sender<Result<Bytes, io::Error>>,
) {
    let mut document = std::pin::pin!(document);
    let (mut drained, mut slow_client) = (0, SlowClientGuard::default());
    loop {
        let started = Instant::now();
        let chunk = match timeout(STALL_TIMEOUT, document.next()).await {
            Ok(None) => return,
            Ok(Some(Ok(chunk))) if slow_client.is_too_slow(started.elapsed(), chunk.len()) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "it arrived too slowly"))
            }
            Ok(Some(Ok(chunk))) => Ok(chunk),
            Ok(Some(Err(error))) => Err(io::Error::other(error.to_string())),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no data arrived for 30 s")),
        };
        let (is_last, bytes) = (chunk.is_err(), chunk.as_ref().map_or(0, Bytes::len));
        if drained > 0 || sender.send(chunk).await.is_err() {
            drained += bytes.max(1);
        }
        if is_last || drained > MAX_DRAINED_BYTES {
            return;
        }
    }
}

/// The memory reserved for the document record that is being read.
struct RecordMemory {
    budget: MemoryBudget,
    runtime: Handle,
    reservation: GrowingReservation,
    /// The last requested size in bytes.
    bytes: usize,
}

impl RecordMemory {
    fn new(budget: MemoryBudget) -> Self {
        let reservation = budget.growing_reservation(MemoryUse::Requests);
        Self { budget, runtime: Handle::current(), reservation, bytes: 0 }
    }

    /// Waits until a record of that many bytes may be held in memory. Blocks.
    fn reserve(&mut self, bytes: usize) -> Result<(), NoMemory> {
        if bytes < self.bytes {
            // A new record has begun.
            self.reservation = self.budget.growing_reservation(MemoryUse::Requests);
        }
        self.bytes = bytes;
        let total =
            if bytes > MAX_UNCOUNTED_BYTES { bytes.saturating_mul(RECORD_MEMORY_FACTOR) } else { bytes };
        self.runtime.block_on(self.reservation.grow_to(total))
    }
}

/// Adapts a streamed document to a blocking reader.
struct ChunkReader {
    chunks: mpsc::Receiver<Result<Bytes, io::Error>>,
    chunk: Bytes,
}

impl Read for ChunkReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.chunks.blocking_recv() {
                Some(chunk) => self.chunk = chunk?,
                None => return Ok(0),
            }
        }
        let read = self.chunk.len().min(buffer.len());
        self.chunk.copy_to_slice(buffer.get_mut(..read).unwrap_or_default());
        Ok(read)
    }
}

impl From<ExportError> for AgentError {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Read(error) => Self::Read(error),
            error => Self::Unreadable(error.to_string()),
        }
    }
}

impl From<ImportError> for AgentError {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Invalid(_) | ImportError::Unreadable(_) => Self::Invalid(error.to_string()),
            ImportError::NoMemory(error) => Self::NoMemory(error),
            ImportError::Staging(error) => Self::Staging(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use mock_llm::Wire;
    use serde_json::json;
    use testkit::with_deadline;

    use super::super::harness::AgentHarness;
    use super::*;

    #[tokio::test]
    async fn an_export_that_nobody_takes_is_broken_off_before_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        let content = "x".repeat(16_000);
        let record = |_| {
            json!({
                "id": api::MemoryId::new(), "content": content, "source": "user",
                "created_at": "2026-01-01T00:00:00.000Z",
            })
        };
        let document =
            json!({"version": 1, "knowledge": (0..50).map(record).collect::<Vec<_>>()}).to_string();
        let staged = brain.stage_import(document.as_bytes(), |_| Ok(())).unwrap();
        with_deadline(brain.apply_import(staged, ImportMode::Merge, Vec::new())).await.unwrap();
        let (sender, mut chunks) = mpsc::channel(1);
        let (runtime, chunk_timeout) = (Handle::current(), Duration::from_millis(50));
        let writing = tokio::task::spawn_blocking(move || {
            write_export(
                &brain,
                ChunkWriter {
                    buffer: BytesMut::new(),
                    sender,
                    runtime,
                    chunk_timeout,
                    slow_client: SlowClientGuard::default(),
                },
            );
        });
        with_deadline(writing).await.unwrap();
        let mut document = Vec::new();
        while let Some(Ok(chunk)) = chunks.recv().await {
            document.extend_from_slice(&chunk);
        }
        assert!(!document.is_empty() && serde_json::from_slice::<serde_json::Value>(&document).is_err());
    }

    #[tokio::test]
    async fn a_large_record_of_an_import_waits_for_its_memory() {
        let harness = AgentHarness::new(Wire::AnthropicMessages).await;
        let memory = &harness.agent.services.memory_budget;
        let all = memory.reserve(MemoryUse::Requests, usize::MAX).await.unwrap();
        let mut more = memory.growing_reservation(MemoryUse::Requests);
        more.grow_to(2 * MAX_UNCOUNTED_BYTES).await.unwrap();
        let document =
            json!({"version": 1, "of_the_future": "x".repeat(2 * MAX_UNCOUNTED_BYTES)}).to_string();
        let chunks = futures::stream::iter([Ok::<_, io::Error>(Bytes::from(document))]);
        let mut import = Box::pin(harness.agent.import(ImportMode::Merge, chunks));
        // With free memory it would complete at once.
        assert!(timeout(Duration::from_millis(300), &mut import).await.is_err());
        drop((all, more));
        with_deadline(import).await.unwrap();
    }
}
