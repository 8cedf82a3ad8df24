use std::io;

use super::*;

#[test]
fn no_cut_splits_a_character() {
    let text = "grün 日本";
    for (max, bytes, chars) in [
        (0, "", ""),
        (2, "gr", "gr"),
        (3, "gr", "grü"),
        (4, "grü", "grün"),
        (6, "grün ", "grün 日"),
        (11, "grün 日", text),
        (12, text, text),
        (usize::MAX, text, text),
    ] {
        assert_eq!((first_bytes(text, max), first_chars(text, max)), (bytes, chars), "{max}");
    }
}

#[test]
fn only_a_cut_text_gets_an_ellipsis() {
    let shortened = |max| (shorten_to_bytes("grün", max), shorten_to_chars("grün", max));
    for (max, bytes, chars) in [(0, "…", "…"), (3, "gr…", "grü…"), (4, "grü…", "grün"), (5, "grün", "grün")]
    {
        assert_eq!(shortened(max), (bytes.to_owned(), chars.to_owned()), "{max}");
    }
}

#[test]
fn an_error_is_followed_by_its_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("outside")]
    struct Outside(#[source] io::Error);
    #[derive(Debug, thiserror::Error)]
    #[error("outside: {0}")]
    struct Repeating(#[source] io::Error);
    assert_eq!(error_chain(&Outside(io::Error::other("inside"))), "outside: inside");
    assert_eq!(error_chain(&io::Error::other("alone")), "alone");
    assert_eq!(error_chain(&Repeating(io::Error::other("inside"))), "outside: inside");
}
