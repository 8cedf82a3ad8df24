//! Formats that are texts: they are given as they are, except for HTML, which becomes Markdown.

use fetch::{decode, read_html};
use url::Url;

use crate::limits::MAX_TEXT_CHARS;
use crate::text_writer::TextWriter;
use crate::{DocumentError, Extracted};

/// The maximum length of the Markdown of a page, in bytes: beyond the limit in characters.
const MAX_MARKDOWN_BYTES: usize = 4 * MAX_TEXT_CHARS + 4;

/// Extracts a text. Its encoding is that of its byte order mark, else UTF-8.
pub(crate) fn extract_text(bytes: &[u8]) -> Result<Extracted, DocumentError> {
    // No more than can be shown is decoded: a character has at most four bytes, in any encoding.
    let shown = bytes.get(..MAX_MARKDOWN_BYTES).unwrap_or(bytes);
    Ok(bounded(&decode_text(shown, "")?, shown.len() < bytes.len()))
}

/// Extracts the text of a page of HTML.
pub(crate) fn extract_html(bytes: &[u8]) -> Result<Extracted, DocumentError> {
    let html = decode_text(bytes, "text/html")?;
    // The page has no address, so links within it or to its neighbours lead nowhere.
    let page = Url::parse("about:blank").map_err(DocumentError::broken)?;
    let document = read_html(&html, &page, MAX_MARKDOWN_BYTES);
    let title =
        if document.title.is_empty() { String::new() } else { format!("Title: {}\n\n", document.title) };
    Ok(bounded(&(title + &document.text), false))
}

fn decode_text(bytes: &[u8], content_type: &str) -> Result<String, DocumentError> {
    let text = decode(bytes, content_type);
    if text.contains('\0') { Err(DocumentError::Binary) } else { Ok(text) }
}

fn bounded(text: &str, is_cut: bool) -> Extracted {
    let mut writer = TextWriter::default();
    writer.push(text);
    if is_cut {
        writer.mark_cut();
    }
    Extracted { text: writer.finish(), pages: None }
}
