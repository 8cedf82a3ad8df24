use pretty_assertions::assert_eq;

use super::*;

fn page(url: &str) -> CitablePage {
    CitablePage { url: url.into(), title: format!("Title of {url}"), at: 0 }
}

fn outcome(output: &str, error: Option<&str>) -> ToolOutcome {
    ToolOutcome::new(output.into(), error.map(str::to_owned), 0)
}

/// Numbers pages and shows them all. Returns their numbers.
fn show(pages: &mut CitablePages, urls: &[&str]) -> Vec<Option<u32>> {
    let found: Vec<_> = urls.iter().map(|url| page(url)).collect();
    let (numbers, new) = pages.number(&found);
    let call_id = CallId::new();
    pages.announce(call_id, &new);
    let output = new.iter().map(|page| format!("[{}] ", page.n)).collect::<Vec<_>>().concat();
    pages.settle(call_id, &outcome(&output, None));
    numbers
}

#[test]
fn a_page_keeps_its_number_and_no_number_is_used_twice() {
    let mut pages = CitablePages::default();
    assert_eq!(show(&mut pages, &["a", "b", "a"]), [Some(1), Some(2), Some(1)]);
    assert_eq!(show(&mut pages, &["c", "b", "d"]), [Some(3), Some(2), Some(4)]);
    assert_eq!(pages.get(3).unwrap().url, "c");
    assert_eq!(pages.get(4).unwrap().title.as_deref(), Some("Title of d"));
    assert_eq!((pages.get(0), pages.get(5)), (None, None));
    let stored = serde_json::to_string(&pages).unwrap();
    let restored: CitablePages = serde_json::from_str(&stored).unwrap();
    assert_eq!(restored, pages);
}

#[test]
fn only_what_the_agent_was_shown_can_be_cited() {
    let mut pages = CitablePages::default();
    let (first, second) = (CallId::new(), CallId::new());
    let (_, new) = pages.number(&[page("a"), page("b")]);
    pages.announce(first, &new);
    // The result of the other call comes before the hooks have seen the first one.
    let (numbers, other) = pages.number(&[page("c")]);
    assert_eq!(numbers, [Some(3)]);
    pages.announce(second, &other);
    assert_eq!(pages.get(1), None);
    pages.settle(second, &outcome("[3] c, not [1]", None));
    assert_eq!((pages.get(1), pages.get(3).is_some()), (None, true));
    // A hook has replaced the text of one page.
    pages.settle(first, &outcome("***\n[2] b", None));
    assert_eq!((pages.get(1), pages.get(2).is_some()), (None, true));

    let withheld = CallId::new();
    let (_, new) = pages.number(&[page("d")]);
    pages.announce(withheld, &new);
    pages.settle(withheld, &outcome("[4] d", Some("withheld")));
    assert_eq!(pages.get(4), None);
    assert_eq!(show(&mut pages, &["e", "d"]), [Some(5), Some(4)], "a later result may show it");
    assert!(pages.get(4).is_some());
}

#[test]
fn a_task_has_no_more_than_its_limit() {
    let mut pages = CitablePages::default();
    let urls: Vec<String> = (0..MAX_PAGES + 5).map(|n| n.to_string()).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let numbers = show(&mut pages, &urls);
    assert_eq!(numbers.iter().flatten().count(), MAX_PAGES);
    assert_eq!(show(&mut pages, &["new", "7"]), [None, Some(8)]);
}
