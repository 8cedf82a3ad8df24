//! `skills/<name>/SKILL.md`: skills of the platform, in the open Agent Skills format
//! (<https://agentskills.io/specification>).
//!
//! Parsing is lenient as long as a skill is usable: irregularities are reported and the skill is loaded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use resources::text::first_chars;
use serde::Deserialize;

use super::{front_matter, is_valid_name, last_good_version, list_folder, read_text, truncate_with_warning};

/// The maximum size of a `SKILL.md`, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// The maximum number of skills in a catalog.
const MAX_SKILLS: usize = 256;
/// The maximum length of a description, in characters, as in the format. It is sent to every model in every turn.
const MAX_DESCRIPTION_CHARS: usize = 1_024;
/// The maximum number of a skill's files beside its `SKILL.md`.
const MAX_FILES: usize = 512;
/// The maximum depth of these files in the skill's folder.
const MAX_DEPTH: usize = 8;

/// A skill of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillSpec {
    /// Its name, which is its folder's: lower-case letters, digits and single hyphens.
    pub name: String,
    /// Its description for the model: its purpose, and when to use it.
    pub description: String,
    /// Its license.
    pub license: Option<String>,
    /// Its requirements: products, programs, the network.
    pub compatibility: Option<String>,
    /// Further metadata of its author.
    pub metadata: BTreeMap<String, String>,
    /// The tools that it is written for.
    pub allowed_tools: Vec<String>,
    /// Its instructions for the model: the text after the front matter.
    pub body: String,
    /// Its folder, absolute.
    pub folder: PathBuf,
    /// The files in it beside `SKILL.md`, such as `scripts/run.py`, in order.
    pub files: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct FrontMatter {
    name: Option<String>,
    description: Option<String>,
    license: Option<String>,
    compatibility: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, Scalar>,
    allowed_tools: Option<AllowedTools>,
}

/// A value of `metadata`. The format requires strings, but other values are common.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Flag(bool),
    Whole(i64),
    Number(f64),
    List(Vec<String>),
}

/// `allowed-tools`: words on one line, as in the format, or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum AllowedTools {
    Line(String),
    List(Vec<String>),
}

/// Loads all skills of `folder`; `before` are those of the previous load.
pub(super) fn load(
    folder: &Path,
    before: &[Arc<SkillSpec>],
    warnings: &mut Vec<String>,
) -> Vec<Arc<SkillSpec>> {
    let Some(mut folders) = list_folder(folder, "skills", warnings) else { return before.to_vec() };
    folders.retain(|folder| folder.is_dir());
    truncate_with_warning(MAX_SKILLS, &mut folders, "skills", warnings);
    let mut skills = Vec::new();
    for folder in folders {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut problems = Vec::new();
        let file = folder.join("SKILL.md");
        match read_text(&file, MAX_FILE_BYTES).and_then(|text| parse(&name, &text, &mut problems)) {
            Ok(skill) => {
                let files = list_files(&folder, &mut problems);
                skills.push(Arc::new(SkillSpec { folder, files, ..skill }));
            }
            Err(reason) => {
                let (last_good, outcome) = last_good_version(&file, before, |skill| skill.name == name);
                problems.push(format!("{reason}{outcome}"));
                skills.extend(last_good);
            }
        }
        warnings.extend(problems.into_iter().map(|problem| format!("skills/{name}: {problem}")));
    }
    skills
}

fn parse(name: &str, text: &str, problems: &mut Vec<String>) -> Result<SkillSpec, String> {
    if !is_valid_name(name) {
        return Err("its name must be lower-case letters, digits and single hyphens, at most 64".into());
    }
    let (fields, body) = front_matter::split::<FrontMatter>(text)?;
    match &fields.name {
        Some(written) if written == name => {}
        Some(_) => problems.push(format!("its `name` is not that of its folder; it is called `{name}`")),
        None => problems.push(format!("it has no `name`; it is called `{name}`")),
    }
    let mut description = fields.description.unwrap_or_default().trim().to_owned();
    if description.is_empty() {
        return Err("it has no `description`: say what it is for and when to use it".into());
    }
    let kept = first_chars(&description, MAX_DESCRIPTION_CHARS).len();
    if kept < description.len() {
        problems.push(format!(
            "its `description` is over {MAX_DESCRIPTION_CHARS} characters; the rest is left out"
        ));
        description.truncate(kept);
    }
    if body.is_empty() {
        return Err("there is no text after the front matter: write the instructions there".into());
    }
    let allowed_tools = match fields.allowed_tools {
        None => Vec::new(),
        Some(AllowedTools::Line(line)) => line.split_whitespace().map(str::to_owned).collect(),
        Some(AllowedTools::List(list)) => list,
    };
    Ok(SkillSpec {
        name: name.to_owned(),
        description,
        license: fields.license,
        compatibility: fields.compatibility,
        metadata: fields.metadata.into_iter().map(|(key, value)| (key, value.into_text())).collect(),
        allowed_tools,
        body: body.to_owned(),
        folder: PathBuf::new(),
        files: Vec::new(),
    })
}

impl Scalar {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Flag(flag) => flag.to_string(),
            Self::Whole(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
            Self::List(list) => list.join(", "),
        }
    }
}

/// Returns the files of a skill, by their paths in its folder. Links are left out, because they could lead
/// anywhere.
fn list_files(folder: &Path, problems: &mut Vec<String>) -> Vec<String> {
    let mut files = Vec::new();
    let mut pending = vec![(PathBuf::new(), 0)];
    while let Some((inner, depth)) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(folder.join(&inner)) else {
            problems.push(format!("its folder `{}` cannot be read", escaped_path(&inner)));
            continue;
        };
        for entry in entries.filter_map(Result::ok) {
            let path = inner.join(entry.file_name());
            match (entry.file_type(), path.to_str()) {
                (Ok(kind), Some(_)) if kind.is_dir() && depth < MAX_DEPTH => pending.push((path, depth + 1)),
                (Ok(kind), Some("SKILL.md")) if kind.is_file() => {}
                (Ok(kind), Some(name)) if kind.is_file() && !name.contains(char::is_control) => {
                    files.push(name.to_owned());
                }
                _ => problems.push(format!("`{}` in its folder is left out", escaped_path(&path))),
            }
            if files.len() + pending.len() > MAX_FILES || problems.len() > MAX_FILES {
                problems.push(format!("it has over {MAX_FILES} files; the others are left out"));
                files.sort();
                return files;
            }
        }
    }
    files.sort();
    files
}

/// Formats a path for a log line.
fn escaped_path(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

#[cfg(test)]
#[path = "../tests/unit/skills.rs"]
mod tests;
