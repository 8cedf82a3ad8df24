//! The end of a terminal's screen that changes: the row of the answer that is not complete, the state of the turn, and
//! the message that is being written. What is complete moves up out of it and is never touched again, so that the
//! terminal's own scrolling, searching and copying work as ever.

use super::flow::{RESET, Row, Style};

/// Rows that are left for the conversation, however long the message is.
const ROWS_FOR_CONVERSATION: usize = 3;

/// What the area shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LiveRows {
    pub(super) rows: Vec<Row>,
    /// Row and column of the cursor.
    pub(super) cursor: (usize, usize),
}

/// The area as it was painted last.
#[derive(Debug)]
pub(super) struct LiveArea {
    colours: bool,
    /// Rows that are complete and not painted yet.
    complete: Vec<Row>,
    /// The row of the area in which the cursor was left.
    cursor_row: usize,
    painted: Option<LiveRows>,
}

impl LiveArea {
    pub(super) const fn new(colours: bool) -> Self {
        Self { colours, complete: Vec::new(), cursor_row: 0, painted: None }
    }

    /// Adds rows above the area, to be painted with it.
    pub(super) fn add_complete(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.complete.extend(rows);
    }

    /// Forgets what is on the screen, so that all of it is painted again.
    pub(super) fn invalidate(&mut self) {
        self.painted = None;
    }

    /// Returns what to write to the terminal so that it shows the complete rows, and `live` below them. Of `live`,
    /// only as many rows as the screen of `height` rows can have are shown, those around the cursor.
    pub(super) fn paint(&mut self, live: LiveRows, height: usize) -> String {
        let live = visible(live, height.saturating_sub(ROWS_FOR_CONVERSATION).max(1));
        if self.complete.is_empty() && self.painted.as_ref() == Some(&live) {
            return String::new();
        }
        // The cursor is hidden so that it does not jump.
        let mut output = String::from("\x1b[?25l");
        self.erase(&mut output);
        for row in std::mem::take(&mut self.complete) {
            self.write_row(&row, &mut output);
            output.push_str("\r\n");
        }
        // A row that is wider than expected is cut off rather than wrapped: the number of rows must be right.
        output.push_str("\x1b[?7l");
        for (number, row) in live.rows.iter().enumerate() {
            if number > 0 {
                output.push_str("\r\n");
            }
            self.write_row(row, &mut output);
        }
        output.push_str("\x1b[?7h\r");
        let (row, column) = live.cursor;
        move_cursor(live.rows.len().saturating_sub(1).saturating_sub(row), 'A', &mut output);
        move_cursor(column, 'C', &mut output);
        output.push_str("\x1b[?25h");
        self.cursor_row = row;
        self.painted = Some(live);
        output
    }

    /// Returns what to write so that the area is gone; the cursor is where it began.
    pub(super) fn clear(&mut self) -> String {
        let mut output = String::new();
        self.erase(&mut output);
        for row in std::mem::take(&mut self.complete) {
            self.write_row(&row, &mut output);
            output.push_str("\r\n");
        }
        self.painted = None;
        output
    }

    fn erase(&mut self, output: &mut String) {
        output.push('\r');
        move_cursor(self.cursor_row, 'A', output);
        output.push_str("\x1b[J");
        self.cursor_row = 0;
    }

    fn write_row(&self, row: &Row, output: &mut String) {
        let style = if self.colours { row.style } else { Style::Plain };
        output.push_str(style.sequence());
        output.push_str(&row.text);
        if style != Style::Plain {
            output.push_str(RESET);
        }
    }
}

fn move_cursor(count: usize, direction: char, output: &mut String) {
    use std::fmt::Write as _;

    if count > 0 {
        // Writing to a `String` cannot fail.
        let _ = write!(output, "\x1b[{count}{direction}");
    }
}

/// The rows around the cursor, at most `max`.
fn visible(live: LiveRows, max: usize) -> LiveRows {
    let LiveRows { mut rows, cursor: (row, column) } = live;
    let first = (row + 1).saturating_sub(max);
    rows.drain(..first.min(rows.len()));
    rows.truncate(max);
    LiveRows { rows, cursor: (row - first, column) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(text: &str) -> Row {
        Row { style: Style::Dim, text: text.into() }
    }

    fn live(texts: &[String], cursor: (usize, usize)) -> LiveRows {
        LiveRows { rows: texts.iter().map(|text| row(text)).collect(), cursor }
    }

    /// What a terminal shows, with what has scrolled out of it, without empty rows at the end.
    fn all_rows(terminal: &mut vt100::Parser) -> Vec<String> {
        let (height, width) = terminal.screen().size();
        terminal.screen_mut().set_scrollback(usize::MAX);
        let hidden = terminal.screen().scrollback();
        let mut rows = Vec::new();
        for offset in (0..=hidden).rev() {
            terminal.screen_mut().set_scrollback(offset);
            let shown = terminal.screen().rows(0, width.get());
            let count = if offset == 0 { usize::from(height.get()) } else { 1 };
            rows.extend(shown.take(count));
        }
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    #[test]
    fn nothing_is_written_if_nothing_changed() {
        let mut area = LiveArea::new(true);
        let rows = live(&["> a".to_owned()], (0, 3));
        assert!(!area.paint(rows.clone(), 24).is_empty());
        assert_eq!(area.paint(rows.clone(), 24), "");
        area.invalidate();
        assert!(!area.paint(rows, 24).is_empty());
    }

    #[test]
    fn of_a_long_message_the_rows_around_the_cursor_are_shown() {
        let texts: Vec<String> = (0..9).map(|number| number.to_string()).collect();
        let shown = |cursor| {
            let shown = visible(live(&texts, (cursor, 1)), 4);
            (shown.rows.iter().map(|row| row.text.as_str()).collect::<String>(), shown.cursor.0)
        };
        assert_eq!(shown(0), ("0123".into(), 0));
        assert_eq!(shown(3), ("0123".into(), 3));
        assert_eq!(shown(6), ("3456".into(), 3));
        assert_eq!(shown(8), ("5678".into(), 3));
    }

    proptest! {
        #[test]
        fn the_screen_shows_every_complete_row_once_and_the_area_below(
            steps in prop::collection::vec(
                (prop::collection::vec("[a-z]{1,8}", 0..4), prop::collection::vec("[A-Z]{1,9}", 1..6), any::<u16>()),
                1..12,
            ),
            height in 5_u16..12,
        ) {
            let mut terminal = vt100::Parser::new(height.try_into().unwrap(), 10.try_into().unwrap(), 1_000);
            let mut area = LiveArea::new(true);
            let mut expected: Vec<String> = Vec::new();
            for (complete, texts, at) in steps {
                let cursor = (usize::from(at) % texts.len(), usize::from(at) % 9);
                area.add_complete(complete.iter().map(|text| row(text)));
                expected.extend(complete);
                let shown = visible(live(&texts, cursor), usize::from(height) - ROWS_FOR_CONVERSATION);
                terminal.process(area.paint(live(&texts, cursor), usize::from(height)).as_bytes());
                let now: Vec<String> =
                    expected.iter().cloned().chain(shown.rows.into_iter().map(|row| row.text)).collect();
                prop_assert_eq!(&all_rows(&mut terminal), &now);
                terminal.screen_mut().set_scrollback(0);
                let (row, column) = terminal.screen().cursor_position();
                prop_assert_eq!(usize::from(column), cursor.1);
                prop_assert_eq!(terminal.screen().rows(0, 10).nth(row.into()), now.get(expected.len() + shown.cursor.0).cloned());
            }
            terminal.process(area.clear().as_bytes());
            prop_assert_eq!(all_rows(&mut terminal), expected);
        }
    }
}
