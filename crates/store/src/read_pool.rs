//! The read-only connections. Each class of reads has its own connection, so that slow reads delay no turn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use resources::threads::{BRAIN_THREADS, Lane, RECALL_THREADS, TURN_OPEN_THREADS};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::{Brain, StoreError, TaskRow, media, queries, schema, search_index};

/// The page cache of short reads, and that of the others, in KiB.
const SHORT_CACHE_KIB: i64 = 64;
const LONG_CACHE_KIB: i64 = 256;

/// The read connections of a brain, and the thread lanes on which blocking reads run.
pub(super) struct ReadPool {
    /// For point reads of some microseconds only, short enough to run inline.
    short: Mutex<Connection>,
    /// For reads whose duration grows with a task, separate so that they delay no point read.
    long: Mutex<Option<OnDemandReader>>,
    /// For searches, separate so that a turn that is about to begin waits for no reading of a conversation.
    searches: Mutex<Option<OnDemandReader>>,
    /// Whether so much is remembered that a search takes longer than waking a thread for it, as of the last search.
    has_many_places: AtomicBool,
    /// Notified when a reader is opened on demand.
    opened: Notify,
    /// Notified when page caches were released.
    released: Notify,
    file: PathBuf,
    /// The lane of reads that take long.
    read_lane: Lane,
    /// The lane of turn openings, separate so that slow searches and lists do not delay the beginning of a turn.
    turn_open_lane: Lane,
    /// The lane of searches for what a turn recalls, which is being opened meanwhile.
    recall_lane: Lane,
}

/// A connection that is opened when it is needed and closed again when it is not, because each costs an idle engine
/// its copy of the schema and its caches.
struct OnDemandReader {
    connection: Connection,
    /// Whether it was used since [`ReadPool::close_unused`] last looked at it.
    used: bool,
}

impl ReadPool {
    /// Opens the readers of the brain in `file`.
    pub(super) fn open(file: &Path) -> Result<Self, rusqlite::Error> {
        let short = open_reader(file, SHORT_CACHE_KIB)?;
        Ok(Self {
            has_many_places: AtomicBool::new(search_index::has_many_places(&short).unwrap_or(false)),
            short: Mutex::new(short),
            long: Mutex::default(),
            searches: Mutex::default(),
            opened: Notify::new(),
            released: Notify::new(),
            file: file.to_owned(),
            read_lane: Lane::new(BRAIN_THREADS),
            turn_open_lane: Lane::new(TURN_OPEN_THREADS),
            recall_lane: Lane::new(RECALL_THREADS),
        })
    }

    /// Runs a point read.
    pub(super) fn short<T>(&self, query: impl FnOnce(&Connection) -> T) -> T {
        query(&self.short.lock())
    }

    /// Runs a read that may take long. Blocks.
    pub(super) fn long<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        self.read_through(self.long.lock(), query)
    }

    /// Runs a search. It waits for a running one, but not beyond `deadline`. Blocks.
    pub(super) fn search<T>(
        &self,
        deadline: Instant,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        let Some(reader) = self.searches.try_lock_until(deadline) else {
            let interrupted = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_INTERRUPT);
            return Err(rusqlite::Error::SqliteFailure(interrupted, None));
        };
        self.read_through(reader, |reader| {
            let found = query(reader);
            if let Ok(has_many) = search_index::has_many_places(reader) {
                self.has_many_places.store(has_many, Ordering::Relaxed);
            }
            found
        })
    }

    /// Releases the memory of the page caches, except for connections that are in use.
    pub(super) fn shrink(&self) {
        if let Some(short) = self.short.try_lock() {
            shrink_cache(&short);
        }
        for reader in [&self.long, &self.searches] {
            if let Some(reader) = reader.try_lock()
                && let Some(reader) = &*reader
            {
                shrink_cache(&reader.connection);
            }
        }
        self.released.notify_one();
    }

    /// Closes the readers that were opened on demand and not used since the call before this one. Returns whether any
    /// is still open.
    fn close_unused(&self) -> bool {
        let mut any_open = false;
        for reader in [&self.long, &self.searches] {
            // One that is locked is in use.
            let is_open = reader.try_lock().is_none_or(|mut reader| {
                reader.take_if(|reader| !std::mem::take(&mut reader.used));
                reader.is_some()
            });
            any_open |= is_open;
        }
        if !any_open {
            self.released.notify_one();
        }
        any_open
    }

    /// Reads through a connection that is opened if it is not.
    fn read_through<T>(
        &self,
        mut reader: MutexGuard<'_, Option<OnDemandReader>>,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        let reader = match &mut *reader {
            Some(reader) => reader,
            none => {
                let connection = self::open_reader(&self.file, LONG_CACHE_KIB)?;
                self.opened.notify_one();
                none.insert(OnDemandReader { connection, used: true })
            }
        };
        reader.used = true;
        query(&reader.connection)
    }
}

impl Brain {
    /// Runs a blocking read on the read lane; `None` if the runtime is shutting down.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let brain = self.clone();
        self.shared.read_pool.read_lane.run(move || read(&brain)).await
    }

    /// Like [`Brain::run_blocking`], for the opening of a turn, which waits only for other openings.
    pub async fn run_turn_open<T: Send + 'static>(
        &self,
        open: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let brain = self.clone();
        self.shared.read_pool.turn_open_lane.run(move || open(&brain)).await
    }

    /// Starts a search for what a turn recalls that is being opened. `None` if that is not worth a change of threads,
    /// because little is remembered, or other searches have all threads: then the caller searches itself.
    pub fn start_recall<T: Send + 'static>(
        &self,
        search: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let read_pool = &self.shared.read_pool;
        if !read_pool.has_many_places.load(Ordering::Relaxed) {
            return None;
        }
        let brain = self.clone();
        read_pool.recall_lane.try_start(move || search(&brain))
    }

    /// Returns when a reader has been opened on demand, which [`Brain::close_unused_readers`] closes again.
    pub async fn reader_opened(&self) {
        self.shared.read_pool.opened.notified().await;
    }

    /// Closes the readers that were opened on demand and not used since the call before this one. Returns whether any
    /// is still open.
    pub fn close_unused_readers(&self) -> bool {
        self.shared.read_pool.close_unused()
    }

    /// Returns when the brain has released its page caches, because it has not been written to for a second, or its
    /// readers have not been used for longer.
    pub async fn caches_released(&self) {
        self.shared.read_pool.released.notified().await;
    }

    /// The working memory of `task`. Blocks.
    pub fn working_memory(&self, task: TaskRow) -> Result<BTreeMap<String, Value>, StoreError> {
        self.read_long(|reader| queries::working_memory(reader, task))
    }

    /// The size of each attachment in bytes, by its hash; unknown hashes are left out. Blocks.
    pub fn media_sizes(&self, hashes: Vec<String>) -> Result<Vec<(String, usize)>, StoreError> {
        self.read_long(|reader| media::sizes(reader, hashes))
    }
}

/// Opens a read-only connection with a page cache of `kib` KiB.
pub(super) fn open_reader(file: &Path, kib: i64) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let reader = Connection::open_with_flags(file, flags)?;
    schema::configure(&reader, kib)?;
    Ok(reader)
}

/// Releases the memory of a connection's page cache.
pub(super) fn shrink_cache(connection: &Connection) {
    if let Err(error) = connection.execute_batch("PRAGMA shrink_memory") {
        tracing::warn!(%error, "The memory of a page cache of the brain could not be released.");
    }
}
