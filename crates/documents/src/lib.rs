//! Documents: which formats are read, and how their text is extracted. Everything happens in memory and
//! within limits ([`limits`]); nothing in a document is run, and nothing that it refers to is loaded.
//!
//! The parsers of PDF, DOCX and XLSX are large and their input may come from anybody, so their callers run
//! them in a process of its own: [`Format::needs_worker`], [`worker_main`]. [`limits`] are those of the text;
//! the process has limits of its own.

mod audio;
mod docx;
mod error;
mod format;
mod limits;
mod numbers;
mod package;
mod pdf;
mod pdf_text;
mod picture;
mod plain;
#[cfg(any(test, feature = "testing"))]
#[path = "../tests/unit/samples.rs"]
pub mod samples;
mod text_writer;
mod worker;
mod xlsx;
mod xml;
mod zip_archive;

pub use crate::audio::{audio_seconds, audio_type};
pub use crate::error::DocumentError;
pub use crate::format::Format;
pub use crate::limits::{MAX_DOCUMENT_BYTES, MAX_TEXT_CHARS};
pub use crate::picture::{picture_size, picture_type};
pub use crate::worker::{MAX_ANSWER_BYTES, WORKER_ARG, parse_answer, worker_args, worker_main};

use serde::{Deserialize, Serialize};

/// The text of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extracted {
    /// The text, as Markdown where the document has a form. It says at its end what was left out; it is empty
    /// if the document has no text.
    pub text: String,
    /// The number of pages, for formats that have them.
    pub pages: Option<u32>,
}

/// Extracts the text of a document. Blocks; for a format that [needs a worker](Format::needs_worker), only to
/// be called where an endless loop or an abort harms nobody.
///
/// # Errors
/// See [`DocumentError`].
pub fn extract(format: Format, bytes: &[u8]) -> Result<Extracted, DocumentError> {
    if bytes.len() > MAX_DOCUMENT_BYTES {
        return Err(DocumentError::TooLarge);
    }
    format.check_signature(bytes)?;
    match format {
        Format::Text | Format::Csv | Format::Markdown | Format::Json => plain::extract_text(bytes),
        Format::Html => plain::extract_html(bytes),
        Format::Docx => docx::extract(bytes),
        Format::Xlsx => xlsx::extract(bytes),
        Format::Pdf => pdf::extract(bytes),
    }
}

#[cfg(test)]
#[path = "../tests/unit/lib.rs"]
mod tests;
