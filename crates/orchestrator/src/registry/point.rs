//! The hot read: one engine by its seat, on a connection that is called inline.
//!
//! An admit is one such read. Through a pool, whose connections live on threads of their own, it costs several
//! switches between threads, many times the read itself; here it costs some microseconds, short enough to hold
//! up nobody.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use super::row::{EngineRow, select_engines};
use super::{RegistryError, Seat};

/// See the module.
pub(super) struct PointReads {
    /// None once it is closed.
    connection: Mutex<Option<Connection>>,
}

impl PointReads {
    /// Opens the database at `path`, which is there and up to date.
    pub(super) fn open(path: &Path) -> Result<Self, rusqlite::Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Ok(Self { connection: Mutex::new(Some(Connection::open_with_flags(path, flags)?)) })
    }

    /// The engine at `seat`.
    pub(super) fn engine(&self, seat: &Seat) -> Result<Option<EngineRow>, RegistryError> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = connection.as_ref() else { return Err(RegistryError::Closed) };
        let mut query =
            connection.prepare_cached(select_engines!("WHERE product_id = $1 AND user_id = $2"))?;
        let at = (seat.product_id.to_string(), seat.user_id.as_str());
        query.query_row(at, |row| Ok(EngineRow::read(row))).optional()?.transpose()
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        drop(self.connection.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
