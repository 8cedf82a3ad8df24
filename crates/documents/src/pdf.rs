//! PDF: the text of its pages, in the order in which it is drawn. Pictures of text have none.

use lopdf::{Document, Error, LoadOptions};

use crate::limits::{MAX_PAGES, MAX_STREAM_BYTES};
use crate::pdf_text::PageText;
use crate::text_writer::TextWriter;
use crate::{DocumentError, Extracted};

/// Extracts the text of a document. A page that cannot be read is left out, and named.
pub(crate) fn extract(bytes: &[u8]) -> Result<Extracted, DocumentError> {
    let options = LoadOptions { max_decompressed_size: Some(MAX_STREAM_BYTES), ..LoadOptions::default() };
    let document = Document::load_mem_with_options(bytes, options).map_err(|error| pdf_error(&error))?;
    if document.is_encrypted() {
        return Err(DocumentError::Encrypted);
    }
    let mut text = TextWriter::default();
    let (mut pages, mut unread, mut has_text) = (0_u32, Vec::new(), false);
    for page in document.page_iter() {
        pages = pages.saturating_add(1);
        if text.is_full() || usize::try_from(pages).is_ok_and(|pages| pages > MAX_PAGES) {
            continue;
        }
        match PageText::read(&document, page) {
            Ok(page_text) if page_text.trim().is_empty() => {}
            Ok(page_text) => {
                has_text = true;
                text.end_paragraph();
                text.push(&format!("[Page {pages}]\n{}", page_text.trim()));
            }
            Err(_) => unread.push(pages),
        }
    }
    if pages == 0 {
        return Err(DocumentError::broken("it has no pages"));
    }
    if usize::try_from(pages).is_ok_and(|pages| pages > MAX_PAGES) {
        text.note(format!("The document has {pages} pages: only the first {MAX_PAGES} were read."));
    }
    if let Some(first) = unread.first() {
        text.note(format!("{} pages could not be read; the first of them is page {first}.", unread.len()));
    }
    let text = if has_text || !unread.is_empty() { text.finish() } else { String::new() };
    Ok(Extracted { text, pages: Some(pages) })
}

fn pdf_error(error: &Error) -> DocumentError {
    match error {
        Error::Decryption(_) | Error::InvalidPassword | Error::UnsupportedSecurityHandler(_) => {
            DocumentError::Encrypted
        }
        other => DocumentError::broken(other),
    }
}
