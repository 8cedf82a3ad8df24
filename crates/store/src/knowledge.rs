//! Knowledge records: saving, superseding, deleting and listing.

use std::ops::Range;

use api::memory::{Knowledge, MAX_CONTENT, MAX_TAG, MAX_TAGS, SaveKnowledge, Source};
use api::{MemoryId, Timestamp};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::queries::{parse_column, timestamp};
use super::{StoreError, TaskRow, WriteTx, to_json};

/// The most records that a change of knowledge indexes: its own, and a few that an earlier version left.
const MAX_INDEXED_RECORDS: usize = 32;

/// A validated request to save knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnowledgeDraft {
    /// The statement to remember.
    pub content: String,
    /// Tags that are searched together with the content.
    pub tags: Vec<String>,
    /// The record that the new one replaces.
    pub supersedes: Option<MemoryId>,
}

/// The reasons why knowledge is rejected before it is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KnowledgeRejected {
    /// The content is blank or too long.
    #[error("`content`: must be 1 to {MAX_CONTENT} bytes of text, not all of it blank")]
    Content,
    /// There are too many tags, or one of them is blank or too long.
    #[error("`tags`: must be at most {MAX_TAGS} tags of 1 to {MAX_TAG} bytes each, none of them blank")]
    Tags,
    /// `supersedes` is not the id of a knowledge record.
    #[error("`supersedes`: {}", SupersedeError::Unknown)]
    Supersedes,
}

impl KnowledgeDraft {
    /// Validates a request to save knowledge.
    pub fn parse(save: SaveKnowledge) -> Result<Self, KnowledgeRejected> {
        let SaveKnowledge { content, tags, supersedes } = save;
        if content.trim().is_empty() || content.len() > MAX_CONTENT {
            return Err(KnowledgeRejected::Content);
        }
        if tags.len() > MAX_TAGS || tags.iter().any(|tag| tag.trim().is_empty() || tag.len() > MAX_TAG) {
            return Err(KnowledgeRejected::Tags);
        }
        let supersedes =
            supersedes.map(|id| id.parse()).transpose().map_err(|_| KnowledgeRejected::Supersedes)?;
        Ok(Self { content, tags, supersedes })
    }
}

/// A knowledge record to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKnowledge {
    /// The id of the record.
    pub id: MemoryId,
    /// The validated content.
    pub draft: KnowledgeDraft,
    /// The origin of the record.
    pub source: Source,
}

/// The reasons why a record cannot supersede another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SupersedeError {
    /// There is no such record.
    #[error("there is no such knowledge record; search for the one to supersede")]
    Unknown,
    /// The record has been superseded already.
    #[error("another record has already superseded it; supersede that one instead")]
    Superseded,
    /// The record is more trusted than the one that would replace it.
    #[error("knowledge from a tool cannot supersede knowledge from the user or the agent")]
    Trusted,
}

impl WriteTx<'_> {
    /// Saves a record, linked to the newest step of `task` if there is one. The record that it supersedes becomes
    /// inactive; if it cannot be superseded, nothing is saved.
    pub fn save_knowledge(
        &self,
        record: &NewKnowledge,
        task: Option<TaskRow>,
        at: Timestamp,
    ) -> Result<Result<(), SupersedeError>, StoreError> {
        let NewKnowledge { id, draft: KnowledgeDraft { content, tags, supersedes }, source } = record;
        if let Some(superseded) = *supersedes {
            let is_trusted =
                source_of(self.transaction, superseded)?.is_some_and(|existing| existing != Source::Tool);
            if *source == Source::Tool && is_trusted {
                return Ok(Err(SupersedeError::Trusted));
            }
            if let Err(reason) = check_active(self.transaction, superseded)? {
                return Ok(Err(reason));
            }
            let sql = "UPDATE knowledge SET valid_until = ?2 WHERE id = ?1";
            self.execute(sql, params![superseded.to_string(), at.unix_ms()])?;
        }
        let task = task.map(|TaskRow(task)| task);
        self.execute(
            "INSERT INTO knowledge (id, content, tags, source, created_at, supersedes, task, step)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, (SELECT MAX(step) FROM steps WHERE task = ?7))",
            params![
                id.to_string(),
                content,
                to_json(tags)?,
                source.as_str(),
                at.unix_ms(),
                supersedes.map(|id| id.to_string()),
                task,
            ],
        )?;
        self.index_knowledge(MAX_INDEXED_RECORDS)?;
        Ok(Ok(()))
    }

    /// Saves a record that a turn produced. If it cannot supersede the record it names, because that one was just
    /// replaced or deleted or is more trusted, it is saved beside it. It takes the place of a record in the same
    /// words that the turn saved before it learned what that replaces.
    pub fn save_knowledge_from_turn(
        &self,
        record: &NewKnowledge,
        task: TaskRow,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        if self.save_knowledge(record, Some(task), at)?.is_err() {
            let draft = KnowledgeDraft { supersedes: None, ..record.draft.clone() };
            let record = NewKnowledge { draft, ..record.clone() };
            self.save_knowledge(&record, Some(task), at)?.ok();
        }
        if record.draft.supersedes.is_some() {
            self.delete_repeated(record, task)?;
        }
        Ok(())
    }

    /// Deletes what the newest turn of the task had saved in the words of `record`, and which replaced nothing.
    fn delete_repeated(&self, record: &NewKnowledge, TaskRow(task): TaskRow) -> Result<(), StoreError> {
        let NewKnowledge { id, draft, source } = record;
        self.execute(
            "DELETE FROM knowledge WHERE task = ?1 AND content = ?2 AND source = ?3 AND id <> ?4
             AND supersedes IS NULL AND valid_until IS NULL AND step >= (
                 SELECT MIN(step) FROM steps WHERE steps.task = ?1
                 AND turn = (SELECT MAX(turn) FROM turns WHERE turns.task = ?1)
             )",
            params![task, draft.content, source.as_str(), id.to_string()],
        )
    }

    /// Deletes a record and returns whether it existed. A record that it superseded remains inactive.
    pub fn delete_knowledge(&self, id: MemoryId) -> Result<bool, StoreError> {
        self.join_history_around(id)?;
        let sql = "DELETE FROM knowledge WHERE id = ?1";
        Ok(self.transaction.prepare_cached(sql)?.execute([id.to_string()])? > 0)
    }

    /// Before a record is deleted: what replaced it now replaces what it had replaced. Otherwise the older statements
    /// would stay when the fact that replaced them all is erased.
    fn join_history_around(&self, id: MemoryId) -> Result<(), StoreError> {
        self.execute(
            "UPDATE knowledge SET supersedes = (SELECT supersedes FROM knowledge WHERE id = ?1)
             WHERE supersedes = ?1",
            [id.to_string()],
        )
    }

    /// Deletes a record as if it had never existed: the record that it replaced is in force again or, if another one
    /// has replaced this one meanwhile, was so until then.
    pub(super) fn withdraw_record(&self, id: MemoryId) -> Result<(), StoreError> {
        // A record that followed a deleted one names what that had replaced, but did not replace it itself.
        let replaced = "(knowledge.id, knowledge.valid_until) =
                        (SELECT supersedes, created_at FROM knowledge WHERE id = ?1)";
        let sql = if check_active(self.transaction, id)?.is_ok() {
            format!("UPDATE knowledge SET valid_until = NULL WHERE {replaced}")
        } else {
            format!(
                "UPDATE knowledge SET valid_until = later.created_at FROM knowledge AS later
                 WHERE later.supersedes = ?1 AND {replaced}"
            )
        };
        self.execute(&sql, [id.to_string()])?;
        self.delete_knowledge(id).map(drop)
    }

    /// Withdraws the records drawn from these steps of a task. Unless `with_corrections` is set, corrections and
    /// lessons are kept: they must survive a retry of their turn, which is what they are for.
    pub(super) fn withdraw_knowledge(
        &self,
        task: i64,
        steps: Range<i64>,
        with_corrections: bool,
    ) -> Result<(), StoreError> {
        let drawn = "SELECT id FROM knowledge WHERE task = ?1 AND step >= ?2 AND step < ?3
                     AND (?4 OR source <> 'feedback' AND NOT EXISTS (
                         SELECT 1 FROM lessons WHERE lessons.id = knowledge.id
                     ))
                     ORDER BY record DESC";
        let drawn: Vec<MemoryId> = self
            .transaction
            .prepare_cached(drawn)?
            .query_map(params![task, steps.start, steps.end, with_corrections], |row| parse_column(row, 0))?
            .collect::<Result<_, _>>()?;
        for id in drawn {
            self.withdraw_record(id)?;
        }
        self.index_knowledge(MAX_INDEXED_RECORDS)
    }
}

/// The origin of a record, if the record exists.
fn source_of(reader: &Connection, id: MemoryId) -> Result<Option<Source>, Error> {
    let mut query = reader.prepare_cached("SELECT source FROM knowledge WHERE id = ?1")?;
    query.query_row([id.to_string()], |row| parse_column(row, 0)).optional()
}

/// Whether a record is active, and if not, why.
pub(super) fn check_active(reader: &Connection, id: MemoryId) -> Result<Result<(), SupersedeError>, Error> {
    let mut query = reader.prepare_cached("SELECT valid_until IS NULL FROM knowledge WHERE id = ?1")?;
    let found: Option<bool> = query.query_row([id.to_string()], |row| row.get(0)).optional()?;
    Ok(match found {
        Some(true) => Ok(()),
        Some(false) => Err(SupersedeError::Superseded),
        None => Err(SupersedeError::Unknown),
    })
}

pub(super) fn list(reader: &Connection, limit: i64, offset: i64) -> Result<Vec<Knowledge>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT id, content, tags, source, created_at, valid_until, supersedes FROM knowledge
         ORDER BY record DESC LIMIT ?1 OFFSET ?2",
    )?;
    let rows = query.query_map([limit, offset], |row| {
        Ok(Knowledge {
            id: parse_column(row, 0)?,
            content: row.get(1)?,
            tags: parse_tags(row, 2)?,
            source: parse_column(row, 3)?,
            created_at: timestamp(row, 4)?,
            valid_until: row.get::<_, Option<i64>>(5)?.map(Timestamp::from_unix_ms),
            supersedes: match row.get_ref(6)? {
                rusqlite::types::ValueRef::Null => None,
                _ => Some(parse_column(row, 6)?),
            },
        })
    })?;
    rows.collect()
}

pub(super) fn count(reader: &Connection) -> Result<u64, Error> {
    let count: i64 = reader.query_row("SELECT COUNT(*) FROM knowledge", [], |row| row.get(0))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Parses the tags of a record.
pub(super) fn parse_tags(row: &Row<'_>, column: usize) -> Result<Vec<String>, Error> {
    serde_json::from_str(row.get_ref(column)?.as_str()?)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}
