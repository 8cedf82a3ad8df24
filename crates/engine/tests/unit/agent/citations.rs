use api::CallId;
use llm::ToolOutcome;
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use tools::CitablePage;

use super::*;

/// The pages 1 to `count`, all of them shown.
fn citable_pages(count: u32) -> CitablePages {
    let mut pages = CitablePages::default();
    let found: Vec<_> = (1..=count)
        .map(|n| CitablePage { url: format!("https://a.example/{n}"), title: String::new(), at: 0 })
        .collect();
    let (_, new) = pages.number(&found);
    let call_id = CallId::new();
    pages.announce(call_id, &new);
    let output = (1..=count).map(|n| format!("[{n}]")).collect::<Vec<_>>().concat();
    pages.settle(call_id, &ToolOutcome::new(output, None, 0));
    pages
}

/// The numbers and parts of a text that are citations of ten pages.
fn cited(text: &str) -> Vec<(u32, Vec<String>)> {
    let characters: Vec<char> = text.chars().collect();
    let part = |range: &TextRange| characters[range.start as usize..range.end as usize].iter().collect();
    let citations = of_answer(text, &citable_pages(10));
    citations.iter().map(|citation| (citation.n, citation.ranges.iter().map(part).collect())).collect()
}

/// The numbers that a text cites.
fn numbers(text: &str) -> Vec<u32> {
    cited(text).into_iter().map(|(n, _)| n).collect()
}

#[test]
fn marks_become_citations_in_the_order_of_the_text() {
    let text = "Öl ist teuer [2]. Gas auch[1][3] – und Öl [2] sowieso [1, 3,4].";
    let expected = [
        (2, vec!["[2]", "[2]"]),
        (1, vec!["[1]", "[1, 3,4]"]),
        (3, vec!["[3]", "[1, 3,4]"]),
        (4, vec!["[1, 3,4]"]),
    ];
    assert_eq!(cited(text), expected.map(|(n, parts)| (n, parts.into_iter().map(str::to_owned).collect())));
    let first = &of_answer(text, &citable_pages(10))[0];
    assert_eq!((first.url.as_str(), &first.title), ("https://a.example/2", &None));
    assert_eq!(first.ranges[0], TextRange { start: 13, end: 16 }, "in code points, not bytes");
    assert_eq!(cited("[5, 5]"), [(5, vec!["[5, 5]".to_owned()])]);
}

#[test]
fn a_number_that_names_no_page_is_text() {
    for text in [
        "[11]",
        "[0]",
        "[01]",
        "[1000000]",
        "[-1]",
        "[1.5]",
        "[^1]",
        "[a]",
        "[]",
        "[",
        "[1",
        "[1,]",
        "[1;2]",
        "1]",
    ] {
        assert_eq!(numbers(text), [0; 0], "{text}");
    }
    assert_eq!(cited("see [11, 2]"), [(2, vec!["[11, 2]".to_owned()])]);
    assert_eq!(of_answer("[1]", &CitablePages::default()), []);
}

#[test]
fn links_code_and_escapes_are_text() {
    for text in [
        "[1](https://evil.example)",
        "[[1]](https://evil.example)",
        r"\[1]",
        "`a[1]`",
        "``a`[1]``",
        "```\na[1]\n```",
        "  ~~~rust\na[1]\n\n[2]\n  ~~~~\n",
        "````\n```\n[1]\n````",
        "```\nnever closed [1]",
    ] {
        assert_eq!(numbers(text), [0; 0], "{text}");
    }
    for text in [
        "```\na[2]\n```\nSo [1].",
        "a `b` [1]",
        "one ` backtick [1]",
        "one ` backtick [1]\n \nand another ` one",
        "``` [1]",
        "~~[1]~~",
        r"\\[1]",
        "[1]: https://a.example",
        "[x][1]",
        "([1])",
        "**[1]**",
        "``` inline ``` [1]",
    ] {
        let expected: &[u32] = if text == "``` [1]" { &[] } else { &[1] };
        assert_eq!(numbers(text), expected, "{text}");
    }
}

#[test]
fn many_marks_are_bounded() {
    let text = "[1]".repeat(MAX_MARKS + 10);
    assert_eq!(cited(&text)[0].1.len(), MAX_MARKS);
    let list = format!("[{}]", vec!["1"; MAX_NUMBERS + 1].join(","));
    assert_eq!(numbers(&list), [0; 0]);
    // Linear, also for what looks like code that never ends.
    let ticks = (1..600).map(|n| "`".repeat(n)).collect::<Vec<_>>().join(" ");
    assert_eq!(numbers(&format!("{ticks} [1]")), [1]);
}

/// A part of an answer, and the numbers that it cites.
fn part() -> impl Strategy<Value = (String, Vec<u32>)> {
    prop_oneof![
        "[a-zäöü.,\u{4e00}-\u{4e10}😀]{0,12} ".prop_map(|text| (text, vec![])),
        (1_u32..=20).prop_map(|n| (format!("[{n}] "), vec![n])),
        (1_u32..=20, 1_u32..=20).prop_map(|(a, b)| (format!("[{a}, {b}] "), vec![a, b])),
        (1_u32..=20).prop_map(|n| (format!("`x[{n}]` "), vec![])),
        (1_u32..=20).prop_map(|n| (format!("[{n}](https://a.example) "), vec![])),
        (1_u32..=20).prop_map(|n| (format!("\n```\nx[{n}]\n```\n"), vec![])),
    ]
}

proptest! {
    #[test]
    fn all_marks_are_found_and_nothing_else(parts in proptest::collection::vec(part(), 0..30)) {
        let text: String = parts.iter().map(|(text, _)| text.as_str()).collect();
        let mut expected: Vec<u32> = Vec::new();
        for n in parts.iter().flat_map(|(_, numbers)| numbers).filter(|n| **n <= 10) {
            if !expected.contains(n) {
                expected.push(*n);
            }
        }
        prop_assert_eq!(numbers(&text), expected, "{}", text);
    }

    #[test]
    fn every_range_is_a_mark_of_its_page(text in "([\\[\\]0-9,` \\n\\\\~(öa]|\\PC){0,80}") {
        let characters: Vec<char> = text.chars().collect();
        for citation in of_answer(&text, &citable_pages(10)) {
            prop_assert!((1..=10).contains(&citation.n));
            let mut end = 0;
            for range in citation.ranges {
                prop_assert!(range.start >= end, "in order, without overlaps");
                end = range.end;
                let mark: String = characters[range.start as usize..range.end as usize].iter().collect();
                let inner = mark.strip_prefix('[').and_then(|mark| mark.strip_suffix(']')).unwrap();
                prop_assert!(inner.split(',').any(|n| n.trim() == citation.n.to_string()), "{}", mark);
            }
        }
    }
}
