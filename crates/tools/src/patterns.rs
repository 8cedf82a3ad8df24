//! What a lasting approval of a tool can be limited to: a beginning of commands, files of a folder, addresses below
//! another. Pure.
//!
//! A pattern is stored where the prefix of a command is, so that a version which does not know patterns of its kind
//! covers nothing with it.

use api::approvals::PatternKind;
use fetch::Target;

use super::approval::is_hiding;
use super::grants;

/// The maximum length of a pattern that a person gives, in bytes.
const MAX_PATTERN_BYTES: usize = 1_000;
/// The end of a pattern for everything below a folder or an address.
const BELOW: &str = "/*";

/// What the pattern of a lasting approval is matched against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The command that a call runs.
    Command(String),
    /// The path of the file that a call is about, relative to the workspace.
    Path(String),
    /// The address that a call fetches.
    Address(String),
}

impl Subject {
    /// The kind of the patterns that are matched against it.
    pub fn kind(&self) -> PatternKind {
        match self {
            Self::Command(_) => PatternKind::Command,
            Self::Path(_) => PatternKind::Path,
            Self::Address(_) => PatternKind::Address,
        }
    }

    /// The pattern that is stored if the person gives none; `None` if all calls of the tool are covered.
    pub fn default_pattern(&self) -> Option<&str> {
        match self {
            Self::Command(command) => Some(grants::prefix_of(command)),
            Self::Path(_) | Self::Address(_) => None,
        }
    }
}

/// Whether a lasting approval with this pattern covers a call about `subject`. One for a tool that runs commands
/// always has a pattern.
pub fn allows(pattern: Option<&str>, subject: Option<&Subject>) -> bool {
    match (pattern, subject) {
        (None, None | Some(Subject::Path(_) | Subject::Address(_))) => true,
        (Some(pattern), Some(Subject::Command(command))) => grants::covers(pattern, command),
        (Some(pattern), Some(Subject::Path(path))) => covers_path(pattern, path),
        (Some(pattern), Some(Subject::Address(address))) => covers_address(pattern, address),
        (None, Some(Subject::Command(_))) | (Some(_), None) => false,
    }
}

/// Checks a pattern that a person gives with the approval of a call about `subject`.
///
/// # Errors
/// Why it cannot be used, for the caller.
pub fn validate(pattern: &str, subject: Option<&Subject>) -> Result<(), String> {
    let Some(subject) = subject else {
        return Err("this tool has no patterns; without one, all of its calls are covered".into());
    };
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("must be at most {MAX_PATTERN_BYTES} bytes long"));
    }
    if pattern.trim() != pattern
        || pattern.chars().any(|character| character.is_control() || is_hiding(character))
    {
        return Err("must not contain hidden characters or begin or end with white space".into());
    }
    if allows(Some(pattern), Some(subject)) {
        return Ok(());
    }
    let forms = match subject {
        Subject::Command(_) => {
            "the whole command, or its first words, of which the first two must determine what runs: `git log`"
        }
        Subject::Path(_) => "the path of the file, or a folder above it with `/*`: `notes/*`",
        Subject::Address(_) => "the address, or one above it with `/*`: `https://example.com/docs/*`",
    };
    Err(format!("does not cover the call; it must be {forms}"))
}

/// Whether a pattern covers the file at `path`.
fn covers_path(pattern: &str, path: &str) -> bool {
    let Some(path) = components(path) else { return false };
    match pattern.strip_suffix(BELOW) {
        Some(folder) => components(folder)
            .is_some_and(|folder| path.len() > folder.len() && path.starts_with(folder.as_slice())),
        None => components(pattern).is_some_and(|pattern| pattern == path),
    }
}

/// The parts of a path in the workspace; `None` if it may leave the folders that it names, or names none.
fn components(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let is_plain = !path.starts_with('/') && !parts.is_empty() && !parts.contains(&"..");
    is_plain.then_some(parts)
}

/// Whether a pattern covers an address.
fn covers_address(pattern: &str, address: &str) -> bool {
    // A fragment is not sent to the server.
    if pattern.contains('#') {
        return false;
    }
    let (above, is_below) = match pattern.strip_suffix('*') {
        Some(above) if above.ends_with('/') => (above, true),
        _ => (pattern, false),
    };
    let (Ok(above), Ok(target)) = (Target::parse(above), Target::parse(address)) else { return false };
    let (above, url) = (above.url(), target.url());
    if !is_below {
        return above == url;
    }
    above.query().is_none()
        && above.path().ends_with('/')
        && above.origin() == url.origin()
        && url.path().starts_with(above.path())
}

#[cfg(test)]
#[path = "../tests/unit/patterns.rs"]
mod tests;
