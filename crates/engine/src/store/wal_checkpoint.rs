//! Carries the write-ahead log over into the brain, beside the writer: the disk syncs that this takes would
//! otherwise hold up whatever is being committed.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::schema;

/// How many pages the log may have before the writer has to wait until it is carried over. It begins anew only where
/// a commit finds all of it carried over, which without a pause never happens.
const MAX_WAL_PAGES: i64 = 16_000;

/// See the module.
pub(super) struct WalCheckpointer {
    wake: SyncSender<()>,
    is_oversized: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl WalCheckpointer {
    /// Starts the thread. Its connection is opened when it is first needed.
    pub(super) fn start(file: &Path) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let is_oversized = Arc::new(AtomicBool::new(false));
        let (file, noted) = (file.to_owned(), Arc::clone(&is_oversized));
        let thread = std::thread::Builder::new()
            .name("brain-checkpoint".into())
            .stack_size(256 * 1024)
            .spawn(move || run(&file, &woken, &noted))?;
        Ok(Self { wake, is_oversized, thread })
    }

    /// Has the log carried over soon.
    pub(super) fn wake(&self) {
        // One that is waiting already sees to this too.
        let _ = self.wake.try_send(());
    }

    /// Whether the writer must carry the log over itself.
    pub(super) fn take_oversized(&self) -> bool {
        self.is_oversized.swap(false, Ordering::Relaxed)
    }

    /// Ends the thread.
    pub(super) fn shutdown(self) {
        let Self { wake, thread, .. } = self;
        drop(wake);
        // An error is a panic of the thread, which the panic hook has told of.
        let _ = thread.join();
    }
}

fn run(file: &Path, woken: &Receiver<()>, is_oversized: &AtomicBool) {
    let mut connection = None;
    while woken.recv().is_ok() {
        let checkpointed_pages = match &connection {
            Some(connection) => checkpoint_wal(connection, "PASSIVE"),
            None => schema::connect_for_checkpoint(file)
                .and_then(|opened| checkpoint_wal(connection.insert(opened), "PASSIVE")),
        };
        match checkpointed_pages {
            Ok(WalState { total_pages: pages, checkpointed_pages, .. }) => {
                is_oversized.store(pages > MAX_WAL_PAGES && checkpointed_pages < pages, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::warn!(%error, "The brain's log could not be carried over; it is read at the next start.");
            }
        }
    }
}

/// The write-ahead log, in pages.
pub(super) struct WalState {
    total_pages: i64,
    checkpointed_pages: i64,
    /// Whether nobody was in the way of it.
    pub(super) is_complete: bool,
}

/// Carries the log over as `mode` says.
pub(super) fn checkpoint_wal(connection: &Connection, mode: &str) -> Result<WalState, rusqlite::Error> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok(WalState {
            total_pages: row.get(1)?,
            checkpointed_pages: row.get(2)?,
            is_complete: row.get::<_, i64>(0)? == 0,
        })
    })
}
