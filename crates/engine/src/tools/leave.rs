//! The words in which a person is asked for leave. What they show is what will be done.

use std::fmt::Write as _;

use serde_json::Value;

/// What is asked for a tool that has no better words, or for an input that is not as its schema says.
pub(super) fn plain(tool: &str, input: &Value) -> String {
    format!("Allow `{tool}` with this input? {input}")
}

/// The first `max` characters of `text`, each line after `sign`, and a note if that is not all.
pub(super) fn excerpt(text: &str, sign: &str, max: usize) -> String {
    let mut shown = String::from(sign);
    for character in text.chars().take(max) {
        push_visible(&mut shown, character);
        if character == '\n' {
            shown.push_str(sign);
        }
    }
    let all = text.chars().count();
    if all > max {
        // Writing to a string cannot fail.
        let _ = write!(shown, "\n[cut: the first {max} of {all} characters]");
    }
    shown
}

/// Control characters, and those that turn the direction of what follows, are shown as escapes: they could hide
/// from the person what the text really is.
fn push_visible(shown: &mut String, character: char) {
    let turns = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    if turns || (character.is_control() && character != '\n' && character != '\t') {
        shown.extend(character.escape_default());
    } else {
        shown.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_a_start_and_how_much_there_is() {
        assert_eq!(excerpt("grün\nrot", "+", 8), "+grün\n+rot");
        assert_eq!(excerpt("grün\nrot", "", 5), "grün\n\n[cut: the first 5 of 8 characters]");
        assert_eq!(excerpt("", "-", 5), "-");
    }

    #[test]
    fn nothing_hides() {
        assert_eq!(excerpt("a\r\n\tb\u{1b}[2K\u{202e}c\u{0}", "", 99), "a\\r\n\tb\\u{1b}[2K\\u{202e}c\\u{0}");
    }
}
