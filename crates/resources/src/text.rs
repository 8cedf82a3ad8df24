//! Text for people, models and logs: bounded in length, and errors with their causes. No cut splits a character.

/// Returns the first `max_bytes` bytes of `text`.
pub fn first_bytes(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or_default()
}

/// Returns the first `max_chars` characters of `text`.
pub fn first_chars(text: &str, max_chars: usize) -> &str {
    text.char_indices().nth(max_chars).and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

/// Like [`first_bytes`], followed by an ellipsis if that is not all of `text`.
pub fn shorten_to_bytes(text: &str, max_bytes: usize) -> String {
    with_ellipsis(first_bytes(text, max_bytes), text)
}

/// Like [`first_chars`], followed by an ellipsis if that is not all of `text`.
pub fn shorten_to_chars(text: &str, max_chars: usize) -> String {
    with_ellipsis(first_chars(text, max_chars), text)
}

fn with_ellipsis(shown: &str, text: &str) -> String {
    let ellipsis = if shown.len() < text.len() { "…" } else { "" };
    format!("{shown}{ellipsis}")
}

/// Formats an error with its causes, because only these say what happened on a connection. Some errors repeat the text
/// of their cause, which is then not said twice.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
#[path = "../tests/unit/text.rs"]
mod tests;
