//! Calls of tools without a turn: whoever holds the engine's key needs no person's leave, but what is denied stays
//! denied.

use contract::CallId;
use serde_json::Value;

use super::tool_calls::run_tool;
use super::turn_registry::BusyGuard;
use super::{Agent, AgentError};
use crate::llm::ToolSpec;
use crate::tools::{Invocation, ToolError, ToolStep};

/// How many such calls may run at once.
pub(super) const MAX_DIRECT_CALLS: usize = 16;

/// Why a tool that was called without a turn gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// There is no such tool, or it works in a turn only.
    #[error(
        "there is no tool called `{0}` that can be called without a turn; `rpc.methods` lists those there are"
    )]
    NoSuchTool(String),
    /// It may not be used.
    #[error(
        "the tool `{0}` may not be used here: the catalog denies it, or its permissions.json cannot be read"
    )]
    Denied(String),
    /// There is no such skill.
    #[error("there is no skill called `{0}`; `rpc.methods` lists those there are")]
    NoSuchSkill(String),
    /// What is to be done cannot be.
    #[error("{0}")]
    Invalid(String),
    /// It failed, or refused its input.
    #[error(transparent)]
    Failed(#[from] ToolError),
    /// No model answers it, which is not the caller's doing: a provider fails, none is configured, or the budget is
    /// used up.
    #[error("{0}")]
    NoAnswer(String),
    /// The agent could not do it.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl Agent {
    /// Calls a tool; what it gave.
    pub async fn call_tool(&self, name: &str, input: Value) -> Result<String, DirectError> {
        let kit = self.services.snapshots.current();
        let toolbox = &kit.toolbox;
        let unknown = || DirectError::NoSuchTool(name.to_owned());
        let tool = toolbox.find(name).ok_or_else(unknown)?;
        if !toolbox.may_run_unattended(name, &*tool) {
            return Err(DirectError::Denied(name.to_owned()));
        }
        if tool.needs_turn() {
            return Err(unknown());
        }
        let _at_work = self.begin_direct_call()?;
        toolbox.validate_input(name, &input).map_err(ToolError)?;
        let most = tool.inline_limit(&input);
        let call_id = CallId::new();
        let invocation = Invocation { call_id, task: None, input, answers: Vec::new() };
        let result = tokio::select! {
            biased;
            result = run_tool(&*tool, invocation) => result,
            () = self.stopping.cancelled() => return Err(AgentError::Stopping.into()),
        };
        match self.services.outputs.limit_output(call_id, result, most).await? {
            ToolStep::Done(output) => Ok(output.text),
            ToolStep::Ask(_) => Err(unknown()),
        }
    }

    /// Begins a call without a turn, which is over when what this gives is dropped.
    pub(super) fn begin_direct_call(&self) -> Result<BusyGuard, AgentError> {
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        self.registry.lock().begin_direct_call(self.services.clock.monotonic())
    }

    /// The tools that can be called without a turn.
    pub fn direct_tools(&self) -> Vec<ToolSpec> {
        let kit = self.services.snapshots.current();
        let tools = kit.toolbox.all().iter().filter(|tool| !tool.needs_turn());
        let declarations = tools.map(|tool| (tool.spec(), tool));
        let allowed =
            declarations.filter(|(spec, tool)| kit.toolbox.may_run_unattended(&spec.name, &***tool));
        allowed.map(|(spec, _)| spec).collect()
    }
}
