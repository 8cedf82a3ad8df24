//! Tables that fit the terminal. A column of free text is wrapped where the terminal is narrow; where it is too narrow
//! for that, each row is a paragraph of named values. Output that is no terminal has one line for each row.

use super::single_line;
use super::style::Style;
use super::wrap::{columns_of, wrap};

/// The space between two columns.
const GAP: usize = 2;
/// A column of free text is not made narrower than this, unless its texts are shorter.
const MIN_TEXT_COLUMNS: usize = 12;
/// Where a value begins at most in a paragraph, so that there is room for it.
const MAX_NAME_COLUMNS: usize = 16;

/// What is known about the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Canvas {
    /// The width of the terminal; `None` if it is no terminal.
    pub(crate) columns: Option<usize>,
    pub(crate) colours: bool,
}

/// A column and its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Short, and never broken.
    Word,
    /// Like a word, but aligned to the right.
    Number,
    /// Free text, which may be broken.
    Text,
}

impl Column {
    pub(crate) const fn word(name: &'static str) -> Self {
        Self { name, kind: Kind::Word }
    }

    pub(crate) const fn number(name: &'static str) -> Self {
        Self { name, kind: Kind::Number }
    }

    pub(crate) const fn text(name: &'static str) -> Self {
        Self { name, kind: Kind::Text }
    }
}

/// A value: one line without control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Escapes the text, whoever it is from.
    pub(crate) fn new(text: &str) -> Self {
        Self { text: single_line(text, usize::MAX), style: Style::Plain }
    }

    /// The first characters of a text.
    pub(crate) fn excerpt(text: &str, max: usize) -> Self {
        Self { text: single_line(text, max), style: Style::Plain }
    }

    pub(crate) const fn styled(mut self, style: Style) -> Self {
        self.style = style;
        self
    }
}

impl<T: std::fmt::Display> From<T> for Cell {
    fn from(value: T) -> Self {
        Self::new(&value.to_string())
    }
}

/// Lays out a table.
pub(crate) fn table(columns: &[Column], rows: &[Vec<Cell>], canvas: Canvas) -> String {
    let natural: Vec<usize> = (0_usize..)
        .zip(columns)
        .map(|(at, column)| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| columns_of(&cell.text));
            cells.max().unwrap_or(0).max(columns_of(column.name))
        })
        .collect();
    let Some(available) = canvas.columns else { return grid(columns, rows, &natural, canvas) };
    if let Some(widths) = fit(columns, &natural, available) {
        return grid(columns, rows, &widths, canvas);
    }
    let paragraphs = rows.iter().map(|row| {
        let named: Vec<_> = columns.iter().map(|column| column.name).zip(row.iter().cloned()).collect();
        fields(&named, canvas)
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

/// The widths with which all columns fit; `None` if there is too little room.
fn fit(columns: &[Column], natural: &[usize], available: usize) -> Option<Vec<usize>> {
    let gaps = GAP * columns.len().saturating_sub(1);
    let is_text = |at: usize| columns.get(at).is_some_and(|column| column.kind == Kind::Text);
    let fixed: usize = (0..).zip(natural).filter(|(at, _)| !is_text(*at)).map(|(_, width)| *width).sum();
    let mut left = available.checked_sub(gaps + fixed)?;
    let mut widths = natural.to_vec();
    // The narrowest first: what it does not need is for the others.
    let mut texts: Vec<(usize, usize)> =
        (0..).zip(natural.iter().copied()).filter(|(at, _)| is_text(*at)).collect();
    texts.sort_by_key(|(_, width)| *width);
    let mut remaining = texts.len();
    for (at, width) in texts {
        let share = left / remaining.max(1);
        let given = width.min(share);
        if given < width && given < MIN_TEXT_COLUMNS {
            return None;
        }
        if let Some(slot) = widths.get_mut(at) {
            *slot = given;
        }
        left -= given;
        remaining -= 1;
    }
    Some(widths)
}

fn grid(columns: &[Column], rows: &[Vec<Cell>], widths: &[usize], canvas: Canvas) -> String {
    let heading: Vec<Cell> =
        columns.iter().map(|column| Cell::new(column.name).styled(Style::Bold)).collect();
    let mut lines = Vec::new();
    for row in std::iter::once(&heading).chain(rows) {
        push_row(&mut lines, columns, row, widths, canvas);
    }
    lines.join("\n")
}

fn push_row(lines: &mut Vec<String>, columns: &[Column], row: &[Cell], widths: &[usize], canvas: Canvas) {
    let wrapped: Vec<Vec<&str>> = row
        .iter()
        .zip(widths)
        .map(
            |(cell, width)| {
                if canvas.columns.is_some() { wrap(&cell.text, *width) } else { vec![&*cell.text] }
            },
        )
        .collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    for at in 0..height {
        let mut line = String::new();
        let mut pending = 0;
        for (((column, cell), parts), width) in columns.iter().zip(row).zip(&wrapped).zip(widths) {
            let text = parts.get(at).copied().unwrap_or_default();
            let padding = width.saturating_sub(columns_of(text));
            let (before, after) = if column.kind == Kind::Number { (padding, 0) } else { (0, padding) };
            if text.is_empty() {
                pending += padding + GAP;
            } else {
                line.extend(std::iter::repeat_n(' ', pending + before));
                line.push_str(&cell.style.paint(text, canvas.colours));
                pending = after + GAP;
            }
        }
        lines.push(line);
    }
}

/// Lays out named values, one below the other.
pub(crate) fn fields(fields: &[(&str, Cell)], canvas: Canvas) -> String {
    let indent =
        fields.iter().map(|(name, _)| columns_of(name)).max().unwrap_or(0).min(MAX_NAME_COLUMNS) + GAP;
    let mut lines = Vec::new();
    for (name, Cell { text, style }) in fields {
        let room = canvas.columns.map(|columns| columns.saturating_sub(indent).max(1));
        let parts = room.map_or_else(|| vec![text.as_str()], |room| wrap(text, room));
        let padding = indent.saturating_sub(columns_of(name)).max(1);
        let mut before = format!("{}{}", Style::Dim.paint(name, canvas.colours), " ".repeat(padding));
        for part in parts {
            lines.push(format!("{before}{}", style.paint(part, canvas.colours)).trim_end().to_owned());
            before = " ".repeat(indent);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COLUMNS: [Column; 3] = [Column::text("USER"), Column::word("STATUS"), Column::number("COUNT")];

    fn rows() -> Vec<Vec<Cell>> {
        vec![
            vec!["ada".into(), Cell::new("running").styled(Style::Green), 7.into()],
            vec!["a very long name of a user".into(), "stopped".into(), 1_234.into()],
            vec!["日本\u{1b}[2J".into(), "".into(), "".into()],
        ]
    }

    fn render(columns: Option<usize>, colours: bool) -> String {
        table(&COLUMNS, &rows(), Canvas { columns, colours })
    }

    #[test]
    fn a_table_takes_the_room_that_there_is() {
        let wide = "\
USER                        STATUS   COUNT
ada                         running      7
a very long name of a user  stopped   1234
日本\\u{1b}[2J";
        assert_eq!(render(Some(80), false), wide);
        assert_eq!(render(None, false), wide);
        let narrow = "\
USER             STATUS   COUNT
ada              running      7
a very long      stopped   1234
name of a user
日本\\u{1b}[2J";
        assert_eq!(render(Some(31), false), narrow);
        let paragraphs = "\
USER    ada
STATUS  running
COUNT   7

USER    a very long name
        of a user
STATUS  stopped
COUNT   1234

USER    日本\\u{1b}[2J
STATUS
COUNT";
        assert_eq!(render(Some(24), false), paragraphs);
    }

    #[test]
    fn colours_take_no_room() {
        let painted = render(Some(80), true);
        assert!(
            painted.contains("\x1b[1mUSER\x1b[0m                        \x1b[1mSTATUS\x1b[0m"),
            "{painted:?}"
        );
        assert!(painted.contains("\x1b[32mrunning\x1b[0m      7"), "{painted:?}");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            names in proptest::collection::vec("[a-z 日\u{1b}]{0,40}", 0..6),
            columns in 24_usize..100,
        ) {
            let rows: Vec<Vec<Cell>> =
                names.iter().map(|name| vec![Cell::new(name), "running".into(), 12.into()]).collect();
            let shown = table(&COLUMNS, &rows, Canvas { columns: Some(columns), colours: false });
            for line in shown.lines() {
                prop_assert!(columns_of(line) <= columns, "{line:?} in {columns}");
            }
        }
    }
}
