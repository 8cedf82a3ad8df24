//! `shell`: runs a command in the workspace, in the sandbox.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::approvals::ApprovalPreview;
use api::tool_names;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use rustix::fs::OFlags;
use sandbox::{Command, ExitStatus, Limits};
use serde::Deserialize;
use serde_json::{Value, json};

use super::files::Workspace;
use super::process::{MAX_TIMEOUT, ProcessOutcome, ProcessRunner, StderrMode};
use super::{Invocation, Tool, ToolError, ToolOutput, ToolStep, approval, parse_input};

/// The maximum length of a command, in bytes: a person who is asked for approval sees all of it.
const MAX_COMMAND_BYTES: usize = 8_000;
/// The time limit of a command if the model gives none.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);

/// The `shell` tool.
pub(super) struct Shell {
    runner: ProcessRunner,
    workspace: Workspace,
    network: bool,
    shell_path: &'static str,
}

#[derive(Deserialize)]
struct ShellInput {
    command: String,
    timeout_s: Option<u64>,
    folder: Option<String>,
}

impl ShellInput {
    fn timeout(&self) -> Duration {
        self.timeout_s.map_or(DEFAULT_TIMEOUT, Duration::from_secs).clamp(Duration::from_secs(1), MAX_TIMEOUT)
    }
}

impl Shell {
    /// Creates a shell whose commands may use the network if `network` is set.
    pub(super) fn new(programs: ProcessRunner, workspace: Workspace, network: bool) -> Self {
        let program = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
        Self { runner: programs, workspace, network, shell_path: program }
    }

    async fn run_command(&self, invocation: Invocation) -> Result<ToolStep, ToolError> {
        let input: ShellInput = parse_input(invocation.input)?;
        validate_command(&input.command)?;
        let folder = input.folder.clone().unwrap_or_else(|| ".".into());
        let command = Command {
            argv: [self.shell_path, "-c", &input.command].map(OsString::from).into(),
            folder: PathBuf::from(&folder),
            env: Vec::new(),
            network: self.network,
            limits: Limits { time: Some(input.timeout()), ..Limits::default() },
        };
        // Only checks that the folder exists; the sandbox keeps the program inside the workspace.
        let open_folder =
            move |workspace: Workspace| workspace.open(&folder, OFlags::DIRECTORY).map(|_| String::new());
        self.workspace.run_blocking(open_folder).await?;
        let process_output =
            self.runner.run(invocation.call_id, command, Vec::new(), StderrMode::Merged).await?;
        let output = if process_output.output.is_empty() {
            "(no output)"
        } else {
            process_output.output.trim_end_matches('\n')
        };
        match (process_output.outcome, process_output.outcome.abort_reason(input.timeout())) {
            (_, Some(reason)) => Err(ToolError(format!("{reason}. Its output until then:\n\n{output}"))),
            (ProcessOutcome::Ended(ExitStatus::Exited(code)), None) => {
                let text = format!("{output}\n[exit code {code}]");
                Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
            }
            (_, None) => Err(ToolError("the command ended, but its exit status is unknown".into())),
        }
    }
}

/// Whether a folder is the workspace itself.
fn is_workspace(folder: &str) -> bool {
    matches!(folder, "" | ".")
}

fn validate_command(command: &str) -> Result<(), ToolError> {
    if command.trim().is_empty() || command.len() > MAX_COMMAND_BYTES {
        return Err(ToolError(format!(
            "`command` must be 1 to {MAX_COMMAND_BYTES} bytes long and not blank; put more into a file with `write_file`, \
             and run that"
        )));
    }
    if command.contains('\0') {
        return Err(ToolError("`command` must not contain NUL characters".into()));
    }
    Ok(())
}

impl Tool for Shell {
    fn spec(&self) -> ToolSpec {
        let network = if self.network { "It can use the network" } else { "It has no network" };
        let max_secs = MAX_TIMEOUT.as_secs();
        ToolSpec {
            name: tool_names::SHELL.into(),
            description: format!(
                "Runs a command in a shell, in the workspace, and gives what it writes and its exit code. {network} \
                 and no terminal, can write nothing outside the workspace, and is ended with all that it began."
            ),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": "What the shell shall do."},
                    "timeout_s": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": max_secs,
                        "description": format!("How many seconds it may take; {} if nothing else is said.", DEFAULT_TIMEOUT.as_secs()),
                    },
                    "folder": {
                        "type": "string",
                        "description": "The folder to begin in, relative to the workspace.",
                    },
                },
                "required": ["command"],
            }),
        }
    }

    fn idempotent(&self) -> bool {
        false
    }

    fn permission(&self) -> Permission {
        Permission::Ask
    }

    fn approval_prompt(&self, input: &Value) -> String {
        let Ok(input) = ShellInput::deserialize(input) else {
            return approval::default_prompt(&self.spec().name, input);
        };
        let network = approval::network_label(self.network);
        let location =
            input.folder.as_ref().map_or_else(String::new, |folder| format!(" in the folder {folder:?}"));
        let command = approval::excerpt(&input.command, "", MAX_COMMAND_BYTES);
        format!(
            "Run this command{location}, {network}, for at most {} s?\n\n{command}",
            input.timeout().as_secs()
        )
    }

    fn approval_preview(&self, input: &Value) -> ApprovalPreview {
        let Ok(ShellInput { command, folder, .. }) = ShellInput::deserialize(input) else {
            return approval::input_preview(input);
        };
        let visible = |text: &str| approval::visible_prefix(text, "", MAX_COMMAND_BYTES).0;
        let folder = folder.filter(|folder| !is_workspace(folder)).map(|folder| visible(&folder));
        ApprovalPreview::Command { command: visible(&command), folder, network: self.network }
    }

    fn check_input(&self, input: &Value) -> Result<(), ToolError> {
        validate_command(&parse_input::<ShellInput>(input.clone())?.command)
    }

    fn command(&self, input: &Value) -> Option<String> {
        let ShellInput { command, folder, .. } = ShellInput::deserialize(input).ok()?;
        // In another folder the same words may run another program.
        match folder.as_deref().filter(|folder| !is_workspace(folder)) {
            Some(folder) => Some(format!("cd {folder:?} && {command}")),
            None => Some(command),
        }
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(self.run_command(invocation))
    }
}

#[cfg(test)]
#[path = "../tests/unit/shell.rs"]
mod tests;
