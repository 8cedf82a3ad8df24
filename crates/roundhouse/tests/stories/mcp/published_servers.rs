//! Servers that people use, as they are published.

use std::fs;

use serde_json::{Value, json};

use super::call_tool_in_turn;
use crate::support::peers::SdkVersion;
use crate::support::{EngineFixture, Peers, StandaloneEngine, is_installed};

#[tokio::test]
async fn the_time_is_told_by_a_published_server() {
    let Some(peers) = Peers::installed() else { return };
    let servers = |place: &StandaloneEngine| {
        let mut entry = peers.stdio_entry(
            place,
            SdkVersion::Newest,
            &["-m", "mcp_server_time", "--local-timezone", "Europe/Paris"],
        );
        entry["network"] = json!(false);
        json!({"time": entry})
    };
    let rig = EngineFixture::with_servers_and_setup(servers, |place| place).await;
    rig.engine.connect_server("time").await;
    let now = json!({"timezone": "Asia/Tokyo"});
    let said = call_tool_in_turn(&rig, "task", "time__get_current_time", now).await.unwrap();
    assert!(said.contains("Asia/Tokyo") && said.contains("+09:00"), "{said}");
    let noon = json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"});
    let said = rig.engine.tool_output("time__convert_time", noon).await;
    assert!(said.contains("21:00"), "{said}");
    let nowhere = json!({"timezone": "Nowhere/Land"});
    let error = call_tool_in_turn(&rig, "other", "time__get_current_time", nowhere).await.unwrap_err();
    assert!(error.contains("Nowhere/Land"), "{error}");
}

#[tokio::test]
async fn a_repository_in_the_workspace_is_worked_on_by_a_published_server() {
    let Some(peers) = Peers::installed() else { return };
    if !is_installed("git") {
        return;
    }
    let servers = |place: &StandaloneEngine| {
        let repository = place.workspace().join("work");
        let line = ["-m", "mcp_server_git", "--repository", repository.to_str().unwrap()];
        let mut entry = peers.stdio_entry(place, SdkVersion::Newest, &line);
        for role in ["AUTHOR", "COMMITTER"] {
            entry["env"][format!("GIT_{role}_NAME")] = json!("Ada");
            entry["env"][format!("GIT_{role}_EMAIL")] = json!("ada@example.com");
        }
        json!({"git": entry})
    };
    let rig = EngineFixture::with_servers_and_setup(servers, |place| place).await;
    let repository = rig.setup.workspace().join("work");
    let shell = async |command: &str| {
        rig.engine.tool_output("shell", json!({"command": command})).await;
    };
    shell("git init -q -b main work && echo 'a red apple' > work/fruit.txt").await;
    rig.engine.connect_server("git").await;
    let path = repository.to_str().unwrap();
    let status =
        call_tool_in_turn(&rig, "task", "git__git_status", json!({"repo_path": path})).await.unwrap();
    assert!(status.contains("fruit.txt"), "{status}");
    let call = async |tool: &str, more: Value| {
        let mut input = json!({"repo_path": path});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rig.engine.tool_output(&format!("git__{tool}"), input).await
    };
    call("git_add", json!({"files": ["fruit.txt"]})).await;
    call("git_commit", json!({"message": "Plant an apple"})).await;
    let log = call("git_log", json!({"max_count": 5})).await;
    assert!(log.contains("Plant an apple") && log.contains("Ada"), "{log}");
    assert_eq!(fs::read_to_string(repository.join("fruit.txt")).unwrap(), "a red apple\n");
    // Its own bounds hold beside the sandbox: another folder is refused.
    let outside = json!({"repo_path": rig.setup.test_env.path()});
    call_tool_in_turn(&rig, "other", "git__git_status", outside).await.unwrap_err();
}
