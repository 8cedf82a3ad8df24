//! What a task is told of the user's own skills: their names and what they are for, before the user's message. Told in
//! a task's first turn and again when it is no longer true, or the conversation does not show it any more: so that what
//! was sent stays as it is, and the beginning of the prompt with it.

use std::fmt::Write as _;

use contract::skills::SkillSummary;
use sha2::{Digest as _, Sha256};

use super::Kit;
use super::order::hex;
use super::rewrite::shortened;
use crate::brain::steps::Base;
use crate::brain::{Brain, TaskRow};
use crate::channel::Record;
use crate::tools::LOAD_SKILL;

/// The most characters of a description, and the most bytes of all that is told.
const MAX_DESCRIPTION: usize = 300;
const MAX_NOTE: usize = 16 * 1024;

const HEADING: &str = "[The user's own skills, beside those of the platform. Load the fitting one with load_skill before you begin.";
const NONE: &str = "[The user has no skills of their own any more.]";

/// See the module. Nothing, most of the time.
#[derive(Debug, Default)]
pub(super) struct SkillsTold(Option<Told>);

#[derive(Debug)]
struct Told {
    note: String,
    hash: String,
}

impl SkillsTold {
    /// What a turn that goes on from `base` is told. An answer given anew keeps what stands beside its question. Where
    /// skills cannot be read the turn begins without. Blocks.
    pub(super) fn look(brain: &Brain, kit: &Kit, task: TaskRow, base: Base) -> Self {
        if base.is_retry() || !kit.toolbox.has(LOAD_SKILL) {
            return Self::default();
        }
        match told(brain, task, base) {
            Ok(told) => Self(told),
            Err(error) => {
                tracing::warn!(%error, "The user's skills could not be read; the turn begins without.");
                Self::default()
            }
        }
    }

    /// What the model is told; none where it knows.
    pub(super) fn note(&self) -> Option<String> {
        self.0.as_ref().map(|told| told.note.clone())
    }

    /// Adds to the record that opens the turn what the task knows from then on.
    pub(super) fn tell(self, record: Record) -> Record {
        match self.0 {
            Some(told) => record.skills_told(told.hash),
            None => record,
        }
    }
}

/// What a sub-agent is told, which begins with nothing; none where there is nothing to tell.
pub(super) async fn of_all(brain: &Brain) -> Option<String> {
    let skills = brain.blocking(Brain::custom_skills).await?;
    let skills = skills.inspect_err(|error| {
        tracing::warn!(%error, "The user's skills could not be read; the sub-agent begins without.");
    });
    skills.ok().filter(|skills| !skills.is_empty()).map(|skills| note(&skills))
}

/// What is to be told, if it is not known. Blocks.
fn told(brain: &Brain, task: TaskRow, base: Base) -> Result<Option<Told>, rusqlite::Error> {
    let skills = brain.custom_skills()?;
    let known = brain.skills_told(task, base)?;
    if skills.is_empty() && known.is_none() {
        return Ok(None);
    }
    let note = note(&skills);
    let hash = hex(&Sha256::digest(&note));
    Ok((known.as_ref() != Some(&hash)).then_some(Told { note, hash }))
}

fn note(skills: &[SkillSummary]) -> String {
    if skills.is_empty() {
        return NONE.to_owned();
    }
    let mut note = HEADING.to_owned();
    let mut named = skills.iter();
    for skill in named.by_ref() {
        let line = line(skill);
        if note.len() + line.len() > MAX_NOTE {
            // Writing to a `String` cannot fail.
            let _ = write!(note, "\n- and by name alone: {}", skill.name);
            break;
        }
        note.push_str(&line);
    }
    for skill in named {
        let _ = write!(note, ", {}", skill.name);
    }
    note.push(']');
    note
}

/// A skill on a line of its own, so that none of it can look like anything else.
fn line(skill: &SkillSummary) -> String {
    let description = skill.description.as_deref().unwrap_or_default();
    let words: Vec<_> = description.split_whitespace().collect();
    match words.join(" ") {
        none if none.is_empty() => format!("\n- {}", skill.name),
        description => {
            let description = shortened(&description, MAX_DESCRIPTION).replace('\n', " ");
            format!("\n- {}: {description}", skill.name)
        }
    }
}

#[cfg(test)]
#[path = "skills_told_tests.rs"]
mod tests;
