//! Schemas that eat the context. However many tools the connected servers have, their declarations stay within
//! their share, each tool can still be called, and none of them fails a turn.

use std::sync::{Arc, Mutex};

use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use mock_llm::{CapturedRequest, Reply, Wire};
use serde_json::{Value, json};
use tools::{Invocation, Tool, ToolError, ToolOutput, ToolStep};

use super::prompt_caches::assert_prefix;
use crate::agent::harness::{AgentHarness, WIRES, final_text};

const SERVERS: usize = 20;
const TOOLS_PER_SERVER: usize = 50;
/// The context window of a model without a configured one, such as the test's models.
const CONTEXT_WINDOW_TOKENS: usize = 128_000;

/// A tool of a server. Some have a name or a schema that vendors reject.
struct RemoteTool {
    server: usize,
    number: usize,
    called: Arc<Mutex<Vec<(String, Value)>>>,
}

impl RemoteTool {
    fn name(&self) -> String {
        let space = if self.number == 7 { " of.the/server" } else { "" };
        format!("server{}__tool{}{space}", self.server, self.number)
    }
}

impl Tool for RemoteTool {
    fn spec(&self) -> ToolSpec {
        let input_schema = match self.number {
            3 => {
                json!({"oneOf": [{"required": ["a"]}, {"$ref": "#/$defs/b"}], "$defs": {"b": {"$ref": "#"}}})
            }
            5 => json!("no schema"),
            _ => json!({"type": "object", "properties": {
                "subject": {"type": "string", "description": "What it is about, in a few words of some length."},
                "limit": {"type": ["integer", "null"], "description": "How many of them at most, if not all."},
            }}),
        };
        let description =
            format!("Tool {} of server {}: looks after the widgets there.", self.number, self.server);
        ToolSpec { name: self.name(), description, input_schema }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn is_mcp_tool(&self) -> bool {
        true
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        self.called.lock().unwrap().push((self.name(), invocation.input));
        let text = format!("{} did it", self.name());
        Box::pin(async move { Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() })) })
    }
}

/// Returns the size of a request's tool declarations, in tokens as vendors count text.
fn tool_tokens(request: &CapturedRequest) -> usize {
    request.body["tools"].to_string().len() / 4
}

async fn fixture(wire: Wire, servers: usize) -> (AgentHarness, Arc<Mutex<Vec<(String, Value)>>>) {
    let called = Arc::<Mutex<Vec<_>>>::default();
    let tool = |at: usize| {
        let (server, number, called) = (at / TOOLS_PER_SERVER, at % TOOLS_PER_SERVER, Arc::clone(&called));
        Arc::new(RemoteTool { server, number, called }) as Arc<dyn Tool>
    };
    let tools = (0..servers * TOOLS_PER_SERVER).map(tool).collect();
    (AgentHarness::with_tools(wire, tools).await, called)
}

#[tokio::test]
async fn regression_e13_a_thousand_tools_stay_within_their_share() {
    for wire in WIRES {
        let (harness, called) = fixture(wire, SERVERS).await;
        let input = json!({"subject": "x"});
        harness.provider.enqueue_all([
            Reply::new().tool_use("tool_search", json!({"query": "server13__tool7 of.the/server"})),
            Reply::new()
                .tool_use("tool_call", json!({"tool": "server13__tool7 of.the/server", "input": input})),
            Reply::new().tool_use("tool_call", json!({"tool": "server2__tool3", "input": {}})),
            Reply::from_text("All done."),
        ]);
        let events = harness.run(json!({"task_id": "t", "message": "Look after the widgets."})).await;
        assert_eq!(final_text(&events), "All done.");
        // People see which tool was called.
        let calls =
            events.iter().filter(|event| event.kind == "tool_call").map(|event| event.data["tool"].clone());
        let odd = "server13__tool7 of.the/server";
        assert_eq!(calls.collect::<Vec<_>>(), [json!("tool_search"), json!(odd), json!("server2__tool3")]);
        let expected = [(odd.to_owned(), input), ("server2__tool3".to_owned(), json!({}))];
        assert_eq!(*called.lock().unwrap(), expected);

        let requests = harness.provider.requests();
        for request in &requests {
            let tokens = tool_tokens(request);
            assert!(tokens < CONTEXT_WINDOW_TOKENS / 10, "{wire:?}: {tokens} tokens of tools");
        }
        for pair in requests.windows(2) {
            assert_prefix(&pair[0], &pair[1]);
        }
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn regression_e13_no_tool_of_a_server_fails_a_turn() {
    for wire in WIRES {
        // Few enough to be declared directly, so the odd ones among them go over the wire.
        let (harness, _) = fixture(wire, 1).await;
        harness.provider.enqueue(Reply::from_text("Hello."));
        let events = harness.run(json!({"task_id": "t", "message": "Hello?"})).await;
        assert_eq!(final_text(&events), "Hello.");
        assert!(harness.last_request().body["tools"].to_string().contains("server0__tool3"), "{wire:?}");
        harness.provider.assert_no_refusals();
    }
}
