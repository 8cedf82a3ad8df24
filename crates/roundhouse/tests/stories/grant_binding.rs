//! A grant applies to the tool for which it was given, and not to another tool that gets the same name.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::http::send;
use crate::support::tool_programs::{done_reply, tool_reply, write_catalog_file};
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, Event, is_installed};

/// A tool server with one tool, whose description is the server's first argument.
const SERVER_SCRIPT: &str = r#"
import json, sys
tool = {"name": "act", "description": sys.argv[1], "inputSchema": {"type": "object", "properties": {}}}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    method = request.get("method")
    if method == "initialize":
        answer["result"] = {
            "protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "acts", "version": "1"},
        }
    elif method == "tools/list":
        answer["result"] = {"tools": [tool]}
    elif method == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": "done by " + sys.argv[1]}]}
    else:
        answer["error"] = {"code": -32601, "message": "there is no such method"}
    print(json.dumps(answer), flush=True)
"#;

fn catalog(fixture: &EngineFixture) -> std::path::PathBuf {
    fixture.setup.variables["CATALOG_DIR"].clone().into()
}

/// The catalog's servers: one named `srv`, which runs `program` and describes its tool as `description`.
fn servers(fixture: &EngineFixture, program: &str, description: &str) -> Value {
    let program = catalog(fixture).join(program);
    json!({"mcpServers": {"srv": {"command": "python3", "args": [program, description]}}})
}

async fn reload(fixture: &EngineFixture, servers: &Value) {
    write_catalog_file(&catalog(fixture), "mcp.json", &servers.to_string());
    reload_catalog(fixture).await;
}

async fn reload_catalog(fixture: &EngineFixture) {
    let reloaded = send(fixture.engine.request(Method::POST, "/admin/reload-catalog")).await;
    assert_eq!((reloaded.status, &reloaded.body["warnings"]), (200, &json!([])), "{}", reloaded.body);
}

/// Runs a turn that calls a tool, and answers `always` if approval is requested; returns the question.
async fn call_tool_always(fixture: &EngineFixture, tool: &str) -> Option<String> {
    fixture.provider.enqueue_all([tool_reply(tool, json!({})), done_reply()]);
    let mut stream = fixture.engine.execute_with(&direct_message("task", "Act.")).await;
    let requested_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let first = stream.read_until("a request or a result", requested_or_done).await;
    let question =
        (first.kind == "hitl_request").then(|| first.data["question"].as_str().unwrap().to_owned());
    if question.is_some() {
        let always = json!({"task_id": "task", "answer": "always", "scope": "engine"});
        fixture.engine.respond_with(&always).await.assert_ok("status:text request_id:hitl");
    }
    assert_completed(&stream.collect().await);
    question
}

#[tokio::test]
async fn what_was_allowed_of_a_servers_tool_ends_with_the_connection_the_server_and_the_definition() {
    if !is_installed("python3") {
        return;
    }
    let fixture = EngineFixture::with_servers(json!({})).await;
    for program in ["one.py", "two.py"] {
        write_catalog_file(&catalog(&fixture), program, SERVER_SCRIPT);
    }
    reload(&fixture, &servers(&fixture, "one.py", "reads the weather")).await;
    let connection = fixture.engine.connect_server("srv").await;
    let first = call_tool_always(&fixture, "srv__act").await.expect("approval is requested");
    assert!(!first.contains("changed"), "{first}");
    assert_eq!(call_tool_always(&fixture, "srv__act").await, None);

    // Another server of the same name, after disconnecting and connecting again: the old grant does not apply.
    fixture.engine.disconnect(&connection).await.assert_ok("status:text");
    assert_eq!(fixture.engine.grants().await, Vec::<Value>::new(), "grants end with the connection");
    reload(&fixture, &servers(&fixture, "two.py", "reads the weather")).await;
    fixture.engine.connect_server("srv").await;
    assert!(call_tool_always(&fixture, "srv__act").await.is_some());
    assert_eq!(call_tool_always(&fixture, "srv__act").await, None);

    // The same server describes its tool differently.
    let changed = servers(&fixture, "two.py", "pays what it is told to");
    reload(&fixture, &changed).await;
    fixture.engine.connect_server("srv").await;
    let question = call_tool_always(&fixture, "srv__act").await.expect("it is another tool");
    assert!(
        question.contains("changed since") && question.contains("> pays what it is told to"),
        "{question}"
    );
    assert_eq!(call_tool_always(&fixture, "srv__act").await, None);
    assert_eq!(fixture.engine.grants().await.len(), 1, "the new grant replaces the old one");

    // For a grant of an earlier version, which is not bound to a definition, approval is requested once more.
    let fixture = fixture.stop_and_start().await;
    let brain = rusqlite::Connection::open(fixture.setup.brain()).unwrap();
    brain.execute("UPDATE grants SET binding = NULL", []).unwrap();
    let question = call_tool_always(&fixture, "srv__act").await.expect("the grant is bound to no definition");
    assert!(question.contains("you are asked again"), "{question}");
    assert_eq!(call_tool_always(&fixture, "srv__act").await, None);
}

#[tokio::test]
async fn what_was_allowed_of_a_tool_of_the_catalog_ends_with_its_definition() {
    let fixture = EngineFixture::allowing_unconfined([]).await;
    let tool = |command: &str| json!({"description": "Says something.", "input_schema": {"type": "object"}, "command": ["/bin/echo", command]});
    write_catalog_file(&catalog(&fixture), "tools/say.json", &tool("hello").to_string());
    reload_catalog(&fixture).await;
    assert!(call_tool_always(&fixture, "say").await.is_some());
    assert_eq!(call_tool_always(&fixture, "say").await, None);
    write_catalog_file(&catalog(&fixture), "tools/say.json", &tool("goodbye").to_string());
    reload_catalog(&fixture).await;
    let question = call_tool_always(&fixture, "say").await.expect("it is another tool");
    assert!(question.contains("changed since") && question.contains("> Says something."), "{question}");
    assert_eq!(call_tool_always(&fixture, "say").await, None);
}
