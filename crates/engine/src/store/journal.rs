//! The journal of a brain, for people: only read, and also while an engine runs on the brain.
//!
//! Neither the lock is taken nor the schema brought up to date, so a brain of an earlier version is read as it is.

use std::path::{Path, PathBuf};

use contract::TaskId;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, ErrorCode};

use super::{BrainError, StoredStep, queries};

/// A brain that is opened for its journal alone.
pub struct Journal {
    reader: Connection,
}

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// There is no such file, or it is not for us.
    #[error("the brain {file} cannot be opened")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is another program's database, or a brain of a much later version.
    #[error("{file} is not a brain, or one of a later version")]
    Unknown {
        /// The file.
        file: PathBuf,
    },
    /// It is damaged, or SQLite failed.
    #[error(transparent)]
    Brain(#[from] BrainError),
}

impl Journal {
    /// Opens the journal of the brain in `file`.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn open(file: &Path) -> Result<Self, JournalError> {
        // SQLite does not say why it cannot open a file.
        std::fs::File::open(file)
            .map_err(|source| JournalError::Unreadable { file: file.to_owned(), source })?;
        let failed = |error| JournalError::Brain(BrainError::from_sqlite(file, error));
        let journal = Self { reader: super::read_pool::open_reader(file, 256).map_err(failed)? };
        match journal.tasks(1) {
            Ok(_) => Ok(journal),
            // A table or a column is missing.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => {
                Err(JournalError::Unknown { file: file.to_owned() })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// At most `limit` tasks, the one that ran last first.
    pub fn tasks(&self, limit: u32) -> Result<Vec<TaskId>, Error> {
        let mut query = self.reader.prepare(
            "SELECT task_id FROM turns JOIN tasks USING (task) GROUP BY task ORDER BY MAX(turn) DESC LIMIT ?1",
        )?;
        let rows = query.query_map([limit], |row| {
            let task_id: String = row.get(0)?;
            TaskId::new(task_id)
                .map_err(|error| Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)))
        })?;
        rows.collect()
    }

    /// The steps of all turns of a task, oldest first; none if there is no such task.
    pub fn steps(&self, task_id: &TaskId) -> Result<Option<Vec<StoredStep>>, Error> {
        let task = queries::task(&self.reader, task_id)?;
        task.map(|task| queries::steps(&self.reader, task.row)).transpose()
    }
}
