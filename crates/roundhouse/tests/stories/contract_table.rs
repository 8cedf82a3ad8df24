//! Not a story, but a check of the contract's table: each test that `docs/contract.md` names exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{fs, iter};

static WORKSPACE: LazyLock<PathBuf> = LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));

/// The files that may contain a test of these modules of a crate, or of the stories.
fn files(owner: &str, modules: &[&str]) -> Vec<PathBuf> {
    let module = modules.join("/");
    if owner == "stories" {
        return vec![WORKSPACE.join(format!("crates/roundhouse/tests/stories/{module}.rs"))];
    }
    let product = WORKSPACE.join("crates").join(owner);
    let package = if product.exists() { product } else { WORKSPACE.join("testing").join(owner) };
    // `a::b::tests` is an inline module of `src/a/b.rs` or a file `tests/unit/a/b.rs`.
    let inline = match modules {
        ["tests"] => "lib".to_owned(),
        [parents @ .., "tests"] => parents.join("/"),
        _ => module.clone(),
    };
    let mut unit: Vec<&str> = modules.iter().map(|name| name.trim_end_matches("_tests")).collect();
    unit.retain(|name| *name != "tests");
    unit.dedup();
    let unit =
        package.join("tests/unit").join(if unit.is_empty() { "lib".to_owned() } else { unit.join("/") });
    vec![
        package.join(format!("src/{inline}.rs")),
        package.join(format!("tests/{module}.rs")),
        unit.with_extension("rs"),
        unit.join("mod.rs"),
    ]
}

/// Whether `text` contains a test of this name.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let heads = [format!("fn {name}("), format!("async fn {name}(")];
    lines.iter().enumerate().any(|(at, line)| {
        let attributes =
            lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        let is_test = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        heads.iter().any(|head| line.starts_with(head)) && attributes.clone().any(is_test)
    })
}

/// The fault of a reference `owner path` to a test, as the table contains it; `None` if the test exists.
fn fault(test: &str) -> Option<String> {
    let Some((owner, path)) = test.split_once(' ') else { return Some(format!("`{test}` names no crate")) };
    let parts: Vec<&str> = path.split("::").collect();
    let [modules @ .., name] = parts.as_slice() else { return Some(format!("`{test}` names no test")) };
    let contains_test = |file: PathBuf| fs::read_to_string(file).is_ok_and(|text| has_test(&text, name));
    (!files(owner, modules).into_iter().any(contains_test)).then(|| format!("`{test}` does not exist"))
}

/// The rows of the tables without their headings, each with the content of its last column.
fn rows(document: &str) -> Vec<(&str, &str)> {
    let has_columns = |line: &str| line.matches('|').count() > 2;
    let rows = document.lines().filter(|line| line.starts_with('|') && has_columns(line));
    let rows = rows.filter(|line| !line.starts_with("|---") && !line.starts_with("| line "));
    rows.map(|line| (line, line.trim_end_matches(['|', ' ']).rsplit(" | ").next().unwrap_or_default()))
        .collect()
}

/// The texts in backticks in a cell.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn every_line_of_the_contract_names_tests_that_are_there() {
    let document = fs::read_to_string(WORKSPACE.join("docs/contract.md")).unwrap();
    let rows = rows(&document);
    assert!(rows.len() > 600, "{} rows", rows.len());
    let mut faults = BTreeSet::new();
    for (line, tests) in rows {
        if named(tests).next().is_none() {
            faults.insert(format!("no test in: {line}"));
        }
        faults.extend(named(tests).filter_map(fault));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_test_that_is_not_there_is_missed() {
    for existing in [
        "stories contract_table::a_test_that_is_not_there_is_missed",
        "stories tools::rpc::a_tool_is_called_and_nobody_is_asked",
        "api error::tests::the_envelope_is_nested_and_codes_are_upper_case",
        "engine http::rpc_tests::activity_has_exactly_its_fields",
        "llm gateway::gateway_tests::the_state_of_each_model_is_told",
        "engine tests::a_taken_address_is_named_and_the_brain_is_free_again",
        "sandbox-escapes escapes::the_table_and_the_suite_agree",
    ] {
        assert_eq!(fault(existing), None);
    }
    for missing in [
        "a_test_that_is_not_there_is_missed",
        "stories rpc::a_test_that_is_not_there_is_missed",
        "stories contract_table::rows",
        "stories contract_table::a_test_that_is_not",
        "nothing contract_table::a_test_that_is_not_there_is_missed",
    ] {
        assert!(fault(missing).is_some(), "{missing}");
    }
    let document = "| line | what | test |\n|---|---|---|\n| a | b | `stories x::y` |\n\n`c`";
    let found: Vec<_> = rows(document).into_iter().flat_map(|(_, tests)| named(tests)).collect();
    assert_eq!(found, ["stories x::y"]);
    assert_eq!(iter::once("(pending)").flat_map(named).count(), 0);
}
