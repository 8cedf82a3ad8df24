//! Rows that this version cannot read, because another version wrote them or somebody edited them by hand.
//!
//! Wire input is validated strictly; stored data is read leniently. One unreadable row must not keep the
//! orchestrator from serving all the others: it is skipped and logged once, and the engine or product that it
//! describes is left alone until a version that can read it runs.

use std::collections::HashSet;

use parking_lot::Mutex;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::RegistryError;
use super::row::EngineRow;

/// The rows that have been logged already: the registry is read over and over.
#[derive(Default)]
pub(super) struct UnreadableRows {
    logged: Mutex<HashSet<String>>,
}

impl UnreadableRows {
    /// Parses the rows of engines, leaving out those that this version cannot read.
    pub(super) fn read_engines(&self, rows: &[AnyRow]) -> Result<Vec<EngineRow>, RegistryError> {
        let mut read = Vec::with_capacity(rows.len());
        for row in rows {
            match EngineRow::read(row) {
                Ok(row) => read.push(row),
                Err(RegistryError::Unreadable { column }) => {
                    self.log_once("engine", &row.try_get::<String, _>(0)?, column);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Logs, once, that this version cannot read `column` of a row.
    pub(super) fn log_once(&self, kind: &'static str, id: &str, column: &str) {
        let first = {
            let mut logged = self.logged.lock();
            logged.insert(format!("{kind} {id} {column}"))
        };
        if first {
            tracing::error!(
                kind,
                id,
                column,
                "A row of the registry contains a value that this version cannot read, and is skipped. Run the \
                 version that wrote it, or a later one. All other rows are served."
            );
        }
    }
}
