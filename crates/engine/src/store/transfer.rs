//! The brain on its way out of one engine and into another: one JSON document, written and read as a stream.
//!
//! The document has a `version` and one array per kind of record ([`records`]), each in the order in which the brain
//! came by them. Records name each other by their public ids, and steps, which have none, by their place in `steps`:
//! the row numbers of a brain stay in it, and a brain that was filled from a document writes the same one again.
//!
//! What an export leaves out: credentials, grants, settings and what was spent, which belong to the engine; requests
//! that wait for a person, and the deltas of streams, which are transient. A turn that has not ended is written as far
//! as it had come, as one that was given up then.
//!
//! An import is read into a staging file beside the brain first ([`staging`]), record by record ([`validate`]), checked
//! there as a whole, and then put in force in one transaction ([`apply`]).

mod apply;
mod export;
mod import;
mod records;
mod staging;
mod validate;

pub use export::ExportError;
pub use import::ImportError;
pub use staging::StagedImport;
pub(super) use staging::remove_staging_file;

use std::io::{Read, Write};

use contract::CallId;
use contract::transfer::{ImportCounts, ImportMode};

use super::{Brain, WriteError};
use crate::memory_budget::NoMemory;

/// The version of the document. One that an older engine would misread gets the next number; what is merely new is a
/// field, which older engines ignore.
const DOCUMENT_VERSION: u64 = 1;

impl Brain {
    /// Writes the document, as the brain is at this moment. Blocks, and keeps the write-ahead log from being begun anew
    /// until it is done.
    pub fn export(&self, to: &mut dyn Write) -> Result<(), ExportError> {
        export::write(&self.shared.file, to)
    }

    /// Reads a document and checks it, beside the brain, which stays as it is. Only one at a time. `admit` is asked before
    /// more of a record is kept in memory, with how many bytes it then has. Blocks.
    pub fn stage_import(
        &self,
        document: impl Read,
        admit: impl FnMut(usize) -> Result<(), NoMemory>,
    ) -> Result<StagedImport, ImportError> {
        import::read(&self.shared.file, document, admit)
    }

    /// Puts what was staged in force, all of it or nothing. No turn may be about to begin meanwhile, and where the mode
    /// is [`ImportMode::Replace`] there may be no turn at all that has not ended.
    /// Of what is replaced the long `outputs` of calls go too.
    pub async fn apply_import(
        &self,
        staged: StagedImport,
        mode: ImportMode,
        outputs: Vec<CallId>,
    ) -> Result<ImportCounts, WriteError> {
        let (first_task, place) = (self.reserve_tasks(staged.task_count()), staged.path());
        // Not moved into the write, which the writer lets go of some time after it is done.
        self.write(move |rows| rows.apply_import(&place, mode, first_task, &outputs)).await
    }
}

#[cfg(test)]
#[path = "transfer/transfer_tests.rs"]
mod tests;
