//! Tools of the catalog that run a program: it reads the input from standard input and writes the result to
//! standard output.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use catalog::CatalogTool;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use sandbox::{Command, ExitStatus, Limits};
use serde_json::Value;

use super::process::{ProcessOutcome, ProcessOutput, ProcessRunner, StderrMode};
use super::{Invocation, Tool, ToolError, ToolOutput, ToolStep, approval};
use crate::fingerprint;

/// The time limit of a call.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_mins(2);

/// A catalog tool that runs a program in the sandbox.
pub(super) struct CommandTool {
    tool: Arc<CatalogTool>,
    command: Vec<String>,
    runner: ProcessRunner,
}

impl CommandTool {
    /// Creates a tool that runs `command`.
    pub(super) fn new(tool: Arc<CatalogTool>, command: Vec<String>, programs: ProcessRunner) -> Self {
        Self { tool, command, runner: programs }
    }

    async fn run_command(&self, invocation: Invocation) -> Result<ToolStep, ToolError> {
        let command = Command {
            argv: self.command.iter().map(OsString::from).collect(),
            folder: PathBuf::from("."),
            env: Vec::new(),
            network: self.tool.network,
            limits: Limits { time: Some(COMMAND_TIMEOUT), ..Limits::default() },
        };
        let input = invocation.input.to_string().into_bytes();
        let process_output =
            self.runner.run(invocation.call_id, command, input, StderrMode::Separate).await?;
        tool_result(process_output, COMMAND_TIMEOUT)
    }
}

/// Returns the tool's result for a program whose result is its standard output.
pub(super) fn tool_result(process_output: ProcessOutput, time: Duration) -> Result<ToolStep, ToolError> {
    let ProcessOutput { outcome: ended, output, stderr_tail: stderr } = process_output;
    let reason = match ended.abort_reason(time) {
        Some(reason) => reason,
        None if ended == ProcessOutcome::Ended(ExitStatus::Exited(0)) => {
            let text = if output.is_empty() { "(no output)".into() } else { output };
            return Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }));
        }
        None => match ended {
            ProcessOutcome::Ended(ExitStatus::Exited(code)) => format!("it failed with exit code {code}"),
            _ => "it failed".into(),
        },
    };
    let mut message = reason;
    for (label, text) in [("Its error output ends", stderr.as_str()), ("Its output", output.trim_end())] {
        if !text.is_empty() {
            // Writing to a `String` cannot fail.
            let _ = write!(message, ".\n\n{label}:\n{text}");
        }
    }
    Err(ToolError(message))
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
        Some(fingerprint::hash(&["command", description, &schema, &network, &command]))
    }

    fn approval_prompt(&self, input: &Value) -> String {
        let network = approval::network_label(self.tool.network);
        let prompt = format!("Run the tool `{}`, {network}, with this input?\n\n", self.tool.name);
        prompt + &approval::pretty_json(input)
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(self.run_command(invocation))
    }
}

#[cfg(test)]
#[path = "../tests/unit/command.rs"]
mod tests;
