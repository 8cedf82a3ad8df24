//! Skills: those of the catalog and the user's own, behind one lookup.
//!
//! The user's own skills are read from the brain at each use, so that a change takes effect at once. One whose
//! name the catalog started to use later keeps working and shadows the catalog's skill: the user can still see,
//! change and delete it.

mod skill_dirs;
mod skill_format;

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::sync::Arc;

use api::skills::{self, MAX_SCRIPTS_BYTES, SkillDefinition, SkillSource, SkillSummary};
use api::{SkillName, Timestamp};
use catalog::{self, SkillSpec};
pub use skill_dirs::{DirLease, LeasedSkill, SkillDirs};
pub use skill_format::{ExportError, archive};
use store::{Brain, CustomSkill, SkillOutline};

/// The folder of a skill's scripts.
pub const SCRIPTS_PREFIX: &str = "scripts/";

/// The skills available to an agent.
#[derive(Clone)]
pub struct Skills {
    platform: Vec<Arc<SkillSpec>>,
    brain: Brain,
}

/// A skill.
#[derive(Clone, Debug)]
pub enum Skill {
    /// A skill of the catalog.
    Platform(Arc<SkillSpec>),
    /// A skill of the user.
    Custom(Box<CustomSkill>),
}

impl Skills {
    /// Combines the catalog's skills with those in the brain.
    pub fn new(platform: Vec<Arc<SkillSpec>>, brain: Brain) -> Self {
        Self { platform, brain }
    }

    /// Returns the catalog's skills.
    pub fn platform(&self) -> &[Arc<SkillSpec>] {
        &self.platform
    }

    /// Returns the brain that stores the user's skills.
    pub fn brain(&self) -> &Brain {
        &self.brain
    }

    /// Returns the skill with this name. Blocks.
    pub fn find(&self, name: &str) -> Result<Option<Skill>, store::StoreError> {
        let custom = self.brain.custom_skill(name)?.map(|skill| Skill::Custom(Box::new(skill)));
        let platform = || self.platform.iter().find(|skill| skill.name == name);
        Ok(custom.or_else(|| platform().map(|skill| Skill::Platform(Arc::clone(skill)))))
    }

    /// Returns a warning line for each skill of the catalog that a skill of the user shadows. Blocks.
    pub fn shadowed_warnings(&self) -> Vec<String> {
        let custom = match self.brain.custom_skills() {
            Ok(custom) => custom,
            Err(error) => return vec![format!("skills: the user's own skills cannot be read: {error}")],
        };
        let is_shadowed = |name: &str| custom.iter().any(|skill| skill.name.as_str() == name);
        let shadowed_warnings = self.platform.iter().filter(|skill| is_shadowed(&skill.name));
        shadowed_warnings
            .map(|skill| format!("skills/{}: the user has a skill of this name, which is used", skill.name))
            .collect()
    }

    /// Returns summaries of all skills, in order of their names. Blocks.
    pub fn all(&self) -> Result<Vec<SkillSummary>, store::StoreError> {
        let platform = self.platform.iter().filter_map(|skill| summary(skill));
        let all = platform.chain(self.brain.custom_skills()?).map(|skill| (skill.name.to_string(), skill));
        Ok(all.collect::<BTreeMap<_, _>>().into_values().collect())
    }

    /// Returns how each skill is run, in order of their names; scripts by their paths in the skill's folder.
    /// Blocks.
    pub fn outlines(&self) -> Result<Vec<SkillOutline>, store::StoreError> {
        let platform = self.platform.iter().filter_map(|skill| {
            let name = SkillName::new(skill.name.as_str()).ok()?;
            Some(SkillOutline { name, scripts: only_scripts(skill.files.clone()), has_prompt: true })
        });
        let custom = self.brain.custom_skill_outlines()?.into_iter().map(|outline| {
            let scripts = outline.scripts.iter().map(|script| format!("{SCRIPTS_PREFIX}{script}")).collect();
            SkillOutline { scripts, ..outline }
        });
        let all = platform.chain(custom).map(|outline| (outline.name.to_string(), outline));
        Ok(all.collect::<BTreeMap<_, _>>().into_values().collect())
    }
}

impl Skill {
    /// Returns its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Platform(skill) => &skill.name,
            Self::Custom(skill) => skill.name.as_str(),
        }
    }

    /// Returns its instructions for the model; `None` if it consists of scripts alone.
    pub fn prompt(&self) -> Option<&str> {
        match self {
            Self::Platform(skill) => Some(&skill.body),
            Self::Custom(skill) => skill.definition.prompt.as_deref(),
        }
    }

    /// Returns its files beside `SKILL.md`, such as `scripts/run.py`, in order.
    pub fn files(&self) -> Vec<String> {
        match self {
            Self::Platform(skill) => skill.files.clone(),
            Self::Custom(skill) => {
                skill.definition.scripts.keys().map(|name| format!("{SCRIPTS_PREFIX}{name}")).collect()
            }
        }
    }

    /// Returns those of its files that are scripts.
    pub fn scripts(&self) -> Vec<String> {
        only_scripts(self.files())
    }

    /// Returns the whole skill; `None` if its name is not valid in the API. For a catalog skill, the scripts that
    /// are text are read now, up to [`MAX_SCRIPTS_BYTES`] in total. `now` replaces the modification time of its
    /// `SKILL.md` if that is unknown. Blocks.
    pub fn into_contract(self, now: Timestamp) -> Option<skills::Skill> {
        match self {
            Self::Custom(skill) => {
                let CustomSkill { name, definition, created_at, updated_at } = *skill;
                let SkillDefinition { description, category, prompt, capabilities, scripts } = definition;
                let source = SkillSource::Custom;
                Some(skills::Skill {
                    name,
                    description,
                    category,
                    prompt,
                    capabilities,
                    scripts,
                    source,
                    created_at,
                    updated_at,
                })
            }
            Self::Platform(skill) => {
                let SkillSummary { name, description, category, capabilities, source } = summary(&skill)?;
                let modified_at = modified_at(&skill).unwrap_or(now);
                Some(skills::Skill {
                    name,
                    description,
                    category,
                    prompt: Some(skill.body.clone()),
                    capabilities,
                    scripts: script_texts(&skill),
                    source,
                    created_at: modified_at,
                    updated_at: modified_at,
                })
            }
        }
    }
}

/// Keeps only the scripts of a skill's files.
fn only_scripts(mut files: Vec<String>) -> Vec<String> {
    files.retain(|file| file.starts_with(SCRIPTS_PREFIX));
    files
}

/// Returns the summary of a catalog skill; `None` if its name is not valid in the API.
fn summary(skill: &SkillSpec) -> Option<SkillSummary> {
    Some(SkillSummary {
        name: SkillName::new(skill.name.as_str()).ok()?,
        description: Some(skill.description.clone()),
        category: category(skill),
        capabilities: capabilities(skill),
        source: SkillSource::Platform,
    })
}

/// Returns the category of a catalog skill: `category` of its metadata.
fn category(skill: &SkillSpec) -> Option<String> {
    skill.metadata.get("category").cloned()
}

/// Returns the tags of a catalog skill: the comma-separated `capabilities` of its metadata.
fn capabilities(skill: &SkillSpec) -> Vec<String> {
    let tags = skill.metadata.get("capabilities").map(String::as_str).unwrap_or_default().split(',');
    tags.map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

/// Returns the modification time of a catalog skill's `SKILL.md`.
fn modified_at(skill: &SkillSpec) -> Option<Timestamp> {
    let modified = std::fs::metadata(skill.folder.join(skill_format::SKILL_FILE)).ok()?.modified().ok()?;
    let since = modified.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Timestamp::from_unix_ms(i64::try_from(since.as_millis()).ok()?))
}

/// Returns the texts of a catalog skill's scripts, by their paths in the scripts folder.
fn script_texts(skill: &SkillSpec) -> BTreeMap<String, String> {
    let mut remaining = MAX_SCRIPTS_BYTES;
    let mut texts = BTreeMap::new();
    for file in &skill.files {
        let Some(name) = file.strip_prefix(SCRIPTS_PREFIX) else { continue };
        let Ok(bytes) = read_skill_file(skill, file, remaining) else { continue };
        if let Ok(text) = String::from_utf8(bytes) {
            remaining -= text.len();
            texts.insert(name.to_owned(), text);
        }
    }
    texts
}

/// Reads a file of a catalog skill if it has at most `max_bytes` bytes.
fn read_skill_file(skill: &SkillSpec, file: &str, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    resources::files::open_regular_file(&skill.folder.join(file))?.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > max_bytes {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large"));
    }
    Ok(bytes)
}
