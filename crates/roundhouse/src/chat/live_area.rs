//! The end of a terminal's screen that changes: the row of the answer that is not complete, the state of the turn, and
//! the message that is being written. What is complete moves up out of it and is never touched again, so that the
//! terminal's own scrolling, searching and copying work as ever.

use unicode_segmentation::UnicodeSegmentation as _;

use super::flow::{RESET, Row, Style};
use super::raw_terminal::Size;
use crate::terminal::wrap::{broken_rows, columns_of, first_columns};

/// Rows that are left for the conversation, however long the message is.
const ROWS_FOR_CONVERSATION: usize = 3;

/// What the area shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LiveRows {
    pub(super) rows: Vec<Row>,
    /// Row and column of the cursor.
    pub(super) cursor: (usize, usize),
}

/// The area.
#[derive(Debug)]
pub(super) struct LiveArea {
    colours: bool,
    /// Whether the terminal breaks its rows anew when it becomes narrower.
    reflows: bool,
    /// Rows that are complete and not painted yet.
    complete: Vec<Row>,
    painted: Option<PaintedArea>,
}

/// The area as it was painted last.
#[derive(Debug, PartialEq, Eq)]
struct PaintedArea {
    live: LiveRows,
    /// The terminal's width at that time.
    columns: usize,
}

impl LiveArea {
    pub(super) const fn new(colours: bool, reflows: bool) -> Self {
        Self { colours, reflows, complete: Vec::new(), painted: None }
    }

    /// Adds rows above the area, to be painted with it.
    pub(super) fn add_complete(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.complete.extend(rows);
    }

    /// Forgets the area on the screen: what is there now is not its own, and it is painted where the cursor is.
    pub(super) fn forget(&mut self) {
        self.painted = None;
    }

    /// Returns what to write to a terminal of this size so that it shows the complete rows, and `live` below them. Of
    /// `live`, only as many rows as the screen can have are shown, those around the cursor.
    pub(super) fn paint(&mut self, live: LiveRows, size: Size) -> String {
        let live = visible(live, size.rows.saturating_sub(ROWS_FOR_CONVERSATION).max(1));
        let area = PaintedArea { live, columns: size.columns };
        if self.complete.is_empty() && self.painted.as_ref() == Some(&area) {
            return String::new();
        }
        // The cursor is hidden so that it does not jump.
        let mut output = String::from("\x1b[?25l");
        self.replace_by_complete(size.columns, &mut output);
        // A row that is wider than expected is cut off rather than wrapped: the number of rows must be right.
        output.push_str("\x1b[?7l");
        for (number, row) in area.live.rows.iter().enumerate() {
            if number > 0 {
                output.push_str("\r\n");
            }
            self.write_row(row, &mut output);
        }
        self.place_cursor(&area.live, &mut output);
        output.push_str("\x1b[?7h\x1b[?25h");
        self.painted = Some(area);
        output
    }

    /// Moves the cursor from the end of the last row to its place. The beginning of its row is written again rather
    /// than skipped, because terminals differ in the width of some characters.
    fn place_cursor(&self, live: &LiveRows, output: &mut String) {
        let LiveRows { rows, cursor: (row, column) } = live;
        output.push('\r');
        move_cursor(rows.len().saturating_sub(1).saturating_sub(*row), 'A', output);
        if let Some(Row { style, text }) = rows.get(*row) {
            let before = first_columns(text, *column);
            self.write_row(&Row { style: *style, text: before.to_owned() }, output);
            move_cursor(column.saturating_sub(columns_of(before)), 'C', output);
        }
    }

    /// Returns what to write to a terminal of this width so that the area is gone; the cursor is where it began.
    pub(super) fn clear(&mut self, columns: usize) -> String {
        let mut output = String::new();
        self.replace_by_complete(columns, &mut output);
        output
    }

    /// Erases the area, and writes the complete rows in its place.
    fn replace_by_complete(&mut self, columns: usize, output: &mut String) {
        let painted = self.painted.take();
        output.push('\r');
        move_cursor(
            painted.map_or(0, |painted| painted.rows_above_cursor(columns, self.reflows)),
            'A',
            output,
        );
        output.push_str("\x1b[J");
        for row in std::mem::take(&mut self.complete) {
            self.write_row(&row, output);
            output.push_str("\r\n");
        }
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

impl PaintedArea {
    /// How many rows of a terminal that is `columns` wide by now are above the cursor.
    fn rows_above_cursor(&self, columns: usize, reflows: bool) -> usize {
        let (row, column) = self.live.cursor;
        if !reflows || columns >= self.columns {
            return row;
        }
        // A row that was too wide had been cut off.
        let rows_of = |text: &str| broken_rows(first_columns(text, self.columns), columns);
        let above = self.live.rows.iter().take(row).map(|row| rows_of(&row.text)).sum::<usize>();
        // The cursor stays with the character behind it.
        let text = self.live.rows.get(row).map_or("", |row| row.text.as_str());
        let before = first_columns(text, column).len();
        let behind = text.get(before..).and_then(|text| text.graphemes(true).next()).map_or(0, str::len);
        above + rows_of(text.get(..before + behind).unwrap_or(text)) - 1
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
    use testkit::terminal::{Emulator, OnResize};

    use super::*;

    fn row(text: &str) -> Row {
        Row { style: Style::Dim, text: text.into() }
    }

    fn live(texts: &[String], cursor: (usize, usize)) -> LiveRows {
        LiveRows { rows: texts.iter().map(|text| row(text)).collect(), cursor }
    }

    fn size(columns: usize, rows: usize) -> Size {
        Size { columns, rows }
    }

    #[test]
    fn nothing_is_written_if_nothing_changed() {
        let mut area = LiveArea::new(true, true);
        let rows = live(&["> a".to_owned()], (0, 3));
        assert!(!area.paint(rows.clone(), size(80, 24)).is_empty());
        assert_eq!(area.paint(rows.clone(), size(80, 24)), "");
        assert!(!area.paint(rows.clone(), size(40, 24)).is_empty());
        area.forget();
        assert!(!area.paint(rows, size(40, 24)).is_empty());
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

    #[test]
    fn the_cursor_is_where_the_terminal_shows_the_text_before_it() {
        for (text, column) in [("> 日本語", 4), ("> 👩‍👩‍👧x", 8), ("> e\u{301}x", 3), ("> שלום", 4)]
        {
            let mut terminal = Emulator::new(20, 8, OnResize::Reflow);
            let mut area = LiveArea::new(true, true);
            terminal.write(area.paint(live(&[text.to_owned()], (0, column)), size(20, 8)).as_bytes());
            assert_eq!(terminal.cursor(), (0, column), "{text}");
            terminal.write(b"!");
            let written = format!("{}!", first_columns(text, column));
            assert!(terminal.rows()[0].starts_with(&written), "{:?}", terminal.rows());
        }
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
            let mut terminal = Emulator::new(10, height, OnResize::Cut);
            let mut area = LiveArea::new(true, true);
            let mut expected: Vec<String> = Vec::new();
            for (complete, texts, at) in steps {
                let cursor = (usize::from(at) % texts.len(), usize::from(at) % 9);
                area.add_complete(complete.iter().map(|text| row(text)));
                expected.extend(complete);
                let shown = visible(live(&texts, cursor), usize::from(height) - ROWS_FOR_CONVERSATION);
                terminal.write(area.paint(live(&texts, cursor), size(10, height.into())).as_bytes());
                let now: Vec<String> =
                    expected.iter().cloned().chain(shown.rows.into_iter().map(|row| row.text)).collect();
                prop_assert_eq!(terminal.rows(), now);
                prop_assert_eq!(terminal.cursor(), (expected.len() + shown.cursor.0, cursor.1));
            }
            terminal.write(area.clear(10).as_bytes());
            prop_assert_eq!(terminal.rows(), expected);
        }

        #[test]
        fn the_area_is_found_again_at_any_width(
            steps in prop::collection::vec(
                (prop::collection::vec("[a-z]{1,5}", 0..4), prop::collection::vec("[A-Z]{1,11}", 1..4), any::<u16>(), 6_u16..13),
                1..12,
            ),
            on_resize in prop::sample::select(vec![OnResize::Cut, OnResize::Reflow]),
        ) {
            let mut terminal = Emulator::new(12, 9, on_resize);
            let mut area = LiveArea::new(true, on_resize == OnResize::Reflow);
            let mut expected: Vec<String> = Vec::new();
            for (complete, mut texts, at, columns) in steps {
                terminal.resize(columns, 9);
                for text in &mut texts {
                    text.truncate(usize::from(columns) - 1);
                }
                let row_number = usize::from(at) % texts.len();
                let cursor = (row_number, usize::from(at) % (texts[row_number].len() + 1));
                area.add_complete(complete.iter().map(|text| row(text)));
                expected.extend(complete);
                terminal.write(area.paint(live(&texts, cursor), size(columns.into(), 9)).as_bytes());
                let now: Vec<String> = expected.iter().chain(&texts).cloned().collect();
                prop_assert_eq!(terminal.rows(), now);
                prop_assert_eq!(terminal.cursor(), (expected.len() + cursor.0, cursor.1));
            }
        }
    }
}
