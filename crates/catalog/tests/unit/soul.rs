//! Tests of the soul's template: its variables, and what is refused.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::AgentSpec;
use super::*;

fn render(text: &str) -> String {
    render_with(text, &Catalog::default())
}

fn render_with(text: &str, catalog: &Catalog) -> String {
    Soul::parse(text).unwrap().render(catalog, Path::new("/data/workspace"))
}

fn refused(text: &str) -> String {
    Soul::parse(text).unwrap_err()
}

#[test]
fn the_front_matter_may_say_who_the_agent_is() {
    let soul =
        Soul::parse("---\nname: Ada's agent\ndescription: Knows her work.\nodd: 1\n---\nBe kind.").unwrap();
    let expected = Identity { name: Some("Ada's agent".into()), description: Some("Knows her work.".into()) };
    assert_eq!(soul.identity(), &expected);
    assert_eq!(soul.render(&Catalog::default(), Path::new("/w")), "Be kind.");
    assert_eq!(Soul::parse("Be kind.").unwrap().identity(), &Identity::default());
    // What earlier versions ignored is not refused.
    let lenient = "---\nname: [a]\ndescription: |\n  Knows\n  her work.\n---\nBe kind.";
    let expected = Identity { name: None, description: Some("Knows her work.".into()) };
    assert_eq!(Soul::parse(lenient).unwrap().identity(), &expected);
    let long = format!("---\nname: {}\ndescription: \"\"\n---\nBe kind.", "x".repeat(129));
    let expected = Identity { name: Some("x".repeat(128)), description: None };
    assert_eq!(Soul::parse(&long).unwrap().identity(), &expected);
}

#[test]
fn variables_stand_for_what_the_catalog_has() {
    let agent = |name: &str, description: &str| {
        Arc::new(AgentSpec {
            name: name.into(),
            description: description.into(),
            model: None,
            tools: None,
            max_turns: 1,
            max_tokens: None,
            prompt: "x".into(),
        })
    };
    // A description is not a template.
    let agents = vec![agent("finder", "Finds {{version}}."), agent("writer", "Writes.")];
    let catalog = Catalog { agents, ..Catalog::default() };
    let text = "---\nversion: 1.10\n---\n\nI am {{version}}.\n{{ agents }}\nSkills: {{skills}}; in {{workspace}}{{version}}\n";
    let expected =
        "I am 1.10.\n- finder: Finds {{version}}.\n- writer: Writes.\nSkills: (none); in /data/workspace1.10";
    assert_eq!(render_with(text, &catalog), expected);
}

#[test]
fn its_version_is_what_it_says_or_what_it_holds() {
    let version = |text: &str| Soul::parse(text).unwrap().version().to_owned();
    assert_eq!(version("---\nversion: 2026-11-22\nauthor: x\n---\nYou."), "2026-11-22");
    assert_eq!(version("---\nversion: '7'\n---\nYou."), "7");
    let of_content = version("You are Ada.");
    assert_eq!(of_content.len(), 12);
    assert_eq!(of_content, version("You are Ada."));
    assert_ne!(of_content, version("You are Ada!"));
    assert_ne!(of_content, version("---\nauthor: x\n---\nYou are Ada."));
}

#[test]
fn braces_are_written_with_a_backslash() {
    assert_eq!(
        render(r"Use \{{date}} and {curly} and }}, \\{{, {."),
        r"Use {{date}} and {curly} and }}, \{{, {."
    );
}

#[test]
fn a_faulty_one_is_refused_with_its_place() {
    for (text, parts) in [
        ("", ["empty", ""]),
        ("  \n\t", ["empty", ""]),
        ("---\nversion: 1\n---\n\n", ["empty", ""]),
        ("---\nversion: 1\n", ["no end", ""]),
        ("---\nversion: ''\n---\nYou.", ["`version`", "128"]),
        ("---\nversion: \"a\\nb\"\n---\nYou.", ["`version`", "one line"]),
        ("---\nversion: [1]\n---\nYou.", ["front matter", ""]),
        ("You.\n\n{{name}}", ["line 3", "`name`"]),
        ("{{env.KEY}}", ["`env.KEY`", "`{{agents}}`, `{{skills}}`, `{{version}}`, `{{workspace}}`"]),
        ("{{}}", ["line 1", "``"]),
        ("You {{agents\n}}", ["line 1", r"`\{{`"]),
        (&"{{version}}".repeat(33), ["33 variables", "32"]),
    ] {
        let reason = refused(text);
        assert!(parts.iter().all(|part| reason.contains(part)), "{text:?}: {reason}");
    }
}

#[test]
fn a_file_that_is_none_too_large_or_not_text_is_refused_and_one_that_is_not_there_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("soul.md");
    assert_eq!(Soul::load(folder.path()), Ok(Soul::default()));
    std::fs::create_dir(&file).unwrap();
    assert_eq!(Soul::load(folder.path()), Err("it cannot be read: it is not a file".into()));
    std::fs::remove_dir(&file).unwrap();
    std::os::unix::fs::symlink("nowhere", &file).unwrap();
    assert!(Soul::load(folder.path()).unwrap_err().contains("cannot be read"));
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "x".repeat(64 * 1024 + 1)).unwrap();
    assert!(Soul::load(folder.path()).unwrap_err().contains("65537 bytes"));
    std::fs::write(&file, [0xff]).unwrap();
    assert!(Soul::load(folder.path()).unwrap_err().contains("UTF-8"));
    std::fs::write(&file, "\u{feff}You are Ada.\r\n").unwrap();
    let soul = Soul::load(folder.path()).unwrap();
    assert_eq!(soul.render(&Catalog::default(), Path::new("/")), "You are Ada.");
}

proptest! {
    #[test]
    fn what_is_escaped_is_told_as_it_was(text in r"[{}\\a \n]{0,40}") {
        let escaped = text.replace("{{", r"\{{");
        prop_assume!(!escaped.trim().is_empty());
        prop_assert_eq!(render(&escaped), escaped.trim().replace(r"\{{", "{{"));
    }

    #[test]
    fn any_text_is_a_soul_or_a_reason(text in r"([{}\\a \n]|\{\{(agents|version|x)\}\}){0,12}") {
        match Soul::parse(&text) {
            Ok(soul) => prop_assert!(!soul.render(&Catalog::default(), Path::new("/w")).contains("{{agents}}")
                || text.contains(r"\{{")),
            Err(reason) => prop_assert!(!reason.is_empty()),
        }
    }
}
