//! What a turn is told about its user when it is opened, apart from memories.

use api::skills::SkillSummary;
use rusqlite::Connection;

use super::corrections::{self, Corrections};
use super::skills;
use super::steps::TurnBase;
use super::{Brain, StoreError, TaskRow};

/// What the notes of a turn are made of. Either part may be unreadable without the other.
#[derive(Debug)]
pub struct OpeningNotes {
    /// The corrections and lessons that the conversation does not show.
    pub corrections: Result<Corrections, StoreError>,
    /// The user's skills.
    pub skills: Result<KnownSkills, StoreError>,
}

/// The user's custom skills, and what a conversation was told of them.
#[derive(Clone, Debug, Default)]
pub struct KnownSkills {
    /// Their summaries, sorted by name.
    pub summaries: Vec<SkillSummary>,
    /// The hash of the newest note about them that the conversation shows; `None` if it shows none.
    pub note_hash: Option<String>,
}

impl Brain {
    /// What a turn of the task may be told that continues from `base`. Blocks.
    pub fn opening_notes(&self, task: TaskRow, base: TurnBase) -> OpeningNotes {
        self.shared.read_pool.short(|reader| {
            // The user waits for these reads, and each would be a transaction of its own.
            let _snapshot = reader.unchecked_transaction();
            OpeningNotes {
                corrections: corrections::load_corrections(reader, task, base).map_err(Into::into),
                skills: load_skills(reader, task, base).map_err(Into::into),
            }
        })
    }
}

fn load_skills(reader: &Connection, task: TaskRow, base: TurnBase) -> Result<KnownSkills, rusqlite::Error> {
    let (summaries, note_hash) = (skills::summaries(reader)?, skills::note_hash(reader, task, base)?);
    Ok(KnownSkills { summaries, note_hash })
}
