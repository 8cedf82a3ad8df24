//! Output of the commands for a person: tolerates a closed terminal, and escapes terminal control sequences.

use std::io::{self, IsTerminal as _, Write as _};

use resources::text::first_chars;
use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod wrap;

/// Prints a line to standard output; a closed terminal is not an error.
pub(crate) fn print_line(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(format!("{text}\n").as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// The terminal's width in columns, or `None` if the output is no terminal.
pub(crate) fn columns() -> Option<usize> {
    let output = io::stdout();
    // A terminal that does not know its size reports 0.
    let size = tcgetwinsize(&output).ok().filter(|_| output.is_terminal())?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Truncates `text`, a single line without control characters, to the given number of columns.
pub(crate) fn truncate_columns(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    // The ellipsis takes a column too.
    let Some(available) = columns.checked_sub(1) else { return String::new() };
    let mut used = 0;
    let fits = |character: &char| {
        used += character.width().unwrap_or(0);
        used <= available
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Escapes the control characters of `text` that could drive the terminal; keeps its line breaks.
pub(crate) fn escape_control_characters(text: &str) -> String {
    escape(text, |character| character.is_control() && !matches!(character, '\n' | '\t'))
}

/// Escapes the characters of `text` that could disguise it: control characters, and those that change the text
/// direction. Keeps its line breaks.
pub(crate) fn escape_hidden_characters(text: &str) -> String {
    escape(text, |character| is_harmful(character) && !matches!(character, '\n' | '\t'))
}

/// The first `max` characters of `text` as one line, escaped as by [`escape_hidden_characters`].
pub(crate) fn single_line(text: &str, max: usize) -> String {
    let first = first_chars(text, max);
    let ellipsis = if first.len() < text.len() { "…" } else { "" };
    escape(first, is_harmful) + ellipsis
}

/// Escapes in JSON what could drive the terminal or disguise text: the same document, for every parser.
pub(crate) fn escape_json(json: &str) -> String {
    use std::fmt::Write as _;

    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        // Space between values may be line breaks and tabs; in strings JSON has them escaped already.
        if is_harmful(character) && !character.is_ascii_whitespace() {
            // All of them are below U+10000. Writing to a `String` cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

fn escape(text: &str, must_escape: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if must_escape(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

fn is_harmful(character: char) -> bool {
    let changes_direction = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    changes_direction || character.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_drives_the_terminal_or_hides() {
        let text = "a\r\n\tb\u{1b}[2K\u{202e}c\u{9b}é";
        assert_eq!(escape_control_characters(text), "a\\r\n\tb\\u{1b}[2K\u{202e}c\\u{9b}é");
        assert_eq!(escape_hidden_characters(text), "a\\r\n\tb\\u{1b}[2K\\u{202e}c\\u{9b}é");
        assert_eq!(single_line(text, 99), "a\\r\\n\\tb\\u{1b}[2K\\u{202e}c\\u{9b}é");
    }

    #[test]
    fn json_stays_the_same_document() {
        let value = serde_json::json!({"a\u{9b}2J": "\u{1b}[2J\r\n\u{7f}\u{202e}\u{85}é日"});
        for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let escaped = escape_json(&json);
            assert!(
                !escaped.chars().any(|character| is_harmful(character) && character != '\n'),
                "{escaped:?}"
            );
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
        }
    }

    #[test]
    fn wide_characters_are_cut_by_the_columns_that_they_take() {
        assert_eq!(truncate_columns("grün", 4), "grün");
        assert_eq!(truncate_columns("grüne", 4), "grü…");
        assert_eq!(truncate_columns("日本語", 6), "日本語");
        assert_eq!(truncate_columns("日本語", 5), "日本…");
        assert_eq!(truncate_columns("日本語", 4), "日…");
        assert_eq!(
            [truncate_columns("ab", 1), truncate_columns("ab", 0), truncate_columns("", 0)],
            ["…", "", ""]
        );
    }

    proptest::proptest! {
        #[test]
        fn what_is_cut_fits(text in "\\PC*", columns in 0_usize..40) {
            let shown = truncate_columns(&text, columns);
            proptest::prop_assert!(shown.width() <= columns, "{shown:?}");
            let kept = shown.strip_suffix('…').unwrap_or(&shown);
            proptest::prop_assert!(text.starts_with(kept));
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(single_line("grün", 4), "grün");
        assert_eq!(single_line("grüne", 4), "grün…");
        assert_eq!(single_line("", 0), "");
    }
}
