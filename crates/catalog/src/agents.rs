//! `agents/<name>.md`: agents to which the user's agent can delegate work.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::{front_matter, is_valid_name, last_good_version, list_folder, read_text, truncate_with_warning};

/// The maximum size of an agent's file, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// The maximum number of agents in a catalog.
const MAX_AGENTS: usize = 256;
/// The maximum length of a description, in characters. It is sent to every model in every turn.
const MAX_DESCRIPTION_CHARS: usize = 1_024;
/// The default limit of model calls in an agent's run.
const DEFAULT_MAX_TURNS: u64 = 25;

/// An agent of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSpec {
    /// Its name, which is its file's: lower-case letters, digits and single hyphens.
    pub name: String,
    /// Its description, for the agent that delegates.
    pub description: String,
    /// The model that it runs on, by its name in the gateway configuration; the default model if `None`.
    pub model: Option<String>,
    /// Globs of the tools that it may call; all but `run_agent` if `None`.
    pub tools: Option<Vec<String>>,
    /// The maximum number of model calls in one run.
    pub max_turns: u64,
    /// The maximum number of tokens in one run, if limited.
    pub max_tokens: Option<u64>,
    /// Its system prompt.
    pub prompt: String,
}

#[derive(Deserialize)]
struct FrontMatter {
    name: Option<String>,
    description: String,
    model: Option<String>,
    tools: Option<Vec<String>>,
    max_turns: Option<u64>,
    max_tokens: Option<u64>,
}

/// Loads all agents of `folder`; `before` are those of the previous load.
pub(super) fn load(
    folder: &Path,
    before: &[Arc<AgentSpec>],
    warnings: &mut Vec<String>,
) -> Vec<Arc<AgentSpec>> {
    let Some(mut files) = list_folder(folder, "agents", warnings) else { return before.to_vec() };
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    truncate_with_warning(MAX_AGENTS, &mut files, "agents", warnings);
    let mut agents = Vec::new();
    for file in files {
        let name = file.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match load_agent(&name, &file) {
            Ok(agent) => agents.push(Arc::new(agent)),
            Err(reason) => {
                let (last_good, outcome) = last_good_version(&file, before, |agent| agent.name == name);
                warnings.push(format!("agents/{name}.md: {reason}{outcome}"));
                agents.extend(last_good);
            }
        }
    }
    agents
}

fn load_agent(name: &str, file: &Path) -> Result<AgentSpec, String> {
    parse(name, &read_text(file, MAX_FILE_BYTES)?)
}

fn parse(name: &str, text: &str) -> Result<AgentSpec, String> {
    let (fields, prompt) = front_matter::split::<FrontMatter>(text)?;
    if !is_valid_name(name) {
        return Err("its name must be lower-case letters, digits and single hyphens, at most 64".into());
    }
    if let Some(other) = fields.name.filter(|other| other != name) {
        return Err(format!("its `name` is `{other}`, which must be the file's: `{name}`"));
    }
    let description = fields.description.trim().to_owned();
    if description.is_empty() {
        return Err("its `description` is empty: say what it is good at".into());
    }
    if description.chars().nth(MAX_DESCRIPTION_CHARS).is_some() {
        return Err(format!("its `description` is over {MAX_DESCRIPTION_CHARS} characters"));
    }
    if prompt.is_empty() {
        return Err("there is no text after the front matter: say who it is and how it works".into());
    }
    for (field, value) in [("max_turns", fields.max_turns), ("max_tokens", fields.max_tokens)] {
        if value == Some(0) {
            return Err(format!("its `{field}` is 0: it must be at least 1"));
        }
    }
    Ok(AgentSpec {
        name: name.to_owned(),
        description,
        model: fields.model,
        tools: fields.tools,
        max_turns: fields.max_turns.unwrap_or(DEFAULT_MAX_TURNS),
        max_tokens: fields.max_tokens,
        prompt: prompt.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faulty_agent_is_left_out_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let valid = "---\nname: finder\ndescription: Finds things.\nmodel: fast\ntools: [read_file, \"list_*\"]\n\
                     max_turns: 3\nmax_tokens: 9000\n---\nYou find things.\n";
        write("finder.md", valid);
        write("plain.md", "---\ndescription: Plain.\n---\nYou are plain.");
        write("other.md", "---\nname: another\ndescription: x\n---\nYou.");
        write("empty.md", "---\ndescription: x\n---\n");
        write("Loud.md", "---\ndescription: x\n---\nYou.");
        write("none.md", "You.");
        write("zero.md", "---\ndescription: x\nmax_turns: 0\n---\nYou.");
        write("long.md", &format!("---\ndescription: {}\n---\nYou.", "x".repeat(1_025)));
        write("notes.txt", "no agent");
        let mut warnings = Vec::new();
        let agents = load(folder.path(), &[], &mut warnings);
        let names: Vec<_> = agents.iter().map(|agent| agent.name.as_str()).collect();
        assert_eq!(names, ["finder", "plain"]);
        let finder = &agents[0];
        assert_eq!(
            (finder.model.as_deref(), finder.max_turns, finder.max_tokens),
            (Some("fast"), 3, Some(9_000))
        );
        assert_eq!(agents[1].max_turns, DEFAULT_MAX_TURNS);
        let invalid_field: Vec<_> = warnings.iter().map(|line| line.split(':').next().unwrap()).collect();
        let expected =
            ["Loud", "empty", "long", "none", "other", "zero"].map(|name| format!("agents/{name}.md"));
        assert_eq!(invalid_field, expected);
    }
}
