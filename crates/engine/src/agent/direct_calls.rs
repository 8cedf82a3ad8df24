//! Tool calls outside a turn. The holder of the engine's key needs no approval by the user, but denied tools
//! stay denied.

use api::CallId;
use llm::ToolSpec;
use serde_json::Value;
use tools::{Invocation, ToolError, ToolStep, insert_own_numbers};

use super::tool_calls::run_tool;
use super::turn_registry::BusyGuard;
use super::{Agent, AgentError};

/// Why a direct call of a tool or skill failed.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// There is no such tool, or it works only in a turn.
    #[error(
        "there is no tool called `{0}` that can be called without a turn; `rpc.methods` lists the available ones"
    )]
    NoSuchTool(String),
    /// The tool is denied.
    #[error("the tool `{0}` is not permitted: the catalog denies it, or its permissions.json cannot be read")]
    Denied(String),
    /// There is no such skill.
    #[error("there is no skill called `{0}`; `rpc.methods` lists the available ones")]
    NoSuchSkill(String),
    /// The request cannot be carried out.
    #[error("{0}")]
    Invalid(String),
    /// The tool failed or rejected its input.
    #[error(transparent)]
    Failed(#[from] ToolError),
    /// No model answers, for a reason outside the caller's control: a provider fails, none is configured, or
    /// the budget is exhausted.
    #[error("{0}")]
    NoAnswer(String),
    /// The answer does not match the schema of the request, even after a correction.
    #[error("{0}")]
    OutputInvalid(String),
    /// The agent failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// The note about media, which no model is there to see.
const NOT_SHOWN: &str = "[Outside of turns, pictures are not shown.]";

impl Agent {
    /// Calls a tool and returns its output.
    pub async fn call_tool(&self, name: &str, input: Value) -> Result<String, DirectError> {
        let snapshot = self.services.snapshots.current();
        let toolbox = &snapshot.toolbox;
        let unknown = || DirectError::NoSuchTool(name.to_owned());
        let tool = toolbox.find(name).ok_or_else(unknown)?;
        if !toolbox.may_run_unattended(name, &*tool) {
            return Err(DirectError::Denied(name.to_owned()));
        }
        if tool.needs_turn() {
            return Err(unknown());
        }
        let _busy_guard = self.begin_direct_call()?;
        toolbox.validate_input(name, &input).map_err(ToolError)?;
        let inline_limit = tool.inline_limit(&input);
        let call_id = CallId::new();
        let invocation =
            Invocation { call_id, at: self.services.clock.now(), task: None, input, answers: Vec::new() };
        let result = tokio::select! {
            biased;
            result = run_tool(&*tool, invocation) => result,
            () = self.stopping.cancelled() => return Err(AgentError::Stopping.into()),
        };
        match self.services.outputs.limit_output(call_id, result, inline_limit).await? {
            ToolStep::Done(output) if output.is_error => Err(ToolError(output.text).into()),
            ToolStep::Done(output) => {
                let text = insert_own_numbers(&output.text, &output.pages);
                Ok(if output.media.is_empty() { text } else { format!("{text}\n{NOT_SHOWN}") })
            }
            ToolStep::Ask(_) => Err(unknown()),
        }
    }

    /// Begins a call outside a turn, which lasts until the returned guard is dropped.
    pub(super) fn begin_direct_call(&self) -> Result<BusyGuard, AgentError> {
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        self.registry.lock().begin_direct_call(self.services.clock.monotonic())
    }

    /// The tools that can be called outside a turn.
    pub fn direct_tools(&self) -> Vec<ToolSpec> {
        let snapshot = self.services.snapshots.current();
        let tools = snapshot.toolbox.all().iter().filter(|tool| !tool.needs_turn());
        let declarations = tools.map(|tool| (tool.spec(), tool));
        let allowed =
            declarations.filter(|(spec, tool)| snapshot.toolbox.may_run_unattended(&spec.name, &***tool));
        allowed.map(|(spec, _)| spec).collect()
    }
}
