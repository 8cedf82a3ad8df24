//! The user's custom skills, and which note about them a task was sent.

use api::skills::{InvalidSkill, SkillDefinition, SkillSource, SkillSummary, UpdateSkill};
use api::{SkillName, Timestamp};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};
use serde::de::DeserializeOwned;

use super::queries::timestamp;
use super::search::AlreadyShown;
use super::steps::TurnBase;
use super::{StoreError, TaskRow, WriteTx, to_json};

/// The most custom skills that a user may have: tasks are sent a note that lists all of them.
pub(super) const MAX_CUSTOM_SKILLS: i64 = 256;

/// The `kind` under which [`WriteTx::insert_skills_note`] records a note in the table `recalled`.
const SKILLS_NOTE_KIND: &str = "skills";

/// A custom skill of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomSkill {
    /// The name of the skill.
    pub name: SkillName,
    /// The definition of the skill.
    pub definition: SkillDefinition,
    /// The time at which it was created.
    pub created_at: Timestamp,
    /// The time at which it was last changed.
    pub updated_at: Timestamp,
}

/// The parts of a skill that are needed to run it, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillOutline {
    /// The name of the skill.
    pub name: SkillName,
    /// The file names of its scripts.
    pub scripts: Vec<String>,
    /// Whether it has a prompt for the model.
    pub has_prompt: bool,
}

/// The reasons why a skill cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateSkillError {
    /// There is a skill of this name already.
    #[error("there is already a skill with this name")]
    NameTaken,
    /// The user has the maximum number of skills.
    #[error("there are already {MAX_CUSTOM_SKILLS} skills, the maximum; delete one that is no longer needed")]
    TooMany,
}

impl WriteTx<'_> {
    /// Adds a skill, unless there is one of this name or the maximum is reached.
    pub fn create_skill(&self, skill: &CustomSkill) -> Result<Result<(), CreateSkillError>, StoreError> {
        let CustomSkill { name, definition, created_at, updated_at } = skill;
        let exists = "SELECT EXISTS (SELECT 1 FROM skills WHERE name = ?1)";
        if self.transaction.query_row(exists, [name.as_str()], |row| row.get(0))? {
            return Ok(Err(CreateSkillError::NameTaken));
        }
        let count: i64 = self.transaction.query_row("SELECT COUNT(*) FROM skills", [], |row| row.get(0))?;
        if count >= MAX_CUSTOM_SKILLS {
            return Ok(Err(CreateSkillError::TooMany));
        }
        let sql = "INSERT INTO skills (name, skill, created_at, updated_at) VALUES (?1, ?2, ?3, ?4)";
        let values = params![name.as_str(), to_json(definition)?, created_at.unix_ms(), updated_at.unix_ms()];
        self.execute(sql, values).map(Ok)
    }

    /// Updates a skill, provided that the result is valid; `None` if there is no skill of this name.
    pub fn update_skill(
        &self,
        name: &str,
        update: &UpdateSkill,
        at: Timestamp,
    ) -> Result<Option<Result<CustomSkill, InvalidSkill>>, StoreError> {
        let Some(skill) = find(self.transaction, name)? else { return Ok(None) };
        let definition = match skill.definition.apply_update(update.clone()).validate() {
            Ok(definition) => definition,
            Err(reason) => return Ok(Some(Err(reason))),
        };
        // The wall clock may have been set back.
        let updated_at = at.max(skill.updated_at);
        let sql = "UPDATE skills SET skill = ?2, updated_at = ?3 WHERE name = ?1";
        self.execute(sql, params![name, to_json(&definition)?, updated_at.unix_ms()])?;
        Ok(Some(Ok(CustomSkill { definition, updated_at, ..skill })))
    }

    /// Deletes a skill and returns whether it existed.
    pub fn delete_skill(&self, name: &str) -> Result<bool, StoreError> {
        Ok(self.transaction.prepare_cached("DELETE FROM skills WHERE name = ?1")?.execute([name])? > 0)
    }

    /// Records that the turn opened by the task's newest step was sent the note about the user's skills with this
    /// hash.
    pub fn insert_skills_note(&self, TaskRow(task): TaskRow, hash: &str) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO recalled (task, step, kind, id) SELECT ?1, MAX(step), ?2, ?3 FROM steps WHERE task = ?1",
            params![task, SKILLS_NOTE_KIND, hash],
        )
    }
}

/// The user's custom skill with the given name.
pub(super) fn find(reader: &Connection, name: &str) -> Result<Option<CustomSkill>, Error> {
    let mut query =
        reader.prepare_cached("SELECT name, skill, created_at, updated_at FROM skills WHERE name = ?1")?;
    query.query_row([name], skill_from_row).optional()
}

/// Summaries of all custom skills, sorted by name.
pub(super) fn summaries(reader: &Connection) -> Result<Vec<SkillSummary>, Error> {
    let mut query = reader.prepare_cached("SELECT name, summary FROM skills ORDER BY name")?;
    let summaries = query.query_map([], |row| {
        let SkillDefinition { description, category, capabilities, .. } = parse_json_column(row, 1)?;
        Ok(SkillSummary {
            name: name_from_row(row)?,
            description,
            category,
            capabilities,
            source: SkillSource::Custom,
        })
    })?;
    summaries.collect()
}

/// Outlines of all custom skills, sorted by name.
pub(super) fn outlines(reader: &Connection) -> Result<Vec<SkillOutline>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT name, (SELECT json_group_array(key) FROM json_each(skill, '$.scripts')),
                skill ->> '$.prompt' IS NOT NULL
         FROM skills ORDER BY name",
    )?;
    let outlines = query.query_map([], |row| {
        Ok(SkillOutline {
            name: name_from_row(row)?,
            scripts: parse_json_column(row, 1)?,
            has_prompt: row.get(2)?,
        })
    })?;
    outlines.collect()
}

/// The hash of the newest note about the user's skills that a task's conversation shows when it continues from
/// `base`; `None` if it shows none.
pub(super) fn note_hash(reader: &Connection, task: TaskRow, base: TurnBase) -> Result<Option<String>, Error> {
    let AlreadyShown { task, from_step: from, recalled_before_step } =
        AlreadyShown::load(reader, Some((task, base)))?;
    let mut query = reader.prepare_cached(
        "SELECT id FROM recalled WHERE task = ?1 AND kind = ?2 AND step >= ?3 AND step < ?4
         ORDER BY step DESC LIMIT 1",
    )?;
    query.query_row(params![task, SKILLS_NOTE_KIND, from, recalled_before_step], |row| row.get(0)).optional()
}

fn skill_from_row(row: &Row<'_>) -> Result<CustomSkill, Error> {
    Ok(CustomSkill {
        name: name_from_row(row)?,
        definition: parse_json_column(row, 1)?,
        created_at: timestamp(row, 2)?,
        updated_at: timestamp(row, 3)?,
    })
}

fn name_from_row(row: &Row<'_>) -> Result<SkillName, Error> {
    SkillName::new(row.get::<_, String>(0)?)
        .map_err(|error| Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)))
}

/// Parses a column that contains JSON.
fn parse_json_column<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T, Error> {
    serde_json::from_str(row.get_ref(column)?.as_str()?)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}
