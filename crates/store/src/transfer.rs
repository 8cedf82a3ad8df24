//! Export and import of a brain: one JSON document, written and read as a stream.
//!
//! The document has a `version` and one array per kind of record ([`records`]), each in the order in which the
//! brain created them. Records refer to each other by their public ids, and to steps, which have none, by their
//! position in `steps`. Row numbers never leave a brain, and a brain that was filled from a document exports the
//! same document again, without the queue.
//!
//! An export leaves out credentials, grants, settings and what budgets count, which belong to the engine, as well as pending
//! requests and the deltas of streams, which are transient. A turn that has not ended is exported up to its last
//! step, as one that was given up then. The messages that wait for their turn are exported (`queue`), and an import
//! leaves them out: it starts no turn. Schedules are imported without their runs and next due times, which the engine
//! computes anew: what was due before the import is not made up for. The user's own tool servers are exported with the
//! approved definitions of their tools (`mcp_servers`); after an import they must be connected again.
//!
//! An import is first read into a staging file beside the brain ([`staging`]), record by record ([`validate`]),
//! then checked as a whole, and finally applied in one transaction ([`apply`]).

mod apply;
mod export;
mod import;
mod records;
mod staging;
mod usage;
mod user_servers;
mod validate;

use std::io::{Read, Write};

use api::CallId;
use api::transfer::{ImportCounts, ImportMode};
pub use export::ExportError;
pub use import::ImportError;
use resources::memory_budget::NoMemory;
pub use staging::StagedImport;
pub(super) use staging::remove_staging_file;

use super::{Brain, WriteError};

/// The version of the document. A document that an older engine would misread gets the next number; mere additions
/// are new fields, which older engines ignore.
const DOCUMENT_VERSION: u64 = 1;

impl Brain {
    /// Writes a document with a snapshot of the brain. Blocks, and keeps the write-ahead log from being reset
    /// until it is done.
    pub fn export(&self, to: &mut dyn Write) -> Result<(), ExportError> {
        export::write(&self.shared.file, to)
    }

    /// Reads and validates a document beside the brain, which stays as it is. Only one at a time. Before more of a
    /// record is kept in memory, `admit` is called with the record's size so far in bytes. Blocks.
    pub fn stage_import(
        &self,
        document: impl Read,
        admit: impl FnMut(usize) -> Result<(), NoMemory>,
    ) -> Result<StagedImport, ImportError> {
        import::read(&self.shared.file, document, admit)
    }

    /// Applies a staged import, completely or not at all. No turn may begin meanwhile, and in mode
    /// [`ImportMode::Replace`] there must be no open turn. The long `outputs` of replaced calls are erased too.
    pub async fn apply_import(
        &self,
        staged: StagedImport,
        mode: ImportMode,
        outputs: Vec<CallId>,
    ) -> Result<ImportCounts, WriteError> {
        let (first_task, path) = (self.reserve_tasks(staged.task_count()), staged.path());
        // `staged` is not moved into the closure, because the writer drops that some time after the write is done.
        self.write(move |tx| tx.apply_import(&path, mode, first_task, &outputs)).await
    }
}
