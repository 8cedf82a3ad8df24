//! The catalog: what the product gives each of its users' agents. Read from a folder that the engine never writes.
//!
//! A faulty entry is left out and named; it never stops the rest.

mod agents;
mod front_matter;
mod permissions;
mod skills;
mod tools;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use agents::AgentSpec;
pub use permissions::Permissions;
pub use skills::SkillSpec;
pub use tools::{CatalogTool, Runs};

/// What was read of a catalog.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// The agents that can be handed work, by their names in order.
    pub agents: Vec<Arc<AgentSpec>>,
    /// The tools beside the built-in ones, by their names in order.
    pub tools: Vec<Arc<CatalogTool>>,
    /// The skills of the platform, by their names in order.
    pub skills: Vec<Arc<SkillSpec>>,
    /// Which tools may be used, and which may use the network.
    pub permissions: Permissions,
    /// What was left out or taken otherwise than it is written, and why: a line each, for a person.
    pub warnings: Vec<String>,
}

impl Catalog {
    /// Reads the catalog in `folder`. What is not there is none.
    pub fn read(folder: &Path) -> Self {
        // Programs of the catalog are started elsewhere, where a relative path leads to something else.
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let mut warnings = Vec::new();
        Self {
            agents: agents::read(&folder.join("agents"), &mut warnings),
            tools: tools::read(folder, &mut warnings),
            skills: skills::read(&folder.join("skills"), &mut warnings),
            permissions: permissions::read(&folder.join("permissions.json"), &mut warnings),
            warnings,
        }
    }
}

/// What is in `folder`, in order; nothing where it is not there. `name` is the folder in a warning.
fn paths_in(folder: &Path, name: &str, warnings: &mut Vec<String>) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            warnings.push(format!("{name}: the folder cannot be read: {error}"));
            return Vec::new();
        }
    };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// The text of a file that may have `max` bytes.
///
/// # Errors
/// For a person.
fn text_of(file: &Path, max: u64) -> Result<String, String> {
    let unreadable = |error: io::Error| format!("it cannot be read: {error}");
    let metadata = std::fs::metadata(file).map_err(unreadable)?;
    // One that is opened all the same, such as a pipe, could be waited for without end.
    if !metadata.is_file() {
        return Err("it is not a file".into());
    }
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(unreadable)?;
    opened.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX).max(metadata.len());
    if size > max {
        return Err(format!("it has {size} bytes; at most {max} are taken"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".into())
}

/// Whether this is a name for an agent or a skill: lower-case letters, digits and single hyphens.
fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.len() <= 64 && name.split('-').all(part)
}
