use std::collections::BTreeSet;
use std::path::Path;

use super::mutate;
use crate::definitions::{self, Edit, Mutant};
use crate::files::{self, Files};

/// The mutants and the source as they are in this workspace: an edit that no longer fits is reported here.
#[test]
fn every_edit_fits_the_source() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = files::read(&package.join("../..")).unwrap();
    let mutants = definitions::read_all(package).unwrap();
    if let Err(error) = mutate(workspace, &mutants) {
        panic!("the mutants do not fit the source: adapt their edits to it\n\n{error:#}");
    }
}

#[test]
fn every_mutant_is_paired_with_a_test() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let regressions = std::fs::read_to_string(package.join("../../docs/regressions.md")).unwrap();
    let paired: BTreeSet<&str> = regressions
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split('|').nth(2))
        .flat_map(|cell| cell.split(',').map(|name| name.trim().trim_matches('`')))
        .collect();
    for Mutant { name, .. } in definitions::read_all(package).unwrap() {
        assert!(paired.contains(&*name), "docs/regressions.md pairs no test with the mutant {name}");
    }
}

fn workspace() -> Files {
    let lock = "[[package]]\nname = \"api\"\nversion = \"0.1.0\"\n\n\
                [[package]]\nname = \"engine\"\nversion = \"0.1.0\"\ndependencies = [\n \
                \"llm\",\n \"store\",\n]\n";
    let files = [
        ("Cargo.lock", lock),
        ("Cargo.toml", "members = [\"crates/*\", \"testing/*\"]\napi = { path = \"crates/api\" }\n"),
        ("crates/api/Cargo.toml", "[package]\n\n[dev-dependencies]\nserde = \"1\"\n"),
        ("crates/api/src/lib.rs", "pub fn a() {}\n"),
        ("crates/engine/Cargo.toml", "[package]\n\n[dependencies]\nstore.workspace = true\n"),
        ("crates/engine/src/lib.rs", "fn is_known() -> bool { true }\n"),
    ];
    files.into_iter().map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())).collect()
}

fn mutant(name: &str, file: &str, find: &str) -> Mutant {
    let replace = format!("!mutants::active(\"{name}\") && {{find}}");
    let edit = Edit { file: file.to_owned(), find: find.to_owned(), replace };
    Mutant { name: name.to_owned(), breaks: "Breaks.".to_owned(), edits: vec![edit] }
}

#[test]
fn the_copy_is_a_workspace_whose_edited_crates_know_the_switches() {
    let copy = mutate(workspace(), &[mutant("one", "crates/engine/src/lib.rs", "true")]).unwrap();
    let text = |path: &str| String::from_utf8(copy[path].clone()).unwrap();

    assert_eq!(copy.len(), 6);
    assert_eq!(
        text("mutated/crates/engine/src/lib.rs"),
        "fn is_known() -> bool { !mutants::active(\"one\") && true }\n"
    );
    assert_eq!(
        text("mutated/crates/engine/Cargo.toml"),
        "[package]\n\n[dependencies]\nmutants = { path = \"../../testing/mutants\" }\n\
         store.workspace = true\n"
    );
    assert!(!text("mutated/crates/api/Cargo.toml").contains("mutants"));
    assert!(text("Cargo.lock").ends_with("dependencies = [\n \"llm\",\n \"mutants\",\n \"store\",\n]\n"));
    assert_eq!(
        text("Cargo.toml"),
        "members = [\"mutated/crates/*\", \"mutated/testing/*\"]\napi = { path = \"mutated/crates/api\" }\n"
    );
}

#[test]
fn what_does_not_fit_is_reported_for_all_files_at_once() {
    let mutants = [
        mutant("one", "crates/api/src/lib.rs", "pub fn b"),
        mutant("two", "crates/engine/src/lib.rs", "false"),
        mutant("three", "crates/engine/src/gone.rs", "true"),
    ];
    let error = mutate(workspace(), &mutants).unwrap_err().to_string();
    for part in ["mutant one", "mutant two", "crates/engine/src/gone.rs, which"] {
        assert!(error.contains(part), "{error}");
    }
    let error = mutate(workspace(), &[mutant("one", "crates/api/src/lib.rs", "pub fn a")]).unwrap_err();
    assert!(error.to_string().contains("crates/api/Cargo.toml"), "{error}");
}
