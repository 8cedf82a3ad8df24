//! Writes Markdown, piece by piece, within a bound.

/// How deep lists and quotes are shown; what is deeper looks like that depth.
const MAX_DEPTH: usize = 8;

/// Text that grows. Breaks and spaces wait until something follows them, so none stands at an end.
#[derive(Debug)]
pub(super) struct Markdown {
    text: String,
    max: usize,
    /// How many line breaks come before what follows.
    breaks: usize,
    space: bool,
    /// What follows stays in the line that was begun for it.
    led: bool,
    quotes: usize,
    indents: usize,
}

impl Markdown {
    /// An empty text that holds at most about `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { text: String::new(), max, breaks: 0, space: false, led: false, quotes: 0, indents: 0 }
    }

    /// Whether nothing more goes in.
    pub(super) fn is_full(&self) -> bool {
        self.text.len() >= self.max
    }

    /// Has what follows begin a line, after an empty one if `lines` is 2.
    pub(super) fn break_line(&mut self, lines: usize) {
        if self.led {
            return;
        }
        self.breaks = self.breaks.max(lines);
        self.space = false;
    }

    /// Adds the sign of what follows, such as a heading's, and keeps that in the sign's line.
    pub(super) fn lead(&mut self, sign: &str) {
        self.sign(sign);
        self.space = true;
        self.led = true;
    }

    /// Ends what was led, if nothing followed.
    pub(super) fn end_lead(&mut self) {
        self.led = false;
    }

    /// Goes on in the line so far.
    pub(super) fn join_line(&mut self) {
        self.breaks = 0;
        self.space = true;
    }

    /// Adds running text: white space of any length is one space.
    pub(super) fn flow(&mut self, text: &str) {
        for (at, word) in text.split(is_space).enumerate() {
            self.space |= at > 0;
            if !word.is_empty() {
                self.sign(word);
            }
        }
    }

    /// Adds text as it is, line by line.
    pub(super) fn verbatim(&mut self, text: &str) {
        for (at, line) in text.split('\n').enumerate() {
            if at > 0 {
                self.breaks += 1;
            }
            if !line.is_empty() {
                self.sign(line.trim_end_matches('\r'));
            }
        }
    }

    /// Adds something that is not broken. Control characters are left out.
    pub(super) fn sign(&mut self, sign: &str) {
        let mut shown =
            sign.chars().filter(|character| !character.is_control() || *character == '\t').peekable();
        if self.is_full() || shown.peek().is_none() {
            return;
        }
        self.start();
        self.text.extend(shown);
    }

    /// Adds something that ends what stands before it, with no space between.
    pub(super) fn sign_after(&mut self, sign: &str) {
        let space = std::mem::take(&mut self.space);
        self.sign(sign);
        self.space |= space;
    }

    /// Adds a space, if something follows in the same line.
    pub(super) fn space(&mut self) {
        self.space = true;
    }

    /// Goes into a quote, or out of one.
    pub(super) fn quote(&mut self, enters: bool) {
        self.quotes = if enters { self.quotes + 1 } else { self.quotes.saturating_sub(1) };
    }

    /// How deep in lists what follows is.
    pub(super) fn indent(&mut self, depth: usize) {
        self.indents = depth;
    }

    /// The text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn start(&mut self) {
        let first = self.text.is_empty();
        if (first || self.breaks > 0) && !self.is_full() {
            let breaks = if first { 0 } else { self.breaks };
            (0..breaks).for_each(|_| self.text.push('\n'));
            self.text.push_str(&"> ".repeat(self.quotes.min(MAX_DEPTH)));
            self.text.push_str(&"  ".repeat(self.indents.min(MAX_DEPTH)));
        } else if self.space {
            self.text.push(' ');
        }
        self.breaks = 0;
        self.space = false;
        self.led = false;
    }
}

/// The white space of HTML; others, such as one that does not break, is text.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\u{c}')
}
