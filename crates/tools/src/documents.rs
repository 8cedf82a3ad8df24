//! Reads documents: their text, and the number of pages of a PDF. Formats with large parsers are read by a
//! program of their own, in the sandbox, without files and network and within tight limits; texts are read
//! here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::documents::{DocumentError, Extracted, Format};
use bytes::Bytes;
use resources::threads::{DOCUMENT_THREADS, Lane};
use sandbox::{ExceededLimit, ExitStatus, Limits, Sandbox};
use tokio::time::timeout;

use super::process::{ProcessOutcome, ProcessPermits, ProcessRunner};
use super::{SpillDir, ToolError};

/// How long reading a document may take.
const MAX_TIME: Duration = Duration::from_secs(10);
/// How long it may wait for others, and take.
const MAX_WAIT: Duration = Duration::from_secs(45);
/// The memory of the program, in bytes. It holds a document of the maximum size several times.
const MAX_MEMORY_BYTES: u64 = 256 << 20;
/// The processes and threads of the program.
const MAX_PROCESSES: u32 = 8;
/// The most documents that are read by programs at a time.
const MAX_CONCURRENT: usize = 2;

/// Why a document was not read, in words for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The document is to blame.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// It took too long.
    #[error("reading the document took longer than {} s, so it was stopped", MAX_TIME.as_secs())]
    Time,
    /// It took too much memory.
    #[error("reading the document took more than {} MiB of memory, so it was stopped", MAX_MEMORY_BYTES >> 20)]
    Memory,
    /// The program that reads it ended without an answer.
    #[error("the document could not be read: the program that reads it failed on it")]
    Failed,
    /// This machine cannot confine the program.
    #[error("this engine's machine cannot confine programs, so it reads no PDF, DOCX or XLSX")]
    Unavailable,
    /// Others are being read, or this machine starts no further programs now.
    #[error("too many documents are being read at the moment; try again later")]
    Busy,
}

/// Reads documents. Clones share its limits.
#[derive(Clone)]
pub struct DocumentReader {
    /// `None` if this machine runs no programs.
    programs: Option<Arc<ProcessRunner>>,
    texts: Lane,
}

impl DocumentReader {
    /// Creates a reader whose programs run in this sandbox, if it really confines them.
    pub fn new(sandbox: Option<&Arc<Sandbox>>, workspace: &Path) -> Self {
        let sandbox = sandbox.filter(|sandbox| sandbox.confinement().enforced);
        let programs = sandbox.map(|sandbox| {
            let permits = ProcessPermits::new(MAX_CONCURRENT);
            Arc::new(ProcessRunner::new(Arc::clone(sandbox), SpillDir::new(workspace), permits))
        });
        Self { programs, texts: Lane::new(DOCUMENT_THREADS) }
    }

    /// Reads a document. If the future is dropped, the program ends.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, format: Format, document: Bytes) -> Result<Extracted, ReadError> {
        if document.len() > ::documents::MAX_DOCUMENT_BYTES {
            return Err(DocumentError::TooLarge.into());
        }
        let reading = async {
            if format.needs_worker() {
                self.read_in_program(format, document).await
            } else {
                let read = self.texts.run(move || ::documents::extract(format, &document)).await;
                Ok(read.ok_or(ReadError::Failed)??)
            }
        };
        timeout(MAX_WAIT, reading).await.unwrap_or(Err(ReadError::Busy))
    }

    async fn read_in_program(&self, format: Format, document: Bytes) -> Result<Extracted, ReadError> {
        let programs = self.programs.as_ref().ok_or(ReadError::Unavailable)?;
        let limits = Limits {
            time: Some(MAX_TIME),
            memory: MAX_MEMORY_BYTES,
            file_size: 0,
            processes: MAX_PROCESSES,
            disk_left: 0,
        };
        let max_bytes = u64::try_from(::documents::MAX_ANSWER_BYTES).unwrap_or(u64::MAX);
        let ran = programs.run_worker((::documents::worker_args(format), limits), document, max_bytes).await;
        let ran = ran.map_err(|ToolError(reason)| {
            tracing::warn!(reason, "The program that reads documents cannot be run.");
            ReadError::Busy
        })?;
        match ran.outcome {
            ProcessOutcome::Ended(ExitStatus::Exited(0)) => {
                let answer = ::documents::parse_answer(&ran.output).ok_or(ReadError::Failed)?;
                Ok(answer?)
            }
            ProcessOutcome::Ended(ExitStatus::OverLimit(ExceededLimit::Time)) => Err(ReadError::Time),
            ProcessOutcome::Ended(ExitStatus::OverLimit(ExceededLimit::Memory)) => Err(ReadError::Memory),
            // Rust's programs abort themselves when they get no more memory.
            ProcessOutcome::Ended(ExitStatus::Signalled(_)) if ran.stderr_tail.contains(OUT_OF_MEMORY) => {
                Err(ReadError::Memory)
            }
            outcome => {
                tracing::warn!(?outcome, stderr = ran.stderr_tail, "A document could not be read.");
                Err(ReadError::Failed)
            }
        }
    }
}

/// What the standard library says before it aborts a program that gets no more memory.
const OUT_OF_MEMORY: &str = "memory allocation of";
