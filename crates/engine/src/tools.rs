//! The tools that an agent may call.
//!
//! A tool that fails tells the model why; nothing that a tool does ends the turn or the engine.

mod ask_user;
mod files;
mod leave;
mod read;
#[cfg(test)]
mod rig;
mod run_agent;
mod working_memory;
mod write;

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::catalog::AgentSpec;
use crate::models::ToolSpec;

pub use run_agent::Delegation;
pub(crate) use run_agent::NAME as RUN_AGENT;

/// A tool.
pub trait Tool: Send + Sync {
    /// What the model is told of it.
    fn spec(&self) -> ToolSpec;

    /// Whether running it twice with the same input is as good as once. After a crash in its middle such a
    /// tool is simply run again; of any other the model is told that the outcome is unknown.
    fn idempotent(&self) -> bool;

    /// Whether it needs a person's leave where nobody has decided otherwise.
    fn permission(&self) -> Permission;

    /// What a person is told of a call that wants leave: what will happen, in words that they can judge.
    fn leave_for(&self, input: &Value) -> String {
        leave::plain(&self.spec().name, input)
    }

    /// The sub-agent that a call of it runs, or why it cannot; none for a tool that runs by itself.
    fn delegates(&self, _input: &Value) -> Option<Result<Delegation, ToolError>> {
        None
    }

    /// Runs it. A tool that asks a person something is run again with the answer; what it did before it asked is
    /// then on record as done.
    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>>;
}

/// Whether a tool may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Without asking.
    Allow,
    /// If a person gives leave.
    Ask,
    /// Never.
    Deny,
}

/// What a tool is run with.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    /// What the model gave it, a JSON object.
    pub input: Value,
    /// The answers to what it asked so far, oldest first.
    pub answers: Vec<PersonsAnswer>,
}

/// A person's answer to what a tool asked. What else the person said reaches the model by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonsAnswer {
    /// The answer.
    pub answer: String,
}

/// How far a run of a tool came.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolStep {
    /// To its end.
    Done(ToolOutput),
    /// To a question for a person.
    Ask(Question),
}

/// A question for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The text to show.
    pub text: String,
    /// Answers to choose from, if there are some; another answer is taken too.
    pub options: Option<Vec<String>>,
}

/// What a tool gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolOutput {
    /// What the model is told.
    pub text: String,
    /// What it changes in the task's working memory, committed together with the result.
    pub working_memory: Vec<(String, Value)>,
}

/// Why a tool failed, as the model is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

/// The tools at hand.
pub struct Toolbox {
    tools: Vec<Arc<dyn Tool>>,
    specs: Vec<ToolSpec>,
}

impl Toolbox {
    /// The built-in tools; those for files work in the folder `workspace`.
    pub fn built_in(workspace: &Path) -> Self {
        let workspace = files::Workspace::new(workspace);
        Self::new(vec![
            Arc::new(working_memory::WorkingMemorySet),
            Arc::new(ask_user::AskUser),
            Arc::new(read::ReadFile(workspace.clone())),
            Arc::new(read::ListFiles(workspace.clone())),
            Arc::new(write::WriteFile(workspace.clone())),
            Arc::new(write::EditFile(workspace)),
        ])
    }

    /// These tools, and one that runs the agents if there are some.
    #[must_use]
    pub fn with_agents(mut self, agents: &[Arc<AgentSpec>]) -> Self {
        if agents.is_empty() {
            return self;
        }
        self.tools.push(Arc::new(run_agent::RunAgent::new(agents.to_vec())));
        Self::new(self.tools)
    }

    /// These tools, in this order.
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        let specs = tools.iter().map(|tool| tool.spec()).collect();
        Self { tools, specs }
    }

    /// What the model is told of them.
    pub fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    /// What a sub-agent's model is told of the tools that it may call. It runs no agents of its own.
    pub fn specs_for(&self, agent: &AgentSpec) -> Vec<ToolSpec> {
        let may = |spec: &&ToolSpec| {
            let listed = |globs: &Vec<String>| globs.iter().any(|glob| glob_matches(glob, &spec.name));
            spec.name != RUN_AGENT && agent.tools.as_ref().is_none_or(listed)
        };
        self.specs.iter().filter(may).cloned().collect()
    }

    /// The tool called `name`.
    pub fn find(&self, name: &str) -> Option<Arc<dyn Tool>> {
        let named = self.specs.iter().zip(&self.tools).find(|(spec, _)| spec.name == name);
        named.map(|(_, tool)| Arc::clone(tool))
    }
}

/// Whether a glob, in which `*` stands for any characters, is a name.
fn glob_matches(glob: &str, name: &str) -> bool {
    let Some((head, rest)) = glob.split_once('*') else { return glob == name };
    let Some(name) = name.strip_prefix(head) else { return false };
    let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    ends.into_iter().any(|at| name.get(at..).is_some_and(|name| glob_matches(rest, name)))
}

/// Reads a tool's input.
fn parse<T: DeserializeOwned>(input: Value) -> Result<T, ToolError> {
    serde_json::from_value(input)
        .map_err(|error| ToolError(format!("the input is not as its schema says: {error}")))
}
