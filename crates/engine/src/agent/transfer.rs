//! What the engine remembers, on its way out of it and into it.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use contract::transfer::{ImportMode, Imported, ImportedStatus};
use futures::{Stream, StreamExt as _};
use tokio::runtime::Handle;
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit, RwLock, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::{Agent, AgentError};
use crate::brain::{Brain, ExportError, ImportError};
use crate::memory_budget::{Growing, MemoryBudget, MemoryUse, NoMemory, SMALL};

/// How many exports may be under way at once.
const EXPORTS: usize = 2;
/// How many bytes of a document are handed over at once, and how many such pieces may wait.
const PIECE: usize = 64 * 1024;
const PIECES: usize = 4;
/// How long a turn waits for an import that is put in force before it is refused.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take for the next piece. An export that nobody takes would keep the brain's log from being
/// begun anew, and an import that nobody sends would keep others from theirs.
const STALLED: Duration = Duration::from_secs(30);
/// How long a client may be waited for in all: so long, and a second for so many bytes.
const GRACE: Duration = Duration::from_mins(1);
const LEAST_PER_S: u64 = 64 * 1024;
/// How many times as large as in a document a record is in memory, with what is read out of it.
const IN_ALL: usize = 3;
/// How much of a document is read to no purpose after it was refused: a client that is still sending would not see
/// the answer.
const READ_ON: usize = 32 * 1024 * 1024;

/// What is under way.
pub(super) struct Transfers {
    exports: Arc<Semaphore>,
    imports: Arc<Semaphore>,
    /// Shared by those who begin a turn or delete a task, from before they look a task up until it is on record. An
    /// import that is put in force has it alone.
    tasks: Arc<RwLock<()>>,
}

impl Default for Transfers {
    fn default() -> Self {
        let (exports, imports) = (Semaphore::new(EXPORTS), Semaphore::new(1));
        Self { exports: Arc::new(exports), imports: Arc::new(imports), tasks: Arc::default() }
    }
}

impl Transfers {
    /// Keeps the tasks from being taken over while it is held.
    ///
    /// # Errors
    /// An import is being put in force, and takes long.
    pub(super) async fn keep_tasks(&self) -> Result<OwnedRwLockReadGuard<()>, AgentError> {
        let kept = timeout(PATIENCE, Arc::clone(&self.tasks).read_owned()).await;
        kept.map_err(|_| AgentError::TooManyTransfers)
    }
}

/// A document that is being written. The last piece is an error where it could not be written to its end.
pub struct Export {
    pieces: mpsc::Receiver<Result<Bytes, ExportError>>,
}

impl Export {
    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Option<Result<Bytes, ExportError>> {
        self.pieces.recv().await
    }
}

impl Agent {
    /// Whether an import is under way.
    pub(crate) fn is_importing(&self) -> bool {
        self.transfers.imports.available_permits() == 0
    }

    /// Writes what is remembered at this moment as a document. Turns go on meanwhile.
    pub fn export(&self) -> Result<Export, AgentError> {
        let place = place(&self.transfers.exports)?;
        let (sender, pieces) = mpsc::channel(PIECES);
        let (brain, runtime) = (self.brain.clone(), Handle::current());
        let writing = move || {
            write(
                &brain,
                Pieces {
                    next: BytesMut::new(),
                    sender,
                    runtime,
                    patience: STALLED,
                    waited: Waited::default(),
                },
            );
            drop(place);
        };
        thread("export", writing).map_err(|_| AgentError::TooManyTransfers)?;
        Ok(Export { pieces })
    }

    /// The document as one, if it has at most so many bytes.
    pub async fn export_whole(&self, most: usize) -> Result<Vec<u8>, AgentError> {
        let mut export = self.export()?;
        let mut document = Vec::new();
        while let Some(piece) = export.next().await {
            document.extend_from_slice(&piece?);
            if document.len() > most {
                let most = most / 1024 / 1024;
                let message = format!("the export is larger than {most} MiB; GET /memory/export streams it");
                return Err(AgentError::Invalid(message));
            }
        }
        Ok(document)
    }

    /// Takes in a document, all of it or nothing.
    pub async fn import<E: std::fmt::Display>(
        &self,
        mode: ImportMode,
        document: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<Imported, AgentError> {
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        // Before it is asked whether the engine is quiesced: from here on it cannot be.
        let place = place(&self.transfers.imports)?;
        self.running.turns().admit(self.means.clock.monotonic())?;
        let (sender, pieces) = mpsc::channel(PIECES);
        let brain = self.brain.clone();
        let mut memory = RecordMemory::of(self.means.memory.clone());
        let staging = on_a_thread(move || {
            let document = Arriving { pieces, piece: Bytes::new() };
            (brain.stage(document, |bytes| memory.admit(bytes)), place)
        });
        let (staged, ()) = tokio::join!(staging, hand_over(document, sender));
        let (staged, place) = staged.ok_or(AgentError::Stopping)?;
        let staged = staged?;

        let outputs = self.means.outputs.kept().await?;
        let (brain, running, channels) = (self.brain.clone(), self.running.clone(), self.channels.clone());
        let (tasks, stopping) = (Arc::clone(&self.transfers.tasks), self.stopping.clone());
        // Goes on by itself, also if the caller is gone: nobody may begin a turn before it is done.
        let taking_over = self.turns.spawn(async move {
            let _alone = tasks.write_owned().await;
            if stopping.is_cancelled() {
                return Err(AgentError::Stopping);
            }
            if mode == ImportMode::Replace && running.turns().any_open() {
                return Err(AgentError::TurnsUnderWay);
            }
            let counts = brain.take_over(staged, mode, outputs).await?;
            // What they know of tasks is how those were.
            channels.forget_idle();
            drop(place);
            Ok(Imported { status: ImportedStatus::Imported, mode, counts })
        });
        let imported = taking_over.await.unwrap_or(Err(AgentError::Stopping))?;
        if mode == ImportMode::Replace {
            self.erase().await;
        }
        Ok(imported)
    }
}

/// Runs what waits for a client on a thread of its own: the few that block for turns are not to wait for it. None where
/// there can be no more threads.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    // Nobody waits for what is left of it once its caller has gone.
    let work = move || drop(done.send(work()));
    thread("import", work).ok()?;
    result.await.ok()
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// How long a client was waited for in all, and for how much. One that keeps the connection with a byte now and then
/// would hold its place for ever.
#[derive(Default)]
struct Waited {
    time: Duration,
    bytes: u64,
}

impl Waited {
    /// Whether the client is too slow, after so long a wait for so many bytes.
    fn is_too_long(&mut self, time: Duration, bytes: usize) -> bool {
        self.time += time;
        self.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        self.time > GRACE + Duration::from_secs(self.bytes / LEAST_PER_S)
    }
}

fn place(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, AgentError> {
    Arc::clone(places).try_acquire_owned().map_err(|_| AgentError::TooManyTransfers)
}

/// Writes the document of a brain to its end, or says why it ends before.
fn write(brain: &Brain, mut pieces: Pieces) {
    let written = brain.export(&mut pieces).and_then(|()| Ok(pieces.flush()?));
    if let Err(error) = written {
        // It goes without saying to a client that has left.
        let _ = pieces.send(Err(error));
    }
}

/// A document on its way to a client, in pieces.
struct Pieces {
    next: BytesMut,
    sender: mpsc::Sender<Result<Bytes, ExportError>>,
    runtime: Handle,
    /// How long the client may take for one.
    patience: Duration,
    waited: Waited,
}

impl Pieces {
    fn send(&mut self, piece: Result<Bytes, ExportError>) -> io::Result<()> {
        let (began, bytes) = (Instant::now(), piece.as_ref().map_or(0, Bytes::len));
        let sent = self.runtime.block_on(async { timeout(self.patience, self.sender.send(piece)).await });
        if self.waited.is_too_long(began.elapsed(), bytes) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE - self.next.len().min(PIECE);
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.next.extend_from_slice(taken);
        if self.next.len() >= PIECE {
            self.flush()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.next.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.next);
        self.send(Ok(piece.freeze()))
    }
}

/// Hands a document over as it comes. Its end is the end of the pieces; what breaks it off is the last one.
async fn hand_over<E: std::fmt::Display>(
    document: impl Stream<Item = Result<Bytes, E>>,
    sender: mpsc::Sender<Result<Bytes, io::Error>>,
) {
    let mut document = std::pin::pin!(document);
    let (mut refused, mut waited) = (0, Waited::default());
    loop {
        let began = Instant::now();
        let piece = match timeout(STALLED, document.next()).await {
            Ok(None) => return,
            Ok(Some(Ok(piece))) if waited.is_too_long(began.elapsed(), piece.len()) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "it came too slowly"))
            }
            Ok(Some(Ok(piece))) => Ok(piece),
            Ok(Some(Err(error))) => Err(io::Error::other(error.to_string())),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing more came of it for 30 s")),
        };
        let (is_last, bytes) = (piece.is_err(), piece.as_ref().map_or(0, Bytes::len));
        if refused > 0 || sender.send(piece).await.is_err() {
            refused += bytes.max(1);
        }
        if is_last || refused > READ_ON {
            return;
        }
    }
}

/// The memory of the record of a document that is just being read.
struct RecordMemory {
    budget: MemoryBudget,
    runtime: Handle,
    record: Growing,
    /// How many bytes it had last.
    bytes: usize,
}

impl RecordMemory {
    fn of(budget: MemoryBudget) -> Self {
        let record = budget.growing(MemoryUse::Requests);
        Self { budget, runtime: Handle::current(), record, bytes: 0 }
    }

    /// Waits until a record of so many bytes may be kept. Blocks.
    fn admit(&mut self, bytes: usize) -> Result<(), NoMemory> {
        if bytes < self.bytes {
            // Another record began.
            self.record = self.budget.growing(MemoryUse::Requests);
        }
        self.bytes = bytes;
        let in_all = if bytes > SMALL { bytes.saturating_mul(IN_ALL) } else { bytes };
        self.runtime.block_on(self.record.grow(in_all))
    }
}

/// A document as it comes, for a reader that blocks.
struct Arriving {
    pieces: mpsc::Receiver<Result<Bytes, io::Error>>,
    piece: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let read = self.piece.len().min(buffer.len());
        self.piece.copy_to_slice(buffer.get_mut(..read).unwrap_or_default());
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
            ImportError::Faulty(_) | ImportError::Broken(_) => Self::Invalid(error.to_string()),
            ImportError::NoMemory(error) => Self::NoMemory(error),
            ImportError::Staging(error) => Self::Staging(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use strict_provider::Wire;

    use super::super::rig::Rig;
    use super::*;
    use crate::testing::within;

    #[tokio::test]
    async fn an_export_that_nobody_takes_is_broken_off_before_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        let content = "x".repeat(16_000);
        let record = |_| {
            json!({
                "id": contract::MemoryId::new(), "content": content, "source": "user",
                "created_at": "2026-01-01T00:00:00.000Z",
            })
        };
        let document =
            json!({"version": 1, "knowledge": (0..50).map(record).collect::<Vec<_>>()}).to_string();
        let staged = brain.stage(document.as_bytes(), |_| Ok(())).unwrap();
        within(brain.take_over(staged, ImportMode::Merge, Vec::new())).await.unwrap();
        let (sender, mut pieces) = mpsc::channel(1);
        let (runtime, patience) = (Handle::current(), Duration::from_millis(50));
        let writing = tokio::task::spawn_blocking(move || {
            write(
                &brain,
                Pieces { next: BytesMut::new(), sender, runtime, patience, waited: Waited::default() },
            );
        });
        within(writing).await.unwrap();
        let mut document = Vec::new();
        while let Some(Ok(piece)) = pieces.recv().await {
            document.extend_from_slice(&piece);
        }
        assert!(!document.is_empty() && serde_json::from_slice::<serde_json::Value>(&document).is_err());
    }

    #[tokio::test]
    async fn a_large_record_of_an_import_waits_for_its_memory() {
        let rig = Rig::new(Wire::AnthropicMessages).await;
        let memory = &rig.agent.means.memory;
        let all = memory.reserve(MemoryUse::Requests, usize::MAX).await.unwrap();
        let mut beyond = memory.growing(MemoryUse::Requests);
        beyond.grow(2 * SMALL).await.unwrap();
        let document = json!({"version": 1, "of_the_future": "x".repeat(2 * SMALL)}).to_string();
        let pieces = futures::stream::iter([Ok::<_, io::Error>(Bytes::from(document))]);
        let mut import = Box::pin(rig.agent.import(ImportMode::Merge, pieces));
        // It would take no time.
        assert!(timeout(Duration::from_millis(300), &mut import).await.is_err());
        drop((all, beyond));
        within(import).await.unwrap();
    }
}
