//! `hooks.json`: what runs before and after the agent's tools, in the order of the file.
//!
//! A hook may guard something, so a faulty file is never read in part: its last good version stays in use, and
//! without one no tool runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use api::event::HookPhase;
use serde::Deserialize;

use super::environment::Environment;
use super::mcp_servers::{Timeout, parse_timeout};
use super::tools::{http_call, resolve_command};
use super::{HttpCall, glob_matches, is_absent, is_valid_name, read_text, redacted_json_error};

/// The maximum size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// The maximum number of hooks.
const MAX_HOOKS: usize = 64;
/// The maximum number of globs of a hook, and the length of each in bytes.
const MAX_GLOBS: (usize, usize) = (256, 256);
/// The time limit of a hook that sets none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time limit of a hook.
const MAX_TIMEOUT: Duration = Duration::from_mins(1);

/// The hooks of a catalog.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hooks {
    /// The hooks, in the order in which they run.
    pub list: Vec<Hook>,
    /// Whether the file could not be read. What its hooks would refuse is then unknown.
    pub unreadable: bool,
}

/// A hook of the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct Hook {
    /// Its name.
    pub name: String,
    /// When it runs.
    pub phase: HookPhase,
    /// Globs of the names of the tools that it runs for.
    pub tools: Vec<String>,
    /// What it runs.
    pub action: HookAction,
    /// How long it may take.
    pub timeout: Duration,
    /// Whether its failure refuses the call or withholds the result; otherwise the failure is ignored.
    pub refuses_on_failure: bool,
}

/// What a hook runs.
#[derive(Clone, Debug, PartialEq)]
pub enum HookAction {
    /// A program in the sandbox.
    Command {
        /// The program and its arguments. Paths of the catalog's own files are absolute.
        command: Vec<String>,
        /// Whether it may use the network.
        network: bool,
    },
    /// A request.
    Http(HttpCall),
}

impl Hooks {
    /// Returns the hooks to use while they are unknown.
    pub fn unknown() -> Self {
        Self { list: Vec::new(), unreadable: true }
    }

    /// The hooks for a tool, in the order in which they run.
    pub fn for_tool(&self, phase: HookPhase, tool: &str) -> impl Iterator<Item = &Hook> {
        self.list.iter().filter(move |hook| hook.phase == phase && hook.is_for(tool))
    }
}

impl Hook {
    fn is_for(&self, tool: &str) -> bool {
        self.tools.iter().any(|glob| glob_matches(glob, tool))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HooksFile {
    hooks: Vec<HookEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HookEntry {
    name: String,
    on: HookPhase,
    tools: Vec<String>,
    command: Option<Vec<String>>,
    network: Option<bool>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    timeout: Option<Timeout>,
    on_failure: Option<OnFailure>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnFailure {
    Refuse,
    Ignore,
}

/// Loads the hooks of the catalog in `catalog`. If the file cannot be read, the previous ones apply.
pub(super) fn load(
    catalog: &Path,
    environment: &Environment,
    before: &Hooks,
    warnings: &mut Vec<String>,
) -> Hooks {
    let file = catalog.join("hooks.json");
    if is_absent(&file) {
        return Hooks::default();
    }
    let parsed = read_text(&file, MAX_FILE_BYTES).and_then(|text| parse(&text, catalog, environment));
    parsed.unwrap_or_else(|reason| {
        let outcome = if before.unreadable {
            "no tool is run until this is fixed"
        } else {
            "its last good version stays in use"
        };
        warnings.push(format!("hooks.json: {reason}; {outcome}"));
        before.clone()
    })
}

fn parse(text: &str, catalog: &Path, environment: &Environment) -> Result<Hooks, String> {
    // The text may hold secrets, and a message of serde may quote them: only the position is reported.
    let written: HooksFile = serde_json::from_str(text).map_err(|error| redacted_json_error(&error))?;
    if written.hooks.len() > MAX_HOOKS {
        return Err(format!("there are {} hooks; at most {MAX_HOOKS} are allowed", written.hooks.len()));
    }
    let mut names = BTreeSet::new();
    let mut list = Vec::new();
    for entry in written.hooks {
        if !is_valid_name(&entry.name) {
            return Err("a hook's `name` must be 1 to 64 of a-z, 0-9 and single hyphens".into());
        }
        if !names.insert(entry.name.clone()) {
            return Err(format!("there are two hooks called `{}`", entry.name));
        }
        let name = entry.name.clone();
        list.push(
            parse_hook(entry, catalog, environment).map_err(|reason| format!("hook `{name}`: {reason}"))?,
        );
    }
    Ok(Hooks { list, unreadable: false })
}

fn parse_hook(entry: HookEntry, catalog: &Path, environment: &Environment) -> Result<Hook, String> {
    let HookEntry { name, on, tools, command, network, url, headers, timeout, on_failure } = entry;
    let (most, longest) = MAX_GLOBS;
    if tools.is_empty() || tools.len() > most {
        return Err(format!("its `tools` must be 1 to {most} globs: `*` is for all tools"));
    }
    if tools.iter().any(|glob| glob.is_empty() || glob.len() > longest) {
        return Err(format!("each of its `tools` must be 1 to {longest} bytes"));
    }
    let action = match (command, url) {
        (Some(command), None) if headers.is_empty() => {
            HookAction::Command { command: hook_command(command, catalog)?, network: network.unwrap_or(true) }
        }
        (None, Some(url)) if network.is_none() => {
            HookAction::Http(http_call("POST", &url, &headers, environment)?)
        }
        (Some(_), None) => return Err("`headers` are for a `url`".into()),
        (None, Some(_)) => return Err("`network` is for a `command`".into()),
        _ => return Err("it must have either a `command` or a `url`".into()),
    };
    let timeout = match timeout {
        None => DEFAULT_TIMEOUT,
        Some(timeout) => parse_timeout(timeout)
            .filter(|timeout| *timeout <= MAX_TIMEOUT)
            .ok_or("its `timeout` must be a time above zero, a minute at most: seconds, or such as `5s`")?,
    };
    let refuses_on_failure = on_failure != Some(OnFailure::Ignore);
    Ok(Hook { name, phase: on, tools, action, timeout, refuses_on_failure })
}

/// The command of a hook. Its relative paths are those of the catalog's files: in the workspace, where it starts, they
/// would be the agent's.
fn hook_command(command: Vec<String>, catalog: &Path) -> Result<Vec<String>, String> {
    let command = resolve_command(command, catalog)?;
    // Options, addresses and the text of a script are no paths.
    let is_relative_path = |part: &&String| {
        part.contains('/')
            && !part.starts_with(['/', '-'])
            && !part.contains("://")
            && !part.contains(char::is_whitespace)
    };
    match command.iter().find(is_relative_path) {
        Some(missing) => Err(format!("there is no file `{missing}` in the catalog")),
        None => Ok(command),
    }
}

#[cfg(test)]
#[path = "../tests/unit/hooks.rs"]
mod tests;
