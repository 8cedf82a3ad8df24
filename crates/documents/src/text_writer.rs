//! A text that grows up to a limit.

use crate::limits::MAX_TEXT_CHARS;

/// A text of at most [`MAX_TEXT_CHARS`] characters, without control characters.
#[derive(Debug, Default)]
pub(crate) struct TextWriter {
    text: String,
    chars: usize,
    is_cut: bool,
    /// What was left out for other reasons than the length.
    notes: Vec<String>,
}

impl TextWriter {
    /// Whether nothing fits any more.
    pub(crate) fn is_full(&self) -> bool {
        self.is_cut
    }

    /// Notes that there is more than was added.
    pub(crate) fn mark_cut(&mut self) {
        self.is_cut = true;
    }

    /// Adds as much of a text as fits.
    pub(crate) fn push(&mut self, text: &str) {
        for char in text.chars() {
            if char.is_control() && !matches!(char, '\n' | '\t') {
                continue;
            }
            if self.chars >= MAX_TEXT_CHARS {
                self.is_cut = true;
                return;
            }
            self.text.push(char);
            self.chars += 1;
        }
    }

    /// Ends the line, if it has any text.
    pub(crate) fn end_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.push("\n");
        }
    }

    /// Leaves an empty line before what follows.
    pub(crate) fn end_paragraph(&mut self) {
        self.end_line();
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.push("\n");
        }
    }

    /// Whether the text ends with white space, or is empty.
    pub(crate) fn ends_with_space(&self) -> bool {
        self.text.chars().next_back().is_none_or(char::is_whitespace)
    }

    /// Says at the end of the text what was left out.
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// The text, with notes about what was left out.
    pub(crate) fn finish(mut self) -> String {
        self.text.truncate(self.text.trim_end().len());
        if self.is_cut {
            self.notes.push(format!(
                "The document is longer: only its first {MAX_TEXT_CHARS} characters are here."
            ));
        }
        for note in self.notes {
            self.text.push_str("\n\n[");
            self.text.push_str(&note);
            self.text.push(']');
        }
        self.text
    }
}
