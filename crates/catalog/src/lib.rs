//! The catalog: what the product gives each of its users' agents. It is read from a folder that the engine never
//! writes.
//!
//! A faulty entry is reported and does not affect the others. At the first load it is left out; at a reload, the
//! entry keeps its last good version. An entry that was removed is gone.

mod agents;
mod environment;
mod front_matter;
mod hooks;
mod http_call;
mod mcp_servers;
mod output_schema;
mod permissions;
mod planning;
mod schema;
mod schema_cost;
mod skills;
mod soul;
mod tools;
mod user_servers;
mod web_search;
mod webhook;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use agents::AgentSpec;
pub use environment::Environment;
pub use hooks::{Hook, HookAction, Hooks};
pub use http_call::HttpCall;
pub use mcp_servers::{
    ApiKeyLocation, Auth, McpServerSpec, OAuthClientConfig, Secret, ServerOrigin, Transport,
};
pub use output_schema::CompiledOutputSchema;
pub use permissions::{Permission, Permissions, glob_matches};
pub use planning::PlanningMode;
use resources::files::open_regular_file;
pub use schema::Schema;
pub use skills::SkillSpec;
pub use soul::{Identity, Soul};
pub use tools::{CatalogTool, ToolImplementation};
pub use user_servers::UserServerPolicy;
pub use web_search::{ResultPointers, SearchApi, SearchParameters, SearchProvider};
pub use webhook::{WebhookSetting, WebhookSpec};

/// A loaded catalog.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// The soul of the agent.
    pub soul: Soul,
    /// The agents that work can be delegated to, in order of their names.
    pub agents: Vec<Arc<AgentSpec>>,
    /// The tools beside the built-in ones, in order of their names.
    pub tools: Vec<Arc<CatalogTool>>,
    /// The platform's skills, in order of their names.
    pub skills: Vec<Arc<SkillSpec>>,
    /// The MCP servers that users can connect, in order of their names.
    pub mcp_servers: Vec<Arc<McpServerSpec>>,
    /// Which tools may be used, and which may use the network.
    pub permissions: Permissions,
    /// What runs before and after the agent's tools.
    pub hooks: Hooks,
    /// The providers of `web_search`; without any there is no such tool.
    pub search_providers: Vec<Arc<SearchProvider>>,
    /// Where the engine reports what happens.
    pub webhook: WebhookSetting,
    /// Which messages are planned.
    pub planning: PlanningMode,
    /// The environment variables that the catalog may refer to.
    pub environment: Environment,
    /// A line for each entry that was left out, kept in an older version, or not read as written, with the reason.
    pub warnings: Vec<String>,
}

impl Catalog {
    /// Loads the catalog in `folder`, which may refer to `environment`, for the first time. Missing parts are
    /// empty.
    pub fn load(folder: &Path, environment: Environment) -> Self {
        if is_absent(folder) {
            let warnings =
                vec![format!("there is no folder {}; the catalog counts as empty", folder.display())];
            return Self { environment, warnings, ..Self::default() };
        }
        let (permissions, hooks, webhook) =
            (Permissions::unknown(), Hooks::unknown(), WebhookSetting::Unknown);
        let nothing = Self { permissions, hooks, webhook, environment, ..Self::default() };
        let mut catalog = nothing.reload(folder);
        match Soul::load(folder) {
            Ok(soul) => catalog.soul = soul,
            Err(reason) => catalog.warnings.push(format!("soul.md: {reason}; the built-in soul is used")),
        }
        catalog
    }

    /// Reloads everything but the soul from `folder`, based on the catalog loaded before.
    #[must_use]
    pub fn reload(&self, folder: &Path) -> Self {
        // Programs of the catalog start elsewhere, where a relative path would lead elsewhere.
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        if let Err(error) = std::fs::read_dir(folder) {
            let folder = folder.display();
            let warning =
                format!("the folder {folder} cannot be read: {error}; the previous version stays in use");
            return Self { warnings: vec![warning], ..self.clone() };
        }
        let mut warnings = Vec::new();
        Self {
            soul: self.soul.clone(),
            agents: reuse_unchanged(
                agents::load(&folder.join("agents"), &self.agents, &mut warnings),
                &self.agents,
            ),
            tools: reuse_unchanged(
                tools::load(folder, &self.environment, &self.tools, &mut warnings),
                &self.tools,
            ),
            skills: reuse_unchanged(
                skills::load(&folder.join("skills"), &self.skills, &mut warnings),
                &self.skills,
            ),
            mcp_servers: reuse_unchanged(
                mcp_servers::load(
                    &folder.join("mcp.json"),
                    &self.environment,
                    &self.mcp_servers,
                    &mut warnings,
                ),
                &self.mcp_servers,
            ),
            environment: self.environment.clone(),
            permissions: permissions::load(
                &folder.join("permissions.json"),
                &self.permissions,
                &mut warnings,
            ),
            hooks: hooks::load(folder, &self.environment, &self.hooks, &mut warnings),
            search_providers: reuse_unchanged(
                web_search::load(folder, &self.environment, &self.search_providers, &mut warnings),
                &self.search_providers,
            ),
            webhook: webhook::load(folder, &self.environment, &self.webhook, &mut warnings),
            planning: planning::load(&folder.join("planning.json"), self.planning, &mut warnings),
            warnings,
        }
    }
}

/// Replaces unchanged entries by the previous objects, so that a turn with an old catalog keeps only the entries
/// alive that differ.
fn reuse_unchanged<T: PartialEq>(entries: Vec<Arc<T>>, before: &[Arc<T>]) -> Vec<Arc<T>> {
    let as_before = |entry: Arc<T>| before.iter().find(|old| **old == entry).map_or(entry, Arc::clone);
    entries.into_iter().map(as_before).collect()
}

/// Returns the entries of `folder`, in order: empty if it does not exist, `None` if it cannot be read. `name` is
/// the folder's name in a warning.
fn list_folder(folder: &Path, name: &str, warnings: &mut Vec<String>) -> Option<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(_) if is_absent(folder) => Vec::new(),
        Err(error) => {
            warnings.push(format!(
                "{name}: the folder cannot be read: {error}; its previous version stays in use"
            ));
            return None;
        }
    };
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    Some(paths)
}

/// Removes the entries beyond `max`, with a warning. `name` is their folder's name in it.
fn truncate_with_warning(max: usize, paths: &mut Vec<PathBuf>, name: &str, warnings: &mut Vec<String>) {
    if paths.len() > max {
        warnings.push(format!("{name}: there are {}; only the first {max} are loaded", paths.len()));
        paths.truncate(max);
    }
}

/// Returns the last good version of an entry whose `file` cannot be used, if `before` has one, and the end of the
/// warning about it.
fn last_good_version<T>(
    file: &Path,
    before: &[Arc<T>],
    is_it: impl Fn(&T) -> bool,
) -> (Option<Arc<T>>, &'static str) {
    match before.iter().find(|entry| is_it(entry)) {
        Some(last_good) if !is_absent(file) => {
            (Some(Arc::clone(last_good)), "; its last good version stays in use")
        }
        _ => (None, "; it is left out"),
    }
}

/// Whether nothing exists at `path`. A dangling link counts as existing, and faulty.
fn is_absent(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the text of a file of at most `max` bytes.
///
/// # Errors
/// The reason, for a person.
fn read_text(file: &Path, max: u64) -> Result<String, String> {
    let unreadable = |error: io::Error| format!("it cannot be read: {error}");
    let opened = open_regular_file(file).map_err(unreadable)?;
    let metadata = opened.metadata().map_err(unreadable)?;
    let mut bytes = Vec::new();
    opened.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX).max(metadata.len());
    if size > max {
        return Err(format!("it has {size} bytes; at most {max} are allowed"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".into())
}

/// Whether this is a valid name of an agent or a skill: lower-case letters, digits and single hyphens.
fn is_valid_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.len() <= 64 && name.split('-').all(part)
}

/// Describes an error in a JSON text that may hold secrets.
fn redacted_json_error(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    match error.classify() {
        serde_json::error::Category::Data => {
            let text = error.to_string();
            // Field names are reported, values are not.
            let names_fields = ["unknown field", "missing field", "duplicate field"];
            if names_fields.iter().any(|start| text.starts_with(start)) {
                return text;
            }
            format!("a value has the wrong type, at line {line} column {column}")
        }
        _ => format!("it is not JSON, at line {line} column {column}"),
    }
}

/// Returns the absolute path of a part of a command that names a file of the catalog.
fn resolve_catalog_path(part: &str, catalog: &Path) -> Option<String> {
    let path = Path::new(part);
    let named = path.is_relative() && part.contains('/');
    let path = Some(catalog.join(path)).filter(|path| named && path.is_file())?;
    Some(path.to_string_lossy().into_owned())
}

#[cfg(test)]
#[path = "../tests/unit/lib.rs"]
mod tests;
