//! The connections that read. Each kind of reads has its own, so that what takes long holds up no turn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use super::{Brain, TaskRow, read, schema};
use crate::threads::{BRAIN_THREADS, Lane, OPENING_THREADS};

/// The page cache of point reads, and that of the others, in KiB.
const POINT_KIB: i64 = 64;
const LONG_KIB: i64 = 256;
/// How long a search waits before it looks again whether another one is over.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// See the module.
pub(super) struct Readers {
    /// Point reads only, each some microseconds: short enough to be held inline.
    points: Mutex<Connection>,
    /// Reads that grow with a task: theirs alone, so that they hold up no point read. Opened when first needed.
    long: Mutex<Option<Connection>>,
    /// Searches: theirs alone, so that the turn which is about to begin waits for no reading of a conversation.
    /// Opened when first needed.
    searches: Mutex<Option<Connection>>,
    file: PathBuf,
    /// Where those that take long wait.
    lane: Lane,
    /// Where turns are opened: slow searches and lists keep no turn from its beginning.
    opening: Lane,
}

impl Readers {
    /// Readers of the brain in `file`.
    pub(super) fn open(file: &Path) -> Result<Self, rusqlite::Error> {
        let points = Mutex::new(reader(file, POINT_KIB)?);
        Ok(Self {
            points,
            long: Mutex::default(),
            searches: Mutex::default(),
            file: file.to_owned(),
            lane: Lane::of(BRAIN_THREADS),
            opening: Lane::of(OPENING_THREADS),
        })
    }

    /// A point read.
    pub(super) fn point<T>(&self, query: impl FnOnce(&Connection) -> T) -> T {
        query(&self.points.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A read that may take long. Blocks.
    pub(super) fn long<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        self.through(&self.long, query)
    }

    /// A search. It waits for another one, but not beyond `until`. Blocks.
    #[expect(clippy::disallowed_methods, reason = "this is called where it may block")]
    pub(super) fn search<T>(
        &self,
        until: Instant,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        while matches!(self.searches.try_lock(), Err(TryLockError::WouldBlock)) {
            if Instant::now() >= until {
                let interrupted = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_INTERRUPT);
                return Err(rusqlite::Error::SqliteFailure(interrupted, None));
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
        self.through(&self.searches, query)
    }

    /// Gives back the memory of the page caches. A connection in use is passed over.
    pub(super) fn shrink(&self) {
        if let Ok(points) = self.points.try_lock() {
            shrink(&points);
        }
        for reader in [&self.long, &self.searches] {
            if let Ok(reader) = reader.try_lock()
                && let Some(reader) = &*reader
            {
                shrink(reader);
            }
        }
    }

    /// Reads through a connection that is opened when it is first needed.
    fn through<T>(
        &self,
        reader: &Mutex<Option<Connection>>,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *reader {
            Some(reader) => query(reader),
            none => query(none.insert(self::reader(&self.file, LONG_KIB)?)),
        }
    }
}

impl Brain {
    /// Reads what takes long, where it may block; none if the runtime is shutting down.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let brain = self.clone();
        self.shared.readers.lane.run(move || read(&brain)).await
    }

    /// As [`Brain::blocking`], for the opening of a turn, which waits for other openings alone.
    pub(crate) async fn opening<T: Send + 'static>(
        &self,
        open: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let brain = self.clone();
        self.shared.readers.opening.run(move || open(&brain)).await
    }

    /// The working memory of `task`. Blocks.
    pub(crate) fn working_memory(&self, task: TaskRow) -> Result<BTreeMap<String, Value>, rusqlite::Error> {
        self.read_long(|reader| read::working_memory(reader, task))
    }

    /// How many bytes each of these has that was attached once; nothing of those that are not there. Blocks.
    pub(crate) fn media_sizes(&self, hashes: Vec<String>) -> Result<Vec<(String, usize)>, rusqlite::Error> {
        self.read_long(|reader| read::media_sizes(reader, hashes))
    }
}

/// A connection for reads, with a page cache of `kib`.
pub(super) fn reader(file: &Path, kib: i64) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let reader = Connection::open_with_flags(file, flags)?;
    schema::set_up(&reader, kib)?;
    Ok(reader)
}

/// Gives back the memory of a connection's page cache.
pub(super) fn shrink(connection: &Connection) {
    if let Err(error) = connection.execute_batch("PRAGMA shrink_memory") {
        tracing::warn!(%error, "The brain's memory could not be given back.");
    }
}
