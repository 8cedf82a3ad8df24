//! Tests of the two tools as the model calls them, and of their approval prompts.

use futures::future::join_all;
use insta::assert_snapshot;

use super::*;
use crate::fixture::{WorkspaceFixture, run_tool};

#[tokio::test]
async fn a_file_is_written_and_written_again() {
    let fixture = WorkspaceFixture::new();
    let tool = WriteFile(fixture.workspace.clone());
    for content in ["grün", "grün", ""] {
        let result = run_tool(&tool, json!({"path": "sub/notes.txt", "content": content})).await;
        assert_eq!(result, Ok(format!("wrote {} bytes to `sub/notes.txt`", content.len())));
        assert_eq!(fixture.read_file("sub/notes.txt"), content);
    }
}

#[tokio::test]
async fn what_is_too_large_is_not_written() {
    let fixture = WorkspaceFixture::new();
    let tool = WriteFile(fixture.workspace.clone());
    let largest = "x".repeat(MAX_FILE_BYTES);
    assert!(run_tool(&tool, json!({"path": "a", "content": largest})).await.is_ok());
    let refused = run_tool(&tool, json!({"path": "sub/b", "content": largest + "x"})).await.unwrap_err();
    assert_eq!(refused.0, "`content` must be at most 1048576 bytes long");
    assert_eq!(fixture.list_names("."), ["a"]);
}

#[tokio::test]
async fn a_file_is_edited_in_one_place_or_in_all() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("a", "one two two");
    let tool = EditFile(fixture.workspace.clone());
    for (old, new, all, result, after) in [
        ("one", "oneone", json!(null), "edited `a` in 1 place", "oneone two two"),
        ("two", "2", json!(true), "edited `a` in 2 places", "oneone 2 2"),
        ("oneone ", "", json!(false), "edited `a` in 1 place", "2 2"),
        ("2 2", "", json!(true), "edited `a` in 1 place", ""),
    ] {
        let input = json!({"path": "a", "old": old, "new": new, "all": all});
        assert_eq!(run_tool(&tool, input).await, Ok(result.into()));
        assert_eq!(fixture.read_file("a"), after);
    }
}

#[tokio::test]
async fn an_edit_that_is_not_clear_changes_nothing() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("a", "ababa, x, x, x");
    fixture.write_file("latin", b"gr\xfcn");
    fixture.write_file("large", "x".repeat(MAX_FILE_BYTES + 1));
    fixture.write_file("full", "x".repeat(MAX_FILE_BYTES));
    let tool = EditFile(fixture.workspace.clone());
    for (path, old, all, why) in [
        ("a", "", false, "`old` must not be empty"),
        ("a", "", true, "`old` must not be empty"),
        ("a", "y", false, "`old` does not occur in `a`"),
        ("a", "y", true, "`old` does not occur in `a`"),
        ("a", "x", false, "`old` occurs 3 times in `a`"),
        ("a", "aba", false, "`old` occurs 2 times in `a`"),
        ("nothing", "x", false, "no such file"),
        ("sub/nothing", "x", false, "no such file"),
        ("latin", "g", false, "is not UTF-8 text"),
        ("large", "x", true, "is over 1048576 bytes"),
        ("full", "x", true, "would be over 1048576 bytes"),
        ("../secret", "outside", false, "leads out of the workspace"),
        (".", "x", false, "does not name a file"),
    ] {
        let new = "new".repeat(100_000);
        let input = json!({"path": path, "old": old, "new": new, "all": all});
        let refused = run_tool(&tool, input).await.unwrap_err();
        assert!(refused.0.contains(why), "{path} {old}: {refused}");
    }
    assert_eq!(fixture.read_file("a"), "ababa, x, x, x");
    assert_eq!(fixture.list_names("."), ["a", "full", "large", "latin"]);
    fixture.assert_outside_unchanged();
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_at_once_are_all_kept() {
    let fixture = WorkspaceFixture::new();
    let words: Vec<String> = (10..50).map(|number| format!("word{number}")).collect();
    fixture.write_file("a", words.join(" "));
    let tool = EditFile(fixture.workspace.clone());
    let edit = |word| run_tool(&tool, json!({"path": "a", "old": word, "new": "done"}));
    assert!(join_all(words.iter().map(edit)).await.iter().all(Result::is_ok));
    assert_eq!(fixture.read_file("a"), ["done"; 40].join(" "));
}

#[tokio::test]
async fn a_bad_input_is_refused() {
    let fixture = WorkspaceFixture::new();
    for input in [json!({}), json!({"path": "a"}), json!({"path": 1, "content": "x", "old": "", "new": ""})] {
        for tool in [&WriteFile(fixture.workspace.clone()) as &dyn Tool, &EditFile(fixture.workspace.clone())]
        {
            let refused = run_tool(tool, input.clone()).await.unwrap_err();
            assert!(refused.0.contains("does not match its schema"), "{refused}");
        }
    }
    assert!(fixture.list_names(".").is_empty());
}

#[test]
fn a_person_sees_what_will_be_written() {
    let fixture = WorkspaceFixture::new();
    let tool = WriteFile(fixture.workspace.clone());
    let prompt = tool.approval_prompt(&json!({"path": "sub/a.txt", "content": "one\ntwo\u{1b}[2K\n"}));
    assert_snapshot!(prompt, @r#"
    Write the new file "sub/a.txt"? It will hold 12 bytes:

    one
    two\u{1b}[2K
    "#);
    let long = tool.approval_prompt(&json!({"path": "a", "content": "ü".repeat(30_000)}));
    assert!(long.contains("It will hold 60000 bytes:\n\nüüü"), "{long}");
    assert!(long.ends_with("ü\n[cut: the first 20000 of 30000 characters]"), "{long}");
    let sly = tool.approval_prompt(&json!({"path": "a\"? It is harmless.\n\u{202e}", "content": ""}));
    assert!(sly.starts_with(r#"Write the new file "a\"? It is harmless.\n\u{202e}"?"#), "{sly}");
}

#[test]
fn a_person_sees_what_will_be_edited() {
    let fixture = WorkspaceFixture::new();
    let tool = EditFile(fixture.workspace.clone());
    let prompt =
        tool.approval_prompt(&json!({"path": "a.txt", "old": "one\ntwo", "new": "1\n+2\n3", "all": true}));
    assert_snapshot!(prompt, @r#"
    Edit the file "a.txt", everywhere?

    -one
    -two
    +1
    ++2
    +3
    "#);
    let removal = tool.approval_prompt(&json!({"path": "a.txt", "old": "one", "new": ""}));
    assert_snapshot!(removal, @r#"
    Edit the file "a.txt", in one place?

    -one
    "#);
    let long =
        tool.approval_prompt(&json!({"path": "a", "old": "o".repeat(10_001), "new": "n".repeat(50_000)}));
    assert!(long.contains("o\n[cut: the first 10000 of 10001 characters]\n+nnn"), "{long}");
    assert!(long.ends_with("n\n[cut: the first 10000 of 50000 characters]"), "{long}");
}

#[test]
fn a_person_sees_what_changes_in_a_file_that_is_there() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("a.txt", "one\ntwo\nthree\n");
    fixture.write_file("b.bin", [0xff, 0xfe]);
    let write = WriteFile(fixture.workspace.clone());
    assert_snapshot!(write.approval_prompt(&json!({"path": "a.txt", "content": "one\nzwei\n"})), @r#"
    Change the file "a.txt"? 2 deletions, 1 insertion:

     one
    -two
    -three
    +zwei
    "#);
    let edit = EditFile(fixture.workspace.clone());
    assert_snapshot!(edit.approval_prompt(&json!({"path": "a.txt", "old": "two", "new": "zw\u{1b}ei"})), @r#"
    Edit the file "a.txt"? 1 deletion, 1 insertion:

     one
    -two
    +zw\u{1b}ei
     three
    "#);
    let binary = write.approval_prompt(&json!({"path": "b.bin", "content": "x"}));
    assert!(binary.starts_with(r#"Write the file "b.bin", in place of what is there?"#), "{binary}");
    // An edit that is impossible at present is shown as requested.
    let impossible = edit.approval_prompt(&json!({"path": "a.txt", "old": "four", "new": "4"}));
    assert!(impossible.ends_with("-four\n+4"), "{impossible}");
    fixture.assert_outside_unchanged();
}

#[test]
fn an_odd_input_is_shown_as_it_is() {
    let fixture = WorkspaceFixture::new();
    for input in
        [json!({}), json!(null), json!([1]), json!({"path": 1, "content": "x", "old": "a", "new": "b"})]
    {
        let prompt = WriteFile(fixture.workspace.clone()).approval_prompt(&input);
        assert_eq!(prompt, format!("Allow `write_file` with this input? {input}"));
        let prompt = EditFile(fixture.workspace.clone()).approval_prompt(&input);
        assert_eq!(prompt, format!("Allow `edit_file` with this input? {input}"));
    }
}

#[test]
fn they_want_leave_and_only_whole_writes_are_repeated() {
    let fixture = WorkspaceFixture::new();
    let (write, edit) = (WriteFile(fixture.workspace.clone()), EditFile(fixture.workspace.clone()));
    assert_eq!((write.permission(), write.idempotent()), (Permission::Ask, true));
    assert_eq!((edit.permission(), edit.idempotent()), (Permission::Ask, false));
}
