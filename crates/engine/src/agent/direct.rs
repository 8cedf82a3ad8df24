//! Calls of tools without a turn: whoever holds the engine's key needs no person's leave, but what is denied stays
//! denied.

use contract::CallId;
use serde_json::Value;

use super::calls::run_tool;
use super::{Agent, AgentError};
use crate::models::ToolSpec;
use crate::tools::{Invocation, ToolError, ToolStep};

/// How many such calls may run at once.
pub(super) const MAX_AT_ONCE: usize = 16;

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
    /// The agent could not do it.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl Agent {
    /// Calls a tool; what it gave.
    pub async fn call_tool(&self, name: &str, input: Value) -> Result<String, DirectError> {
        let kit = self.means.kits.current();
        let toolbox = &kit.toolbox;
        let unknown = || DirectError::NoSuchTool(name.to_owned());
        let tool = toolbox.find(name).ok_or_else(unknown)?;
        if !toolbox.may_run_unasked(name, &*tool) {
            return Err(DirectError::Denied(name.to_owned()));
        }
        if tool.needs_turn() {
            return Err(unknown());
        }
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping.into());
        }
        self.running.turns().admit(self.means.clock.monotonic())?;
        toolbox.check(name, &input).map_err(ToolError)?;
        let _place = self.direct.try_acquire().map_err(|_| AgentError::TooManyCalls)?;
        let call_id = CallId::new();
        let invocation = Invocation { call_id, task: None, input, answers: Vec::new() };
        let result = tokio::select! {
            biased;
            result = run_tool(&*tool, invocation) => result,
            () = self.stopping.cancelled() => return Err(AgentError::Stopping.into()),
        };
        match self.means.outputs.bounded(call_id, result).await? {
            ToolStep::Done(output) => Ok(output.text),
            ToolStep::Ask(_) => Err(unknown()),
        }
    }

    /// The tools that can be called without a turn.
    pub fn direct_tools(&self) -> Vec<ToolSpec> {
        let kit = self.means.kits.current();
        let tools = kit.toolbox.all().iter().filter(|tool| !tool.needs_turn());
        let specs = tools.map(|tool| (tool.spec(), tool));
        let allowed = specs.filter(|(spec, tool)| kit.toolbox.may_run_unasked(&spec.name, &***tool));
        allowed.map(|(spec, _)| spec).collect()
    }
}
