//! Checkpoints the write-ahead log on a thread of its own, because the disk syncs of a checkpoint would otherwise
//! delay commits.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::schema;

/// The size of the log in pages above which the writer's thread runs a checkpoint itself. The log is reset only if a
/// commit finds all of it checkpointed, which never happens under constant load.
const MAX_WAL_PAGES: i64 = 16_000;

/// How long the connection stays open after a checkpoint: each one costs an idle engine its copy of the schema and its
/// caches.
const UNUSED_CONNECTION_LIFETIME: Duration = Duration::from_secs(5);

/// A handle to the checkpoint thread.
pub(super) struct WalCheckpointer {
    wake: SyncSender<()>,
    is_oversized: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl WalCheckpointer {
    /// Starts the thread. Its connection is open only while it is needed.
    pub(super) fn start(file: &Path) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let is_oversized = Arc::new(AtomicBool::new(false));
        let (file, flag) = (file.to_owned(), Arc::clone(&is_oversized));
        let thread = std::thread::Builder::new()
            .name("brain-checkpoint".into())
            .stack_size(256 * 1024)
            .spawn(move || run(&file, &woken, &flag))?;
        Ok(Self { wake, is_oversized, thread })
    }

    /// Requests a checkpoint soon.
    pub(super) fn wake(&self) {
        // A request that is already queued covers this one.
        let _ = self.wake.try_send(());
    }

    /// Whether the writer's thread must run a checkpoint itself; resets the flag.
    pub(super) fn take_oversized(&self) -> bool {
        self.is_oversized.swap(false, Ordering::Relaxed)
    }

    /// Ends the thread and waits for it.
    pub(super) fn shutdown(self) {
        let Self { wake, thread, .. } = self;
        drop(wake);
        // An error means that the thread panicked, which the panic hook has logged.
        let _ = thread.join();
    }
}

fn run(file: &Path, woken: &Receiver<()>, is_oversized: &AtomicBool) {
    let mut connection = None;
    loop {
        let woken = match connection {
            Some(_) => woken.recv_timeout(UNUSED_CONNECTION_LIFETIME),
            None => woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match woken {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                connection = None;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let result = match &connection {
            Some(connection) => checkpoint_wal(connection, "PASSIVE"),
            None => schema::connect_for_checkpoint(file)
                .and_then(|opened| checkpoint_wal(connection.insert(opened), "PASSIVE")),
        };
        match result {
            Ok(WalState { total_pages, checkpointed_pages, .. }) => {
                is_oversized.store(
                    total_pages > MAX_WAL_PAGES && checkpointed_pages < total_pages,
                    Ordering::Relaxed,
                );
            }
            Err(error) => {
                tracing::warn!(%error, "The write-ahead log could not be checkpointed; it is kept for now.");
            }
        }
    }
}

/// The state of the write-ahead log, in pages.
pub(super) struct WalState {
    total_pages: i64,
    checkpointed_pages: i64,
    /// Whether no reader or writer kept the checkpoint from completing.
    pub(super) is_complete: bool,
}

/// Runs a checkpoint in the given mode (`PASSIVE`, `TRUNCATE`).
pub(super) fn checkpoint_wal(connection: &Connection, mode: &str) -> Result<WalState, rusqlite::Error> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok(WalState {
            total_pages: row.get(1)?,
            checkpointed_pages: row.get(2)?,
            is_complete: row.get::<_, i64>(0)? == 0,
        })
    })
}
