//! Text that arrives in pieces, as rows of a terminal: wrapped, styled, and with a mark in front of each row where the
//! block has one.

pub(super) use crate::terminal::style::{RESET, Style};
use crate::terminal::wrap::{columns_of, wrap};

/// What a tab is shown as: on a terminal its width would depend on the column.
const TAB: &str = "    ";

/// The look of a block of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) style: Style,
    /// What its first row begins with.
    pub(super) first: &'static str,
    /// What its other rows begin with.
    pub(super) rest: &'static str,
}

impl Look {
    pub(super) const fn plain(style: Style) -> Self {
        Self { style, first: "", rest: "" }
    }
}

/// A row of the terminal, without control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) style: Style,
    pub(super) text: String,
}

/// The block that is being written.
#[derive(Debug, Default)]
pub(super) struct Flow {
    look: Look,
    has_first: bool,
    is_open: bool,
    /// The row that is not complete yet, without its mark.
    partial: String,
}

impl Flow {
    /// Begins a block. The one before it must have been closed.
    pub(super) fn open(&mut self, look: Look) {
        *self = Self { look, is_open: true, ..Self::default() };
    }

    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Adds text, whose only control characters are line breaks and tabs. Returns the rows that are complete.
    pub(super) fn push(&mut self, text: &str, columns: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        for (number, piece) in text.split('\n').enumerate() {
            if number > 0 {
                let line = std::mem::take(&mut self.partial);
                rows.push(self.next_row(&line));
            }
            self.partial.push_str(&piece.replace('\t', TAB));
            self.wrap_partial(columns, &mut rows);
        }
        rows
    }

    /// Takes all but the last row from the incomplete line.
    fn wrap_partial(&mut self, columns: usize, rows: &mut Vec<Row>) {
        let available = columns.saturating_sub(columns_of(self.look.rest)).max(1);
        let line = std::mem::take(&mut self.partial);
        let mut wrapped = wrap(&line, self.first_row_columns(columns, available));
        // The rows below the first one may have another width.
        if !self.has_first && wrapped.len() > 1 {
            let first = wrapped.first().copied().unwrap_or_default();
            rows.push(self.next_row(first));
            let below = line.get(first.len()..).unwrap_or_default();
            let below = below.strip_prefix(' ').unwrap_or(below);
            wrapped = wrap(below, available);
        }
        let last = wrapped.pop().unwrap_or_default().to_owned();
        rows.extend(wrapped.into_iter().map(|row| self.next_row(row)));
        self.partial = last;
    }

    fn first_row_columns(&self, columns: usize, available: usize) -> usize {
        if self.has_first { available } else { columns.saturating_sub(columns_of(self.look.first)).max(1) }
    }

    fn next_row(&mut self, text: &str) -> Row {
        let row = self.row(text);
        self.has_first = true;
        row
    }

    fn row(&self, text: &str) -> Row {
        let mark = if self.has_first { self.look.rest } else { self.look.first };
        Row { style: self.look.style, text: format!("{mark}{text}") }
    }

    /// The row that is not complete yet.
    pub(super) fn partial_row(&self) -> Option<Row> {
        (!self.partial.is_empty()).then(|| self.row(&self.partial))
    }

    /// Ends the block. Returns its last row, if it is not empty.
    pub(super) fn close(&mut self) -> Option<Row> {
        let row = self.partial_row();
        *self = Self::default();
        row
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const THINKING: Look = Look { style: Style::Dim, first: "| thinking: ", rest: "| " };

    fn rows(look: Look, pieces: &[&str], columns: usize) -> Vec<String> {
        let mut flow = Flow::default();
        flow.open(look);
        let mut rows: Vec<Row> = pieces.iter().flat_map(|piece| flow.push(piece, columns)).collect();
        rows.extend(flow.close());
        rows.into_iter().map(|row| row.text).collect()
    }

    #[test]
    fn rows_have_the_marks_of_their_block() {
        assert_eq!(
            rows(THINKING, &["Let me ", "see what", " there is.\n\nAha"], 20),
            ["| thinking: Let me", "| see what there is.", "| ", "| Aha"]
        );
        assert_eq!(rows(Look::default(), &["a\tb\n", "\n", "c\n"], 20), ["a    b", "", "c"]);
        assert_eq!(rows(Look::default(), &[""], 20), [""; 0]);
    }

    proptest! {
        #[test]
        fn rows_fit_and_do_not_depend_on_the_pieces(
            text in "([a-c]{1,9}| |\n|日){0,30}",
            size in 1_usize..9,
            columns in 16_usize..40,
        ) {
            let characters: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = characters.chunks(size).map(|piece| piece.iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let found = rows(THINKING, &pieces, columns);
            prop_assert!(found.iter().all(|row| columns_of(row) <= columns), "{found:?}");
            prop_assert_eq!(found, rows(THINKING, &[&text], columns));
        }
    }
}
