//! Plain titles and cursors of conversations.

use proptest::prelude::*;

use super::*;

#[test]
fn the_title_of_a_message_is_its_first_words() {
    let long = "Could you please tell me where the nearest harbour with a lighthouse is?";
    for (message, expected) in [
        ("Hello", Some("Hello")),
        ("  Hello,\n\tworld ", Some("Hello, world")),
        (long, Some("Could you please tell me where the nearest harbour with a…")),
        ("", None),
        (" \n", None),
    ] {
        assert_eq!(plain_title(message).as_deref(), expected, "{message:?}");
    }
    assert_eq!(plain_title(&"x".repeat(100)), Some(format!("{}…", "x".repeat(60))));
    assert_eq!(plain_title(&"é".repeat(60)), Some("é".repeat(60)));
}

proptest! {
    #[test]
    fn a_plain_title_is_one_short_line(message in "[ \\na-z北🎉]{0,150}") {
        match plain_title(&message) {
            None => prop_assert!(message.trim().is_empty()),
            Some(title) => {
                prop_assert!(title.chars().count() <= MAX_PLAIN_TITLE_CHARS + 1);
                prop_assert!(!title.contains('\n') && title.trim() == title && !title.is_empty());
            }
        }
    }

    #[test]
    fn a_cursor_reads_back(updated_at in any::<i64>(), task in 0..i64::MAX) {
        let cursor = ConversationCursor { updated_at: updated_at.max(0), task };
        prop_assert_eq!(ConversationCursor::parse(&cursor.encode()), Some(cursor));
    }
}

#[test]
fn what_is_no_cursor_is_refused() {
    for text in ["", "-", "7", "a-7", "7-a", "7--x", "99999999999999999999-1"] {
        assert_eq!(ConversationCursor::parse(text), None, "{text}");
    }
}
