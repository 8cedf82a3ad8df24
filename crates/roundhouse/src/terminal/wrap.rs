//! How much room text takes on a terminal, and where its lines are broken. A character here is what a person sees
//! as one: a grapheme cluster, such as a letter with its accents or a family of emoji.

use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// What joins emoji to one.
const ZERO_WIDTH_JOINER: char = '\u{200d}';

/// The number of columns that `text`, without control characters, takes.
pub(crate) fn columns_of(text: &str) -> usize {
    text.graphemes(true).map(grapheme_columns).sum()
}

/// The number of columns of one character. Terminals differ in what they take for one: some show the persons of a
/// family, or the tone of a skin, beside each other. The most that one of them takes is counted, so that no row is
/// wider than the terminal.
pub(crate) fn grapheme_columns(grapheme: &str) -> usize {
    let alone = |character: char| character.width().unwrap_or(0);
    let part = |part: &str| part.width().max(part.chars().map(alone).sum());
    grapheme.split(ZERO_WIDTH_JOINER).map(part).sum()
}

/// The beginning of `text` that takes `columns` columns.
pub(crate) fn first_columns(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let end = text.grapheme_indices(true).find(|(_, grapheme)| {
        used += grapheme_columns(grapheme);
        used > columns
    });
    end.and_then(|(at, _)| text.get(..at)).unwrap_or(text)
}

/// The number of rows that a terminal of this width makes of `text` if it breaks it anywhere.
pub(crate) fn broken_rows(text: &str, columns: usize) -> usize {
    let (mut rows, mut used) = (1, 0);
    for grapheme in text.graphemes(true) {
        let width = grapheme_columns(grapheme);
        if used + width > columns {
            rows += 1;
            used = 0;
        }
        used += width;
    }
    rows
}

/// Breaks a line into rows of at most `columns` columns: at spaces, or beside a wide character, as in Chinese and
/// Japanese; a longer word is broken anywhere. Of the spaces at a break, the first one is left out.
///
/// Only a single character that is wider than `columns` exceeds them.
pub(crate) fn wrap(line: &str, columns: usize) -> Vec<&str> {
    let mut wrapper = Wrapper { line, columns, rows: Vec::new(), row: Row::at(0) };
    for (at, grapheme) in line.grapheme_indices(true) {
        wrapper.add(at, grapheme);
    }
    let last = line.get(wrapper.row.start..).unwrap_or_default();
    wrapper.rows.push(last);
    wrapper.rows
}

struct Wrapper<'a> {
    line: &'a str,
    columns: usize,
    rows: Vec<&'a str>,
    row: Row,
}

/// The row that is being filled. Positions are those of bytes in the line.
struct Row {
    start: usize,
    columns: usize,
    /// Whether it has more than spaces: at the spaces of an indentation, no row is broken.
    has_text: bool,
    /// The best place to break it: where it would end, and where the next one would begin.
    best_break: Option<(usize, usize)>,
}

impl Row {
    const fn at(start: usize) -> Self {
        Self { start, columns: 0, has_text: false, best_break: None }
    }
}

impl Wrapper<'_> {
    fn add(&mut self, at: usize, grapheme: &str) {
        let after = at.saturating_add(grapheme.len());
        let columns = grapheme_columns(grapheme);
        if grapheme == " " {
            if self.row.columns >= self.columns {
                self.break_row(at, after);
                return;
            }
            if self.row.has_text {
                self.row.best_break = Some((at, after));
            }
            self.row.columns += columns;
            return;
        }
        let is_wide = columns > 1;
        if is_wide && self.row.has_text {
            self.row.best_break = Some((at, at));
        }
        if self.row.columns + columns > self.columns
            && let Some((end, next)) = self.row.best_break
        {
            self.break_row(end, next);
            self.row.columns = self.line.get(next..at).map_or(0, columns_of);
            self.row.has_text = next < at;
        }
        if self.row.columns + columns > self.columns && self.row.start < at {
            self.break_row(at, at);
        }
        self.row.columns += columns;
        self.row.has_text = true;
        if is_wide {
            self.row.best_break = Some((after, after));
        }
    }

    fn break_row(&mut self, end: usize, next: usize) {
        self.rows.extend(self.line.get(self.row.start..end));
        self.row = Row::at(next);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_stay_whole_where_they_fit() {
        for (line, columns, rows) in [
            ("", 5, &[""][..]),
            ("hello world", 11, &["hello world"]),
            ("hello world", 10, &["hello", "world"]),
            ("hello world", 5, &["hello", "world"]),
            ("hello  world", 5, &["hello", " worl", "d"]),
            ("a longword", 4, &["a", "long", "word"]),
            ("    indented text", 12, &["    indented", "text"]),
            ("    indented", 6, &["    in", "dented"]),
            ("trailing ", 8, &["trailing", ""]),
            ("日本語の文", 5, &["日本", "語の", "文"]),
            ("ab 日本", 5, &["ab 日", "本"]),
            ("日本abc", 6, &["日本", "abc"]),
            ("日本", 1, &["日", "本"]),
            ("e\u{301}e\u{301}e\u{301}", 2, &["e\u{301}e\u{301}", "e\u{301}"]),
            ("👩‍👩‍👧 and 👍🏽", 10, &["👩‍👩‍👧 and", "👍🏽"]),
            ("שלום עולם", 5, &["שלום", "עולם"]),
        ] {
            assert_eq!(wrap(line, columns), rows, "{line:?} in {columns}");
        }
    }

    #[test]
    fn a_row_is_found_by_its_columns() {
        assert_eq!(first_columns("> 日本語", 4), "> 日");
        assert_eq!(first_columns("> e\u{301}x", 3), "> e\u{301}");
        assert_eq!(first_columns("ab", 9), "ab");
        let rows = |text: &str, columns| broken_rows(text, columns);
        assert_eq!([rows("", 5), rows("abcde", 5), rows("abcdef", 5), rows("日本語", 5)], [1, 1, 2, 2]);
    }

    proptest! {
        #[test]
        fn every_row_fits_and_nothing_but_spaces_at_breaks_is_left_out(
            line in "([a-c]{0,9}| {0,3}|日|e\u{301}|👍🏽|-){0,30}",
            columns in 1_usize..20,
        ) {
            let rows = wrap(&line, columns);
            for row in &rows {
                let single = row.graphemes(true).count() == 1;
                prop_assert!(columns_of(row) <= columns || single, "{row:?} in {columns}");
            }
            let words = |text: &str| text.replace(' ', "");
            prop_assert_eq!(words(&rows.concat()), words(&line));
            let left_out = line.len() - rows.concat().len();
            prop_assert!(left_out < rows.len(), "{rows:?}");
        }

        #[test]
        fn a_line_that_grows_breaks_where_the_whole_line_does(
            line in "([a-c]{0,9} {0,2}|日){0,20}",
            columns in 2_usize..20,
            size in 1_usize..7,
        ) {
            let characters: Vec<char> = line.chars().collect();
            let (mut rows, mut last) = (Vec::new(), String::new());
            for piece in characters.chunks(size) {
                last.extend(piece);
                let mut wrapped: Vec<String> = wrap(&last, columns).into_iter().map(str::to_owned).collect();
                last = wrapped.pop().unwrap();
                rows.append(&mut wrapped);
            }
            rows.push(last);
            prop_assert_eq!(rows, wrap(&line, columns));
        }
    }
}
