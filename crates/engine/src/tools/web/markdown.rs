//! Writes Markdown, piece by piece, within a bound.

/// How deep lists and quotes are shown; what is deeper looks like that depth.
const MAX_DEPTH: usize = 8;

/// Text that grows. Breaks and spaces wait until something follows them, so none stands at an end.
#[derive(Debug)]
pub(super) struct MarkdownWriter {
    text: String,
    max_bytes: usize,
    /// How many line breaks come before what follows.
    pending_breaks: usize,
    pending_space: bool,
    /// What follows stays in the line that was begun for it.
    after_marker: bool,
    quote_depth: usize,
    indent_depth: usize,
}

impl MarkdownWriter {
    /// An empty text that holds at most about `max` bytes.
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

    /// Whether nothing more goes in.
    pub(super) fn is_full(&self) -> bool {
        self.text.len() >= self.max_bytes
    }

    /// Has what follows begin a line, after an empty one if `lines` is 2.
    pub(super) fn break_line(&mut self, lines: usize) {
        if self.after_marker {
            return;
        }
        self.pending_breaks = self.pending_breaks.max(lines);
        self.pending_space = false;
    }

    /// Adds the sign of what follows, such as a heading's, and keeps that in the sign's line.
    pub(super) fn push_marker(&mut self, sign: &str) {
        self.push_token(sign);
        self.pending_space = true;
        self.after_marker = true;
    }

    /// Ends what was led, if nothing followed.
    pub(super) fn end_marker(&mut self) {
        self.after_marker = false;
    }

    /// Goes on in the line so far.
    pub(super) fn continue_line(&mut self) {
        self.pending_breaks = 0;
        self.pending_space = true;
    }

    /// Adds running text: white space of any length is one space.
    pub(super) fn push_text(&mut self, text: &str) {
        for (at, word) in text.split(is_html_space).enumerate() {
            self.pending_space |= at > 0;
            if !word.is_empty() {
                self.push_token(word);
            }
        }
    }

    /// Adds text as it is, line by line.
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

    /// Adds something that is not broken. Control characters are left out.
    pub(super) fn push_token(&mut self, sign: &str) {
        let mut shown =
            sign.chars().filter(|character| !character.is_control() || *character == '\t').peekable();
        if self.is_full() || shown.peek().is_none() {
            return;
        }
        self.flush_pending();
        self.text.extend(shown);
    }

    /// Adds something that ends what stands before it, with no space between.
    pub(super) fn push_closing(&mut self, sign: &str) {
        let space = std::mem::take(&mut self.pending_space);
        self.push_token(sign);
        self.pending_space |= space;
    }

    /// Adds a space, if something follows in the same line.
    pub(super) fn push_space(&mut self) {
        self.pending_space = true;
    }

    /// Goes into a quote, or out of one.
    pub(super) fn quote(&mut self, enters: bool) {
        self.quote_depth = if enters { self.quote_depth + 1 } else { self.quote_depth.saturating_sub(1) };
    }

    /// How deep in lists what follows is.
    pub(super) fn set_indent(&mut self, depth: usize) {
        self.indent_depth = depth;
    }

    /// The text.
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

/// The white space of HTML; others, such as one that does not break, is text.
fn is_html_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\u{c}')
}
