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
//! An import is read into a staging file beside the brain first ([`staging`]), record by record ([`keeping`]), checked
//! there as a whole, and then put in force in one transaction ([`taking_over`]).

mod export;
mod import;
mod keeping;
mod records;
mod staging;
mod taking_over;

pub use export::ExportError;
pub use import::ImportError;
pub use staging::Staged;
pub(super) use staging::clear;

use std::io::{Read, Write};

use contract::CallId;
use contract::transfer::{ImportCounts, ImportMode};

use super::{Brain, WriteError};
use crate::memory_budget::NoMemory;

/// The version of the document. One that an older engine would misread gets the next number; what is merely new is a
/// field, which older engines ignore.
const VERSION: u64 = 1;

impl Brain {
    /// Writes the document, as the brain is at this moment. Blocks, and keeps the write-ahead log from being begun anew
    /// until it is done.
    pub fn export(&self, to: &mut dyn Write) -> Result<(), ExportError> {
        export::write(&self.shared.file, to)
    }

    /// Reads a document and checks it, beside the brain, which stays as it is. Only one at a time. `admit` is asked before
    /// more of a record is kept in memory, with how many bytes it then has. Blocks.
    pub fn stage(
        &self,
        document: impl Read,
        admit: impl FnMut(usize) -> Result<(), NoMemory>,
    ) -> Result<Staged, ImportError> {
        import::read(&self.shared.file, document, admit)
    }

    /// Puts what was staged in force, all of it or nothing. No turn may be about to begin meanwhile, and where the mode
    /// is [`ImportMode::Replace`] there may be no turn at all that has not ended.
    /// Of what is replaced the long `outputs` of calls go too.
    pub async fn take_over(
        &self,
        staged: Staged,
        mode: ImportMode,
        outputs: Vec<CallId>,
    ) -> Result<ImportCounts, WriteError> {
        let (first_task, place) = (self.reserve_tasks(staged.tasks()), staged.place());
        // Not moved into the write, which the writer lets go of some time after it is done.
        self.write(move |rows| rows.take_over(&place, mode, first_task, &outputs)).await
    }
}

#[cfg(test)]
#[path = "transfer/transfer_tests.rs"]
mod tests;
