//! A snippet shows the part of a message with the most words of the question, and marks them.

use retrieval::Query;

use super::*;

fn marked(snippet: &Snippet) -> Vec<String> {
    let chars: Vec<char> = snippet.text.chars().collect();
    let part = |mark: &Match| chars[mark.start as usize..mark.end as usize].iter().collect();
    snippet.matches.iter().map(part).collect()
}

fn snippet_of(question: &str, text: &str) -> Snippet {
    let snippet = snippet(text, &Query::parse(question).words);
    assert!(snippet.text.chars().count() <= MAX_SNIPPET_CHARS);
    assert!(text.contains(&snippet.text));
    assert_eq!(snippet.cut_before, !text.starts_with(&snippet.text) && !text.is_empty());
    snippet
}

#[test]
fn a_short_message_is_shown_whole_and_of_a_long_one_the_part_with_most_words() {
    let short = snippet_of("harbour", "Where is the Harbour?");
    assert_eq!(
        (short.text.as_str(), short.cut_before, short.cut_after),
        ("Where is the Harbour?", false, false)
    );
    assert_eq!(marked(&short), ["Harbour"]);

    let filler = "Nothing of interest is here. ".repeat(30);
    let long = format!("A harbour. {filler}The green harbour has a lighthouse. {filler}");
    let found = snippet_of("green harbour lighthouse", &long);
    assert_eq!(marked(&found), ["green", "harbour", "lighthouse"]);
    assert!(found.cut_before && found.cut_after);
    assert!(!found.text.starts_with(' ') && found.text.starts_with(char::is_alphabetic), "{}", found.text);

    let at_the_end = snippet_of("lighthouse", &format!("{filler}A lighthouse"));
    assert_eq!(marked(&at_the_end), ["lighthouse"]);
    assert!(!at_the_end.cut_after && at_the_end.text.chars().count() > 200);

    let unspaced = snippet_of("灯台", &format!("{}灯台{}", "海".repeat(500), "空".repeat(500)));
    assert_eq!(marked(&unspaced), ["灯台"]);
    assert_eq!(snippet_of("x", "").matches, []);
}
