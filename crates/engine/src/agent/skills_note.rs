//! The note that announces the user's own skills to a task: their names and purposes, before the user's
//! message. It is sent in a task's first turn, and again when it is outdated or no longer in the conversation.
//! So what was sent stays unchanged, and with it the prefix of the prompt.

use std::fmt::Write as _;

use api::skills::SkillSummary;
use api::tool_names::LOAD_SKILL;
use sha2::{Digest as _, Sha256};
use store::event_log::Commit;
use store::steps::TurnBase;
use store::{Brain, KnownSkills, StoreError};

use super::AgentSnapshot;
use super::compaction_view::truncate_middle;

/// The most characters of a description, and the most bytes of the note.
const MAX_DESCRIPTION_CHARS: usize = 300;
const MAX_NOTE_BYTES: usize = 16 * 1024;

const HEADING: &str = "[The user's own skills, beside those of the platform. Load the fitting one with load_skill before you begin.";
const NO_SKILLS_NOTE: &str = "[The user has no skills of their own any more.]";

/// The note to send in a turn; usually none.
#[derive(Debug, Default)]
pub(super) struct SkillsNote(Option<PendingNote>);

#[derive(Debug)]
struct PendingNote {
    note: String,
    hash: String,
}

impl SkillsNote {
    /// The note for a turn that continues from `base`. A retried answer keeps the notes of its question. If the skills
    /// could not be read, the turn begins without the note.
    pub(super) fn new(
        snapshot: &AgentSnapshot,
        base: TurnBase,
        skills: Result<KnownSkills, StoreError>,
    ) -> Self {
        if base.is_retry() || !snapshot.toolbox.is_available(LOAD_SKILL) {
            return Self::default();
        }
        match skills {
            Ok(skills) => Self(pending_note(&skills)),
            Err(error) => {
                tracing::warn!(%error, "The user's skills could not be read; the turn begins without them.");
                Self::default()
            }
        }
    }

    /// The text for the model; `None` if the task has it already.
    pub(super) fn text(&self) -> Option<String> {
        self.0.as_ref().map(|pending| pending.note.clone())
    }

    /// Records in the commit that opens the turn which note the task has received.
    pub(super) fn add_to_commit(self, commit: Commit) -> Commit {
        match self.0 {
            Some(pending) => commit.skills_note(pending.hash),
            None => commit,
        }
    }
}

/// The note for a sub-agent, whose conversation begins empty; `None` if there are no skills.
pub(super) async fn sub_agent_note(brain: &Brain) -> Option<String> {
    let skills = brain.run_blocking(Brain::custom_skills).await?;
    let skills = skills.inspect_err(|error| {
        tracing::warn!(%error, "The user's skills could not be read; the sub-agent begins without them.");
    });
    skills.ok().filter(|skills| !skills.is_empty()).map(|skills| render_note(&skills))
}

/// The note, if the task has not received it yet.
fn pending_note(KnownSkills { summaries, note_hash }: &KnownSkills) -> Option<PendingNote> {
    if summaries.is_empty() && note_hash.is_none() {
        return None;
    }
    let note = render_note(summaries);
    let hash = hex::encode(Sha256::digest(&note));
    (note_hash.as_ref() != Some(&hash)).then_some(PendingNote { note, hash })
}

fn render_note(skills: &[SkillSummary]) -> String {
    if skills.is_empty() {
        return NO_SKILLS_NOTE.to_owned();
    }
    let mut note = HEADING.to_owned();
    let mut remaining = skills.iter();
    for skill in remaining.by_ref() {
        let line = skill_line(skill);
        if note.len() + line.len() > MAX_NOTE_BYTES {
            // Writing to a `String` cannot fail.
            let _ = write!(note, "\n- and by name alone: {}", skill.name);
            break;
        }
        note.push_str(&line);
    }
    for skill in remaining {
        let _ = write!(note, ", {}", skill.name);
    }
    note.push(']');
    note
}

/// Renders a skill on a single line, so that no part of it can pass for something else.
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
#[path = "../../tests/unit/agent/skills_note.rs"]
mod tests;
