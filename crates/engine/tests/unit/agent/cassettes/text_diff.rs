use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The parts, those that are deleted and inserted marked.
fn shown(old: &str, new: &str) -> String {
    let parts = compare(old, new).parts.into_iter().map(|part| match part.op {
        DiffOp::Equal => part.text,
        DiffOp::Delete => format!("[-{}-]", part.text),
        DiffOp::Insert => format!("{{+{}+}}", part.text),
    });
    parts.collect()
}

/// The text on one side of a comparison.
fn side(comparison: &Comparison, left_out: DiffOp) -> String {
    comparison.parts.iter().filter(|part| part.op != left_out).map(|part| part.text.as_str()).collect()
}

#[test]
fn words_that_differ_are_marked() {
    assert_eq!(shown("The red house.", "The green house."), "The [-red-]{+green+} house.");
    assert_eq!(shown("a b", "a b"), "");
    assert_eq!(shown("", "new"), "{+new+}");
    assert_eq!(shown("café früh", "café spät"), "café [-früh-]{+spät+}");
    assert_eq!(shown("東京は晴れ", "東京は雨"), "東京は[-晴れ-]{+雨+}");
}

#[test]
fn similarity_counts_the_words_that_both_have() {
    let similarity = |old, new| json!(compare(old, new).similarity);
    assert_eq!(similarity("one two three four", "one two three five"), json!(0.75));
    assert_eq!(
        [similarity("", ""), similarity("", "x"), similarity("x", "y")],
        [1.0, 0.0, 0.0].map(|share| json!(share))
    );
    assert_eq!(similarity("私は猫が好き", "私は犬が好き"), json!(0.8333));
    assert_eq!(similarity("one  two", "one two"), json!(1.0));
}

#[test]
fn texts_without_end_are_compared_in_bounded_effort() {
    let (old, new): (Vec<_>, Vec<_>) =
        (0..60_000).map(|n| (format!("a{n}"), format!("a{}", n + 30_000))).unzip();
    let (old, new) = (format!("same {}", old.join(" ")), format!("same {}", new.join(" ")));
    let compared = compare(&old, &new);
    assert_eq!(json!(compared.similarity), json!(0.5));
    assert_eq!((side(&compared, DiffOp::Insert), side(&compared, DiffOp::Delete)), (old, new));
}

#[test]
fn a_text_is_split_into_a_bounded_number_of_words() {
    let signs = "!?".repeat(MAX_WORDS);
    let split = words(&signs);
    assert_eq!((split.len(), split.concat() == signs), (MAX_WORDS + 1, true));
    let compared = compare(&signs, &format!("{signs}!"));
    assert_eq!((compared.parts.len(), compared.similarity > 0.9), (3, true));
}

proptest! {
    #[test]
    fn a_comparison_holds_both_texts(old in "[ab語 é.\n]{0,40}", new in "[ab語 é.\n]{0,40}") {
        let compared = compare(&old, &new);
        prop_assert!((0.0..=1.0).contains(&compared.similarity));
        if old == new {
            prop_assert_eq!(compared, Comparison { similarity: 1.0, parts: Vec::new() });
        } else {
            prop_assert_eq!(side(&compared, DiffOp::Insert), old.clone());
            prop_assert_eq!(side(&compared, DiffOp::Delete), new.clone());
        }
    }

    #[test]
    fn any_text_can_be_compared(old in "\\PC{0,60}", new in "\\PC{0,60}") {
        let compared = compare(&old, &new);
        if old != new {
            prop_assert_eq!(side(&compared, DiffOp::Insert), old);
            prop_assert_eq!(side(&compared, DiffOp::Delete), new);
        }
    }
}
