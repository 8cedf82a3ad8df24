//! The bound of what users, models and tools say in a span.

use std::borrow::Cow;

/// The most bytes of one attribute with content, and of one text in it.
pub const MAX_CONTENT_BYTES: usize = 16 * 1024;

/// Returns the beginning of `text` that fits.
pub(crate) fn fit(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_CONTENT_BYTES {
        return text.into();
    }
    let end = text.floor_char_boundary(MAX_CONTENT_BYTES);
    text.get(..end).unwrap_or_default().into()
}
