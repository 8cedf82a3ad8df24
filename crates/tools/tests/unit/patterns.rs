use proptest::prelude::*;

use super::*;

fn path(path: &str) -> Subject {
    Subject::Path(path.into())
}

fn address(address: &str) -> Subject {
    Subject::Address(address.into())
}

fn command(command: &str) -> Subject {
    Subject::Command(command.into())
}

#[test]
fn a_folder_covers_what_is_below_it_and_nothing_else() {
    for covered in ["notes/a.md", "./notes/a.md", "notes//b/c.md", "notes/./a.md"] {
        assert!(allows(Some("notes/*"), Some(&path(covered))), "{covered}");
    }
    for other in
        ["notes", "notes/", "notes2/a.md", "a.md", "/notes/a.md", "notes/../a.md", "x/notes/a.md", ""]
    {
        assert!(!allows(Some("notes/*"), Some(&path(other))), "{other}");
    }
    assert!(allows(Some("notes/a.md"), Some(&path("./notes/a.md"))));
    assert!(!allows(Some("notes/a.md"), Some(&path("notes/a.md/b"))));
    assert!(allows(None, Some(&path("../a.md"))), "a grant without a pattern is for the whole tool");
    for pattern in ["*", "/*", "./*", "../*", "notes/../*", "/", "*.md", ""] {
        assert!(!allows(Some(pattern), Some(&path("notes/a.md"))), "{pattern}");
    }
}

#[test]
fn an_address_covers_what_is_below_it_on_the_same_server() {
    let pattern = Some("https://docs.example.com/guide/*");
    for covered in ["https://docs.example.com/guide/", "https://DOCS.example.com:443/guide/a?b=c"] {
        assert!(allows(pattern, Some(&address(covered))), "{covered}");
    }
    for other in [
        "http://docs.example.com/guide/a",
        "https://docs.example.com:8443/guide/a",
        "https://docs.example.com/guides/a",
        "https://docs.example.com/guide/../secret",
        "https://docs.example.com/guide/%2e%2e/secret",
        "https://docs.example.com.evil.example/guide/a",
        "https://docs.example.com@evil.example/guide/a",
        "https://user:secret@docs.example.com/guide/a",
        "nonsense",
    ] {
        assert!(!allows(pattern, Some(&address(other))), "{other}");
    }
    for pattern in [
        "https://*",
        "*",
        "https://*.example.com/*",
        "https://docs.example.com*",
        "https://docs.example.com/g*",
        "https://docs.example.com/#/*",
        "https://docs.example.com/gui#de/*",
    ] {
        assert!(!allows(Some(pattern), Some(&address("https://docs.example.com/guide/a"))), "{pattern}");
    }
    assert!(allows(Some("https://docs.example.com"), Some(&address("https://docs.example.com/"))));
}

#[test]
fn more_words_of_a_command_cover_less() {
    assert!(allows(Some("git commit -m"), Some(&command("git commit -m 'it works'"))));
    for other in ["git commit", "git commit --amend", "git commit -m x; rm -r x", "git commit -m $(x)"] {
        assert!(!allows(Some("git commit -m"), Some(&command(other))), "{other}");
    }
    for pattern in ["git", "git *", "git commit 'it", "*", "sh -c", ""] {
        assert!(!allows(Some(pattern), Some(&command("git commit 'it works'"))), "{pattern}");
    }
    assert!(!allows(None, Some(&command("ls"))));
    assert!(!allows(Some("ls"), None));
}

#[test]
fn a_pattern_that_cannot_be_used_says_why() {
    assert_eq!(validate("git commit", Some(&command("git commit -a"))), Ok(()));
    assert_eq!(validate("notes/*", Some(&path("notes/a"))), Ok(()));
    let long = format!("notes/{}", "x".repeat(1_000));
    for (pattern, subject, reason) in [
        ("x", None, "no patterns"),
        ("rm", Some(command("git commit")), "does not cover"),
        ("*", Some(path("a")), "notes/*"),
        (" notes/*", Some(path("notes/a")), "white space"),
        ("notes/\u{202e}*", Some(path("notes/a")), "hidden"),
        (&long, Some(path(&long)), "1000 bytes"),
        ("https://*", Some(address("https://example.com/")), "https://example.com/docs/*"),
    ] {
        let error = validate(pattern, subject.as_ref()).unwrap_err();
        assert!(error.contains(reason), "{pattern}: {error}");
    }
}

proptest! {
    /// Whatever a folder's pattern covers begins with the folder, and never goes up.
    #[test]
    fn nothing_leaves_a_folder(below in "[a./]{0,12}") {
        let text = format!("notes/{below}");
        if allows(Some("notes/*"), Some(&path(&text))) {
            prop_assert!(!text.split('/').any(|part| part == ".."));
        }
    }
}
