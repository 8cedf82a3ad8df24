//! The tools that an agent may call.
//!
//! A tool that fails tells the model why; nothing that a tool does ends the turn or the engine.

mod files;
mod working_memory;

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::models::ToolSpec;

/// A tool.
pub trait Tool: Send + Sync {
    /// What the model is told of it.
    fn spec(&self) -> ToolSpec;

    /// Whether running it twice with the same input is as good as once. After a crash in its middle such a
    /// tool is simply run again; of any other the model is told that the outcome is unknown.
    fn idempotent(&self) -> bool;

    /// Runs it.
    fn run(&self, input: Value) -> BoxFuture<'_, Result<ToolOutput, ToolError>>;
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
        Self::new(vec![
            Arc::new(working_memory::WorkingMemorySet),
            Arc::new(files::ReadFile::within(workspace)),
            Arc::new(files::ListFiles::within(workspace)),
        ])
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

    /// The tool called `name`.
    pub fn find(&self, name: &str) -> Option<Arc<dyn Tool>> {
        let named = self.specs.iter().zip(&self.tools).find(|(spec, _)| spec.name == name);
        named.map(|(_, tool)| Arc::clone(tool))
    }
}

/// Reads a tool's input.
fn parse<T: DeserializeOwned>(input: Value) -> Result<T, ToolError> {
    serde_json::from_value(input)
        .map_err(|error| ToolError(format!("the input is not as its schema says: {error}")))
}
