//! Splits a block's text into deltas.

use crate::reply::Chunking;

/// Returns the deltas of a text in order. An empty text has none.
pub(crate) fn split(text: &str, chunking: Chunking) -> impl Iterator<Item = &str> {
    let characters = text.chars().count();
    // Both counts are at least one, so that a script with zero terminates.
    let (deltas, fixed_size) = match chunking {
        Chunking::Chars(size) => (characters.div_ceil(size.max(1)), Some(size.max(1))),
        Chunking::Deltas(count) => (count.max(1).min(characters), None),
    };
    let mut rest = text;
    (0..deltas).map(move |index| {
        let size = fixed_size.unwrap_or_else(|| share(characters, deltas, index));
        let end = rest.char_indices().nth(size).map_or(rest.len(), |(offset, _)| offset);
        let (delta, remainder) = rest.split_at(end);
        rest = remainder;
        delta
    })
}

/// The size of one of `parts` shares of `total`. The first shares take the remainder.
fn share(total: usize, parts: usize, index: usize) -> usize {
    total / parts + usize::from(index < total % parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_without_loss() {
        let cases = [
            ("", Chunking::Chars(3), vec![]),
            ("abcdefg", Chunking::Chars(3), vec!["abc", "def", "g"]),
            ("abc", Chunking::Chars(0), vec!["a", "b", "c"]),
            ("abcdefg", Chunking::Deltas(3), vec!["abc", "de", "fg"]),
            ("ab", Chunking::Deltas(5), vec!["a", "b"]),
            ("äöü€", Chunking::Deltas(2), vec!["äö", "ü€"]),
            ("ab", Chunking::Deltas(0), vec!["ab"]),
        ];
        for (text, chunking, expected) in cases {
            assert_eq!(split(text, chunking).collect::<Vec<_>>(), expected, "{text} {chunking:?}");
        }
    }
}
