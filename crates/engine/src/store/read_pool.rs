//! The connections that read. Each kind of reads has its own, so that what takes long holds up no turn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use super::{Brain, TaskRow, queries, schema};
use crate::threads::{BRAIN_THREADS, Lane, TURN_OPEN_THREADS};

/// The page cache of point reads, and that of the others, in KiB.
const SHORT_CACHE_KIB: i64 = 64;
const LONG_CACHE_KIB: i64 = 256;
/// How long a search waits before it looks again whether another one is over.
const SEARCH_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// See the module.
pub(super) struct ReadPool {
    /// Point reads only, each some microseconds: short enough to be held inline.
    short: Mutex<Connection>,
    /// Reads that grow with a task: theirs alone, so that they hold up no point read. Opened when first needed.
    long: Mutex<Option<Connection>>,
    /// Searches: theirs alone, so that the turn which is about to begin waits for no reading of a conversation.
    /// Opened when first needed.
    searches: Mutex<Option<Connection>>,
    file: PathBuf,
    /// Where those that take long wait.
    read_lane: Lane,
    /// Where turns are opened: slow searches and lists keep no turn from its beginning.
    turn_open_lane: Lane,
}

impl ReadPool {
    /// Readers of the brain in `file`.
    pub(super) fn open(file: &Path) -> Result<Self, rusqlite::Error> {
        let points = Mutex::new(open_reader(file, SHORT_CACHE_KIB)?);
        Ok(Self {
            short: points,
            long: Mutex::default(),
            searches: Mutex::default(),
            file: file.to_owned(),
            read_lane: Lane::new(BRAIN_THREADS),
            turn_open_lane: Lane::new(TURN_OPEN_THREADS),
        })
    }

    /// A point read.
    pub(super) fn short<T>(&self, query: impl FnOnce(&Connection) -> T) -> T {
        query(&self.short.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A read that may take long. Blocks.
    pub(super) fn long<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        self.read_through(&self.long, query)
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
            std::thread::sleep(SEARCH_RETRY_INTERVAL);
        }
        self.read_through(&self.searches, query)
    }

    /// Gives back the memory of the page caches. A connection in use is passed over.
    pub(super) fn shrink(&self) {
        if let Ok(points) = self.short.try_lock() {
            shrink_cache(&points);
        }
        for reader in [&self.long, &self.searches] {
            if let Ok(reader) = reader.try_lock()
                && let Some(reader) = &*reader
            {
                shrink_cache(reader);
            }
        }
    }

    /// Reads through a connection that is opened when it is first needed.
    fn read_through<T>(
        &self,
        reader: &Mutex<Option<Connection>>,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *reader {
            Some(reader) => query(reader),
            none => query(none.insert(self::open_reader(&self.file, LONG_CACHE_KIB)?)),
        }
    }
}

impl Brain {
    /// Reads what takes long, where it may block; none if the runtime is shutting down.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let brain = self.clone();
        self.shared.read_pool.read_lane.run(move || read(&brain)).await
    }

    /// As [`Brain::run_blocking`], for the opening of a turn, which waits for other openings alone.
    pub(crate) async fn run_turn_open<T: Send + 'static>(
        &self,
        open: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let brain = self.clone();
        self.shared.read_pool.turn_open_lane.run(move || open(&brain)).await
    }

    /// The working memory of `task`. Blocks.
    pub(crate) fn working_memory(&self, task: TaskRow) -> Result<BTreeMap<String, Value>, rusqlite::Error> {
        self.read_long(|reader| queries::working_memory(reader, task))
    }

    /// How many bytes each of these has that was attached once; nothing of those that are not there. Blocks.
    pub(crate) fn media_sizes(&self, hashes: Vec<String>) -> Result<Vec<(String, usize)>, rusqlite::Error> {
        self.read_long(|reader| queries::media_sizes(reader, hashes))
    }
}

/// A connection for reads, with a page cache of `kib`.
pub(super) fn open_reader(file: &Path, kib: i64) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let reader = Connection::open_with_flags(file, flags)?;
    schema::configure(&reader, kib)?;
    Ok(reader)
}

/// Gives back the memory of a connection's page cache.
pub(super) fn shrink_cache(connection: &Connection) {
    if let Err(error) = connection.execute_batch("PRAGMA shrink_memory") {
        tracing::warn!(%error, "The brain's memory could not be given back.");
    }
}
