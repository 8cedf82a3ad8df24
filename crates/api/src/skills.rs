//! Skills: instructions and scripts that an agent loads when it needs them. Platform skills come with the catalog;
//! the user's own skills are stored in the brain.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::null_as_default;
use crate::{SkillName, Timestamp};

/// The maximum length of a description, in characters: the limit of the Agent Skills format.
pub const MAX_DESCRIPTION: usize = 1_024;
/// The maximum length of a category and of a capability, in bytes.
pub const MAX_WORD: usize = 128;
/// The maximum number of capabilities.
pub const MAX_CAPABILITIES: usize = 32;
/// The maximum length of a prompt, in bytes.
pub const MAX_PROMPT: usize = 256 * 1024;
/// The maximum number of scripts.
pub const MAX_SCRIPTS: usize = 64;
/// The maximum length of a script's name, in bytes.
pub const MAX_SCRIPT_NAME: usize = 128;
/// The maximum total size of a skill's scripts, in bytes.
pub const MAX_SCRIPTS_BYTES: usize = 1024 * 1024;

/// The owner of a skill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SkillSource {
    /// It comes with the catalog, and cannot be changed through the API.
    Platform,
    /// It belongs to the user.
    Custom,
}

/// Response of `GET /skills`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillList {
    /// The skills, sorted by name.
    pub skills: Vec<SkillSummary>,
}

/// A skill in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkillSummary {
    /// The skill's name.
    pub name: SkillName,
    /// What the skill is for; null if not given.
    pub description: Option<String>,
    /// The skill's category; null if not given.
    pub category: Option<String>,
    /// The skill's tags.
    pub capabilities: Vec<String>,
    /// The skill's owner.
    pub source: SkillSource,
}

/// A complete skill: response of `GET /skills/{name}`, `POST /skills/create` and `PUT /skills/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Skill {
    /// The skill's name.
    pub name: SkillName,
    /// What the skill is for; null if not given.
    pub description: Option<String>,
    /// The skill's category; null if not given.
    pub category: Option<String>,
    /// The instructions for a model; null if it consists only of scripts.
    pub prompt: Option<String>,
    /// The skill's tags.
    pub capabilities: Vec<String>,
    /// The skill's scripts: file names with the files' contents.
    pub scripts: BTreeMap<String, String>,
    /// The skill's owner.
    pub source: SkillSource,
    /// When it was created; for a platform skill, when its `SKILL.md` was last written.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// Body of `POST /skills/create`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CreateSkill {
    /// The skill's name. It cannot be changed later.
    pub name: SkillName,
    /// What the skill is for and when to use it: at most 1,024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The skill's category: at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The instructions for a model: at most 256 KiB. Required if there are no scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The skill's tags: at most 32, each 1 to 128 bytes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The skill's scripts, file names with the files' contents: at most 64, of 1 MiB in total.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<String, String>,
}

/// Body of `PUT /skills/{name}`. Fields that are left out stay unchanged.
///
/// A given field is replaced entirely; an empty text, list or map clears it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct UpdateSkill {
    /// The name in the path: a skill cannot be renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the skill is for and when to use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The skill's category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The instructions for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The skill's tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    /// The skill's scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<BTreeMap<String, String>>,
}

/// A skill of the user's own without its name and times, in the form in which it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillDefinition {
    /// What the skill is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The skill's category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The instructions for a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The skill's tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The skill's scripts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<String, String>,
}

/// Why a skill is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSkill {
    /// It has neither a prompt nor scripts.
    #[error("`prompt`: is required if there are no scripts, and must not be blank")]
    Empty,
    /// The description is too long or contains control characters.
    #[error("`description`: must be at most {MAX_DESCRIPTION} characters, none of them a control character")]
    Description,
    /// The category is too long or contains control characters.
    #[error("`category`: must be at most {MAX_WORD} bytes, without control characters")]
    Category,
    /// The prompt is too long or contains NUL.
    #[error("`prompt`: must be at most {MAX_PROMPT} bytes, none of them NUL")]
    Prompt,
    /// It has too many tags, or an invalid one.
    #[error(
        "`capabilities`: at most {MAX_CAPABILITIES} are accepted, each 1 to {MAX_WORD} bytes, not blank, without \
         control characters"
    )]
    Capabilities,
    /// It has too many scripts, or they are too large.
    #[error("`scripts`: at most {MAX_SCRIPTS} are accepted, of {MAX_SCRIPTS_BYTES} bytes in total")]
    Scripts,
    /// The name of a script is invalid.
    #[error(
        "`scripts`: {0:?} is not a valid script name: it must be a file name of 1 to {MAX_SCRIPT_NAME} bytes, without \
         slashes, backslashes, `..` and control characters"
    )]
    ScriptName(String),
}

impl SkillDefinition {
    /// Validates the definition, and returns it without blank texts.
    ///
    /// # Errors
    /// Returns the first rule that it violates.
    pub fn validate(mut self) -> Result<Self, InvalidSkill> {
        for text in [&mut self.description, &mut self.category, &mut self.prompt] {
            *text = text.take().filter(|text| !text.trim().is_empty());
        }
        let Self { description, category, prompt, capabilities, scripts } = &self;
        if prompt.is_none() && scripts.is_empty() {
            return Err(InvalidSkill::Empty);
        }
        // Line breaks are allowed: descriptions often have several lines.
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

    /// Returns the definition with the fields of `update` replaced.
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

/// Whether `name` is a plain file name, which cannot refer to another folder.
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
        for valid in [with_prompt("Do."), with_script("a.sh", "")] {
            assert_eq!(valid.clone().validate(), Ok(valid));
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
