//! Skills: those of the catalog and the user's own, looked for in one place.
//!
//! The user's own are read from the brain whenever one is wanted, so that a change is in force at once. One that has
//! the name of a skill which the catalog got later goes on working, in that one's place: the user can still see it,
//! change it and delete it.

mod skill_dirs;
mod skill_format;

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::sync::Arc;

use contract::skills::{self, MAX_SCRIPTS_BYTES, SkillDefinition, SkillSource, SkillSummary};
use contract::{SkillName, Timestamp};

use crate::catalog::{self, SkillSpec};
use crate::store::{Brain, CustomSkill, SkillOutline};

pub(crate) use skill_dirs::{DirLease, LeasedSkill, SkillDirs};
pub(crate) use skill_format::{ExportError, archive};

/// The folder of a skill's scripts.
pub(crate) const SCRIPTS_PREFIX: &str = "scripts/";

/// The skills there are.
#[derive(Clone)]
pub(crate) struct Skills {
    platform: Vec<Arc<SkillSpec>>,
    brain: Brain,
}

/// A skill.
#[derive(Clone, Debug)]
pub(crate) enum Skill {
    /// It comes with the catalog.
    Platform(Arc<SkillSpec>),
    /// The user's own.
    Custom(Box<CustomSkill>),
}

impl Skills {
    /// Those of the catalog, and those in the brain.
    pub(crate) fn new(platform: Vec<Arc<SkillSpec>>, brain: Brain) -> Self {
        Self { platform, brain }
    }

    /// Those of the catalog.
    pub(crate) fn platform(&self) -> &[Arc<SkillSpec>] {
        &self.platform
    }

    /// The brain that has the user's own.
    pub(crate) fn brain(&self) -> &Brain {
        &self.brain
    }

    /// The skill called `name`. Blocks.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Skill>, rusqlite::Error> {
        let custom = self.brain.custom_skill(name)?.map(|skill| Skill::Custom(Box::new(skill)));
        let platform = || self.platform.iter().find(|skill| skill.name == name);
        Ok(custom.or_else(|| platform().map(|skill| Skill::Platform(Arc::clone(skill)))))
    }

    /// The skills of the catalog in whose place the user's own stand: a line each, for a person. Blocks.
    pub(crate) fn shadowed_warnings(&self) -> Vec<String> {
        let custom = match self.brain.custom_skills() {
            Ok(custom) => custom,
            Err(error) => return vec![format!("skills: the user's own cannot be read: {error}")],
        };
        let taken = |name: &str| custom.iter().any(|skill| skill.name.as_str() == name);
        let shadowed_warnings = self.platform.iter().filter(|skill| taken(&skill.name));
        shadowed_warnings
            .map(|skill| format!("skills/{}: the user has a skill of this name, which is used", skill.name))
            .collect()
    }

    /// All of them as a list shows them, by their names in order. Blocks.
    pub(crate) fn all(&self) -> Result<Vec<SkillSummary>, rusqlite::Error> {
        let platform = self.platform.iter().filter_map(|skill| summary(skill));
        let all = platform.chain(self.brain.custom_skills()?).map(|skill| (skill.name.to_string(), skill));
        Ok(all.collect::<BTreeMap<_, _>>().into_values().collect())
    }

    /// How each of them is run, by their names in order; scripts by their paths in the skill's folder. Blocks.
    pub(crate) fn outlines(&self) -> Result<Vec<SkillOutline>, rusqlite::Error> {
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
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Platform(skill) => &skill.name,
            Self::Custom(skill) => skill.name.as_str(),
        }
    }

    /// What it tells a model to do; none where it is its scripts alone.
    pub(crate) fn prompt(&self) -> Option<&str> {
        match self {
            Self::Platform(skill) => Some(&skill.body),
            Self::Custom(skill) => skill.definition.prompt.as_deref(),
        }
    }

    /// Its files beside `SKILL.md`, such as `scripts/run.py`, in order.
    pub(crate) fn files(&self) -> Vec<String> {
        match self {
            Self::Platform(skill) => skill.files.clone(),
            Self::Custom(skill) => {
                skill.definition.scripts.keys().map(|name| format!("{SCRIPTS_PREFIX}{name}")).collect()
            }
        }
    }

    /// Those of them that are scripts.
    pub(crate) fn scripts(&self) -> Vec<String> {
        only_scripts(self.files())
    }

    /// The whole skill; none where its name could not be asked for. Of the catalog's its files are read now: those of
    /// its scripts that are text, up to [`MAX_SCRIPTS_BYTES`] in all. `now` stands for when its `SKILL.md` was written
    /// where nobody can tell. Blocks.
    pub(crate) fn into_contract(self, now: Timestamp) -> Option<skills::Skill> {
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

/// Those of a skill's files that are scripts.
fn only_scripts(mut files: Vec<String>) -> Vec<String> {
    files.retain(|file| file.starts_with(SCRIPTS_PREFIX));
    files
}

/// A skill of the catalog as a list shows it; none where its name could not be asked for.
fn summary(skill: &SkillSpec) -> Option<SkillSummary> {
    Some(SkillSummary {
        name: SkillName::new(skill.name.as_str()).ok()?,
        description: Some(skill.description.clone()),
        category: category(skill),
        capabilities: capabilities(skill),
        source: SkillSource::Platform,
    })
}

/// What a skill of the catalog is filed under: `category` of its metadata.
fn category(skill: &SkillSpec) -> Option<String> {
    skill.metadata.get("category").cloned()
}

/// The tags of a skill of the catalog: `capabilities` of its metadata, with commas between them.
fn capabilities(skill: &SkillSpec) -> Vec<String> {
    let tags = skill.metadata.get("capabilities").map(String::as_str).unwrap_or_default().split(',');
    tags.map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

/// When the `SKILL.md` of a skill of the catalog was written.
fn modified_at(skill: &SkillSpec) -> Option<Timestamp> {
    let modified = std::fs::metadata(skill.folder.join(skill_format::SKILL_FILE)).ok()?.modified().ok()?;
    let since = modified.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Timestamp::from_unix_ms(i64::try_from(since.as_millis()).ok()?))
}

/// What the scripts of a skill of the catalog say, by their paths in its folder for them.
fn script_texts(skill: &SkillSpec) -> BTreeMap<String, String> {
    let mut left = MAX_SCRIPTS_BYTES;
    let mut texts = BTreeMap::new();
    for file in &skill.files {
        let Some(name) = file.strip_prefix(SCRIPTS_PREFIX) else { continue };
        let Ok(bytes) = read_skill_file(skill, file, left) else { continue };
        if let Ok(text) = String::from_utf8(bytes) {
            left -= text.len();
            texts.insert(name.to_owned(), text);
        }
    }
    texts
}

/// What a file of a skill of the catalog holds, if that is at most so many bytes.
fn read_skill_file(skill: &SkillSpec, file: &str, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    catalog::open_regular_file(&skill.folder.join(file))?.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large"));
    }
    Ok(bytes)
}
