//! Any text is a query, and what it looks for is found in whatever form.

use proptest::prelude::*;

use super::*;

#[test]
fn stop_words_are_in_the_order_in_which_they_are_searched() {
    assert!(STOP_WORDS.is_sorted() && ENDINGS.is_sorted());
}

#[test]
fn what_says_nothing_is_left_out_and_names_are_known() {
    let terms = Terms::of("Where does Anna deploy the API on 2026-03-01? Does anna deploy?");
    let seen: Vec<_> = terms.0.iter().map(|term| (term.word.as_str(), term.is_name)).collect();
    let wanted =
        [("anna", true), ("deploy", false), ("api", true), ("2026", true), ("03", true), ("01", true)];
    assert_eq!(seen, wanted);
    assert_eq!(terms.expressions()[..2], [(r#""anna""#.to_owned(), true), (r#""deploy""#.to_owned(), false)]);
    assert!(Terms::of("What is it that you do?").is_empty());
}

#[test]
fn words_are_found_in_other_forms_and_not_in_other_words() {
    let terms = Terms::of("deployments cost Anna");
    let found = terms.coverage("ANNA: deployment costs");
    assert_eq!((found.words(), found.names()), (3, 1));
    assert_eq!(terms.coverage("Annals of a costume party, deplorable"), Coverage::default());
    let (deploys, costs) = (terms.coverage("he deployed"), terms.coverage("a cost"));
    assert_eq!(((deploys | costs).words(), (deploys | deploys).words()), (2, 1));
}

#[test]
fn a_text_is_worth_showing_with_half_of_the_words_or_a_name_and_another() {
    let terms = Terms::of("weather near Paris today, what clothes, umbrella or boots");
    let relevant = |text: &str| terms.is_relevant(terms.coverage(text));
    assert!(relevant("The weather needs boots and an umbrella."));
    assert!(relevant("Paris weather."));
    assert!(!relevant("Paris."));
    assert!(!relevant("The weather and boots."));
    let teapot = Terms::of("teapot");
    assert!(teapot.is_relevant(teapot.coverage("Two teapots.")));
    assert!(!teapot.is_relevant(Coverage::default()));
}

proptest! {
    #[test]
    fn any_text_is_a_query(text in any::<String>()) {
        let terms = Terms::of(&text);
        prop_assert!(terms.0.len() <= MAX_TERMS);
        prop_assert_eq!(usize::try_from(terms.coverage(&text).words()).unwrap(), terms.0.len());
        prop_assert!(terms.is_empty() || terms.is_relevant(terms.coverage(&text)));
        let index = rusqlite::Connection::open_in_memory().unwrap();
        index.execute_batch("CREATE VIRTUAL TABLE t USING fts5 (c)").unwrap();
        index.execute("INSERT INTO t VALUES (?1)", [&text]).unwrap();
        for (expression, _) in terms.expressions() {
            let found = index.query_row("SELECT COUNT(*) FROM t WHERE t MATCH ?1", [expression], |row| row.get::<_, i64>(0));
            prop_assert!(found.is_ok(), "{:?}", found);
        }
    }
}
