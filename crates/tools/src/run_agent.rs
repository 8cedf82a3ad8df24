//! `run_agent`: delegates work to an agent of the catalog.

use std::sync::Arc;

use api::tool_names;
use catalog::AgentSpec;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Invocation, Tool, ToolError, ToolStep, parse_input};

/// A piece of work for a sub-agent.
pub struct Delegation {
    /// The agent that does the work.
    pub agent: Arc<AgentSpec>,
    /// The description of the work.
    pub task: String,
}

/// The `run_agent` tool.
pub(super) struct RunAgent {
    agents: Vec<Arc<AgentSpec>>,
}

#[derive(Deserialize)]
struct RunAgentInput {
    agent: String,
    task: String,
}

impl RunAgent {
    /// Creates a tool that runs these agents.
    pub(super) fn new(agents: Vec<Arc<AgentSpec>>) -> Self {
        Self { agents }
    }

    fn names(&self) -> Vec<&str> {
        self.agents.iter().map(|agent| agent.name.as_str()).collect()
    }
}

impl Tool for RunAgent {
    fn spec(&self) -> ToolSpec {
        let agents: Vec<String> =
            self.agents.iter().map(|agent| format!("{}: {}", agent.name, agent.description)).collect();
        let description =
            "Hands a piece of work to another agent and gives you its answer. It sees nothing of this \
                           conversation, so tell it all that it needs to know."
                .to_owned();
        // Listed here because vendors limit a tool's description.
        let which = format!("Which agent:\n{}", agents.join("\n"));
        let input_schema = json!({
            "type": "object",
            "properties": {
                "agent": {"type": "string", "enum": self.names(), "description": which},
                "task": {"type": "string", "description": "What it is to do, and all that it needs to know for it."},
            },
            "required": ["agent", "task"],
        });
        ToolSpec { name: tool_names::RUN_AGENT.into(), description, input_schema }
    }

    // Each step of a sub-agent is journaled, so it resumes where it was.
    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn needs_turn(&self) -> bool {
        true
    }

    fn sub_agent(&self, input: &Value) -> Option<Result<Delegation, ToolError>> {
        let delegation =
            parse_input::<RunAgentInput>(input.clone()).and_then(|RunAgentInput { agent, task }| {
                let named = self.agents.iter().find(|known| known.name == agent);
                let agent = named.cloned().ok_or_else(|| {
                    ToolError(format!(
                        "there is no agent called `{agent}`; there are: {}",
                        self.names().join(", ")
                    ))
                })?;
                if task.trim().is_empty() {
                    return Err(ToolError("`task` is empty: say what the agent is to do".into()));
                }
                Ok(Delegation { agent, task })
            });
        Some(delegation)
    }

    fn run(&self, _: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async { Err(ToolError("an agent can be run only within a turn".into())) })
    }
}
