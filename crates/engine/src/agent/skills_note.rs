//! What a task is told of the user's own skills: their names and what they are for, before the user's message. Told in
//! a task's first turn and again when it is no longer true, or the conversation does not show it any more: so that what
//! was sent stays as it is, and the beginning of the prompt with it.

use std::fmt::Write as _;

use contract::skills::SkillSummary;
use sha2::{Digest as _, Sha256};

use super::AgentSnapshot;
use super::compaction_view::truncate_middle;
use super::turn_request::hex;
use crate::event_log::Commit;
use crate::store::steps::TurnBase;
use crate::store::{Brain, TaskRow};
use crate::tools::LOAD_SKILL;

/// The most characters of a description, and the most bytes of all that is told.
const MAX_DESCRIPTION_CHARS: usize = 300;
const MAX_NOTE_BYTES: usize = 16 * 1024;

const HEADING: &str = "[The user's own skills, beside those of the platform. Load the fitting one with load_skill before you begin.";
const NO_SKILLS_NOTE: &str = "[The user has no skills of their own any more.]";

/// See the module. Nothing, most of the time.
#[derive(Debug, Default)]
pub(super) struct SkillsNote(Option<PendingNote>);

#[derive(Debug)]
struct PendingNote {
    note: String,
    hash: String,
}

impl SkillsNote {
    /// What a turn that goes on from `base` is told. An answer given anew keeps what stands beside its question. Where
    /// skills cannot be read the turn begins without. Blocks.
    pub(super) fn load(brain: &Brain, kit: &AgentSnapshot, task: TaskRow, base: TurnBase) -> Self {
        if base.is_retry() || !kit.toolbox.is_available(LOAD_SKILL) {
            return Self::default();
        }
        match pending_note(brain, task, base) {
            Ok(told) => Self(told),
            Err(error) => {
                tracing::warn!(%error, "The user's skills could not be read; the turn begins without.");
                Self::default()
            }
        }
    }

    /// What the model is told; none where it knows.
    pub(super) fn text(&self) -> Option<String> {
        self.0.as_ref().map(|told| told.note.clone())
    }

    /// Adds to the record that opens the turn what the task knows from then on.
    pub(super) fn add_to_commit(self, record: Commit) -> Commit {
        match self.0 {
            Some(told) => record.skills_note(told.hash),
            None => record,
        }
    }
}

/// What a sub-agent is told, which begins with nothing; none where there is nothing to tell.
pub(super) async fn sub_agent_note(brain: &Brain) -> Option<String> {
    let skills = brain.run_blocking(Brain::custom_skills).await?;
    let skills = skills.inspect_err(|error| {
        tracing::warn!(%error, "The user's skills could not be read; the sub-agent begins without.");
    });
    skills.ok().filter(|skills| !skills.is_empty()).map(|skills| render_note(&skills))
}

/// What is to be told, if it is not known. Blocks.
fn pending_note(
    brain: &Brain,
    task: TaskRow,
    base: TurnBase,
) -> Result<Option<PendingNote>, rusqlite::Error> {
    let skills = brain.custom_skills()?;
    let known = brain.skills_note_hash(task, base)?;
    if skills.is_empty() && known.is_none() {
        return Ok(None);
    }
    let note = render_note(&skills);
    let hash = hex(&Sha256::digest(&note));
    Ok((known.as_ref() != Some(&hash)).then_some(PendingNote { note, hash }))
}

fn render_note(skills: &[SkillSummary]) -> String {
    if skills.is_empty() {
        return NO_SKILLS_NOTE.to_owned();
    }
    let mut note = HEADING.to_owned();
    let mut named = skills.iter();
    for skill in named.by_ref() {
        let line = skill_line(skill);
        if note.len() + line.len() > MAX_NOTE_BYTES {
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
fn skill_line(skill: &SkillSummary) -> String {
    let description = skill.description.as_deref().unwrap_or_default();
    let words: Vec<_> = description.split_whitespace().collect();
    match words.join(" ") {
        none if none.is_empty() => format!("\n- {}", skill.name),
        description => {
            let description = truncate_middle(&description, MAX_DESCRIPTION_CHARS).replace('\n', " ");
            format!("\n- {}: {description}", skill.name)
        }
    }
}

#[cfg(test)]
#[path = "skills_note_tests.rs"]
mod tests;
