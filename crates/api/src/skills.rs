//! Skills: what an agent can learn to do when it needs it. Those of the platform come with the catalog; the others are
//! the user's own and live in the brain.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::null_as_default;
use crate::{SkillName, Timestamp};

/// The longest description, in characters: the bound of the Agent Skills format.
pub const MAX_DESCRIPTION: usize = 1_024;
/// The longest category, and the longest capability, in bytes.
pub const MAX_WORD: usize = 128;
/// The most capabilities.
pub const MAX_CAPABILITIES: usize = 32;
/// The longest prompt, in bytes.
pub const MAX_PROMPT: usize = 256 * 1024;
/// The most scripts.
pub const MAX_SCRIPTS: usize = 64;
/// The longest name of a script, in bytes.
pub const MAX_SCRIPT_NAME: usize = 128;
/// The most that all scripts of a skill hold, in bytes.
pub const MAX_SCRIPTS_BYTES: usize = 1024 * 1024;

/// Whose a skill is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SkillSource {
    /// It comes with the catalog, and cannot be changed here.
    Platform,
    /// The user's own.
    Custom,
}

/// Answer of `GET /skills`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillList {
    /// The skills, by their names in order.
    pub skills: Vec<SkillSummary>,
}

/// A skill in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillSummary {
    /// Its name.
    pub name: SkillName,
    /// What it is for; null where nobody said.
    pub description: Option<String>,
    /// What it is filed under; null where nobody said.
    pub category: Option<String>,
    /// Its tags.
    pub capabilities: Vec<String>,
    /// Whose it is.
    pub source: SkillSource,
}

/// A whole skill: answer of `GET /skills/{name}`, `POST /skills/create` and `PUT /skills/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Skill {
    /// Its name.
    pub name: SkillName,
    /// What it is for; null where nobody said.
    pub description: Option<String>,
    /// What it is filed under; null where nobody said.
    pub category: Option<String>,
    /// What it tells a model to do; null where it is its scripts alone.
    pub prompt: Option<String>,
    /// Its tags.
    pub capabilities: Vec<String>,
    /// Its scripts: what each file holds.
    pub scripts: BTreeMap<String, String>,
    /// Whose it is.
    pub source: SkillSource,
    /// When it was created; of a platform skill, when its `SKILL.md` was last written.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// Body of `POST /skills/create`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CreateSkill {
    /// Its name. It cannot be changed later.
    pub name: SkillName,
    /// What it is for and when to use it: at most 1,024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it is filed under: at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// What it tells a model to do: at most 256 KiB. Required where there are no scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Its tags: at most 32, each 1 to 128 bytes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Its scripts, each a file name and what the file holds: at most 64, of 1 MiB in all.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<String, String>,
}

/// Body of `PUT /skills/{name}`. What is left out stays as it is; what is given takes the place of the whole field, and
/// an empty text, list or map empties it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct UpdateSkill {
    /// The name that the path has: a skill cannot be renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for and when to use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it is filed under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// What it tells a model to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    /// Its scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<BTreeMap<String, String>>,
}

/// What a skill of the user's own is, beside its name and times: the form in which it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillDefinition {
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it is filed under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// What it tells a model to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Its scripts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<String, String>,
}

/// Why something is no skill.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSkill {
    /// Nobody could follow it.
    #[error("`prompt`: is required where there are no scripts, and must not be blank")]
    Empty,
    /// Its description is too long or cannot be shown.
    #[error("`description`: must be at most {MAX_DESCRIPTION} characters, none of them a control character")]
    Description,
    /// Its category is too long or cannot be shown.
    #[error("`category`: must be at most {MAX_WORD} bytes, without control characters")]
    Category,
    /// Its prompt is too long.
    #[error("`prompt`: must be at most {MAX_PROMPT} bytes, none of them NUL")]
    Prompt,
    /// It has too many tags, or one that is none.
    #[error(
        "`capabilities`: at most {MAX_CAPABILITIES} are taken, each 1 to {MAX_WORD} bytes, not blank, without control \
         characters"
    )]
    Capabilities,
    /// It has too many scripts, or they hold too much.
    #[error("`scripts`: at most {MAX_SCRIPTS} are taken, of {MAX_SCRIPTS_BYTES} bytes in all")]
    Scripts,
    /// A script's name is none.
    #[error(
        "`scripts`: {0:?} is no name for one: it must be a file name of 1 to {MAX_SCRIPT_NAME} bytes, without slashes, \
         backslashes, `..` and control characters"
    )]
    ScriptName(String),
}

impl SkillDefinition {
    /// The definition with blank texts left out, if it is one.
    ///
    /// # Errors
    /// What of it is not as it must be.
    pub fn validate(mut self) -> Result<Self, InvalidSkill> {
        for text in [&mut self.description, &mut self.category, &mut self.prompt] {
            *text = text.take().filter(|text| !text.trim().is_empty());
        }
        let Self { description, category, prompt, capabilities, scripts } = &self;
        if prompt.is_none() && scripts.is_empty() {
            return Err(InvalidSkill::Empty);
        }
        // Line breaks are taken: descriptions are often written over some lines.
        let is_hidden = |character: char| character.is_control() && !matches!(character, '\n' | '\r' | '\t');
        if description
            .as_ref()
            .is_some_and(|text| text.chars().count() > MAX_DESCRIPTION || text.contains(is_hidden))
        {
            return Err(InvalidSkill::Description);
        }
        let is_word = |text: &String| text.len() <= MAX_WORD && !text.contains(char::is_control);
        if !category.as_ref().is_none_or(is_word) {
            return Err(InvalidSkill::Category);
        }
        if prompt.as_ref().is_some_and(|text| text.len() > MAX_PROMPT || text.contains('\0')) {
            return Err(InvalidSkill::Prompt);
        }
        let is_tag = |text: &String| is_word(text) && !text.trim().is_empty();
        if capabilities.len() > MAX_CAPABILITIES || !capabilities.iter().all(is_tag) {
            return Err(InvalidSkill::Capabilities);
        }
        let bytes: usize = scripts.values().map(String::len).sum();
        if scripts.len() > MAX_SCRIPTS || bytes > MAX_SCRIPTS_BYTES {
            return Err(InvalidSkill::Scripts);
        }
        match scripts.keys().find(|name| !is_file_name(name)) {
            Some(name) => Err(InvalidSkill::ScriptName(name.chars().take(MAX_SCRIPT_NAME).collect())),
            None => Ok(self),
        }
    }

    /// The definition with what `update` gives in its place.
    #[must_use]
    pub fn apply_update(self, update: UpdateSkill) -> Self {
        let UpdateSkill { name: _, description, category, prompt, capabilities, scripts } = update;
        Self {
            description: description.or(self.description),
            category: category.or(self.category),
            prompt: prompt.or(self.prompt),
            capabilities: capabilities.unwrap_or(self.capabilities),
            scripts: scripts.unwrap_or(self.scripts),
        }
    }
}

/// Whether this is the name of a file, and of nothing elsewhere.
fn is_file_name(name: &str) -> bool {
    (1..=MAX_SCRIPT_NAME).contains(&name.len())
        && name != "."
        && !name.contains("..")
        && !name.contains(|character: char| matches!(character, '/' | '\\') || character.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_script(name: &str, text: &str) -> SkillDefinition {
        SkillDefinition { scripts: [(name.to_owned(), text.to_owned())].into(), ..SkillDefinition::default() }
    }

    fn with_prompt(prompt: &str) -> SkillDefinition {
        SkillDefinition { prompt: Some(prompt.to_owned()), ..SkillDefinition::default() }
    }

    #[test]
    fn a_skill_says_something_to_do() {
        assert_eq!(SkillDefinition::default().validate(), Err(InvalidSkill::Empty));
        assert_eq!(with_prompt(" \n").validate(), Err(InvalidSkill::Empty));
        for whole in [with_prompt("Do."), with_script("a.sh", "")] {
            assert_eq!(whole.clone().validate(), Ok(whole));
        }
    }

    #[test]
    fn a_script_is_a_file_of_its_own_folder() {
        for good in ["a", "run.py", ".hidden", "a b", "Größe.sh", "-x", &"x".repeat(128)] {
            assert!(with_script(good, "").validate().is_ok(), "{good:?}");
        }
        for bad in
            ["", ".", "..", "../a", "a/b", "/a", "a/", "a\\b", "a\0b", "a\nb", "\u{85}", &"x".repeat(129)]
        {
            let refused = with_script(bad, "").validate();
            assert!(matches!(refused, Err(InvalidSkill::ScriptName(_))), "{bad:?}: {refused:?}");
        }
    }

    #[test]
    fn each_field_has_its_bound() {
        let words = |count: usize, length: usize| vec!["x".repeat(length); count];
        let full = SkillDefinition {
            description: Some("é".repeat(MAX_DESCRIPTION)),
            category: Some("x".repeat(MAX_WORD)),
            prompt: Some("x".repeat(MAX_PROMPT)),
            capabilities: words(MAX_CAPABILITIES, MAX_WORD),
            scripts: (0..MAX_SCRIPTS)
                .map(|number| (number.to_string(), "x".repeat(MAX_SCRIPTS_BYTES / MAX_SCRIPTS)))
                .collect(),
        };
        assert_eq!(full.clone().validate(), Ok(full.clone()));
        let mut more_scripts = full.scripts.clone();
        more_scripts.insert("more".into(), String::new());
        let mut larger_scripts = full.scripts.clone();
        larger_scripts.insert("0".into(), "x".repeat(MAX_SCRIPTS_BYTES / MAX_SCRIPTS + 1));
        for (update, why) in [
            (
                UpdateSkill { description: Some("é".repeat(MAX_DESCRIPTION + 1)), ..UpdateSkill::default() },
                InvalidSkill::Description,
            ),
            (
                UpdateSkill { description: Some("a\u{1b}b".into()), ..UpdateSkill::default() },
                InvalidSkill::Description,
            ),
            (
                UpdateSkill { category: Some("x".repeat(MAX_WORD + 1)), ..UpdateSkill::default() },
                InvalidSkill::Category,
            ),
            (
                UpdateSkill { prompt: Some("x".repeat(MAX_PROMPT + 1)), ..UpdateSkill::default() },
                InvalidSkill::Prompt,
            ),
            (
                UpdateSkill { capabilities: Some(words(MAX_CAPABILITIES + 1, 1)), ..UpdateSkill::default() },
                InvalidSkill::Capabilities,
            ),
            (
                UpdateSkill { capabilities: Some(words(1, 0)), ..UpdateSkill::default() },
                InvalidSkill::Capabilities,
            ),
            (UpdateSkill { scripts: Some(more_scripts), ..UpdateSkill::default() }, InvalidSkill::Scripts),
            (UpdateSkill { scripts: Some(larger_scripts), ..UpdateSkill::default() }, InvalidSkill::Scripts),
        ] {
            assert_eq!(full.clone().apply_update(update).validate(), Err(why));
        }
    }
}
