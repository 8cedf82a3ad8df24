//! The texts of approval prompts. They show exactly what will be done.

use std::fmt::Write as _;
use std::time::Duration;

use api::approvals::ApprovalPreview;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

/// The time limit for computing a diff. After that the diff shown may be larger than necessary.
const DIFF_TIMEOUT: Duration = Duration::from_millis(200);
/// The maximum length of a text shown verbatim, in characters.
const MAX_INPUT_CHARS: usize = 20_000;
/// The maximum length of a tool's description as shown, in characters.
const MAX_DESCRIPTION_CHARS: usize = 1_000;
/// The number of unchanged lines shown around each change.
const DIFF_CONTEXT_LINES: usize = 3;

/// The maximum length of an input shown as JSON, in characters.
const MAX_JSON_CHARS: usize = 8_000;

/// Returns the prompt for a tool without a text of its own, or for an input that does not match its schema.
pub fn default_prompt(tool: &str, input: &Value) -> String {
    let input = excerpt(&input.to_string(), "", MAX_INPUT_CHARS);
    format!("Allow `{tool}` with this input? {input}")
}

/// Returns the notice added to a prompt when a lasting grant no longer applies because the tool has changed.
pub fn changed_tool_notice(description: &str) -> String {
    let description = excerpt(description, "> ", MAX_DESCRIPTION_CHARS);
    format!(
        "\n\nYou allowed this tool for good earlier. The tool or its server has changed since then, or an earlier version \
         did not note which one it was, so you are asked again. This is how it describes itself now:\n\n{description}"
    )
}

/// Formats an input for a person, with each value on a line of its own.
pub fn pretty_json(input: &Value) -> String {
    let text = serde_json::to_string_pretty(input).unwrap_or_else(|_| input.to_string());
    excerpt(&text, "", MAX_JSON_CHARS)
}

/// Returns the preview of a call of which only the input is known.
pub fn input_preview(input: &Value) -> ApprovalPreview {
    let text = serde_json::to_string_pretty(input).unwrap_or_else(|_| input.to_string());
    let (text, truncated) = visible_prefix(&text, "", MAX_JSON_CHARS);
    ApprovalPreview::Text { text, truncated }
}

/// Returns a text in visible form, as the preview of a call.
pub(super) fn text_preview(text: &str) -> ApprovalPreview {
    let (text, truncated) = visible_prefix(text, "", MAX_INPUT_CHARS);
    ApprovalPreview::Text { text, truncated }
}

/// Returns the suffix that says whether a program may use the network.
pub(super) fn network_label(may: bool) -> &'static str {
    if may { "with the network" } else { "without the network" }
}

/// Returns the first `max` characters of `text`, with each line prefixed by `sign`, and a note if more follow.
pub(super) fn excerpt(text: &str, sign: &str, max: usize) -> String {
    let mut shown = String::from(sign);
    for character in text.chars().take(max) {
        push_escaped(&mut shown, character);
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

/// The lines that a change of a text deletes and inserts.
pub(super) struct LineDiff {
    /// The beginning of the diff, in visible form.
    pub(super) shown: String,
    /// Whether there is more.
    pub(super) truncated: bool,
    deletions: usize,
    insertions: usize,
}

impl LineDiff {
    /// The diff with its size and a note if there is more.
    pub(super) fn describe(&self) -> String {
        let deletions = counted(self.deletions, "deletion");
        let insertions = counted(self.insertions, "insertion");
        let more = if self.truncated { "\n[cut: there is more]" } else { "" };
        format!("{deletions}, {insertions}:\n\n{}{more}", self.shown)
    }
}

/// Returns the line diff from `old` to `new`, limited to `max` characters.
pub(super) fn line_diff(old: &str, new: &str, max: usize) -> LineDiff {
    let difference = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old, new);
    let mut text = String::new();
    'hunks: for (at, hunk) in difference.grouped_ops(DIFF_CONTEXT_LINES).iter().enumerate() {
        if at > 0 {
            text.push_str("…\n");
        }
        for change in hunk.iter().flat_map(|operation| difference.iter_changes(operation)) {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            text.push(sign);
            text.push_str(change.value().trim_end_matches('\n'));
            text.push('\n');
            // More than will be shown, so the rest need not be written.
            if text.len() > 4 * max {
                break 'hunks;
            }
        }
    }
    let (shown, truncated) = visible_prefix(text.trim_end(), "", max);
    let changes = |tag| difference.iter_all_changes().filter(|change| change.tag() == tag).count();
    let (deletions, insertions) = (changes(ChangeTag::Delete), changes(ChangeTag::Insert));
    LineDiff { shown, truncated, deletions, insertions }
}

/// Returns the lines that differ between two definitions of a tool, in visible form, and whether there are
/// more.
pub fn definition_diff(old: &str, new: &str) -> (String, bool) {
    let LineDiff { shown, truncated, .. } = line_diff(old, new, MAX_INPUT_CHARS);
    (shown, truncated)
}

/// Formats a number with its noun, in the singular or the plural.
fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Returns the first `max` characters of `text` in visible form, with each line prefixed by `sign`, and whether more
/// follow.
pub(super) fn visible_prefix(text: &str, sign: &str, max: usize) -> (String, bool) {
    let mut shown = String::from(sign);
    let mut characters = text.chars();
    for character in characters.by_ref().take(max) {
        push_escaped(&mut shown, character);
        if character == '\n' {
            shown.push_str(sign);
        }
    }
    (shown, characters.next().is_some())
}

/// Appends a character, escaping control characters, invisible characters and those that change the text
/// direction: they could hide from the person what the text really is.
fn push_escaped(shown: &mut String, character: char) {
    if is_hiding(character) || (character.is_control() && character != '\n' && character != '\t') {
        shown.extend(character.escape_default());
    } else {
        shown.push(character);
    }
}

/// Whether a character is invisible or changes the text direction: those that Unicode lets programs ignore, and
/// separators and annotations. Any text can be written in variation selectors and tags.
pub fn is_hiding(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
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
    fn shows_what_changes() {
        let old = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n";
        let new = old.replace("two\n", "zwei\n\u{202e}x\n").replace("nine\n", "");
        let shown = line_diff(old, &new, 500).describe();
        assert_eq!(
            shown,
            "2 deletions, 2 insertions:\n\n one\n-two\n+zwei\n+\\u{202e}x\n three\n four\n five\n six\n seven\n eight\n-nine"
        );
        assert!(line_diff("", &"x\n".repeat(10_000), 100).describe().ends_with("[cut: there is more]"));
        let (old, new) = ("a\n".repeat(300_000), "b\na\n".repeat(150_000));
        assert!(line_diff(&old, &new, 100).describe().len() < 1_000);
    }

    #[test]
    fn nothing_hides() {
        assert_eq!(excerpt("a\r\n\tb\u{1b}[2K\u{202e}c\u{0}", "", 99), "a\\r\n\tb\\u{1b}[2K\\u{202e}c\\u{0}");
        for hiding in "\u{34f}\u{115f}\u{1160}\u{3164}\u{ffa0}\u{fe00}\u{fe0f}\u{e0100}\u{e01ef}".chars() {
            let escaped = hiding.escape_default().to_string();
            assert_eq!(excerpt(&hiding.to_string(), "", 99), escaped);
        }
    }
}
