//! What a person sees of a program's output in a terminal, with what has scrolled out of it.

use std::num::NonZero;

use unicode_width::UnicodeWidthChar as _;

/// How many rows that have scrolled out are kept.
const SCROLLBACK: usize = 20_000;

/// What a terminal does with the rows that it shows when its width changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResize {
    /// It cuts off what no longer fits, as xterm does.
    Cut,
    /// It breaks rows that no longer fit, as most terminals do.
    Reflow,
}

/// A terminal emulator.
pub struct Emulator {
    parser: vt100::Parser,
    on_resize: OnResize,
}

impl Emulator {
    /// A terminal of this size.
    pub fn new(columns: u16, rows: u16, on_resize: OnResize) -> Self {
        Self { parser: parser(columns, rows), on_resize }
    }

    /// Shows what a program has written.
    pub fn write(&mut self, bytes: &[u8]) {
        self.parser.process(bytes);
    }

    /// All rows down to the last one that is not empty, with those that have scrolled out.
    pub fn rows(&mut self) -> Vec<String> {
        let mut rows = self.all_rows();
        let last = rows.iter().rposition(|row| !row.is_empty());
        rows.truncate(last.map_or(0, |last| last + 1));
        rows
    }

    /// The rows on the screen.
    pub fn screen_rows(&self) -> Vec<String> {
        let screen = self.parser.screen();
        screen.rows(0, screen.size().1.get()).collect()
    }

    /// Row and column of the cursor. The rows are counted from the first one of [`Emulator::rows`].
    pub fn cursor(&mut self) -> (usize, usize) {
        let hidden = self.hidden_rows();
        let (row, column) = self.parser.screen().cursor_position();
        (hidden + usize::from(row), column.into())
    }

    /// The row of the cursor up to it.
    pub fn text_before_cursor(&self) -> String {
        let screen = self.parser.screen();
        let (row, column) = screen.cursor_position();
        screen.contents_between(row, 0, row, column)
    }

    /// Changes the size.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        if self.on_resize == OnResize::Cut || columns == self.parser.screen().size().1.get() {
            self.parser.screen_mut().set_size(non_zero(rows), non_zero(columns));
            return;
        }
        let (cursor_row, cursor_column) = self.cursor();
        let mut shown = self.rows();
        shown.resize(shown.len().max(cursor_row + 1), String::new());
        let mut broken = Vec::new();
        let mut cursor = (0, 0);
        for (number, row) in shown.iter().enumerate() {
            let pieces = pieces(row, columns.into());
            if number == cursor_row {
                cursor = position(&pieces, cursor_column);
                cursor.0 += broken.len();
            }
            broken.extend(pieces);
        }
        self.parser = parser(columns, rows);
        self.write(broken.join("\r\n").as_bytes());
        // A count of 0 would mean 1.
        for (count, direction) in [(broken.len() - 1 - cursor.0, 'A'), (cursor.1, 'C')] {
            let sequence = if count > 0 { format!("\r\x1b[{count}{direction}") } else { "\r".to_owned() };
            self.write(sequence.as_bytes());
        }
    }

    fn hidden_rows(&mut self) -> usize {
        let screen = self.parser.screen_mut();
        screen.set_scrollback(usize::MAX);
        let hidden = screen.scrollback();
        screen.set_scrollback(0);
        hidden
    }

    fn all_rows(&mut self) -> Vec<String> {
        let hidden = self.hidden_rows();
        let screen = self.parser.screen_mut();
        let columns = screen.size().1.get();
        let mut rows = Vec::new();
        for offset in (1..=hidden).rev() {
            screen.set_scrollback(offset);
            rows.extend(screen.rows(0, columns).next());
        }
        screen.set_scrollback(0);
        rows.extend(screen.rows(0, columns));
        rows
    }
}

fn parser(columns: u16, rows: u16) -> vt100::Parser {
    vt100::Parser::new(non_zero(rows), non_zero(columns), SCROLLBACK)
}

fn non_zero(size: u16) -> NonZero<u16> {
    NonZero::new(size).unwrap()
}

/// The rows into which `row` is broken.
fn pieces(row: &str, columns: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for character in row.chars() {
        let width = character.width().unwrap_or(0);
        if used + width > columns {
            pieces.push(String::new());
            used = 0;
        }
        pieces.last_mut().unwrap().push(character);
        used += width;
    }
    pieces
}

/// Where a column of the row is after the row was broken.
fn position(pieces: &[String], column: usize) -> (usize, usize) {
    let mut left = column;
    for (number, piece) in pieces.iter().enumerate() {
        let width = piece.chars().map(|character| character.width().unwrap_or(0)).sum();
        if left < width || number + 1 == pieces.len() {
            return (number, left);
        }
        left -= width;
    }
    (0, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emulator(on_resize: OnResize) -> Emulator {
        let mut emulator = Emulator::new(10, 3, on_resize);
        emulator.write(b"first\r\nabcdefghij\r\n> typed\x1b[2D");
        emulator
    }

    #[test]
    fn rows_that_no_longer_fit_are_broken_or_cut() {
        let mut cut = emulator(OnResize::Cut);
        cut.resize(6, 3);
        assert_eq!(
            (cut.rows(), cut.cursor()),
            (vec!["first".into(), "abcdef".into(), "> type".into()], (2, 5))
        );
        let mut reflowed = emulator(OnResize::Reflow);
        reflowed.resize(6, 3);
        assert_eq!(reflowed.rows(), ["first", "abcdef", "ghij", "> type", "d"]);
        assert_eq!((reflowed.cursor(), reflowed.text_before_cursor().as_str()), ((3, 5), "> typ"));
        assert_eq!(reflowed.screen_rows(), ["ghij", "> type", "d"]);
        reflowed.resize(20, 3);
        assert_eq!(
            reflowed.rows(),
            ["first", "abcdef", "ghij", "> type", "d"],
            "what was broken stays broken"
        );
    }
}
