//! The catalog: what the product gives each of its users' agents. Read from a folder that the engine never writes.
//!
//! A faulty entry is named and never stops the rest. It is left out when the catalog is read for the first time; read
//! again, the entry keeps its last good version. One that is not there any more is gone.

mod agents;
mod front_matter;
mod mcp_servers;
mod permissions;
mod skills;
mod soul;
mod tools;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

pub use agents::AgentSpec;
pub use mcp_servers::{
    ApiKeyLocation, Auth, Environment, McpServerSpec, OAuthClientConfig, Secret, Transport,
};
pub use permissions::Permissions;
pub use skills::SkillSpec;
pub use soul::Soul;
pub use tools::{CatalogTool, ToolImplementation};

/// What was read of a catalog.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Who the agent is.
    pub soul: Soul,
    /// The agents that can be handed work, by their names in order.
    pub agents: Vec<Arc<AgentSpec>>,
    /// The tools beside the built-in ones, by their names in order.
    pub tools: Vec<Arc<CatalogTool>>,
    /// The skills of the platform, by their names in order.
    pub skills: Vec<Arc<SkillSpec>>,
    /// The tool servers that users can connect, by their names in order.
    pub mcp_servers: Vec<Arc<McpServerSpec>>,
    /// Which tools may be used, and which may use the network.
    pub permissions: Permissions,
    /// What the catalog may name of the engine's environment.
    pub environment: Environment,
    /// What was left out, kept as it was, or taken otherwise than it is written, and why: a line each, for a person.
    pub warnings: Vec<String>,
}

impl Catalog {
    /// Reads the catalog in `folder`, which may name what is in `environment`, for the first time. What is not there is
    /// none.
    pub fn load(folder: &Path, environment: Environment) -> Self {
        if is_absent(folder) {
            let warnings =
                vec![format!("there is no folder {}; the catalog counts as empty", folder.display())];
            return Self { environment, warnings, ..Self::default() };
        }
        let nothing = Self { permissions: Permissions::unknown(), environment, ..Self::default() };
        let mut catalog = nothing.reload(folder);
        match Soul::load(folder) {
            Ok(soul) => catalog.soul = soul,
            Err(reason) => catalog.warnings.push(format!("soul.md: {reason}; the built-in soul is used")),
        }
        catalog
    }

    /// Reads all but the soul of the catalog in `folder`, where this is what was read of it before.
    #[must_use]
    pub fn reload(&self, folder: &Path) -> Self {
        // Programs of the catalog are started elsewhere, where a relative path leads to something else.
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        if let Err(error) = std::fs::read_dir(folder) {
            let folder = folder.display();
            let warning = format!("the folder {folder} cannot be read: {error}; all of it stays as it was");
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
            warnings,
        }
    }
}

/// These entries, where nothing changed as they were read before: a turn that goes on with an old catalog holds of it only
/// what is not in the new one.
fn reuse_unchanged<T: PartialEq>(entries: Vec<Arc<T>>, before: &[Arc<T>]) -> Vec<Arc<T>> {
    let as_before = |entry: Arc<T>| before.iter().find(|old| **old == entry).map_or(entry, Arc::clone);
    entries.into_iter().map(as_before).collect()
}

/// What is in `folder`, in order; nothing where it is not there, and none where it cannot be read. `name` is the
/// folder in a warning.
fn list_folder(folder: &Path, name: &str, warnings: &mut Vec<String>) -> Option<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(_) if is_absent(folder) => Vec::new(),
        Err(error) => {
            warnings.push(format!("{name}: the folder cannot be read: {error}; all in it stays as it was"));
            return None;
        }
    };
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    Some(paths)
}

/// Leaves those out that are too many. `name` is their folder in a warning.
fn truncate_with_warning(max: usize, paths: &mut Vec<PathBuf>, name: &str, warnings: &mut Vec<String>) {
    if paths.len() > max {
        warnings.push(format!("{name}: there are {}; the first {max} are taken", paths.len()));
        paths.truncate(max);
    }
}

/// What stays of an entry whose `file` cannot be used: its last good version, if there is one in `before`. The second is
/// how a warning ends that says why it cannot.
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

/// Whether nothing is there. A link that leads nowhere is something, and faulty.
fn is_absent(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Opens a file of the catalog to read it. Whatever it was when the catalog was read, what is no file now is refused.
pub(crate) fn open_regular_file(file: &Path) -> io::Result<File> {
    // A pipe without a writer would be waited for without end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(file, flags, Mode::empty())?);
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    Ok(opened)
}

/// The text of a file that may have `max` bytes.
///
/// # Errors
/// For a person.
fn read_text(file: &Path, max: u64) -> Result<String, String> {
    let unreadable = |error: io::Error| format!("it cannot be read: {error}");
    let opened = open_regular_file(file).map_err(unreadable)?;
    let metadata = opened.metadata().map_err(unreadable)?;
    let mut bytes = Vec::new();
    opened.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX).max(metadata.len());
    if size > max {
        return Err(format!("it has {size} bytes; at most {max} are taken"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".into())
}

/// Whether this is a name for an agent or a skill: lower-case letters, digits and single hyphens.
fn is_valid_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.len() <= 64 && name.split('-').all(part)
}

#[cfg(test)]
#[path = "catalog/tests.rs"]
mod tests;
