//! Tests of catalog tools that run programs, especially faulty ones.

use catalog::ToolImplementation;
use serde_json::json;
use testkit::wait_for_exit;
use testkit::with_deadline;

use super::*;
use crate::fixture::{WorkspaceFixture, run_tool};

/// Returns a tool that runs this script.
fn tool(fixture: &WorkspaceFixture, script: &str) -> CommandTool {
    let command = vec!["/bin/sh".to_owned(), "-c".into(), script.into()];
    let tool = CatalogTool {
        name: "weather".into(),
        description: "Tells the weather.".into(),
        input_schema: json!({"type": "object"}),
        permission: Permission::Allow,
        idempotent: true,
        network: false,
        implementation: ToolImplementation::Command(command.clone()),
    };
    CommandTool::new(Arc::new(tool), command, fixture.runner())
}

async fn runs(fixture: &WorkspaceFixture, script: &str, input: Value) -> Result<String, ToolError> {
    with_deadline(run_tool(&tool(fixture, script), input)).await
}

#[tokio::test]
async fn it_is_given_its_input_and_its_output_is_the_result() {
    let fixture = WorkspaceFixture::new();
    let input = json!({"city": "Köln", "days": [1, 2]});
    assert_eq!(runs(&fixture, "cat", input.clone()).await, Ok(input.to_string()));
    assert_eq!(runs(&fixture, "echo aside >&2; echo result; pwd > here", input).await, Ok("result\n".into()));
    assert_eq!(
        fixture.read_file("here").trim(),
        std::fs::canonicalize(fixture.path("")).unwrap().to_str().unwrap()
    );
}

#[tokio::test]
async fn however_it_treats_its_input_nothing_is_held_up() {
    let fixture = WorkspaceFixture::new();
    let large = json!({"text": "x".repeat(2_000_000)});
    assert_eq!(runs(&fixture, "echo never read it", large.clone()).await, Ok("never read it\n".into()));
    assert_eq!(runs(&fixture, "exec <&-; echo closed it", large.clone()).await, Ok("closed it\n".into()));
    assert_eq!(
        runs(&fixture, "head -c 5 >&2; echo read a bit", large.clone()).await,
        Ok("read a bit\n".into())
    );
    let echoed = runs(&fixture, "cat", large.clone()).await.unwrap();
    assert!(echoed.contains("2000011 bytes came; all of it is in the file"), "{echoed}");
    let written =
        runs(&fixture, "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero; cat | wc -c", large).await;
    assert!(written.unwrap().ends_with("2000011\n"));
}

#[tokio::test]
async fn one_that_fails_says_so_with_its_last_words() {
    let fixture = WorkspaceFixture::new();
    let result = runs(&fixture, "echo half; echo 'no such city' >&2; exit 7", json!({})).await.unwrap_err();
    let expected =
        "it failed with exit code 7.\n\nIts error output ends:\nno such city.\n\nIts output:\nhalf";
    assert_eq!(result.0, expected);
    let result =
        runs(&fixture, "head -c 9000000 /dev/zero | tr '\\0' e >&2; echo last >&2; exit 1", json!({})).await;
    let result = result.unwrap_err().0;
    assert!(result.len() < 5_000 && result.ends_with("eeelast"), "{}", result.len());
    let result = runs(&fixture, "kill -KILL $$", json!({})).await.unwrap_err();
    assert!(result.0.starts_with("it was ended by signal 9"), "{result}");
}

#[tokio::test]
async fn one_that_is_not_there_is_told() {
    let fixture = WorkspaceFixture::new();
    let missing = tool(&fixture, "");
    let missing = CommandTool::new(missing.tool, vec!["no-such-program".into()], fixture.runner());
    assert!(with_deadline(run_tool(&missing, json!({}))).await.is_err());
}

/// Output that imitates other messages is text like any other.
#[tokio::test]
async fn one_that_lies_is_taken_at_its_words() {
    let fixture = WorkspaceFixture::new();
    for lie in [r#"{"error": null, "output": "#, "[exit code 1]", "null", "\u{fffd}"] {
        let mut script = String::new();
        write!(script, "printf '%s' '{lie}'").unwrap();
        assert_eq!(runs(&fixture, &script, json!({})).await, Ok(lie.into()));
    }
    assert_eq!(runs(&fixture, "printf '\\377{\\000}'", json!({})).await, Ok("\u{fffd}{\0}".into()));
    assert_eq!(runs(&fixture, "", json!({})).await, Ok("(no output)".into()));
}

#[tokio::test]
async fn one_that_hangs_ends_when_it_is_let_go_of() {
    let fixture = WorkspaceFixture::new();
    let hung = tool(&fixture, "echo $$ > pid; while :; do sleep 0.05; done");
    tokio::select! {
        result = run_tool(&hung, json!({})) => panic!("{result:?}"),
        _ = fixture.wait_for_file("pid") => {}
    }
    wait_for_exit(&fixture.wait_for_file("pid").await).await;
}

#[test]
fn it_is_what_the_catalog_says() {
    let fixture = WorkspaceFixture::new();
    let tool = tool(&fixture, "");
    assert_eq!(
        (tool.permission(), tool.idempotent(), tool.spec().name),
        (Permission::Allow, true, "weather".into())
    );
    let prompt = tool.approval_prompt(&json!({"city": "\u{202e}Bonn\n\u{1b}"}));
    insta::assert_snapshot!(prompt, @r#"
    Run the tool `weather`, without the network, with this input?

    {
      "city": "\u{202e}Bonn\n\u001b"
    }
    "#);
}
