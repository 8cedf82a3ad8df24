//! Rows that this version cannot read, because another version wrote them or somebody edited them by hand.
//!
//! What comes over the wire is judged strictly; what is stored is read as far as it goes. One unreadable row must not
//! keep the orchestrator from serving all the others: it is set aside and named in the log, once, and nothing is done
//! to the engine or product that it describes until a version that can read it runs again.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::RegistryError;
use super::row::EngineRow;
use crate::fault_injection::{self, Mutation};

/// Which rows have been named in the log already: the registry is read over and over.
#[derive(Default)]
pub(super) struct UnreadableRows {
    logged: Mutex<HashSet<String>>,
}

impl UnreadableRows {
    /// Reads the rows of engines, all but those that cannot be read.
    pub(super) fn read_engines(&self, rows: &[AnyRow]) -> Result<Vec<EngineRow>, RegistryError> {
        let mut read = Vec::with_capacity(rows.len());
        for row in rows {
            match EngineRow::read(row) {
                Ok(row) => read.push(row),
                Err(RegistryError::Unreadable { column })
                    if !fault_injection::active(Mutation::ReadStrictly) =>
                {
                    self.log_once("engine", &row.try_get::<String, _>(0)?, column);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Says in the log, once, that this version cannot read `column` of a row.
    pub(super) fn log_once(&self, kind: &'static str, id: &str, column: &str) {
        let first = {
            let mut named = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
            named.insert(format!("{kind} {id} {column}"))
        };
        if first {
            tracing::error!(
                kind,
                id,
                column,
                "A row of the registry holds what this version cannot read. It is set aside: run the version that \
                 wrote it, or a later one. All other rows are served."
            );
        }
    }
}
