//! `shell`: runs a command in the workspace, on the leash.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::BoxFuture;
use leash::{Command, Ended, Limits};
use rustix::fs::OFlags;
use serde::Deserialize;
use serde_json::{Value, json};

use super::files::Workspace;
use super::program::{MAX_TIME, Outcome, Programs, Stderr};
use super::{Invocation, Permission, Tool, ToolError, ToolOutput, ToolStep, leave, parse};
use crate::models::ToolSpec;

/// The longest command, in bytes: a person who is asked for leave sees all of it.
const MAX_COMMAND: usize = 8_000;
/// How long a command may run where the model does not say.
const TIME: Duration = Duration::from_mins(2);

/// See the module.
pub(super) struct Shell {
    programs: Programs,
    workspace: Workspace,
    network: bool,
    program: &'static str,
}

#[derive(Deserialize)]
struct Input {
    command: String,
    timeout_s: Option<u64>,
    folder: Option<String>,
}

impl Input {
    fn time(&self) -> Duration {
        self.timeout_s.map_or(TIME, Duration::from_secs).clamp(Duration::from_secs(1), MAX_TIME)
    }
}

impl Shell {
    /// A shell whose commands may use the network if `network` says so.
    pub(super) fn new(programs: Programs, workspace: Workspace, network: bool) -> Self {
        let program = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
        Self { programs, workspace, network, program }
    }

    async fn run_command(&self, invocation: Invocation) -> Result<ToolStep, ToolError> {
        let input: Input = parse(invocation.input)?;
        check(&input.command)?;
        let folder = input.folder.clone().unwrap_or_else(|| ".".into());
        let command = Command {
            argv: [self.program, "-c", &input.command].map(OsString::from).into(),
            folder: PathBuf::from(&folder),
            env: Vec::new(),
            network: self.network,
            limits: Limits { time: Some(input.time()), ..Limits::default() },
        };
        // It is there and in the workspace; the leash holds it there.
        let is_there =
            move |workspace: Workspace| workspace.open(&folder, OFlags::DIRECTORY).map(|_| String::new());
        self.workspace.blocking(is_there).await?;
        let ran = self.programs.run(invocation.call_id, command, Vec::new(), Stderr::Joined).await?;
        let output = if ran.output.is_empty() { "(no output)" } else { ran.output.trim_end_matches('\n') };
        match (ran.ended, ran.ended.broken_off(input.time())) {
            (_, Some(how)) => Err(ToolError(format!("{how}. Its output until then:\n\n{output}"))),
            (Outcome::Ended(Ended::Exited(code)), None) => {
                let text = format!("{output}\n[exit code {code}]");
                Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
            }
            (_, None) => Err(ToolError("it ended, but not how".into())),
        }
    }
}

fn check(command: &str) -> Result<(), ToolError> {
    if command.trim().is_empty() || command.len() > MAX_COMMAND {
        return Err(ToolError(format!(
            "`command` must be 1 to {MAX_COMMAND} bytes long and not blank; put more into a file with `write_file`, \
             and run that"
        )));
    }
    if command.contains('\0') {
        return Err(ToolError("`command` must hold no NUL characters".into()));
    }
    Ok(())
}

impl Tool for Shell {
    fn spec(&self) -> ToolSpec {
        let network = if self.network { "It can use the network" } else { "It has no network" };
        let most = MAX_TIME.as_secs();
        ToolSpec {
            name: "shell".into(),
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
                        "maximum": most,
                        "description": format!("How many seconds it may take; {} if nothing else is said.", TIME.as_secs()),
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

    fn leave_for(&self, input: &Value) -> String {
        let Ok(input) = Input::deserialize(input) else { return leave::plain(&self.spec().name, input) };
        let network = leave::network(self.network);
        let place =
            input.folder.as_ref().map_or_else(String::new, |folder| format!(" in the folder {folder:?}"));
        let command = leave::excerpt(&input.command, "", MAX_COMMAND);
        format!("Run this command{place}, {network}, for at most {} s?\n\n{command}", input.time().as_secs())
    }

    fn command(&self, input: &Value) -> Option<String> {
        let Input { command, folder, .. } = Input::deserialize(input).ok()?;
        // In another folder the same words may run another program.
        match folder.as_deref().filter(|folder| !matches!(*folder, "" | ".")) {
            Some(folder) => Some(format!("cd {folder:?} && {command}")),
            None => Some(command),
        }
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(self.run_command(invocation))
    }
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;
