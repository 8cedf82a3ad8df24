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
const OVERGROWN: i64 = 16_000;

/// See the module.
pub(super) struct Checkpointer {
    wake: SyncSender<()>,
    overgrown: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Checkpointer {
    /// Starts the thread. Its connection is opened when it is first needed.
    pub(super) fn start(file: &Path) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let overgrown = Arc::new(AtomicBool::new(false));
        let (file, noted) = (file.to_owned(), Arc::clone(&overgrown));
        let thread = std::thread::Builder::new()
            .name("brain-checkpoint".into())
            .stack_size(256 * 1024)
            .spawn(move || run(&file, &woken, &noted))?;
        Ok(Self { wake, overgrown, thread })
    }

    /// Has the log carried over soon.
    pub(super) fn wake(&self) {
        // One that is waiting already sees to this too.
        let _ = self.wake.try_send(());
    }

    /// Whether the writer must carry the log over itself.
    pub(super) fn is_overgrown(&self) -> bool {
        self.overgrown.swap(false, Ordering::Relaxed)
    }

    /// Ends the thread.
    pub(super) fn end(self) {
        let Self { wake, thread, .. } = self;
        drop(wake);
        // An error is a panic of the thread, which the panic hook has told of.
        let _ = thread.join();
    }
}

fn run(file: &Path, woken: &Receiver<()>, overgrown: &AtomicBool) {
    let mut connection = None;
    while woken.recv().is_ok() {
        let carried = match &connection {
            Some(connection) => carry_over(connection, "PASSIVE"),
            None => schema::connect(file).and_then(|opened| carry_over(connection.insert(opened), "PASSIVE")),
        };
        match carried {
            Ok(Log { pages, carried, .. }) => {
                overgrown.store(pages > OVERGROWN && carried < pages, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::warn!(%error, "The brain's log could not be carried over; it is read at the next start.");
            }
        }
    }
}

/// The write-ahead log, in pages.
pub(super) struct Log {
    pages: i64,
    carried: i64,
    /// Whether nobody was in the way of it.
    pub(super) is_whole: bool,
}

/// Carries the log over as `mode` says.
pub(super) fn carry_over(connection: &Connection, mode: &str) -> Result<Log, rusqlite::Error> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok(Log { pages: row.get(1)?, carried: row.get(2)?, is_whole: row.get::<_, i64>(0)? == 0 })
    })
}
