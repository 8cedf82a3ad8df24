//! `skills/<name>/SKILL.md`: what the agent can learn to do when it needs it, in the open Agent Skills format
//! (<https://agentskills.io/specification>).
//!
//! Reading is lenient where a skill can be used all the same: what is odd is named and the skill taken.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::{front_matter, is_valid_name, last_good_version, list_folder, read_text, truncate_with_warning};

/// The most bytes of a `SKILL.md`.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// The most skills of a catalog.
const MAX_SKILLS: usize = 256;
/// The longest description, in characters: the format's bound. Every model is told it in every turn.
const MAX_DESCRIPTION_CHARS: usize = 1_024;
/// The most files of a skill beside its `SKILL.md`.
const MAX_FILES: usize = 512;
/// How deep in a skill's folder they may be.
const MAX_DEPTH: usize = 8;

/// A skill of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillSpec {
    /// Its name, which is its folder's: lower-case letters, digits and single hyphens.
    pub name: String,
    /// What it is for and when to use it, for the model.
    pub description: String,
    /// The licence that it is under.
    pub license: Option<String>,
    /// What it needs: products, programs, the network.
    pub compatibility: Option<String>,
    /// What else its author says of it.
    pub metadata: BTreeMap<String, String>,
    /// The tools that it is written for.
    pub allowed_tools: Vec<String>,
    /// What it tells the model to do: the text behind the front matter.
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

/// A value of `metadata`. The format wants strings; others are often written.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Flag(bool),
    Whole(i64),
    Number(f64),
    List(Vec<String>),
}

/// `allowed-tools`: words in a line, as the format has it, or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum AllowedTools {
    Line(String),
    List(Vec<String>),
}

/// Reads all skills of `folder`, where `before` is what it held before.
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
        let mut odd = Vec::new();
        let file = folder.join("SKILL.md");
        match read_text(&file, MAX_FILE_BYTES).and_then(|text| parse(&name, &text, &mut odd)) {
            Ok(skill) => {
                let files = list_files(&folder, &mut odd);
                skills.push(Arc::new(SkillSpec { folder, files, ..skill }));
            }
            Err(reason) => {
                let (last_good, outcome) = last_good_version(&file, before, |skill| skill.name == name);
                odd.push(format!("{reason}{outcome}"));
                skills.extend(last_good);
            }
        }
        warnings.extend(odd.into_iter().map(|odd| format!("skills/{name}: {odd}")));
    }
    skills
}

fn parse(name: &str, text: &str, odd: &mut Vec<String>) -> Result<SkillSpec, String> {
    if !is_valid_name(name) {
        return Err("its name must be lower-case letters, digits and single hyphens, at most 64".into());
    }
    let (fields, body) = front_matter::split::<FrontMatter>(text)?;
    match &fields.name {
        Some(written) if written == name => {}
        Some(_) => odd.push(format!("its `name` is not that of its folder; it is called `{name}`")),
        None => odd.push(format!("it has no `name`; it is called `{name}`")),
    }
    let mut description = fields.description.unwrap_or_default().trim().to_owned();
    if description.is_empty() {
        return Err("it has no `description`: say what it is for and when to use it".into());
    }
    if let Some((end, _)) = description.char_indices().nth(MAX_DESCRIPTION_CHARS) {
        odd.push(format!(
            "its `description` is over {MAX_DESCRIPTION_CHARS} characters; the rest is left out"
        ));
        description.truncate(end);
    }
    if body.is_empty() {
        return Err("there is no text behind the front matter: say how it is done".into());
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

/// The files of a skill, by their paths in its folder. Links are left out: they could lead anywhere.
fn list_files(folder: &Path, odd: &mut Vec<String>) -> Vec<String> {
    let mut files = Vec::new();
    let mut ahead = vec![(PathBuf::new(), 0)];
    while let Some((inner, depth)) = ahead.pop() {
        let Ok(entries) = std::fs::read_dir(folder.join(&inner)) else {
            odd.push(format!("its folder `{}` cannot be read", escaped_path(&inner)));
            continue;
        };
        for entry in entries.filter_map(Result::ok) {
            let path = inner.join(entry.file_name());
            match (entry.file_type(), path.to_str()) {
                (Ok(kind), Some(_)) if kind.is_dir() && depth < MAX_DEPTH => ahead.push((path, depth + 1)),
                (Ok(kind), Some("SKILL.md")) if kind.is_file() => {}
                (Ok(kind), Some(name)) if kind.is_file() && !name.contains(char::is_control) => {
                    files.push(name.to_owned());
                }
                _ => odd.push(format!("`{}` in its folder is left out", escaped_path(&path))),
            }
            if files.len() + ahead.len() > MAX_FILES || odd.len() > MAX_FILES {
                odd.push(format!("it has over {MAX_FILES} files; the others are left out"));
                files.sort();
                return files;
            }
        }
    }
    files.sort();
    files
}

/// A path as a person reads it in a log: on one line.
fn escaped_path(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

#[cfg(test)]
#[path = "skills_tests.rs"]
mod tests;
