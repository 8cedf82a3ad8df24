//! Tests of programs that no longer read their input.

use http_service::clock::{Clock as _, SystemClock};
use serde_json::json;
use testkit::{can_run_python_servers, test_sandbox, with_deadline};

use super::super::fixture::command_spec;
use super::*;

/// Sends a message to a program that has closed its input; returns why the transport ended.
async fn send_after_input_closed(then: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let workspace = folder.path().join("workspace");
    let sandbox = test_sandbox(&workspace, &[]);
    let source = format!("import os, sys, time\nos.close(0)\nopen('closed', 'w').close()\n{then}");
    let spec = command_spec(&["python3", "-c", &source]);
    let line = TransportState::new(&CancellationToken::new());
    let mut server = StdioTransport::start(Some(&sandbox), &spec, &RequestAuth::None, &line).await.unwrap();
    with_deadline(async {
        while !workspace.join("closed").exists() {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let ping = serde_json::from_value(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})).unwrap();
    server.send(ping).await.unwrap();
    with_deadline(async { while server.receive().await.is_some() {} }).await;
    line.reason().to_owned()
}

#[tokio::test]
async fn how_a_program_ended_is_told_rather_than_that_it_did_not_listen() {
    if can_run_python_servers() {
        assert_eq!(send_after_input_closed("sys.exit(3)").await, "the server ended (exit code 3)");
    }
}

#[tokio::test]
async fn a_program_that_only_stops_listening_is_given_up_also_where_it_goes_on_talking() {
    if can_run_python_servers() {
        assert_eq!(send_after_input_closed("time.sleep(600)").await, "the server closed its input");
        let note = r#"{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}"#;
        let talks = format!("while True:\n    print('{note}', flush=True)\n    time.sleep(0.05)");
        assert_eq!(send_after_input_closed(&talks).await, "the server closed its input");
    }
}
