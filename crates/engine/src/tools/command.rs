//! Tools of the catalog that run a program: the input on its standard input, the result from its standard output.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use leash::{Command, Ended, Limits};
use serde_json::Value;

use super::program::{Outcome, Programs, Ran, Stderr};
use super::{Invocation, Permission, Tool, ToolError, ToolOutput, ToolStep, leave};
use crate::catalog::CatalogTool;
use crate::fingerprint;
use crate::models::ToolSpec;

/// How long a call may take.
pub(super) const TIME: Duration = Duration::from_mins(2);

/// See the module.
pub(super) struct CommandTool {
    tool: Arc<CatalogTool>,
    command: Vec<String>,
    programs: Programs,
}

impl CommandTool {
    /// The tool, which runs `command`.
    pub(super) fn new(tool: Arc<CatalogTool>, command: Vec<String>, programs: Programs) -> Self {
        Self { tool, command, programs }
    }

    async fn run_command(&self, invocation: Invocation) -> Result<ToolStep, ToolError> {
        let command = Command {
            argv: self.command.iter().map(OsString::from).collect(),
            folder: PathBuf::from("."),
            env: Vec::new(),
            network: self.tool.network,
            limits: Limits { time: Some(TIME), ..Limits::default() },
        };
        let input = invocation.input.to_string().into_bytes();
        let ran = self.programs.run(invocation.call_id, command, input, Stderr::Apart).await?;
        result(ran, TIME)
    }
}

/// What the model is told of a program whose result is its standard output.
pub(super) fn result(ran: Ran, time: Duration) -> Result<ToolStep, ToolError> {
    let Ran { ended, output, aside } = ran;
    let how = match ended.broken_off(time) {
        Some(how) => how,
        None if ended == Outcome::Ended(Ended::Exited(0)) => {
            let text = if output.is_empty() { "(no output)".into() } else { output };
            return Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }));
        }
        None => match ended {
            Outcome::Ended(Ended::Exited(code)) => format!("it failed with exit code {code}"),
            _ => "it failed".into(),
        },
    };
    let mut told = how;
    for (what, text) in [("Its error output ends", aside.as_str()), ("Its output", output.trim_end())] {
        if !text.is_empty() {
            // Writing to a `String` cannot fail.
            let _ = write!(told, ".\n\n{what}:\n{text}");
        }
    }
    Err(ToolError(told))
}

impl Tool for CommandTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.tool.name.clone(),
            description: self.tool.description.clone(),
            input_schema: self.tool.input_schema.clone(),
        }
    }

    fn idempotent(&self) -> bool {
        self.tool.idempotent
    }

    fn permission(&self) -> Permission {
        self.tool.permission
    }

    fn binding(&self) -> Option<String> {
        let CatalogTool { description, input_schema, network, .. } = &*self.tool;
        let (schema, network, command) =
            (input_schema.to_string(), network.to_string(), self.command.join("\0"));
        Some(fingerprint::of(&["command", description, &schema, &network, &command]))
    }

    fn leave_for(&self, input: &Value) -> String {
        let network = leave::network(self.tool.network);
        let asked = format!("Run the tool `{}`, {network}, with this input?\n\n", self.tool.name);
        asked + &leave::json(input)
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(self.run_command(invocation))
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
