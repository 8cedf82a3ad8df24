//! A skill as a folder of the open Agent Skills format (<https://agentskills.io/specification>): `SKILL.md`, with what
//! it is for in its front matter, and its files.

use std::fmt::Write as _;
use std::io;

use contract::skills::SkillDefinition;
use serde_json::json;

use super::{SCRIPTS_PREFIX, Skill, modified_at, read_skill_file};
use crate::store::CustomSkill;

/// The file that makes a folder a skill.
pub(super) const SKILL_FILE: &str = "SKILL.md";
/// The most bytes of an archive's files. One of the user's own skills is always smaller.
const MAX_ARCHIVE_BYTES: usize = 32 * 1024 * 1024;

/// Why a skill could not be put into an archive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    /// It is too large.
    #[error("the skill's files are over {MAX_ARCHIVE_BYTES} bytes; copy its folder from the catalog")]
    TooLarge,
    /// One of its files could not be read.
    #[error("a file of the skill could not be read")]
    Io(#[from] io::Error),
}

/// A file of a skill.
pub(super) struct SkillFile {
    /// Where in the skill's folder it is.
    pub(super) path: String,
    pub(super) content: Vec<u8>,
}

impl SkillFile {
    /// Its permissions: what says how it is run can be executed.
    pub(super) fn mode(&self) -> u32 {
        if self.content.starts_with(b"#!") { 0o755 } else { 0o644 }
    }
}

/// The folder of one of the user's own skills.
pub(super) fn skill_files(skill: &CustomSkill) -> Vec<SkillFile> {
    let document = SkillFile { path: SKILL_FILE.to_owned(), content: skill_md(skill).into_bytes() };
    let scripts = skill.definition.scripts.iter().map(|(name, text)| SkillFile {
        path: format!("{SCRIPTS_PREFIX}{name}"),
        content: text.clone().into_bytes(),
    });
    std::iter::once(document).chain(scripts).collect()
}

/// The `SKILL.md` of one of the user's own skills. The format wants a description and a text: where the user gave
/// none, its name and its scripts stand for them.
fn skill_md(skill: &CustomSkill) -> String {
    let CustomSkill { name, definition, .. } = skill;
    let SkillDefinition { description, category, prompt, capabilities, scripts } = definition;
    let description = description.clone().unwrap_or_else(|| format!("The skill {name}."));
    // A JSON text is a YAML one.
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

/// A tar archive of the folder of a skill. Blocks.
pub(crate) fn archive(skill: &Skill) -> Result<Vec<u8>, ExportError> {
    let (files, modified_at) = match skill {
        Skill::Custom(skill) => (skill_files(skill), Some(skill.updated_at)),
        Skill::Platform(spec) => {
            let mut left = MAX_ARCHIVE_BYTES;
            let paths = std::iter::once(SKILL_FILE).chain(spec.files.iter().map(String::as_str));
            let files = paths.map(|path| {
                let content = read_skill_file(spec, path, left).map_err(|error| match error.kind() {
                    io::ErrorKind::FileTooLarge => ExportError::TooLarge,
                    _ => ExportError::Io(error),
                })?;
                left -= content.len();
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
#[path = "skill_format_tests.rs"]
mod tests;
