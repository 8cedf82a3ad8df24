//! A title is made of a model's answer.

use llm::{Block, FinishReason, TokenUsage};
use proptest::prelude::*;

use super::*;

fn title(text: &str) -> Option<String> {
    let blocks = vec![Block::Text { text: text.into(), signature: None }];
    title_of(&Answer { blocks, usage: TokenUsage::default(), stop: FinishReason::default() })
}

#[test]
fn a_title_is_the_first_line_without_quotation_marks() {
    for (text, expected) in [
        ("Green harbours", Some("Green harbours")),
        ("\n \"Green  harbours\"\nBecause it is about them.", Some("Green harbours")),
        ("„Grüne Häfen“", Some("Grüne Häfen")),
        ("**绿色港口**", Some("绿色港口")),
        ("\"\"", None),
        (" \n", None),
    ] {
        assert_eq!(title(text).as_deref(), expected, "{text:?}");
    }
}

proptest! {
    #[test]
    fn any_answer_gives_a_valid_title_or_none(text in any::<String>()) {
        if let Some(title) = title(&text) {
            prop_assert!(crate::agent::conversations::parse_title(&title).is_ok_and(|parsed| parsed == title));
        }
    }
}
