//! Any text is a valid query, and its terms are found in any inflection.

use proptest::prelude::*;

use super::*;

#[test]
fn stop_words_are_in_the_order_in_which_they_are_searched() {
    assert!(STOP_WORDS.is_sorted() && INFLECTION_SUFFIXES.is_sorted());
}

#[test]
fn what_says_nothing_is_left_out_and_names_are_known() {
    let terms = QueryTerms::parse(
        "Where does Anna deploy the API on 2026-03-01? Does anna deploy? Ask Otto Berg-Lund, Ida.",
    );
    let words: Vec<_> = terms.words.iter().map(|term| term.word.as_str()).collect();
    assert_eq!(words, ["anna", "deploy", "api", "ask", "otto", "berg", "lund", "ida"]);
    assert_eq!(terms.names().collect::<Vec<_>>(), [vec![0], vec![2], vec![4, 5, 6], vec![7]]);
    assert_eq!(terms.match_expressions()[..2], [r#""anna""#, r#""deploy""#]);
    assert!(terms.days_expression().unwrap().contains(r#""2026 03 01""#));
    assert!(terms.times()[0].contains(&1_772_323_200_000) && !terms.times()[0].contains(&1_772_409_600_000));
    assert!(QueryTerms::parse("What is it that you do?").is_empty());
}

#[test]
fn words_are_found_in_other_forms_and_not_in_other_words() {
    let terms = QueryTerms::parse("deployments cost Anna");
    // A complete name counts as one more.
    assert_eq!(terms.count(terms.coverage("ANNA: deployment costs")), 4);
    assert_eq!(terms.coverage("Annals of a costume party, deplorable"), Coverage::default());
    let (deploys, costs) = (terms.coverage("he deployed"), terms.coverage("a cost"));
    assert_eq!((terms.count(deploys | costs), terms.count(deploys | deploys)), (2, 1));
}

#[test]
fn a_text_is_worth_showing_with_half_of_the_words_or_a_name_and_another() {
    let terms = QueryTerms::parse("weather near Paris today, what clothes, umbrella or boots");
    let is_relevant = |text: &str| terms.is_relevant(terms.coverage(text));
    assert!(is_relevant("The weather needs boots and an umbrella."));
    assert!(is_relevant("Paris weather."));
    assert!(!is_relevant("Paris."));
    assert!(!is_relevant("The weather and boots."));
    let teapot = QueryTerms::parse("teapot");
    assert!(teapot.is_relevant(teapot.coverage("Two teapots.")));
    assert!(!teapot.is_relevant(Coverage::default()));
}

#[test]
fn a_part_of_a_name_is_not_that_name() {
    let terms = QueryTerms::parse("When was the operation of Mara Lind?");
    let is_relevant = |text: &str| terms.is_relevant(terms.coverage(text));
    assert!(is_relevant("Mara Lind went under the knife."));
    assert!(!is_relevant("Mara Olsen met Otto."));
    assert!(!is_relevant("The operation went well."));
    let weight = |text: &str| terms.weight(terms.coverage(text), &[1.0, 3.0, 2.0]);
    assert!(weight("Mara Lind") > weight("Mara and her operation") && weight("operation") > 0.0);
}

#[test]
fn a_day_is_found_however_it_is_written() {
    let terms = QueryTerms::parse("What happens on 2 March 2024, or on the 3rd of May?");
    let days = |text: &str| terms.count(terms.coverage(text));
    assert_eq!((days("It is on 2024-03-02."), days("May 3, 2031")), (1, 1));
    assert_eq!(days("2 March 2025 or 3 April"), 0);
    let one = QueryTerms::parse("What happens on 2 March 2024?");
    assert!(one.is_relevant(one.coverage("We meet on March 2nd, 2024.")));
    assert!(!one.is_relevant(one.coverage("We meet on March 3rd, 2024.")));
    assert_eq!(terms.times().len(), 1);
    let index = rusqlite::Connection::open_in_memory().unwrap();
    index.execute_batch("CREATE VIRTUAL TABLE t USING fts5 (c, tokenize = 'porter unicode61')").unwrap();
    for text in ["2024-03-02", "Mar 2, 2024", "the 2nd of March 2024", "May 3rd", "2 May", "March 2, 2023"] {
        index.execute("INSERT INTO t VALUES (?1)", [text]).unwrap();
    }
    let count = "SELECT COUNT(*) FROM t WHERE t MATCH ?1";
    let found: i64 = index.query_row(count, [terms.days_expression().unwrap()], |row| row.get(0)).unwrap();
    assert_eq!(found, 4);
}

proptest! {
    #[test]
    fn any_text_is_a_query(text in any::<String>()) {
        let terms = QueryTerms::parse(&text);
        prop_assert!(terms.words.len() <= MAX_TERMS);
        let all = terms.words.len() + terms.days.len() + terms.names.len();
        prop_assert_eq!(terms.count(terms.coverage(&text)), all);
        prop_assert!(terms.is_empty() || terms.is_relevant(terms.coverage(&text)));
        let index = rusqlite::Connection::open_in_memory().unwrap();
        index.execute_batch("CREATE VIRTUAL TABLE t USING fts5 (c)").unwrap();
        index.execute("INSERT INTO t VALUES (?1)", [&text]).unwrap();
        for expression in terms.match_expressions().into_iter().chain(terms.days_expression()) {
            let found = index.query_row("SELECT COUNT(*) FROM t WHERE t MATCH ?1", [expression], |row| row.get::<_, i64>(0));
            prop_assert!(found.is_ok(), "{:?}", found);
        }
    }
}
