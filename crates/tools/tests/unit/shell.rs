//! Tests of shell commands, especially faulty ones.

use insta::assert_snapshot;
use testkit::wait_for_exit;
use testkit::with_deadline;

use super::*;
use crate::fixture::{WorkspaceFixture, run_tool};

fn shell(fixture: &WorkspaceFixture) -> Shell {
    Shell::new(fixture.runner(), fixture.workspace.clone(), false)
}

async fn runs(fixture: &WorkspaceFixture, command: &str) -> Result<String, ToolError> {
    with_deadline(run_tool(&shell(fixture), json!({"command": command}))).await
}

#[tokio::test]
async fn what_a_command_writes_and_how_it_ends_is_told() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("sub/a", "");
    let both = runs(&fixture, "echo out; echo err >&2; exit 3").await.unwrap();
    assert!(both.contains("out\n") && both.contains("err\n") && both.ends_with("\n[exit code 3]"), "{both}");
    assert_eq!(runs(&fixture, "true").await, Ok("(no output)\n[exit code 0]".into()));
    assert_eq!(runs(&fixture, "cat").await, Ok("(no output)\n[exit code 0]".into()));
    let inner = run_tool(&shell(&fixture), json!({"command": "ls; echo new > b", "folder": "sub"})).await;
    assert_eq!(inner, Ok("a\n[exit code 0]".into()));
    assert_eq!(fixture.read_file("sub/b"), "new\n");
}

#[tokio::test]
async fn it_says_what_it_runs_for_what_a_person_allows_for_good() {
    let fixture = WorkspaceFixture::new();
    let command = |input| shell(&fixture).command(&input);
    assert_eq!(command(json!({"command": "git status", "timeout_s": 3})).as_deref(), Some("git status"));
    assert_eq!(command(json!({"command": 7})), None);
}

#[tokio::test]
async fn one_that_hangs_is_ended() {
    let fixture = WorkspaceFixture::new();
    let tool = shell(&fixture);
    let hung = run_tool(&tool, json!({"command": "echo $$ > pid; echo begun; sleep 1000", "timeout_s": 1}));
    let result = with_deadline(hung).await.unwrap_err();
    assert_eq!(result.0, "it was stopped after 1 s, its time limit. Its output until then:\n\nbegun");
    wait_for_exit(&fixture.wait_for_file("pid").await).await;
}

#[tokio::test]
async fn one_that_crashes_is_told() {
    let fixture = WorkspaceFixture::new();
    let result = runs(&fixture, "echo before; kill -SEGV $$").await.unwrap_err();
    assert!(result.0.starts_with("it was ended by signal") && result.0.ends_with("\n\nbefore"), "{result}");
}

#[tokio::test]
async fn one_that_floods_is_cut_and_kept_in_a_file() {
    let fixture = WorkspaceFixture::new();
    let line =
        runs(&fixture, "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last").await.unwrap();
    assert!(line.len() < MAX_TRUNCATED_BYTES, "{}", line.len());
    assert!(line.starts_with("first\nxxx") && line.ends_with("xxx\nlast\n[exit code 0]"), "{line}");
    let [file] = fixture.list_names("tool-output").try_into().unwrap();
    assert!(line.contains(&format!("all of it is in the file `tool-output/{file}`")), "{line}");
    assert_eq!(fixture.read_file(&format!("tool-output/{file}")).len(), 3_000_000 + 12);
}

/// Far less than the output.
const MAX_TRUNCATED_BYTES: usize = 20_000;

#[tokio::test]
async fn one_that_never_stops_writing_is_ended() {
    let fixture = WorkspaceFixture::new();
    let result = runs(&fixture, "echo $$ > pid; yes").await.unwrap_err();
    assert!(result.0.starts_with("it was stopped because it wrote over 268435456 bytes"), "{result}");
    assert!(result.0.contains("the first 67108864 bytes are in the file"), "{result}");
    let [file] = fixture.list_names("tool-output").try_into().unwrap();
    assert_eq!(std::fs::metadata(fixture.path("tool-output").join(file)).unwrap().len(), 64 << 20);
    wait_for_exit(&fixture.wait_for_file("pid").await).await;
}

#[tokio::test]
async fn bytes_that_are_no_text_are_marked() {
    let fixture = WorkspaceFixture::new();
    assert_eq!(runs(&fixture, "printf 'gr\\374n\\n'").await, Ok("gr\u{fffd}n\n[exit code 0]".into()));
    let bytes = runs(&fixture, "head -c 200000 /dev/urandom").await.unwrap();
    assert!(bytes.len() < 64 * 1024, "{}", bytes.len());
}

#[tokio::test]
async fn what_it_leaves_behind_is_not_waited_for() {
    let fixture = WorkspaceFixture::new();
    let before = std::time::Instant::now();
    let result = runs(&fixture, "sleep 15 & echo done").await;
    assert_eq!(result, Ok("done\n[exit code 0]".into()));
    assert!(before.elapsed() < Duration::from_secs(10));
    // A command that has closed its output is waited for.
    let silent = runs(&fixture, "exec >&- 2>&-; sleep 0.2; echo late > late").await;
    assert_eq!(
        (silent, fixture.read_file("late").as_str()),
        (Ok("(no output)\n[exit code 0]".into()), "late\n")
    );
}

#[tokio::test]
async fn let_go_of_it_ends() {
    let fixture = WorkspaceFixture::new();
    let tool = shell(&fixture);
    let call = run_tool(&tool, json!({"command": "echo $$ > pid; while :; do sleep 0.05; done"}));
    tokio::select! {
        result = call => panic!("{result:?}"),
        _ = fixture.wait_for_file("pid") => {}
    }
    wait_for_exit(&fixture.wait_for_file("pid").await).await;
}

#[tokio::test]
async fn nothing_leads_outside() {
    let fixture = WorkspaceFixture::new();
    for path in fixture.escape_paths() {
        let folder = path.strip_suffix("secret").unwrap().trim_end_matches('/');
        let refused =
            run_tool(&shell(&fixture), json!({"command": "ls", "folder": folder})).await.unwrap_err();
        assert!(refused.0.contains("cannot be opened"), "{folder}: {refused}");
    }
    let refused =
        run_tool(&shell(&fixture), json!({"command": "ls", "folder": "nothing"})).await.unwrap_err();
    assert!(refused.0.contains("no such file or folder"), "{refused}");
}

#[tokio::test]
async fn bounds_are_kept() {
    let fixture = WorkspaceFixture::new();
    for command in ["", " \n", &"x".repeat(8_001), "echo a\0b"] {
        assert!(runs(&fixture, command).await.unwrap_err().0.starts_with("`command` must"), "{command}");
    }
    let timeout_secs =
        |timeout_s| ShellInput { command: String::new(), timeout_s, folder: None }.timeout().as_secs();
    assert_eq!(
        [timeout_secs(None), timeout_secs(Some(0)), timeout_secs(Some(7)), timeout_secs(Some(u64::MAX))],
        [120, 1, 7, 600]
    );
}

#[test]
fn a_person_sees_the_whole_command() {
    let fixture = WorkspaceFixture::new();
    let prompt =
        shell(&fixture).approval_prompt(&json!({"command": "ls\n# \u{202e}\u{1b}[2K rm", "folder": "a\"b"}));
    assert_snapshot!(prompt, @r#"
    Run this command in the folder "a\"b", without the network, for at most 120 s?

    ls
    # \u{202e}\u{1b}[2K rm
    "#);
    let longest_prefix = "x".repeat(8_000);
    let tool = Shell::new(fixture.runner(), fixture.workspace.clone(), true);
    let prompt = tool.approval_prompt(&json!({"command": longest_prefix, "timeout_s": 5}));
    assert_eq!(prompt, format!("Run this command, with the network, for at most 5 s?\n\n{longest_prefix}"));
    let malformed = json!({"command": ["ls"]});
    assert_eq!(tool.approval_prompt(&malformed), format!("Allow `shell` with this input? {malformed}"));
}

#[test]
fn it_wants_leave_and_is_not_repeated() {
    let fixture = WorkspaceFixture::new();
    assert_eq!((shell(&fixture).permission(), shell(&fixture).idempotent()), (Permission::Ask, false));
    assert!(shell(&fixture).spec().description.contains("It has no network"));
}
