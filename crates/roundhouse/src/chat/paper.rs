//! Where the conversation is written: a terminal with a live area, a terminal that only takes lines (`TERM=dumb`, or
//! one whose input is not typed), or a file or pipe.

use std::io::{self, IsTerminal as _, Write as _};

use super::flow::{Flow, Look, RESET, Row, Style};
use super::live_area::{LiveArea, LiveRows};
use super::raw_terminal;
use crate::terminal::columns;

/// What the conversation is written on.
pub(super) struct Paper {
    kind: Kind,
    /// The look of the block that is being written, or was written last.
    look: Look,
    /// The first error in writing.
    write_error: Option<io::Error>,
}

enum Kind {
    /// Rows above an area that is painted anew.
    Live { area: LiveArea, flow: Flow },
    /// Rows, each written when it is complete.
    Rows { flow: Flow, colours: bool },
    /// Text as it comes, without a width.
    Stream(StreamState),
}

/// How far a stream has been written.
#[derive(Default)]
struct StreamState {
    is_open: bool,
    has_first: bool,
    in_line: bool,
}

impl Paper {
    /// The paper for the standard output. `is_edited` says that a person types the input in an editor.
    pub(super) fn new(is_edited: bool) -> Self {
        let colours = http_service::logging::color_enabled();
        let kind = if is_edited {
            let reflows = raw_terminal::reflows(|name| std::env::var_os(name));
            Kind::Live { area: LiveArea::new(colours, reflows), flow: Flow::default() }
        } else if io::stdout().is_terminal() {
            Kind::Rows { flow: Flow::default(), colours }
        } else {
            Kind::Stream(StreamState::default())
        };
        Self { kind, look: Look::default(), write_error: None }
    }

    pub(super) const fn is_live(&self) -> bool {
        matches!(self.kind, Kind::Live { .. })
    }

    /// Whether everything goes to one terminal, also what is not part of the conversation.
    pub(super) const fn is_terminal(&self) -> bool {
        !matches!(self.kind, Kind::Stream(_))
    }

    /// Takes the write error, unless it only means that the reader closed the pipe.
    pub(super) fn take_write_error(&mut self) -> Option<io::Error> {
        self.write_error.take().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    /// Writes a block.
    pub(super) fn block(&mut self, look: Look, text: &str) {
        self.open(look);
        self.push(text);
        self.close();
    }

    /// Begins a block.
    pub(super) fn open(&mut self, look: Look) {
        self.close();
        self.look = look;
        match &mut self.kind {
            Kind::Live { flow, .. } | Kind::Rows { flow, .. } => flow.open(look),
            Kind::Stream(state) => *state = StreamState { is_open: true, ..StreamState::default() },
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        match &self.kind {
            Kind::Live { flow, .. } | Kind::Rows { flow, .. } => flow.is_open(),
            Kind::Stream(state) => state.is_open,
        }
    }

    /// Adds text to the block. Its only control characters are line breaks and tabs.
    pub(super) fn push(&mut self, text: &str) {
        if !self.is_open() {
            self.open(self.look);
        }
        let look = self.look;
        match &mut self.kind {
            Kind::Live { area, flow } => area.add_complete(flow.push(text, row_columns())),
            Kind::Rows { flow, .. } => {
                let rows = flow.push(text, row_columns());
                self.write_rows(&rows);
            }
            Kind::Stream(state) => {
                let marked = state.mark(look, text);
                self.write(&marked);
            }
        }
    }

    /// Ends the block.
    pub(super) fn close(&mut self) {
        match &mut self.kind {
            Kind::Live { area, flow } => area.add_complete(flow.close()),
            Kind::Rows { flow, .. } => {
                let row = flow.close();
                self.write_rows(row.as_slice());
            }
            Kind::Stream(state) => {
                if std::mem::take(state).in_line {
                    self.write("\n");
                }
            }
        }
    }

    /// Writes an empty row.
    pub(super) fn blank(&mut self) {
        self.close();
        match &mut self.kind {
            Kind::Live { area, .. } => area.add_complete([Row::default()]),
            Kind::Rows { .. } | Kind::Stream(_) => self.write("\n"),
        }
    }

    /// Writes text after which the cursor stays where it is, such as a prompt. Not for a live area.
    pub(super) fn inline(&mut self, text: &str) {
        self.close();
        self.write(text);
    }

    /// Paints the live area with these rows below the row of the conversation that is not complete.
    pub(super) fn paint(&mut self, mut below: LiveRows) {
        let Kind::Live { area, flow } = &mut self.kind else { return };
        // The terminal may have become narrower since this row was begun.
        area.add_complete(flow.push("", row_columns()));
        if let Some(partial) = flow.partial_row() {
            below.rows.insert(0, partial);
            below.cursor.0 += 1;
        }
        let output = area.paint(below, raw_terminal::size());
        self.write(&output);
    }

    /// Forgets the live area on the screen, which is not where it was.
    pub(super) fn forget_area(&mut self) {
        if let Kind::Live { area, .. } = &mut self.kind {
            area.forget();
        }
    }

    /// Scrolls the screen away; the live area is painted at its top.
    pub(super) fn scroll_away(&mut self) {
        self.clear_area();
        let height = raw_terminal::size().rows;
        self.write(&format!("\x1b[{height}H{}\x1b[H", "\n".repeat(height)));
    }

    /// Removes the live area.
    pub(super) fn clear_area(&mut self) {
        if let Kind::Live { area, .. } = &mut self.kind {
            let output = area.clear(raw_terminal::size().columns);
            self.write(&output);
        }
    }

    fn write_rows(&mut self, rows: &[Row]) {
        let Kind::Rows { colours, .. } = &self.kind else { return };
        let colours = *colours;
        let mut output = String::new();
        for Row { style, text } in rows {
            if colours && *style != Style::Plain {
                output.extend([style.sequence(), text, RESET, "\n"]);
            } else {
                output.extend([text, "\n"]);
            }
        }
        self.write(&output);
    }

    /// Writes as it is.
    pub(super) fn write(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let mut output = io::stdout().lock();
        if let Err(error) = output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
            self.write_error.get_or_insert(error);
        }
    }
}

impl StreamState {
    /// The text with the marks of its block. A mark is written with the first character of its line.
    fn mark(&mut self, look: Look, text: &str) -> String {
        let mut marked = String::with_capacity(text.len());
        for piece in text.split_inclusive('\n') {
            if !self.in_line {
                marked.push_str(if self.has_first { look.rest } else { look.first });
            }
            marked.push_str(piece);
            self.in_line = !piece.ends_with('\n');
            self.has_first = true;
        }
        marked
    }
}

/// The width of rows. The last column stays free, because terminals differ in what they do after it.
pub(super) fn row_columns() -> usize {
    columns().unwrap_or(80).saturating_sub(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_a_mark_at_each_line_and_nothing_else() {
        let look = Look { style: Style::Dim, first: "| thinking: ", rest: "| " };
        let mut state = StreamState::default();
        let marked: String = ["a", "b\n", "", "c\n\nd"].iter().map(|text| state.mark(look, text)).collect();
        assert_eq!(marked, "| thinking: ab\n| c\n| \n| d");
        assert!(state.in_line);
    }
}
