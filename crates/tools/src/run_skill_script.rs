//! `run_skill_script`: runs a script of a skill in the sandbox.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::tool_names;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use sandbox::{Command, Limits};
use serde::Deserialize;
use serde_json::{Value, json};

use super::command::{COMMAND_TIMEOUT, tool_result};
use super::load_skill::find_skill;
use super::process::{ProcessRunner, StderrMode};
use super::{Invocation, Tool, ToolError, ToolStep, approval, parse_input, run_blocking};
use crate::skills::{DirLease, LeasedSkill, SCRIPTS_PREFIX, Skill, SkillDirs, Skills};

/// The maximum number of arguments.
const MAX_ARGS: usize = 64;
/// The maximum length of the input and of all arguments together, in bytes.
const MAX_INPUT_BYTES: usize = 1024 * 1024;
const MAX_ARGS_BYTES: usize = 8_000;
/// How much of a script's first line is read, in bytes: as much as the kernel does.
const MAX_SHEBANG_BYTES: u64 = 256;

/// The `run_skill_script` tool.
pub(super) struct RunSkillScript {
    skills: Skills,
    skill_dirs: Arc<SkillDirs>,
    runner: ProcessRunner,
    network: bool,
}

#[derive(Deserialize)]
struct RunSkillScriptInput {
    skill: String,
    script: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    input: String,
}

/// A script that is ready to be run.
struct PreparedScript {
    /// The folder of its skill.
    folder: PathBuf,
    /// The command line that starts it.
    argv: Vec<OsString>,
    /// Keeps the folder in place if the skill is the user's own.
    lease: Option<DirLease>,
}

impl RunSkillScript {
    pub(super) fn new(
        skills: Skills,
        skill_dirs: Arc<SkillDirs>,
        programs: ProcessRunner,
        network: bool,
    ) -> Self {
        Self { skills, skill_dirs, runner: programs, network }
    }

    async fn run_script(&self, invocation: Invocation) -> Result<ToolStep, ToolError> {
        let RunSkillScriptInput { skill, script, args, input } = parse_input(invocation.input)?;
        validate_args(&args, &input)?;
        let (skills, skill_dirs) = (self.skills.clone(), Arc::clone(&self.skill_dirs));
        let PreparedScript { folder, mut argv, lease } =
            run_blocking(move || prepare_script(&skills, &skill_dirs, &skill, &script)).await?;
        argv.extend(args.into_iter().map(OsString::from));
        let command = Command {
            argv,
            folder: PathBuf::from("."),
            env: vec![("SKILL_DIR".into(), folder.into())],
            network: self.network,
            limits: Limits { time: Some(COMMAND_TIMEOUT), ..Limits::default() },
        };
        let process_output =
            self.runner.run(invocation.call_id, command, input.into_bytes(), StderrMode::Separate).await;
        drop(lease);
        tool_result(process_output?, COMMAND_TIMEOUT)
    }
}

/// Finds a script of a skill, and materialises the skill as a folder if it is the user's own. Blocks.
fn prepare_script(
    skills: &Skills,
    skill_dirs: &Arc<SkillDirs>,
    name: &str,
    script: &str,
) -> Result<PreparedScript, ToolError> {
    let (skill, folder, lease) = match find_skill(skills, name)? {
        Skill::Platform(spec) => {
            let folder = spec.folder.clone();
            (Skill::Platform(spec), folder, None)
        }
        Skill::Custom(_) => {
            let leased =
                skill_dirs.acquire(skills.brain(), name).map_err(|error| ToolError(error.to_string()))?;
            let LeasedSkill { skill, folder, lease } =
                leased.ok_or_else(|| ToolError(format!("the skill `{name}` has just been deleted")))?;
            (Skill::Custom(Box::new(skill)), folder, Some(lease))
        }
    };
    let argv = script_argv(&folder.join(resolve_script(&skill, script)?))?;
    Ok(PreparedScript { folder, argv, lease })
}

fn validate_args(args: &[String], input: &str) -> Result<(), ToolError> {
    let bytes: usize = args.iter().map(String::len).sum();
    if args.len() > MAX_ARGS || bytes > MAX_ARGS_BYTES {
        return Err(ToolError(format!(
            "there must be at most {MAX_ARGS} `args` of {MAX_ARGS_BYTES} bytes in all; use `input` for more"
        )));
    }
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err(ToolError("`args` must not contain NUL characters".into()));
    }
    if input.len() > MAX_INPUT_BYTES {
        return Err(ToolError(format!("`input` must be at most {MAX_INPUT_BYTES} bytes long")));
    }
    Ok(())
}

/// Returns the path of a script, which the model may name with or without its folder. Only listed files are
/// accepted, so no path leads outside.
fn resolve_script(skill: &Skill, script: &str) -> Result<String, ToolError> {
    let wanted = script.strip_prefix("./").unwrap_or(script);
    let is_wanted = |file: &&String| *file == wanted || file.strip_prefix(SCRIPTS_PREFIX) == Some(wanted);
    let scripts = skill.scripts();
    scripts.iter().find(is_wanted).cloned().ok_or_else(|| {
        let names: Vec<_> = scripts.iter().take(50).map(String::as_str).collect();
        let there =
            if names.is_empty() { "it has none".into() } else { format!("there are: {}", names.join(", ")) };
        ToolError(format!("the skill `{}` has no script `{script}`; {there}", skill.name()))
    })
}

/// Returns the command line for a script: by its shebang, else by its file extension, else as an executable.
fn script_argv(script: &Path) -> Result<Vec<OsString>, ToolError> {
    let failed = |error: io::Error| ToolError(format!("the script cannot be read: {error}"));
    let file = resources::files::open_regular_file(script).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    let mut start = Vec::new();
    file.take(MAX_SHEBANG_BYTES).read_to_end(&mut start).map_err(failed)?;
    let by_first_line = parse_shebang(&start);
    let extension = script.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let mut argv: Vec<OsString> = match (by_first_line, extension) {
        (Some(argv), _) => argv.into_iter().map(OsString::from).collect(),
        (None, "sh") => vec!["/bin/sh".into()],
        (None, "bash") => vec!["bash".into()],
        (None, "py") => vec!["python3".into()],
        (None, "js" | "mjs" | "cjs") => vec!["node".into()],
        (None, "rb") => vec!["ruby".into()],
        (None, "pl") => vec!["perl".into()],
        (None, _) if mode & 0o111 != 0 => Vec::new(),
        (None, _) => {
            return Err(ToolError(
                "it is not known how to run the script: its first line names no interpreter (`#!`), its name has \
                 no known extension, and it is not executable"
                    .into(),
            ));
        }
    };
    argv.push(script.into());
    Ok(argv)
}

/// Returns the interpreter of a script's shebang and its one optional argument. They are parsed here so that the
/// script need not be executable.
fn parse_shebang(start: &[u8]) -> Option<Vec<String>> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?.trim();
    match line.split_once([' ', '\t']) {
        Some((program, argument)) => Some(vec![program.to_owned(), argument.trim().to_owned()]),
        None => (!line.is_empty()).then(|| vec![line.to_owned()]),
    }
}

impl Tool for RunSkillScript {
    fn spec(&self) -> ToolSpec {
        let network = if self.network { "It can use the network" } else { "It has no network" };
        ToolSpec {
            name: tool_names::RUN_SKILL_SCRIPT.into(),
            description: format!(
                "Runs a script of a skill, in the workspace, and gives what it writes. Load the skill first: it says \
                 which scripts there are and how they are used. {network} and may take {} s.",
                COMMAND_TIMEOUT.as_secs()
            ),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "skill": {"type": "string", "description": "The skill's name."},
                    "script": {"type": "string", "description": "The script, such as `scripts/run.py`."},
                    "args": {"type": "array", "items": {"type": "string"}, "description": "Its arguments."},
                    "input": {"type": "string", "description": "What it reads from its standard input."},
                },
                "required": ["skill", "script"],
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
        let Ok(RunSkillScriptInput { skill, script, args, input: given }) =
            RunSkillScriptInput::deserialize(input)
        else {
            return approval::default_prompt(tool_names::RUN_SKILL_SCRIPT, input);
        };
        let network = approval::network_label(self.network);
        let mut prompt = format!("Run the script {script:?} of the skill {skill:?}, {network}?");
        if !args.is_empty() {
            prompt.push_str("\n\nArguments:\n");
            prompt.push_str(&approval::pretty_json(&json!(args)));
        }
        if !given.is_empty() {
            prompt.push_str("\n\nInput:\n");
            prompt.push_str(&approval::excerpt(&given, "", 2_000));
        }
        prompt
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(self.run_script(invocation))
    }
}

#[cfg(test)]
#[path = "../tests/unit/run_skill_script.rs"]
mod tests;
