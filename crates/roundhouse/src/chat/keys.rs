//! What a terminal in raw mode sends, as keys: characters, control keys, the escape sequences of arrow and editing
//! keys, and pasted text (bracketed paste).
//!
//! A byte never changes its meaning because of where a read ended: what is incomplete waits for the rest.

/// The end of pasted text.
const PASTE_END: &[u8] = b"\x1b[201~";
/// The longest escape sequence that is waited for. What is longer is no key of any terminal.
const MAX_SEQUENCE_BYTES: usize = 32;

/// A key, or pasted text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A character.
    Char(char),
    /// A part of pasted text. Its line breaks are `\n`.
    Paste(String),
    /// A byte that is not part of a character in UTF-8.
    Invalid,
    /// Sends the line.
    Enter,
    /// Begins another line: Alt-Enter, Shift-Enter where terminals tell it, Ctrl-J.
    NewLine,
    Backspace,
    Delete,
    Left,
    Right,
    Up,
    Down,
    Home,
    End,
    WordLeft,
    WordRight,
    /// Deletes the word before the cursor by Alt-Backspace.
    DeleteWord,
    /// Another control key, by its lower-case letter.
    Ctrl(char),
}

/// Decodes what the terminal sends.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    pending: Vec<u8>,
    pasting: Pasting,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pasting {
    #[default]
    No,
    Yes,
    /// The last pasted character was `\r`, so that a following `\n` belongs to the same line break.
    AfterReturn,
}

/// What is at the beginning of the pending bytes.
enum Decoded {
    /// Not enough bytes to tell.
    Incomplete,
    /// The first bytes, and the key that they are, if it has a meaning here.
    Key(usize, Option<Key>),
    PasteStart(usize),
    PasteEnd(usize),
}

impl Decoder {
    /// Adds bytes and returns the keys that are complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.pending.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let mut used = 0;
        while let Some(rest) = self.pending.get(used..).filter(|rest| !rest.is_empty()) {
            let decoded = if self.pasting == Pasting::No { decode(rest) } else { decode_pasted(rest) };
            match decoded {
                Decoded::Incomplete => break,
                Decoded::PasteStart(size) => {
                    self.pasting = Pasting::Yes;
                    used += size;
                }
                Decoded::PasteEnd(size) => {
                    self.pasting = Pasting::No;
                    used += size;
                }
                Decoded::Key(size, key) => {
                    used += size;
                    keys.extend(key.map(|key| self.with_line_breaks(key)));
                }
            }
        }
        self.pending.drain(..used);
        keys
    }

    /// Normalizes the line breaks of pasted text, of which terminals send `\r`, `\n` or both.
    fn with_line_breaks(&mut self, key: Key) -> Key {
        let Key::Paste(text) = key else { return key };
        let mut normal = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '\n' if self.pasting == Pasting::AfterReturn => {}
                '\r' => normal.push('\n'),
                other => normal.push(other),
            }
            self.pasting = if character == '\r' { Pasting::AfterReturn } else { Pasting::Yes };
        }
        Key::Paste(normal)
    }
}

fn decode(bytes: &[u8]) -> Decoded {
    match bytes {
        [0x1b, rest @ ..] => decode_escape(rest),
        [b'\r', ..] => Decoded::Key(1, Some(Key::Enter)),
        [b'\n', ..] => Decoded::Key(1, Some(Key::NewLine)),
        [b'\t', ..] => Decoded::Key(1, Some(Key::Char('\t'))),
        [0x7f | 0x08, ..] => Decoded::Key(1, Some(Key::Backspace)),
        [control @ 1..=26, ..] => Decoded::Key(1, Some(Key::Ctrl(char::from(control + b'a' - 1)))),
        [0..=0x1f, ..] => Decoded::Key(1, None),
        _ => decode_character(bytes),
    }
}

fn decode_character(bytes: &[u8]) -> Decoded {
    let beginning = bytes.get(..bytes.len().min(4)).unwrap_or_default();
    let valid = match std::str::from_utf8(beginning) {
        Ok(valid) => valid,
        Err(error) => {
            let valid = beginning.get(..error.valid_up_to()).unwrap_or_default();
            match (valid, error.error_len()) {
                ([], None) => return Decoded::Incomplete,
                ([], Some(size)) => return Decoded::Key(size, Some(Key::Invalid)),
                _ => std::str::from_utf8(valid).unwrap_or_default(),
            }
        }
    };
    match valid.chars().next() {
        // The control characters beyond ASCII have no key.
        Some(character) if character.is_control() => Decoded::Key(character.len_utf8(), None),
        Some(character) => Decoded::Key(character.len_utf8(), Some(Key::Char(character))),
        None => Decoded::Incomplete,
    }
}

/// Decodes what follows an escape character.
fn decode_escape(bytes: &[u8]) -> Decoded {
    match bytes {
        [] => Decoded::Incomplete,
        [b'[', rest @ ..] => decode_sequence(rest),
        [b'O', rest @ ..] => match rest.first() {
            None => Decoded::Incomplete,
            Some(last) => Decoded::Key(3, key_of_sequence("", *last)),
        },
        [b'\r' | b'\n', ..] => Decoded::Key(2, Some(Key::NewLine)),
        [0x7f | 0x08, ..] => Decoded::Key(2, Some(Key::DeleteWord)),
        [b'b', ..] => Decoded::Key(2, Some(Key::WordLeft)),
        [b'f', ..] => Decoded::Key(2, Some(Key::WordRight)),
        [0x20..=0x7e, ..] => Decoded::Key(2, None),
        // The escape key itself, before another key.
        _ => Decoded::Key(1, None),
    }
}

/// Decodes a control sequence after `ESC [`: parameters, and a last byte.
fn decode_sequence(bytes: &[u8]) -> Decoded {
    let end = bytes.iter().position(|byte| !(0x20..=0x3f).contains(byte));
    let Some((end, last)) = end.and_then(|end| Some((end, *bytes.get(end)?))) else {
        // What is too long is dropped as it comes.
        let is_long = bytes.len() > MAX_SEQUENCE_BYTES;
        return if is_long { Decoded::Key(bytes.len() + 2, None) } else { Decoded::Incomplete };
    };
    let parameters = bytes.get(..end).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
    let size = end + 2;
    match (parameters, last) {
        ("200", b'~') => Decoded::PasteStart(size + 1),
        (_, 0x40..=0x7e) => Decoded::Key(size + 1, key_of_sequence(parameters, last)),
        // The sequence was cut off by another key.
        _ => Decoded::Key(size, None),
    }
}

fn key_of_sequence(parameters: &str, last: u8) -> Option<Key> {
    let with_modifier = parameters.starts_with("1;") && parameters != "1;2";
    Some(match (parameters, last) {
        (_, b'A') => Key::Up,
        (_, b'B') => Key::Down,
        (_, b'C') => {
            if with_modifier {
                Key::WordRight
            } else {
                Key::Right
            }
        }
        (_, b'D') => {
            if with_modifier {
                Key::WordLeft
            } else {
                Key::Left
            }
        }
        (_, b'H') | ("1" | "7", b'~') => Key::Home,
        (_, b'F') | ("4" | "8", b'~') => Key::End,
        ("3", b'~') => Key::Delete,
        ("13;2" | "13;3", b'u') | ("27;2;13" | "27;3;13", b'~') => Key::NewLine,
        _ => return None,
    })
}

fn decode_pasted(bytes: &[u8]) -> Decoded {
    if bytes.starts_with(PASTE_END) {
        return Decoded::PasteEnd(PASTE_END.len());
    }
    if PASTE_END.starts_with(bytes) {
        return Decoded::Incomplete;
    }
    // An escape character that ends nothing is part of the text.
    let end = bytes.iter().skip(1).position(|byte| *byte == 0x1b).map_or(bytes.len(), |at| at + 1);
    let text = bytes.get(..end).unwrap_or_default();
    let valid = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            let valid = text.get(..error.valid_up_to()).unwrap_or_default();
            match (valid, error.error_len()) {
                // Only at the end of the bytes there may be more of the character.
                ([], None) if end == bytes.len() => return Decoded::Incomplete,
                ([], size) => return Decoded::Key(size.unwrap_or(text.len()), Some(Key::Invalid)),
                _ => std::str::from_utf8(valid).unwrap_or_default(),
            }
        }
    };
    Decoded::Key(valid.len(), Some(Key::Paste(valid.to_owned())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        Decoder::default().feed(bytes)
    }

    #[test]
    fn keys_of_terminals_are_known() {
        for (bytes, key) in [
            (&b"a"[..], Key::Char('a')),
            ("é".as_bytes(), Key::Char('é')),
            ("日".as_bytes(), Key::Char('日')),
            (b"\r", Key::Enter),
            (b"\n", Key::NewLine),
            (b"\x1b\r", Key::NewLine),
            (b"\x1b[13;2u", Key::NewLine),
            (b"\x7f", Key::Backspace),
            (b"\x1b[3~", Key::Delete),
            (b"\x1b[A", Key::Up),
            (b"\x1bOB", Key::Down),
            (b"\x1b[D", Key::Left),
            (b"\x1b[1;5D", Key::WordLeft),
            (b"\x1b[1;2C", Key::Right),
            (b"\x1bf", Key::WordRight),
            (b"\x1b[1~", Key::Home),
            (b"\x1b[F", Key::End),
            (b"\x1b\x7f", Key::DeleteWord),
            (b"\x03", Key::Ctrl('c')),
            (b"\xff", Key::Invalid),
        ] {
            assert_eq!(keys(bytes), [key], "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_key_is_left_out_and_the_next_key_is_read() {
        for bytes in [&b"\x1b[99;99Zx"[..], b"\x1b\x1bqx", b"\x00x", b"\x1b[12\x01x", "\u{9b}x".as_bytes()] {
            assert_eq!(keys(bytes).last(), Some(&Key::Char('x')), "{bytes:?}");
        }
    }

    #[test]
    fn pasted_text_is_text_whatever_is_in_it() {
        let pasted = |text: &str| keys(format!("\x1b[200~{text}\x1b[201~!").as_bytes());
        assert_eq!(pasted("a\rb\r\nc\nd"), [Key::Paste("a\nb\nc\nd".into()), Key::Char('!')]);
        let text: String = pasted("\x1b[A\x03q\x1b[201")
            .into_iter()
            .filter_map(|key| match key {
                Key::Paste(text) => Some(text),
                _ => None,
            })
            .collect();
        assert_eq!(text, "\x1b[A\x03q\x1b[201");
        let invalid = keys(b"\x1b[200~a\xffb\x1b[201~");
        assert_eq!(invalid, [Key::Paste("a".into()), Key::Invalid, Key::Paste("b".into())]);
    }

    /// The keys, with neighbouring pieces of pasted text joined.
    fn joined(keys: Vec<Key>) -> Vec<Key> {
        let mut joined: Vec<Key> = Vec::new();
        for key in keys {
            match (joined.last_mut(), key) {
                (Some(Key::Paste(text)), Key::Paste(more)) => text.push_str(&more),
                (_, key) => joined.push(key),
            }
        }
        joined.retain(|key| *key != Key::Paste(String::new()));
        joined
    }

    proptest! {
        #[test]
        fn where_a_read_ends_makes_no_difference(
            parts in prop::collection::vec(prop_oneof![
                Just(b"\x1b[200~".to_vec()), Just(PASTE_END.to_vec()), Just(b"\x1b[A".to_vec()),
                Just(b"\r\n".to_vec()), Just("é日👍".as_bytes().to_vec()),
                prop::collection::vec(any::<u8>(), 0..6),
            ], 0..12),
            size in 1_usize..5,
        ) {
            let bytes = parts.concat();
            let mut decoder = Decoder::default();
            let piecewise: Vec<Key> = bytes.chunks(size).flat_map(|piece| decoder.feed(piece)).collect();
            prop_assert_eq!(joined(piecewise), joined(keys(&bytes)));
        }

        #[test]
        fn text_arrives_as_it_was_typed(text in "[^\\p{Cc}]{0,40}") {
            let typed: String = keys(text.as_bytes()).into_iter().map(|key| match key {
                Key::Char(character) => character,
                other => panic!("{other:?}"),
            }).collect();
            prop_assert_eq!(typed, text);
        }

        #[test]
        fn whatever_arrives_little_is_kept(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            prop_assert!(decoder.pending.len() <= MAX_SEQUENCE_BYTES + 2, "{}", decoder.pending.len());
        }
    }
}
