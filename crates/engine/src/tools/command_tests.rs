//! Tests of catalog tools that run programs, especially faulty ones.

use serde_json::json;

use super::*;
use crate::catalog::ToolImplementation;
use crate::testing::with_deadline;
use crate::tools::fixture::{WorkspaceFixture, run_tool, wait_for_exit};

/// Returns a tool that runs this script.
fn tool(rig: &WorkspaceFixture, script: &str) -> CommandTool {
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
    CommandTool::new(Arc::new(tool), command, rig.runner())
}

async fn runs(rig: &WorkspaceFixture, script: &str, input: Value) -> Result<String, ToolError> {
    with_deadline(run_tool(&tool(rig, script), input)).await
}

#[tokio::test]
async fn it_is_given_its_input_and_its_output_is_the_result() {
    let rig = WorkspaceFixture::new();
    let input = json!({"city": "Köln", "days": [1, 2]});
    assert_eq!(runs(&rig, "cat", input.clone()).await, Ok(input.to_string()));
    assert_eq!(runs(&rig, "echo aside >&2; echo result; pwd > here", input).await, Ok("result\n".into()));
    assert_eq!(rig.read_file("here").trim(), std::fs::canonicalize(rig.path("")).unwrap().to_str().unwrap());
}

#[tokio::test]
async fn however_it_treats_its_input_nothing_is_held_up() {
    let rig = WorkspaceFixture::new();
    let large = json!({"text": "x".repeat(2_000_000)});
    assert_eq!(runs(&rig, "echo never read it", large.clone()).await, Ok("never read it\n".into()));
    assert_eq!(runs(&rig, "exec <&-; echo closed it", large.clone()).await, Ok("closed it\n".into()));
    assert_eq!(runs(&rig, "head -c 5 >&2; echo read a bit", large.clone()).await, Ok("read a bit\n".into()));
    let echoed = runs(&rig, "cat", large.clone()).await.unwrap();
    assert!(echoed.contains("2000011 bytes came; all of it is in the file"), "{echoed}");
    let written =
        runs(&rig, "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero; cat | wc -c", large).await;
    assert!(written.unwrap().ends_with("2000011\n"));
}

#[tokio::test]
async fn one_that_fails_says_so_with_its_last_words() {
    let rig = WorkspaceFixture::new();
    let told = runs(&rig, "echo half; echo 'no such city' >&2; exit 7", json!({})).await.unwrap_err();
    let expected =
        "it failed with exit code 7.\n\nIts error output ends:\nno such city.\n\nIts output:\nhalf";
    assert_eq!(told.0, expected);
    let told =
        runs(&rig, "head -c 9000000 /dev/zero | tr '\\0' e >&2; echo last >&2; exit 1", json!({})).await;
    let told = told.unwrap_err().0;
    assert!(told.len() < 5_000 && told.ends_with("eeelast"), "{}", told.len());
    let told = runs(&rig, "kill -KILL $$", json!({})).await.unwrap_err();
    assert!(told.0.starts_with("it was ended by signal 9"), "{told}");
}

#[tokio::test]
async fn one_that_is_not_there_is_told() {
    let rig = WorkspaceFixture::new();
    let missing = tool(&rig, "");
    let missing = CommandTool::new(missing.tool, vec!["no-such-program".into()], rig.runner());
    assert!(with_deadline(run_tool(&missing, json!({}))).await.is_err());
}

/// Output that imitates other messages is text like any other.
#[tokio::test]
async fn one_that_lies_is_taken_at_its_words() {
    let rig = WorkspaceFixture::new();
    for lie in [r#"{"error": null, "output": "#, "[exit code 1]", "null", "\u{fffd}"] {
        let mut script = String::new();
        write!(script, "printf '%s' '{lie}'").unwrap();
        assert_eq!(runs(&rig, &script, json!({})).await, Ok(lie.into()));
    }
    assert_eq!(runs(&rig, "printf '\\377{\\000}'", json!({})).await, Ok("\u{fffd}{\0}".into()));
    assert_eq!(runs(&rig, "", json!({})).await, Ok("(no output)".into()));
}

#[tokio::test]
async fn one_that_hangs_ends_when_it_is_let_go_of() {
    let rig = WorkspaceFixture::new();
    let hung = tool(&rig, "echo $$ > pid; while :; do sleep 0.05; done");
    tokio::select! {
        told = run_tool(&hung, json!({})) => panic!("{told:?}"),
        _ = rig.wait_for_file("pid") => {}
    }
    wait_for_exit(&rig.wait_for_file("pid").await).await;
}

#[test]
fn it_is_what_the_catalog_says() {
    let rig = WorkspaceFixture::new();
    let tool = tool(&rig, "");
    assert_eq!(
        (tool.permission(), tool.idempotent(), tool.spec().name),
        (Permission::Allow, true, "weather".into())
    );
    let asked = tool.approval_prompt(&json!({"city": "\u{202e}Bonn\n\u{1b}"}));
    insta::assert_snapshot!(asked, @r#"
    Run the tool `weather`, without the network, with this input?

    {
      "city": "\u{202e}Bonn\n\u001b"
    }
    "#);
}
