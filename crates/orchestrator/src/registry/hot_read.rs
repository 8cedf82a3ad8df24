//! The hot read: one engine by its owner. An admit is one such read.
//!
//! On SQLite it runs inline on a connection of its own. A pool keeps its connections on separate threads, so that
//! a read costs several thread switches, many times the read itself; inline it takes some microseconds, too
//! little to delay anything. There are as many connections as reading threads, so that none waits for another,
//! which would again cost a switch.

use std::path::Path;
use std::thread;

use api::orchestrator::EngineStatus;
use api::{EngineId, EngineImage, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use rusqlite::{CachedStatement, Connection, OpenFlags, OptionalExtension as _, Row};

use super::RegistryError;
use super::postgres_read_pool::PostgresReadPool;
use super::row::{ColumnSource, EngineRow, select_engines};
use crate::domain::EngineOwner;
use crate::domain::lifecycle::{Change, EngineView};

/// The connections of the hot read.
pub(super) enum HotReadPool {
    Sqlite(SqliteReadPool),
    Postgres(Box<PostgresReadPool>),
}

const SELECT_ADMIT_VIEW: &str = "SELECT engine_id, status, claim_kind, sealed_key, engine_version, port, created_at, \
                        last_health_at FROM engines WHERE product_id = $1 AND user_id = $2";
const SELECT_ENGINE: &str = select_engines!("WHERE product_id = $1 AND user_id = $2");

impl HotReadPool {
    /// Returns the engine of `owner`.
    pub(super) async fn engine(&self, owner: &EngineOwner) -> Result<Option<EngineRow>, RegistryError> {
        match self {
            Self::Sqlite(reads) => reads.read(SELECT_ENGINE, owner, |row| EngineRow::read(row)),
            Self::Postgres(reads) => reads.read(SELECT_ENGINE, owner, EngineRow::read).await,
        }
    }

    /// Returns the part of it that most admits need.
    pub(super) async fn admit_view(&self, owner: &EngineOwner) -> Result<Option<AdmitView>, RegistryError> {
        match self {
            Self::Sqlite(reads) => reads.read(SELECT_ADMIT_VIEW, owner, |row| AdmitView::read(row)),
            Self::Postgres(reads) => reads.read(SELECT_ADMIT_VIEW, owner, AdmitView::read).await,
        }
    }

    /// Refuses further reads.
    pub(super) fn close(&self) {
        match self {
            Self::Sqlite(reads) => reads.close(),
            Self::Postgres(reads) => reads.close(),
        }
    }

    /// Whether no read is running.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        match self {
            // Reads run inline: the caller cannot be reading now.
            Self::Sqlite(_) => true,
            Self::Postgres(reads) => reads.is_idle(),
        }
    }
}

/// Connections to a SQLite file, as many as reading threads.
pub(super) struct SqliteReadPool {
    connections: Vec<Mutex<Slot>>,
}

/// `None` once it is closed.
type Slot = Option<Connection>;

/// The part of an engine's row that most admits need: admits are frequent, and each column read has a cost.
#[derive(Debug)]
pub(crate) struct AdmitView {
    pub(crate) engine_id: EngineId,
    pub(crate) status: EngineStatus,
    /// The operation under way.
    pub(crate) claim: Option<Change>,
    pub(crate) sealed_key: String,
    pub(crate) engine_version: EngineImage,
    pub(crate) port: Option<u16>,
    pub(crate) created_at: Timestamp,
    pub(crate) last_health_at: Option<Timestamp>,
}

impl SqliteReadPool {
    /// Opens the database at `path`, which must exist and be up to date.
    pub(super) fn open(path: &Path) -> Result<Self, rusqlite::Error> {
        Self::with_connections(path, thread::available_parallelism().map_or(1, usize::from))
    }

    fn with_connections(path: &Path, readers: usize) -> Result<Self, rusqlite::Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open =
            |_| Connection::open_with_flags(path, flags).map(|connection| Mutex::new(Some(connection)));
        Ok(Self { connections: (0..readers).map(open).collect::<Result<_, _>>()? })
    }

    fn read<T>(
        &self,
        query: &str,
        owner: &EngineOwner,
        read: impl FnOnce(&Row<'_>) -> Result<T, RegistryError>,
    ) -> Result<Option<T>, RegistryError> {
        let slot = self.acquire().ok_or(RegistryError::Closed)?;
        let Some(connection) = slot.as_ref() else { return Err(RegistryError::Closed) };
        let mut query: CachedStatement<'_> = connection.prepare_cached(query)?;
        let parameters = (owner.product_id.to_string(), owner.user_id.as_str());
        query.query_row(parameters, |row| Ok(read(row))).optional()?.transpose()
    }

    /// Returns an unused connection, or the first one once it is free.
    fn acquire(&self) -> Option<MutexGuard<'_, Slot>> {
        let free = self.connections.iter().find_map(Mutex::try_lock);
        free.or_else(|| Some(self.connections.first()?.lock()))
    }

    /// Closes the connections.
    pub(super) fn close(&self) {
        for slot in &self.connections {
            drop(slot.lock().take());
        }
    }
}

impl AdmitView {
    /// The input of the decision table. It does not know whether a restart is due.
    pub(crate) const fn view(&self) -> EngineView {
        EngineView { status: self.status, change: self.claim, restart_due: false }
    }

    fn read(row: &impl ColumnSource) -> Result<Self, RegistryError> {
        let unreadable = |column| move || RegistryError::Unreadable { column };
        let known = |at, column| row.text(at)?.ok_or_else(unreadable(column));
        let claim = row.text(2)?.map(|name| Change::from_name(name).ok_or_else(unreadable("claim_kind")));
        let port = row.integer(5)?.map(|port| u16::try_from(port).ok().ok_or_else(unreadable("port")));
        let created_at = row.integer(6)?.ok_or_else(unreadable("created_at"))?;
        Ok(Self {
            engine_id: known(0, "engine_id")?.parse().ok().ok_or_else(unreadable("engine_id"))?,
            status: EngineStatus::from_name(known(1, "status")?).ok_or_else(unreadable("status"))?,
            claim: claim.transpose()?,
            sealed_key: known(3, "sealed_key")?.to_owned(),
            engine_version: known(4, "engine_version")?
                .parse()
                .ok()
                .ok_or_else(unreadable("engine_version"))?,
            port: port.transpose()?,
            created_at: Timestamp::from_unix_ms(created_at),
            last_health_at: row.integer(7)?.map(Timestamp::from_unix_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_do_not_wait_for_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
        let reads = SqliteReadPool::with_connections(&path, 2).unwrap();
        let one = reads.acquire().unwrap();
        let other = reads.acquire().unwrap();
        assert!(!std::ptr::eq(&raw const *one, &raw const *other));
        drop(one);
        // This gets the connection that is free again, not the one that is held.
        let one = reads.acquire().unwrap();
        assert!(one.is_some() && other.is_some());
    }
}
