//! Read-only access to a brain's journal, for inspection. It works while an engine is running on the brain.
//!
//! It neither takes the lock nor migrates the schema, so a brain of an earlier version is read as it is.

use std::path::{Path, PathBuf};

use api::TaskId;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, ErrorCode};

use super::{BrainError, StoreError, StoredStep, queries};

/// A brain that was opened only to read its journal.
pub struct Journal {
    reader: Connection,
}

/// The errors of reading a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file does not exist or is not accessible.
    #[error("the brain {file} cannot be opened")]
    Unreadable {
        /// The path of the file.
        file: PathBuf,
        /// The error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// The file is a database of another program, or a brain of a later version that this one cannot read.
    #[error("{file} is not a brain, or it was written by a later version")]
    Unknown {
        /// The path of the file.
        file: PathBuf,
    },
    /// The file is damaged, or SQLite failed.
    #[error(transparent)]
    Brain(#[from] BrainError),
}

impl Journal {
    /// Opens the journal of the brain in `file`.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn open(file: &Path) -> Result<Self, JournalError> {
        // SQLite does not report why it cannot open a file.
        std::fs::File::open(file)
            .map_err(|source| JournalError::Unreadable { file: file.to_owned(), source })?;
        let failed = |error: StoreError| JournalError::Brain(BrainError::from_sqlite(file, error));
        let reader = super::read_pool::open_reader(file, 256).map_err(|error| failed(error.into()))?;
        let journal = Self { reader };
        match journal.tasks(1) {
            Ok(_) => Ok(journal),
            // A table or a column is missing.
            Err(error) if error.sqlite_code() == Some(ErrorCode::Unknown) => {
                Err(JournalError::Unknown { file: file.to_owned() })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// At most `limit` tasks, the one with the most recent turn first.
    pub fn tasks(&self, limit: u32) -> Result<Vec<TaskId>, StoreError> {
        let mut query = self.reader.prepare(
            "SELECT task_id FROM turns JOIN tasks USING (task) GROUP BY task ORDER BY MAX(turn) DESC LIMIT ?1",
        )?;
        let rows = query.query_map([limit], |row| {
            let task_id: String = row.get(0)?;
            TaskId::new(task_id)
                .map_err(|error| Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The steps of all turns of a task, oldest first; `None` if there is no such task.
    pub fn steps(&self, task_id: &TaskId) -> Result<Option<Vec<StoredStep>>, StoreError> {
        let task = queries::task(&self.reader, task_id)?;
        Ok(task.map(|task| queries::steps(&self.reader, task.row)).transpose()?)
    }
}
