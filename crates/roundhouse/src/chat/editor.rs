//! The message that is being written: a text of any number of lines, a cursor, and the messages before it.

use unicode_segmentation::UnicodeSegmentation as _;

use super::history::History;
use super::keys::Key;
use crate::terminal::escape_hidden_characters;
use crate::terminal::wrap::{columns_of, grapheme_columns};

/// The longest text that can be written: more than anybody writes, less than an engine refuses.
const MAX_TEXT_BYTES: usize = 4 * 1024 * 1024;
/// What a tab is shown as.
const TAB: &str = "    ";

/// What a key has led to, beyond a change of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    /// Nothing.
    None,
    /// The text was finished. The editor is empty again.
    Submitted(String),
    /// Ctrl-C. The text, if there was any, is gone.
    Interrupted {
        /// Whether there was a text.
        had_text: bool,
    },
    /// Ctrl-D on an empty text.
    EndOfInput,
    /// Ctrl-Z.
    Suspended,
    /// Ctrl-L.
    Redraw,
    /// A byte that is not UTF-8 became a replacement character.
    Replaced,
    /// Something was not added, because the text would become too long.
    TooLong,
}

/// The editor.
#[derive(Debug, Default)]
pub(super) struct Editor {
    text: String,
    /// The cursor, in bytes; always between two characters.
    cursor: usize,
    /// The text that was deleted last by Ctrl-K, Ctrl-U or Ctrl-W.
    killed: String,
    pub(super) history: History,
    /// The entry of the history that is shown, and the text that was there before.
    browsing: Option<(usize, String)>,
}

/// The editor's text as rows of a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EditorRows {
    pub(super) rows: Vec<String>,
    /// Row and column of the cursor.
    pub(super) cursor: (usize, usize),
}

impl Editor {
    /// Replaces the text; the cursor is at its end.
    pub(super) fn set_text(&mut self, text: String) {
        self.cursor = text.len();
        self.text = text;
        self.browsing = None;
    }

    /// Takes the text away.
    pub(super) fn take_text(&mut self) -> String {
        self.cursor = 0;
        self.browsing = None;
        std::mem::take(&mut self.text)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Applies a key.
    pub(super) fn apply(&mut self, key: Key) -> Edit {
        match key {
            Key::Char(character) => return self.insert(character.encode_utf8(&mut [0; 4])),
            Key::Paste(text) => return self.insert(&text),
            Key::Invalid => {
                return match self.insert("\u{fffd}") {
                    Edit::None => Edit::Replaced,
                    edit => edit,
                };
            }
            Key::NewLine => return self.insert("\n"),
            Key::Enter => return self.enter(),
            Key::Left | Key::Ctrl('b') => self.cursor = self.before(),
            Key::Right | Key::Ctrl('f') => self.cursor = self.after(),
            Key::WordLeft => self.cursor = self.word_before(),
            Key::WordRight => self.cursor = self.word_after(),
            Key::Home | Key::Ctrl('a') => self.cursor = self.line_start(),
            Key::End | Key::Ctrl('e') => self.cursor = self.line_end(),
            Key::Up => self.up(),
            Key::Down => self.down(),
            Key::Ctrl('p') => self.browse_back(),
            Key::Ctrl('n') => self.browse_forward(),
            Key::Backspace => drop(self.delete(self.before(), self.cursor)),
            Key::DeleteWord | Key::Ctrl('w') => self.kill(self.word_before(), self.cursor),
            Key::Ctrl('u') => self.kill(self.line_start(), self.cursor),
            Key::Ctrl('k') => {
                // At the end of a line, its line break.
                let end = if self.cursor == self.line_end() { self.after() } else { self.line_end() };
                self.kill(self.cursor, end);
            }
            Key::Ctrl('y') => {
                let killed = std::mem::take(&mut self.killed);
                let edit = self.insert(&killed);
                self.killed = killed;
                return edit;
            }
            Key::Ctrl('c') => return Edit::Interrupted { had_text: !self.take_text().is_empty() },
            Key::Ctrl('d') if self.is_empty() => return Edit::EndOfInput,
            Key::Delete | Key::Ctrl('d') => drop(self.delete(self.cursor, self.after())),
            Key::Ctrl('z') => return Edit::Suspended,
            Key::Ctrl('l') => return Edit::Redraw,
            Key::Ctrl(_) => {}
        }
        Edit::None
    }

    /// A backslash at the end of a line continues it, for terminals that have no other key for that.
    fn enter(&mut self) -> Edit {
        if self.cursor == self.text.len() && self.text.ends_with('\\') {
            self.text.pop();
            self.cursor = self.text.len();
            return self.insert("\n");
        }
        Edit::Submitted(self.take_text())
    }

    fn insert(&mut self, text: &str) -> Edit {
        if self.text.len() + text.len() > MAX_TEXT_BYTES {
            return Edit::TooLong;
        }
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
        // A combining character joins the one before it.
        self.cursor = self.boundary_at_or_after(self.cursor);
        Edit::None
    }

    fn delete(&mut self, start: usize, end: usize) -> String {
        let deleted: String = self.text.drain(start..end).collect();
        self.cursor = self.boundary_at_or_after(start);
        deleted
    }

    fn kill(&mut self, start: usize, end: usize) {
        if start < end {
            self.killed = self.delete(start, end);
        }
    }

    /// The next boundary between characters, as a person sees them. Only the characters around are looked at.
    fn boundary_at_or_after(&self, at: usize) -> usize {
        let start = self.line_start_of(at);
        let mut boundaries = self.text.get(start..).unwrap_or_default().grapheme_indices(true);
        boundaries
            .find(|(offset, _)| start + offset >= at)
            .map_or(self.text.len(), |(offset, _)| start + offset)
    }

    fn text_before(&self) -> &str {
        self.text.get(..self.cursor).unwrap_or_default()
    }

    fn text_after(&self) -> &str {
        self.text.get(self.cursor..).unwrap_or_default()
    }

    fn before(&self) -> usize {
        self.text_before().grapheme_indices(true).next_back().map_or(0, |(at, _)| at)
    }

    fn after(&self) -> usize {
        self.cursor + self.text_after().graphemes(true).next().map_or(0, str::len)
    }

    fn word_before(&self) -> usize {
        let mut words = self.text_before().unicode_word_indices();
        words.next_back().map_or(0, |(at, _)| at)
    }

    fn word_after(&self) -> usize {
        let end = |(at, word): (usize, &str)| self.cursor + at + word.len();
        self.text_after().unicode_word_indices().next().map_or(self.text.len(), end)
    }

    fn line_start_of(&self, at: usize) -> usize {
        self.text.get(..at).and_then(|text| text.rfind('\n')).map_or(0, |line_break| line_break + 1)
    }

    fn line_start(&self) -> usize {
        self.line_start_of(self.cursor)
    }

    fn line_end(&self) -> usize {
        self.text_after().find('\n').map_or(self.text.len(), |at| self.cursor + at)
    }

    /// Moves to the line above, or to the message before.
    fn up(&mut self) {
        match self.line_start().checked_sub(1) {
            Some(end_above) => self.move_to_line(self.line_start_of(end_above), end_above),
            None => self.browse_back(),
        }
    }

    /// Moves to the line below, or to the message after.
    fn down(&mut self) {
        let start_below = self.line_end() + 1;
        match self.text.get(start_below..) {
            Some(below) => {
                let end = below.find('\n').map_or(self.text.len(), |at| start_below + at);
                self.move_to_line(start_below, end);
            }
            None => self.browse_forward(),
        }
    }

    /// Moves to the same column of another line.
    fn move_to_line(&mut self, start: usize, end: usize) {
        let column = columns_of(self.text.get(self.line_start()..self.cursor).unwrap_or_default());
        let mut columns = 0;
        let line = self.text.get(start..end).unwrap_or_default();
        let reached = line.grapheme_indices(true).find(|(_, grapheme)| {
            columns += grapheme_columns(grapheme);
            columns > column
        });
        self.cursor = reached.map_or(end, |(at, _)| start + at);
    }

    fn browse_back(&mut self) {
        let newest = self.history.len();
        let shown = self.browsing.as_ref().map_or(newest, |(shown, _)| *shown);
        let Some(entry) = shown.checked_sub(1).and_then(|index| self.history.get(index)).map(str::to_owned)
        else {
            return;
        };
        let draft = self.browsing.take().map_or_else(|| self.text.clone(), |(_, draft)| draft);
        self.set_text(entry);
        self.browsing = Some((shown - 1, draft));
    }

    fn browse_forward(&mut self) {
        let Some((shown, draft)) = self.browsing.take() else { return };
        match self.history.get(shown + 1).map(str::to_owned) {
            Some(entry) => {
                self.set_text(entry);
                self.browsing = Some((shown + 1, draft));
            }
            None => self.set_text(draft),
        }
    }

    /// The rows of the text behind `prompt`, each at most `columns` columns wide.
    pub(super) fn rows(&self, prompt: &str, columns: usize) -> EditorRows {
        let indent = " ".repeat(columns_of(prompt));
        let mut rows = vec![prompt.to_owned()];
        let (mut column, mut cursor) = (indent.len(), None);
        for (at, grapheme) in self.text.grapheme_indices(true) {
            if grapheme == "\n" {
                // A character may be wider than the terminal.
                cursor = cursor.or((at == self.cursor).then(|| (rows.len() - 1, column.min(columns))));
                rows.push(indent.clone());
                column = indent.len();
                continue;
            }
            for (number, piece) in shown_grapheme(grapheme).graphemes(true).enumerate() {
                let width = grapheme_columns(piece);
                if column + width > columns && column > indent.len() {
                    rows.push(indent.clone());
                    column = indent.len();
                }
                cursor = cursor.or((number == 0 && at == self.cursor).then(|| (rows.len() - 1, column)));
                if let Some(row) = rows.last_mut() {
                    row.push_str(piece);
                }
                column += width;
            }
        }
        EditorRows { cursor: cursor.unwrap_or((rows.len() - 1, column.min(columns))), rows }
    }
}

/// How a character of the text is shown: what could drive the terminal, or hide, is escaped.
fn shown_grapheme(grapheme: &str) -> std::borrow::Cow<'_, str> {
    match grapheme {
        "\t" => TAB.into(),
        plain if plain.bytes().all(|byte| (0x20..0x7f).contains(&byte)) => plain.into(),
        other => escape_hidden_characters(other).replace('\n', " ").into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn editor(text: &str) -> Editor {
        let mut editor = Editor::default();
        editor.set_text(text.into());
        editor
    }

    fn press(editor: &mut Editor, keys: &[Key]) {
        for key in keys {
            editor.apply(key.clone());
        }
    }

    #[test]
    fn characters_are_what_a_person_sees_as_one() {
        let mut editor = editor("ae\u{301}👩‍👩‍👧日");
        press(&mut editor, &[Key::Left, Key::Backspace]);
        assert_eq!((editor.text.as_str(), editor.cursor), ("ae\u{301}日", 4));
        press(&mut editor, &[Key::Backspace, Key::Delete, Key::Char('!')]);
        assert_eq!(editor.text, "a!");
    }

    #[test]
    fn words_and_lines_are_deleted_and_come_back() {
        let mut editor = editor("one two\nthree four");
        press(&mut editor, &[Key::Ctrl('w')]);
        assert_eq!(editor.text, "one two\nthree ");
        press(&mut editor, &[Key::Ctrl('y'), Key::Ctrl('u')]);
        assert_eq!(editor.text, "one two\n");
        press(&mut editor, &[Key::Ctrl('y'), Key::Up, Key::Home, Key::WordRight, Key::Ctrl('k')]);
        assert_eq!(editor.text, "one\nthree four");
        press(&mut editor, &[Key::Ctrl('k'), Key::End]);
        assert_eq!((editor.text.as_str(), editor.cursor), ("onethree four", 13));
    }

    #[test]
    fn a_message_has_as_many_lines_as_wanted() {
        let mut editor = editor("one\\");
        assert_eq!(editor.apply(Key::Enter), Edit::None);
        press(&mut editor, &[Key::Paste("two\nthree".into()), Key::NewLine, Key::Char('4')]);
        assert_eq!(editor.apply(Key::Enter), Edit::Submitted("one\ntwo\nthree\n4".into()));
        assert!(editor.is_empty());
    }

    #[test]
    fn arrow_keys_go_through_lines_and_then_through_the_history() {
        let mut editor = Editor::default();
        editor.history.add("first");
        editor.history.add("second\nline");
        press(&mut editor, &[Key::Char('d'), Key::Up]);
        assert_eq!(editor.text, "second\nline");
        press(&mut editor, &[Key::Up, Key::Up]);
        assert_eq!(editor.text, "first", "the first up goes to the line above");
        press(&mut editor, &[Key::Up]);
        assert_eq!(editor.text, "first");
        press(&mut editor, &[Key::Down, Key::Down]);
        assert_eq!(editor.text, "d");
        let rows = super::Editor { text: "日本\nab".into(), cursor: 6, ..Editor::default() };
        let mut moved = rows;
        press(&mut moved, &[Key::Down]);
        assert_eq!(moved.cursor, 9, "columns, not characters");
    }

    #[test]
    fn keys_that_end_something_say_so() {
        let mut editor = editor("text");
        assert_eq!(editor.apply(Key::Ctrl('c')), Edit::Interrupted { had_text: true });
        assert_eq!(editor.apply(Key::Ctrl('c')), Edit::Interrupted { had_text: false });
        assert_eq!(editor.apply(Key::Ctrl('d')), Edit::EndOfInput);
        assert_eq!(editor.apply(Key::Invalid), Edit::Replaced);
        assert_eq!(editor.apply(Key::Ctrl('a')), Edit::None);
        assert_eq!(editor.apply(Key::Ctrl('d')), Edit::None);
        assert!(editor.is_empty());
        assert_eq!(editor.apply(Key::Paste("x".repeat(MAX_TEXT_BYTES + 1))), Edit::TooLong);
    }

    #[test]
    fn long_lines_continue_below_the_prompt() {
        let rows = |text: &str, cursor: usize| {
            Editor { text: text.into(), cursor, ..Editor::default() }.rows("> ", 6)
        };
        let found = rows("abcdef", 6);
        assert_eq!((found.rows, found.cursor), (vec!["> abcd".into(), "  ef".into()], (1, 4)));
        assert_eq!(rows("abcd", 4).cursor, (0, 6));
        assert_eq!(rows("abcdef", 4).cursor, (1, 2));
        assert_eq!(rows("a\n日本語", 2).rows, ["> a", "  日本", "  語"]);
        assert_eq!(rows("\u{1b}[2J", 0).rows.concat().replace(' ', ""), ">\\u{1b}[2J");
        assert_eq!(rows("\u{202e}", 0).rows.concat().replace(' ', ""), ">\\u{202e}");
    }

    fn any_key() -> impl Strategy<Value = Key> {
        prop_oneof![
            any::<char>().prop_map(Key::Char),
            "(\\PC|\n|\t|e\u{301}|👍🏽){0,8}".prop_map(Key::Paste),
            prop::sample::select(vec![
                Key::Left,
                Key::Right,
                Key::Up,
                Key::Down,
                Key::Home,
                Key::End,
                Key::Backspace,
                Key::Delete,
                Key::WordLeft,
                Key::WordRight,
                Key::DeleteWord,
                Key::NewLine,
                Key::Invalid,
                Key::Enter,
            ]),
            prop::sample::select(vec!['a', 'd', 'e', 'k', 'n', 'p', 'u', 'w', 'y', 'x']).prop_map(Key::Ctrl),
        ]
    }

    proptest! {
        #[test]
        fn the_cursor_is_always_between_characters_and_its_row_is_shown(
            keys in prop::collection::vec(any_key(), 0..40),
            columns in 4_usize..30,
        ) {
            let mut editor = Editor::default();
            for key in keys {
                if let Edit::Submitted(text) = editor.apply(key) {
                    editor.history.add(&text);
                }
                prop_assert!(editor.text.is_char_boundary(editor.cursor));
                let rows = editor.rows("> ", columns);
                let (row, column) = rows.cursor;
                prop_assert!(row < rows.rows.len() && column <= columns, "{rows:?}");
                prop_assert!(rows.rows.iter().all(|row| !row.chars().any(char::is_control)), "{rows:?}");
            }
        }
    }
}
