//! What a person allowed a tool for good holds for that tool, and not for what comes to have its name.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::http::send;
use crate::support::tool_programs::{done_reply, tool_reply, write_catalog_file};
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, Event, is_installed};

/// A tool server with one tool, which describes itself as its first argument says and notes each call in a file.
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

fn catalog(rig: &EngineFixture) -> std::path::PathBuf {
    rig.setup.variables["CATALOG_DIR"].clone().into()
}

/// The catalog's servers: one called `srv`, of this program, which describes its tool so.
fn servers(rig: &EngineFixture, program: &str, description: &str) -> Value {
    let program = catalog(rig).join(program);
    json!({"mcpServers": {"srv": {"command": "python3", "args": [program, description]}}})
}

async fn reload(rig: &EngineFixture, servers: &Value) {
    write_catalog_file(&catalog(rig), "mcp.json", &servers.to_string());
    reload_catalog(rig).await;
}

async fn reload_catalog(rig: &EngineFixture) {
    let reloaded = send(rig.engine.request(Method::POST, "/admin/reload-catalog")).await;
    assert_eq!((reloaded.status, &reloaded.body["warnings"]), (200, &json!([])), "{}", reloaded.body);
}

/// A turn that calls a tool, and is answered `always` if somebody is asked; the question.
async fn call_tool_always(rig: &EngineFixture, tool: &str) -> Option<String> {
    rig.provider.enqueue_all([tool_reply(tool, json!({})), done_reply()]);
    let mut stream = rig.engine.execute_with(&direct_message("task", "Act.")).await;
    let asked_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let first = stream.read_until("a request or a result", asked_or_done).await;
    let question =
        (first.kind == "hitl_request").then(|| first.data["question"].as_str().unwrap().to_owned());
    if question.is_some() {
        let always = json!({"task_id": "task", "answer": "always", "scope": "engine"});
        rig.engine.respond_with(&always).await.assert_ok("status:text request_id:hitl");
    }
    assert_completed(&stream.collect().await);
    question
}

#[tokio::test]
async fn what_was_allowed_of_a_servers_tool_ends_with_the_connection_the_server_and_the_definition() {
    if !is_installed("python3") {
        return;
    }
    let rig = EngineFixture::with_servers(json!({})).await;
    for program in ["one.py", "two.py"] {
        write_catalog_file(&catalog(&rig), program, SERVER_SCRIPT);
    }
    reload(&rig, &servers(&rig, "one.py", "reads the weather")).await;
    let connection = rig.engine.connect_server("srv").await;
    let first = call_tool_always(&rig, "srv__act").await.expect("it is asked");
    assert!(!first.contains("changed"), "{first}");
    assert_eq!(call_tool_always(&rig, "srv__act").await, None);

    // Another server by the name, after an end and a new connection: nothing of the old one holds.
    rig.engine.disconnect(&connection).await.assert_ok("status:text");
    assert_eq!(rig.engine.grants().await, Vec::<Value>::new(), "what was allowed ends with the connection");
    reload(&rig, &servers(&rig, "two.py", "reads the weather")).await;
    rig.engine.connect_server("srv").await;
    assert!(call_tool_always(&rig, "srv__act").await.is_some());
    assert_eq!(call_tool_always(&rig, "srv__act").await, None);

    // The same server describes its tool in another way.
    let changed = servers(&rig, "two.py", "pays what it is told to");
    reload(&rig, &changed).await;
    rig.engine.connect_server("srv").await;
    let asked = call_tool_always(&rig, "srv__act").await.expect("it is another tool");
    assert!(asked.contains("changed since") && asked.contains("> pays what it is told to"), "{asked}");
    assert_eq!(call_tool_always(&rig, "srv__act").await, None);
    assert_eq!(rig.engine.grants().await.len(), 1, "the new one is in the place of the old one");

    // Also what an earlier version noted of no tool in particular is asked once more.
    let rig = rig.stop_and_start().await;
    let brain = rusqlite::Connection::open(rig.setup.brain()).unwrap();
    brain.execute("UPDATE grants SET binding = NULL", []).unwrap();
    let asked = call_tool_always(&rig, "srv__act").await.expect("nobody knows of which tool it was");
    assert!(asked.contains("you are asked again"), "{asked}");
    assert_eq!(call_tool_always(&rig, "srv__act").await, None);
}

#[tokio::test]
async fn what_was_allowed_of_a_tool_of_the_catalog_ends_with_its_definition() {
    let rig = EngineFixture::allowing_unconfined([]).await;
    let tool = |command: &str| json!({"description": "Says something.", "input_schema": {"type": "object"}, "command": ["/bin/echo", command]});
    write_catalog_file(&catalog(&rig), "tools/say.json", &tool("hello").to_string());
    reload_catalog(&rig).await;
    assert!(call_tool_always(&rig, "say").await.is_some());
    assert_eq!(call_tool_always(&rig, "say").await, None);
    write_catalog_file(&catalog(&rig), "tools/say.json", &tool("goodbye").to_string());
    reload_catalog(&rig).await;
    let asked = call_tool_always(&rig, "say").await.expect("it is another tool");
    assert!(asked.contains("changed since") && asked.contains("> Says something."), "{asked}");
    assert_eq!(call_tool_always(&rig, "say").await, None);
}
