//! Published MCP servers (time and git), unmodified.

use std::fs;

use serde_json::{Value, json};

use super::call_tool_in_turn;
use crate::support::peers::SdkVersion;
use crate::support::{EngineFixture, Peers, StandaloneEngine, is_installed};

#[tokio::test]
async fn the_time_is_told_by_a_published_server() {
    let Some(peers) = Peers::installed() else { return };
    let servers = |setup: &StandaloneEngine| {
        let mut entry = peers.stdio_entry(
            setup,
            SdkVersion::Newest,
            &["-m", "mcp_server_time", "--local-timezone", "Europe/Paris"],
        );
        entry["network"] = json!(false);
        json!({"time": entry})
    };
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    fixture.engine.connect_server("time").await;
    let now = json!({"timezone": "Asia/Tokyo"});
    let output = call_tool_in_turn(&fixture, "task", "time__get_current_time", now).await.unwrap();
    assert!(output.contains("Asia/Tokyo") && output.contains("+09:00"), "{output}");
    let noon = json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"});
    let output = fixture.engine.tool_output("time__convert_time", noon).await;
    assert!(output.contains("21:00"), "{output}");
    let nowhere = json!({"timezone": "Nowhere/Land"});
    let error = call_tool_in_turn(&fixture, "other", "time__get_current_time", nowhere).await.unwrap_err();
    assert!(error.contains("Nowhere/Land"), "{error}");
}

#[tokio::test]
async fn a_repository_in_the_workspace_is_worked_on_by_a_published_server() {
    let Some(peers) = Peers::installed() else { return };
    if !is_installed("git") {
        return;
    }
    let servers = |setup: &StandaloneEngine| {
        let repository = setup.workspace().join("work");
        let arguments = ["-m", "mcp_server_git", "--repository", repository.to_str().unwrap()];
        let mut entry = peers.stdio_entry(setup, SdkVersion::Newest, &arguments);
        for role in ["AUTHOR", "COMMITTER"] {
            entry["env"][format!("GIT_{role}_NAME")] = json!("Ada");
            entry["env"][format!("GIT_{role}_EMAIL")] = json!("ada@example.com");
        }
        json!({"git": entry})
    };
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    let repository = fixture.setup.workspace().join("work");
    let shell = async |command: &str| {
        fixture.engine.tool_output("shell", json!({"command": command})).await;
    };
    shell("git init -q -b main work && echo 'a red apple' > work/fruit.txt").await;
    fixture.engine.connect_server("git").await;
    let path = repository.to_str().unwrap();
    let status =
        call_tool_in_turn(&fixture, "task", "git__git_status", json!({"repo_path": path})).await.unwrap();
    assert!(status.contains("fruit.txt"), "{status}");
    let call = async |tool: &str, more: Value| {
        let mut input = json!({"repo_path": path});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fixture.engine.tool_output(&format!("git__{tool}"), input).await
    };
    call("git_add", json!({"files": ["fruit.txt"]})).await;
    call("git_commit", json!({"message": "Plant an apple"})).await;
    let log = call("git_log", json!({"max_count": 5})).await;
    assert!(log.contains("Plant an apple") && log.contains("Ada"), "{log}");
    assert_eq!(fs::read_to_string(repository.join("fruit.txt")).unwrap(), "a red apple\n");
    // The server's own restriction applies in addition to the sandbox: another folder is refused.
    let outside = json!({"repo_path": fixture.setup.test_env.path()});
    call_tool_in_turn(&fixture, "other", "git__git_status", outside).await.unwrap_err();
}
