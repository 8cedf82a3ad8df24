//! Words of a question are marked as they are found, in every script, at their places in the original text.

use proptest::prelude::*;

use super::*;
use crate::{Query, count_words};

fn marked<'text>(question: &str, text: &'text str) -> Vec<&'text str> {
    marked_words(&Query::parse(question).words, text).into_iter().map(|range| &text[range]).collect()
}

#[test]
fn words_are_marked_in_other_forms_and_spellings() {
    for (question, text, expected) in [
        ("house", "Two houses, one house.", vec!["houses", "house"]),
        ("haus", "Das Haus und die HÄUSER sind alt.", vec!["Haus", "HÄUSER"]),
        ("cafe", "A café\u{301} and cafe\u{301}s.", vec!["café\u{301}", "cafe\u{301}s"]),
        ("ﬁne", "It is ﬁne and ｆｉｎｅ.", vec!["ﬁne", "ｆｉｎｅ"]),
        ("foo_bar", "see foo_bar.", vec!["foo", "bar"]),
        ("北京天气", "我说北京的天气很好", vec!["北京", "天气"]),
        ("東京タワー", "昨日は東京タワーに行った", vec!["東京タワー"]),
        ("서울", "서울에서 만나요", vec!["서울에서"]),
        ("كتاب", "هذا كِتَاب جديد", vec!["كِتَاب"]),
        ("🎉", "Hooray 🎉!", vec!["🎉"]),
        ("nothing", "Everything else.", vec![]),
        ("house", "", vec![]),
    ] {
        assert_eq!(marked(question, text), expected, "{question} in {text}");
    }
}

/// A skin tone that stands alone is shown as a patch of colour.
#[test]
fn regression_e21_an_emoji_is_marked_with_its_skin_tone() {
    for (question, expected) in [("👍", "👍🏽"), ("👍🏿", "👍🏽"), ("❤", "❤\u{fe0f}"), ("👎🏽", "👎")]
    {
        assert_eq!(marked(question, "Yes 👍🏽, no 👎, love ❤\u{fe0f}."), [expected], "{question}");
    }
}

proptest! {
    #[test]
    fn marks_are_sorted_parts_of_the_text(question in "[a-zé北京 ]{0,12}", text in "[a-zA-Zé\u{301}北京に🎉ﬁ한국 .]{0,40}") {
        let words = Query::parse(&question).words;
        let marks = marked_words(&words, &text);
        let mut end = 0;
        for mark in &marks {
            prop_assert!(mark.start >= end && mark.end > mark.start && text.get(mark.clone()).is_some());
            end = mark.end;
        }
        // What is marked is what a search finds there.
        if !marks.is_empty() {
            prop_assert!(count_words(&words, &text) > 0);
        }
    }
}
