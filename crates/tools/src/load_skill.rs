//! `load_skill`: loads a skill's instructions when the agent needs them. Before that, the agent knows only the
//! skill's name and description.

use std::fmt::Write as _;
use std::io;
use std::io::Read as _;

use api::skills::MAX_PROMPT;
use api::tool_names;
use catalog::Permission;
use catalog::{self, SkillSpec};
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde::Deserialize;
use serde_json::{Value, json};

use super::spill::MAX_INLINE_BYTES;
use super::{Invocation, Tool, ToolError, ToolOutput, ToolStep, parse_input, run_blocking};
use crate::skills::{SCRIPTS_PREFIX, Skill, Skills};

/// The largest file of a skill that the model can read, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The maximum number of files listed with a skill.
const MAX_LISTED_FILES: usize = 100;
/// The maximum length of a skill's text including its list of files, which are at most eight folders deep.
const MAX_SKILL_BYTES: usize = 2 * MAX_PROMPT;

/// The `load_skill` tool.
pub(super) struct LoadSkill(pub(super) Skills);

#[derive(Deserialize)]
struct LoadSkillInput {
    skill: String,
    file: Option<String>,
}

impl LoadSkill {
    async fn load(&self, invocation: Invocation) -> Result<ToolStep, ToolError> {
        let LoadSkillInput { skill, file } = parse_input(invocation.input)?;
        let skills = self.0.clone();
        let read = move || {
            let skill = find_skill(&skills, &skill)?;
            match file {
                None => Ok(skill_text(&skill)),
                Some(file) => read_skill_file(&skill, &file),
            }
        };
        let text = run_blocking(read).await?;
        Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
    }
}

/// Returns the skill with this name. Blocks.
pub(super) fn find_skill(skills: &Skills, name: &str) -> Result<Skill, ToolError> {
    let failed = |error: store::StoreError| ToolError(format!("skills cannot be read: {error}"));
    if let Some(skill) = skills.find(name).map_err(failed)? {
        return Ok(skill);
    }
    let all = skills.all().map_err(failed)?;
    let names: Vec<_> = all.iter().map(|skill| skill.name.as_str()).collect();
    let there =
        if names.is_empty() { "there are none".into() } else { format!("there are: {}", names.join(", ")) };
    Err(ToolError(format!("there is no skill called `{name}`; {there}")))
}

/// Returns the text of a loaded skill for the model.
fn skill_text(skill: &Skill) -> String {
    let mut text = skill.prompt().unwrap_or("This skill is its scripts: run the fitting one.").to_owned();
    let files = skill.files();
    if !files.is_empty() {
        text.push_str("\n\nFiles of this skill");
        // A skill of the user has no folder until one of its scripts is run.
        if let Skill::Platform(skill) = skill {
            // Writing to a `String` cannot fail.
            let _ = write!(text, ", in {}", skill.folder.display());
        }
        text.push(':');
        for file in files.iter().take(MAX_LISTED_FILES) {
            let _ = write!(text, "\n- {file}");
        }
        let more = files.len().saturating_sub(MAX_LISTED_FILES);
        if more > 0 {
            let _ = write!(text, "\n- and {more} more");
        }
    }
    text
}

/// Returns the text of one of a skill's files. Only listed files are accepted, so no path leads outside. Blocks.
fn read_skill_file(skill: &Skill, file: &str) -> Result<String, ToolError> {
    let name = file.strip_prefix("./").unwrap_or(file);
    let none = || ToolError(format!("the skill `{}` has no file `{file}`", skill.name()));
    match skill {
        Skill::Custom(skill) => {
            let script =
                name.strip_prefix(SCRIPTS_PREFIX).and_then(|script| skill.definition.scripts.get(script));
            script.cloned().ok_or_else(none)
        }
        Skill::Platform(skill) if skill.files.iter().any(|known| known == name) => {
            read_catalog_file(skill, name)
        }
        Skill::Platform(_) => Err(none()),
    }
}

/// Returns the text of a file of a catalog skill.
fn read_catalog_file(skill: &SkillSpec, file: &str) -> Result<String, ToolError> {
    let failed = |error: io::Error| ToolError(format!("`{file}` cannot be read: {error}"));
    let mut bytes = Vec::new();
    let opened = resources::files::open_regular_file(&skill.folder.join(file)).map_err(failed)?;
    opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    let path = skill.folder.join(file);
    if u64::try_from(bytes.len()).is_ok_and(|len| len > MAX_FILE_BYTES) {
        return Err(ToolError(format!(
            "`{file}` is over {MAX_FILE_BYTES} bytes; programs can read it at {}",
            path.display()
        )));
    }
    String::from_utf8(bytes).map_err(|_| {
        ToolError(format!("`{file}` is not UTF-8 text; programs can read it at {}", path.display()))
    })
}

impl Tool for LoadSkill {
    fn spec(&self) -> ToolSpec {
        let description =
            "Loads a skill: how something is done that the user may want. Load the fitting one before \
                           you begin."
                .to_owned();
        // Listed here because vendors limit a tool's description. The user's own skills are announced in the
        // conversation instead: the declarations must stay the same throughout a task.
        let mut which =
            "The skill's name. Notes beside the user's messages tell of skills of the user's own.".to_owned();
        if !self.0.platform().is_empty() {
            which.push_str(" There are:");
        }
        for skill in self.0.platform() {
            let _ = write!(which, "\n- {}: {}", skill.name, skill.description);
        }
        ToolSpec {
            name: tool_names::LOAD_SKILL.into(),
            description,
            input_schema: json!({
                "type": "object",
                "properties": {
                    "skill": {"type": "string", "description": which},
                    "file": {
                        "type": "string",
                        "description": "One of the skill's files, in place of its text, such as `references/a.md`.",
                    },
                },
                "required": ["skill"],
            }),
        }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    /// A skill is never truncated, or the model would follow half of it.
    fn inline_limit(&self, input: &Value) -> usize {
        if input.get("file").is_none_or(Value::is_null) { MAX_SKILL_BYTES } else { MAX_INLINE_BYTES }
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(self.load(invocation))
    }
}

#[cfg(test)]
#[path = "../tests/unit/load_skill.rs"]
mod tests;
