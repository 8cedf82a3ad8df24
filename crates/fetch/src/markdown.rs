//! An incremental Markdown writer with a size limit.

/// The maximum depth of lists and quotes as shown; deeper ones look the same.
const MAX_DEPTH: usize = 8;

/// Markdown text being written. Breaks and spaces are held back until something follows them, so none is left at
/// the end.
#[derive(Debug)]
pub(super) struct MarkdownWriter {
    text: String,
    max_bytes: usize,
    /// The number of line breaks before the next output.
    pending_breaks: usize,
    pending_space: bool,
    /// Whether the next output stays on the line of a marker.
    after_marker: bool,
    quote_depth: usize,
    indent_depth: usize,
}

impl MarkdownWriter {
    /// Creates an empty text with a limit of about `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self {
            text: String::new(),
            max_bytes: max,
            pending_breaks: 0,
            pending_space: false,
            after_marker: false,
            quote_depth: 0,
            indent_depth: 0,
        }
    }

    /// Whether the limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.text.len() >= self.max_bytes
    }

    /// Begins a new line before the next output, after an empty one if `lines` is 2.
    pub(super) fn break_line(&mut self, lines: usize) {
        if self.after_marker {
            return;
        }
        self.pending_breaks = self.pending_breaks.max(lines);
        self.pending_space = false;
    }

    /// Adds a marker, such as a heading's, and keeps the next output on its line.
    pub(super) fn push_marker(&mut self, sign: &str) {
        self.push_token(sign);
        self.pending_space = true;
        self.after_marker = true;
    }

    /// Ends a marker's line if nothing followed.
    pub(super) fn end_marker(&mut self) {
        self.after_marker = false;
    }

    /// Continues on the current line.
    pub(super) fn continue_line(&mut self) {
        self.pending_breaks = 0;
        self.pending_space = true;
    }

    /// Adds running text, in which each run of white space becomes one space.
    pub(super) fn push_text(&mut self, text: &str) {
        for (at, word) in text.split(is_html_space).enumerate() {
            self.pending_space |= at > 0;
            if !word.is_empty() {
                self.push_token(word);
            }
        }
    }

    /// Adds text verbatim, line by line.
    pub(super) fn push_verbatim(&mut self, text: &str) {
        for (at, line) in text.split('\n').enumerate() {
            if at > 0 {
                self.pending_breaks += 1;
            }
            if !line.is_empty() {
                self.push_token(line.trim_end_matches('\r'));
            }
        }
    }

    /// Adds an unbreakable token. Control characters are removed.
    pub(super) fn push_token(&mut self, sign: &str) {
        let mut shown =
            sign.chars().filter(|character| !character.is_control() || *character == '\t').peekable();
        if self.is_full() || shown.peek().is_none() {
            return;
        }
        self.flush_pending();
        self.text.extend(shown);
    }

    /// Adds a closing token without a space before it.
    pub(super) fn push_closing(&mut self, sign: &str) {
        let space = std::mem::take(&mut self.pending_space);
        self.push_token(sign);
        self.pending_space |= space;
    }

    /// Adds a space if something follows on the same line.
    pub(super) fn push_space(&mut self) {
        self.pending_space = true;
    }

    /// Enters or leaves a quote.
    pub(super) fn quote(&mut self, enters: bool) {
        self.quote_depth = if enters { self.quote_depth + 1 } else { self.quote_depth.saturating_sub(1) };
    }

    /// Sets the list depth of the following output.
    pub(super) fn set_indent(&mut self, depth: usize) {
        self.indent_depth = depth;
    }

    /// Returns the text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn flush_pending(&mut self) {
        let first = self.text.is_empty();
        if (first || self.pending_breaks > 0) && !self.is_full() {
            let breaks = if first { 0 } else { self.pending_breaks };
            (0..breaks).for_each(|_| self.text.push('\n'));
            self.text.push_str(&"> ".repeat(self.quote_depth.min(MAX_DEPTH)));
            self.text.push_str(&"  ".repeat(self.indent_depth.min(MAX_DEPTH)));
        } else if self.pending_space {
            self.text.push(' ');
        }
        self.pending_breaks = 0;
        self.pending_space = false;
        self.after_marker = false;
    }
}

/// Whether this is white space in HTML; other spaces, such as non-breaking ones, are text.
fn is_html_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\u{c}')
}
