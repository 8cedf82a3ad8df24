//! `load_skill`: the agent learns how something is done when it needs it. Until then it knows the skill's name and
//! what it is for.

use std::fmt::Write as _;
use std::io;
use std::io::Read as _;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::json;

use super::{Invocation, Permission, Tool, ToolError, ToolOutput, ToolStep, parse};
use crate::catalog::SkillSpec;
use crate::models::ToolSpec;

/// The tool's name.
pub(crate) const NAME: &str = "load_skill";
/// The largest file of a skill that the model is given, in bytes.
const MAX_FILE: u64 = 1024 * 1024;
/// How many of a skill's files are listed with it.
const MAX_LISTED: usize = 100;

/// See the module.
pub(super) struct LoadSkill {
    skills: Vec<Arc<SkillSpec>>,
}

#[derive(Deserialize)]
struct Input {
    skill: String,
    file: Option<String>,
}

impl LoadSkill {
    pub(super) fn new(skills: Vec<Arc<SkillSpec>>) -> Self {
        Self { skills }
    }

    async fn load(&self, invocation: Invocation) -> Result<ToolStep, ToolError> {
        let Input { skill, file } = parse(invocation.input)?;
        let skill = find(&self.skills, &skill)?;
        let text = match file {
            None => whole(skill),
            Some(file) => {
                let skill = Arc::clone(skill);
                let reading = tokio::task::spawn_blocking(move || read(&skill, &file));
                reading.await.map_err(|error| ToolError(format!("the tool failed: {error}")))??
            }
        };
        Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
    }
}

/// The skill called `name`.
pub(super) fn find<'a>(skills: &'a [Arc<SkillSpec>], name: &str) -> Result<&'a Arc<SkillSpec>, ToolError> {
    skills.iter().find(|skill| skill.name == name).ok_or_else(|| {
        let names: Vec<_> = skills.iter().map(|skill| skill.name.as_str()).collect();
        ToolError(format!("there is no skill called `{name}`; there are: {}", names.join(", ")))
    })
}

/// What the model is told of a skill that it loads.
fn whole(skill: &SkillSpec) -> String {
    let mut text = skill.body.clone();
    if !skill.files.is_empty() {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "\n\nFiles of this skill, in {}:", skill.folder.display());
        for file in skill.files.iter().take(MAX_LISTED) {
            let _ = write!(text, "\n- {file}");
        }
        let more = skill.files.len().saturating_sub(MAX_LISTED);
        if more > 0 {
            let _ = write!(text, "\n- and {more} more");
        }
    }
    text
}

/// The text of one of a skill's files. Only those that were found with it are taken, so no path leads elsewhere.
fn read(skill: &SkillSpec, file: &str) -> Result<String, ToolError> {
    let name = file.strip_prefix("./").unwrap_or(file);
    if !skill.files.iter().any(|known| known == name) {
        return Err(ToolError(format!("the skill `{}` has no file `{file}`", skill.name)));
    }
    let failed = |error: io::Error| ToolError(format!("`{file}` cannot be read: {error}"));
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(skill.folder.join(name)).map_err(failed)?;
    opened.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    let path = skill.folder.join(name);
    if u64::try_from(bytes.len()).is_ok_and(|len| len > MAX_FILE) {
        return Err(ToolError(format!(
            "`{file}` is over {MAX_FILE} bytes; programs can read it at {}",
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
        // Here, for the description of a tool is bounded by vendors.
        let mut which = "The skill's name. There are:".to_owned();
        for skill in &self.skills {
            let _ = write!(which, "\n- {}: {}", skill.name, skill.description);
        }
        ToolSpec {
            name: NAME.into(),
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

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(self.load(invocation))
    }
}

#[cfg(test)]
#[path = "load_skill_tests.rs"]
mod tests;
