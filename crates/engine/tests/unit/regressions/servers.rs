//! Regressions with real MCP servers: connected programs that speak the protocol.

use std::path::Path;
use std::time::{Duration, Instant};

use api::assets::Connect;
use http_service::clock::{Clock as _, SystemClock};
use mock_llm::{Reply, Wire};
use serde_json::json;
use store::testing::next_events;
/// The source that every server begins with.
use testkit::MCP_SERVER_PRELUDE as SERVER_PRELUDE;
use testkit::{can_run_python_servers, task_id, with_deadline};

use crate::agent::harness::{AgentHarness, WIRES, check_turn, final_text};
/// The number of connected servers, and of the tools of each.
const SERVERS: usize = 20;
const TOOLS_PER_SERVER: usize = 50;
/// The context window of a model without a configured one, such as the test's models.
const CONTEXT_WINDOW_TOKENS: usize = 128_000;
/// How long a cancelled turn may continue.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(250);

/// Writes `servers` servers into a catalog, all of them the program `source` with their number. No tool needs
/// approval.
pub(super) fn write_mcp_servers(catalog: &Path, servers: usize, source: &str) {
    std::fs::create_dir_all(catalog).unwrap();
    let program = catalog.join("server.py");
    std::fs::write(&program, format!("{SERVER_PRELUDE}\n{source}")).unwrap();
    let entry = |number: usize| {
        let entry = json!({"command": "python3", "args": [program.to_str().unwrap(), number.to_string()]});
        (format!("s{number}"), entry)
    };
    let servers: serde_json::Map<_, _> = (0..servers).map(entry).collect();
    std::fs::write(catalog.join("mcp.json"), json!({"mcpServers": servers}).to_string()).unwrap();
    std::fs::write(catalog.join("permissions.json"), r#"{"default": "allow"}"#).unwrap();
}

async fn fixture(wire: Wire, servers: usize, source: &str) -> AgentHarness {
    let mut harness = AgentHarness::new(wire).await;
    write_mcp_servers(&harness.catalog_folder(), servers, source);
    harness.reload_catalog().await;
    for number in 0..servers {
        let connect = Connect { server: format!("s{number}"), credentials: None, redirect_to: None };
        with_deadline(harness.mcp().connect(connect)).await.unwrap();
    }
    harness
}

#[tokio::test]
async fn regression_e13_the_tools_of_twenty_connected_servers_stay_within_their_share() {
    if !can_run_python_servers() {
        return;
    }
    let source = format!(
        r#"
about = "Looks after the widgets there, in a few words of some length, as servers describe their tools."
properties = {{"subject": {{"type": "string", "description": about}}, "limit": {{"type": "integer"}}}}
schema = {{"type": "object", "properties": properties}}
tools = [tool("tool%d" % n, description=about) | {{"inputSchema": schema}} for n in range({TOOLS_PER_SERVER})]
serve(lambda call: answer(call, text(sys.argv[1] + " did " + call["params"]["name"])), tools=lambda: tools)
"#
    );
    let harness = fixture(Wire::AnthropicMessages, SERVERS, &source).await;
    harness.provider.enqueue_all([
        Reply::new().tool_use("tool_search", json!({"query": "s13__tool7"})),
        Reply::new().tool_use("tool_call", json!({"tool": "s13__tool7", "input": {"subject": "x"}})),
        Reply::from_text("All done."),
    ]);
    let events = harness.run(json!({"task_id": "t", "message": "Look after the widgets."})).await;
    assert_eq!(final_text(&events), "All done.");
    let result = events.iter().rfind(|event| event.kind == "tool_result").unwrap();
    assert_eq!(result.data["output"], "13 did tool7");
    for request in harness.provider.requests() {
        // As vendors count text.
        let tokens = request.body["tools"].to_string().len() / 4;
        assert!(tokens < CONTEXT_WINDOW_TOKENS / 10, "{tokens} tokens of tools");
    }
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_a_server_works_and_the_server_is_told() {
    if !can_run_python_servers() {
        return;
    }
    let source = "serve(lambda call: note('called') if call['params']['name'] == 'slow' else answer(call, text('quick')), \
                  tools=lambda: [tool('slow'), tool('quick')], \
                  other=lambda message: note(message['method']) if 'id' not in message else refuse(message))";
    for wire in WIRES {
        let harness = fixture(wire, 1, source).await;
        let file = harness.workspace().join("notes");
        let wait_for_note = async |note: &str| {
            while !std::fs::read_to_string(&file).is_ok_and(|notes| notes.lines().any(|line| line == note)) {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        };
        harness.provider.enqueue(Reply::new().tool_use("s0__slow", json!({})));
        let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
        with_deadline(wait_for_note("called")).await;
        let began = Instant::now();
        with_deadline(harness.agent.cancel(&task_id("t"), None)).await.unwrap();
        let mut seen = Vec::new();
        while let Some(events) = next_events(&mut reader).await {
            seen.extend(events);
        }
        assert!(began.elapsed() < CANCEL_TIMEOUT, "cancelled after {:?}", began.elapsed());
        assert_eq!(seen.last().unwrap().phase(), Some("cancelled"), "{seen:#?}");
        assert_eq!(check_turn(&seen), Ok(()));
        let notified =
            tokio::time::timeout(Duration::from_secs(5), wait_for_note("notifications/cancelled")).await;
        assert!(notified.is_ok(), "the server works on");
        // The same server continues with the next request.
        harness
            .provider
            .enqueue_all([Reply::new().tool_use("s0__quick", json!({})), Reply::from_text("Done.")]);
        let events = harness.send("and now?").await;
        let result = events.iter().rfind(|event| event.kind == "tool_result").unwrap();
        assert_eq!(result.data["output"], "quick");
        assert_eq!(final_text(&events), "Done.");
        harness.provider.assert_no_refusals();
    }
}
