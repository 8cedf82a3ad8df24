use super::apply;
use crate::definitions::{Edit, Mutant};

fn mutant(name: &str, edits: &[(&str, &str)]) -> Mutant {
    let edit = |(find, replace): &(&str, &str)| Edit {
        file: "src/a.rs".to_owned(),
        find: (*find).to_owned(),
        replace: (*replace).to_owned(),
    };
    Mutant { name: name.to_owned(), breaks: "Breaks.".to_owned(), edits: edits.iter().map(edit).collect() }
}

#[test]
fn each_text_is_replaced_in_whatever_order_the_edits_are() {
    let mutants = [mutant("one", &[("c", "C"), ("a", "{find}{find}")]), mutant("two", &[(" b", "")])];
    assert_eq!(apply("src/a.rs", "a b c d", &mutants).unwrap(), "aa C d");
    assert_eq!(apply("src/b.rs", "a b c d", &mutants).unwrap(), "a b c d");
}

#[test]
fn all_edits_that_do_not_fit_are_reported_with_mutant_file_and_text() {
    let mutants = [
        mutant("gone", &[("let x", "")]),
        mutant("vague", &[("a", "")]),
        mutant("first", &[("b c", "")]),
        mutant("second", &[("c d", "")]),
    ];
    let problems = apply("src/a.rs", "a b c d a", &mutants).unwrap_err();
    assert_eq!(
        problems,
        [
            "mutant gone: src/a.rs: this text is not found:\nlet x",
            "mutant vague: src/a.rs: this text is found 2 times, but must be unique:\na",
            "mutant second: src/a.rs: this text overlaps one of mutant first:\nc d",
        ]
    );
}
