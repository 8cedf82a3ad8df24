//! Writes a skill as a folder of the open Agent Skills format (<https://agentskills.io/specification>): `SKILL.md`
//! with front matter, and the skill's other files.

use std::fmt::Write as _;
use std::io;

use api::skills::SkillDefinition;
use serde_json::json;
use store::CustomSkill;

use super::{SCRIPTS_PREFIX, Skill, modified_at, read_skill_file};

/// The file that makes a folder a skill.
pub(super) const SKILL_FILE: &str = "SKILL.md";
/// The maximum size of the files in an archive, in bytes. The user's own skills are always smaller.
const MAX_ARCHIVE_BYTES: usize = 32 * 1024 * 1024;

/// Why a skill could not be archived.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// It is too large.
    #[error("the skill's files are over {MAX_ARCHIVE_BYTES} bytes; copy its folder from the catalog")]
    TooLarge,
    /// One of its files could not be read.
    #[error("a file of the skill could not be read")]
    Io(#[from] io::Error),
}

/// A file of a skill.
pub(super) struct SkillFile {
    /// Its path in the skill's folder.
    pub(super) path: String,
    pub(super) content: Vec<u8>,
}

impl SkillFile {
    /// Returns its permissions: a file with a shebang is executable.
    pub(super) fn mode(&self) -> u32 {
        if self.content.starts_with(b"#!") { 0o755 } else { 0o644 }
    }
}

/// Returns the files of a skill of the user.
pub(super) fn skill_files(skill: &CustomSkill) -> Vec<SkillFile> {
    let document = SkillFile { path: SKILL_FILE.to_owned(), content: skill_md(skill).into_bytes() };
    let scripts = skill.definition.scripts.iter().map(|(name, text)| SkillFile {
        path: format!("{SCRIPTS_PREFIX}{name}"),
        content: text.clone().into_bytes(),
    });
    std::iter::once(document).chain(scripts).collect()
}

/// Returns the `SKILL.md` of a skill of the user. The format requires a description and a text: if the user gave
/// none, the name and the scripts stand in for them.
fn skill_md(skill: &CustomSkill) -> String {
    let CustomSkill { name, definition, .. } = skill;
    let SkillDefinition { description, category, prompt, capabilities, scripts } = definition;
    let description = description.clone().unwrap_or_else(|| format!("The skill {name}."));
    // JSON is valid YAML.
    let mut document = format!("---\nname: {name}\ndescription: {}\n", json!(description));
    let metadata =
        [("category", category.clone().unwrap_or_default()), ("capabilities", capabilities.join(", "))];
    if metadata.iter().any(|(_, value)| !value.is_empty()) {
        document.push_str("metadata:\n");
    }
    // Writing to a `String` cannot fail.
    for (key, value) in metadata.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(document, "  {key}: {}", json!(value));
    }
    document.push_str("---\n\n");
    if let Some(prompt) = prompt {
        document.push_str(prompt);
    } else {
        document.push_str("Run the fitting one of its scripts:\n");
        for script in scripts.keys() {
            let _ = write!(document, "\n- {SCRIPTS_PREFIX}{script}");
        }
    }
    document.push('\n');
    document
}

/// Returns a tar archive of a skill's folder. Blocks.
pub fn archive(skill: &Skill) -> Result<Vec<u8>, ExportError> {
    let (files, modified_at) = match skill {
        Skill::Custom(skill) => (skill_files(skill), Some(skill.updated_at)),
        Skill::Platform(spec) => {
            let mut remaining = MAX_ARCHIVE_BYTES;
            let paths = std::iter::once(SKILL_FILE).chain(spec.files.iter().map(String::as_str));
            let files = paths.map(|path| {
                let content = read_skill_file(spec, path, remaining).map_err(|error| match error.kind() {
                    io::ErrorKind::FileTooLarge => ExportError::TooLarge,
                    _ => ExportError::Io(error),
                })?;
                remaining -= content.len();
                Ok(SkillFile { path: path.to_owned(), content })
            });
            (files.collect::<Result<_, ExportError>>()?, modified_at(spec))
        }
    };
    let seconds = modified_at.map_or(0, |at| u64::try_from(at.unix_ms() / 1_000).unwrap_or(0));
    let mut archive = tar::Builder::new(Vec::new());
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(file.mode());
        header.set_mtime(seconds);
        header.set_size(u64::try_from(file.content.len()).unwrap_or(u64::MAX));
        let path = format!("{}/{}", skill.name(), file.path);
        archive.append_data(&mut header, path, file.content.as_slice())?;
    }
    Ok(archive.into_inner()?)
}

#[cfg(test)]
#[path = "../../tests/unit/skills/skill_format.rs"]
mod tests;
