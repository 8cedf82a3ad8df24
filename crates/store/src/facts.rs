//! Facts: the knowledge in force with its history. They are listed, corrected by the user, and erased.

use std::collections::HashSet;

use api::facts::{Fact, FactOrigin, Facts, MAX_LISTED_REPLACED, MAX_REPLACED, Statement};
use api::memory::Source;
use api::{FeedbackId, MemoryId, MessageId, Timestamp, TurnId};
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::knowledge::{KnowledgeDraft, NewKnowledge, parse_tags};
use super::queries::{parse_column, task_id, timestamp};
use super::{ErasureScope, StoreError, SupersedeError, WriteTx, learning_batches, lessons};

/// The columns of a statement.
const STATEMENT: &str = "knowledge.id, knowledge.content, knowledge.source, knowledge.created_at, \
                         knowledge.valid_until";

/// Which facts to list; without a tag and a source all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactFilter {
    /// Only facts with exactly this tag.
    pub tag: Option<String>,
    /// Only facts of this origin.
    pub source: Option<Source>,
    /// Only facts that came from a tool, or only others.
    pub from_tools: Option<bool>,
}

/// The user's correction of a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactCorrection {
    /// The id of the new record.
    pub id: MemoryId,
    /// The validated statement, which supersedes the fact.
    pub draft: KnowledgeDraft,
    /// Whether the new record has the tags of the fact, instead of those of the draft.
    pub keeps_tags: bool,
}

/// The reasons why a fact cannot be corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorrectError {
    /// There is no such record.
    Unknown,
    /// The record is no longer in force. The one that is now, if there is one.
    Replaced(Option<MemoryId>),
}

impl WriteTx<'_> {
    /// Saves the user's correction of the fact that its draft supersedes.
    pub fn correct_fact(
        &self,
        correction: &FactCorrection,
        at: Timestamp,
    ) -> Result<Result<(), CorrectError>, StoreError> {
        let FactCorrection { id, draft, keeps_tags } = correction;
        let Some(corrected) = draft.supersedes else { return Ok(Err(CorrectError::Unknown)) };
        let mut draft = draft.clone();
        if *keeps_tags && let Some(tags) = tags_of(self.transaction, corrected)? {
            draft.tags = tags;
        }
        let record = NewKnowledge { id: *id, draft, source: Source::User };
        Ok(match self.save_knowledge(&record, None, at)? {
            Ok(()) => Ok(()),
            Err(SupersedeError::Unknown | SupersedeError::Trusted) => Err(CorrectError::Unknown),
            Err(SupersedeError::Superseded) => {
                Err(CorrectError::Replaced(current(self.transaction, corrected)?))
            }
        })
    }

    /// Deletes a fact that a turn is to forget, and queues the erasure of its traces in files.
    pub(super) fn forget_fact(&self, id: MemoryId) -> Result<(), StoreError> {
        if self.delete_fact(id)? {
            self.enqueue_erasure(&ErasureScope::default())?;
        }
        Ok(())
    }

    /// Deletes a fact with all that it replaced, and returns whether it existed. Of a correction the feedback goes
    /// too, and so do the lessons that quote it; of a lesson the corrections from which it was drawn. The erasure of
    /// the traces in files is to be queued in the same transaction.
    pub fn delete_fact(&self, id: MemoryId) -> Result<bool, StoreError> {
        let erased = self.with_history(id)?;
        let mut feedback = HashSet::new();
        for id in &erased {
            let sql = "SELECT id FROM feedback WHERE said ->> '$.record' = ?1";
            let mut query = self.transaction.prepare_cached(sql)?;
            let given = query.query_map([id.to_string()], |row| row.get::<_, String>(0))?;
            feedback.extend(given.collect::<Result<Vec<_>, _>>()?);
        }
        for id in &erased {
            self.delete_knowledge(*id)?;
        }
        if !feedback.is_empty() {
            self.withdraw_lessons_from(&feedback)?;
            for id in &feedback {
                self.execute("DELETE FROM feedback WHERE id = ?1", [id])?;
            }
            learning_batches::reset_orphaned_batches(self)?;
            // Corrections that a withdrawn lesson had replaced are found again.
            self.index_knowledge(usize::MAX)?;
        }
        Ok(!erased.is_empty())
    }

    /// A record, those that it replaced one after the other, and the corrections from which lessons among them were
    /// drawn; empty if there is no such record.
    fn with_history(&self, id: MemoryId) -> Result<HashSet<MemoryId>, StoreError> {
        let (mut all, mut pending) = (HashSet::new(), vec![id]);
        while let Some(id) = pending.pop() {
            let sql = "SELECT supersedes FROM knowledge WHERE id = ?1";
            let mut query = self.transaction.prepare_cached(sql)?;
            let mut rows = query.query([id.to_string()])?;
            let Some(row) = rows.next()? else { continue };
            let supersedes: Option<MemoryId> = optional_column(row, 0)?;
            // A document that was imported may go round in a circle.
            if !all.insert(id) {
                continue;
            }
            pending.extend(supersedes);
            for given in lessons::evidence(self.transaction, id)?.into_iter().flat_map(|of| of.corrections) {
                pending.extend(record_of_correction(self.transaction, given.feedback_id)?);
            }
        }
        Ok(all)
    }
}

/// A page of the facts in force, the last said first, and the number of all of them.
pub(super) fn list(
    reader: &Connection,
    filter: &FactFilter,
    limit: i64,
    offset: i64,
) -> Result<Facts, Error> {
    // The page and the total are from one snapshot.
    let snapshot = reader.unchecked_transaction()?;
    let matches = "valid_until IS NULL AND (?1 IS NULL OR source = ?1)
                   AND (?2 IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?2))
                   AND (?3 IS NULL OR (source = 'tool') = ?3)";
    let FactFilter { tag, source, from_tools } = filter;
    let source = source.map(Source::as_str);
    let sql = format!("SELECT COUNT(*) FROM knowledge WHERE {matches}");
    let total: i64 =
        snapshot.prepare_cached(&sql)?.query_row(params![source, tag, from_tools], |row| row.get(0))?;
    let sql = format!(
        "SELECT id FROM knowledge WHERE {matches} ORDER BY created_at DESC, record DESC LIMIT ?4 OFFSET ?5"
    );
    let mut query = snapshot.prepare_cached(&sql)?;
    let ids = query.query_map(params![source, tag, from_tools, limit, offset], |row| parse_column(row, 0))?;
    let mut facts = Vec::new();
    for id in ids.collect::<Result<Vec<MemoryId>, _>>()? {
        facts.extend(load(&snapshot, id, MAX_LISTED_REPLACED)?);
    }
    Ok(Facts { facts, total: u64::try_from(total).unwrap_or(0) })
}

/// A fact, in force or not.
pub(super) fn fact(reader: &Connection, id: MemoryId) -> Result<Option<Fact>, Error> {
    let snapshot = reader.unchecked_transaction()?;
    load(&snapshot, id, MAX_REPLACED)
}

/// Loads a fact with at most `max_replaced` of the statements that it replaced.
fn load(reader: &Connection, id: MemoryId, max_replaced: usize) -> Result<Option<Fact>, Error> {
    let sql = format!(
        "SELECT {STATEMENT}, tags, task_id, turn_id, turns.message_id FROM knowledge
         LEFT JOIN tasks ON tasks.task = knowledge.task
         LEFT JOIN steps ON steps.step = knowledge.step
         LEFT JOIN turns ON turns.turn = steps.turn
         WHERE knowledge.id = ?1"
    );
    let found = reader
        .prepare_cached(&sql)?
        .query_row([id.to_string()], |row| Ok((statement(row)?, parse_tags(row, 5)?, origin(row, 6)?)));
    let Some((statement, tags, origin)) = found.optional()? else { return Ok(None) };
    let Statement { id, content, source, said_at, held_until } = statement;
    let (replaced, replaced_total) = replaced(reader, id, max_replaced)?;
    let replaced_by = successor(reader, id)?;
    let fact = Fact {
        id,
        content,
        tags,
        source,
        said_at,
        held_until,
        origin,
        replaced_by,
        replaced,
        replaced_total,
    };
    Ok(Some(fact))
}

/// The statements that a record replaced, the newest first and at most `max`, and how many they are in all.
fn replaced(reader: &Connection, id: MemoryId, max: usize) -> Result<(Vec<Statement>, u64), Error> {
    let sql = format!(
        "SELECT {STATEMENT} FROM knowledge JOIN knowledge AS later ON later.supersedes = knowledge.id
         WHERE later.id = ?1"
    );
    let mut query = reader.prepare_cached(&sql)?;
    let (mut statements, mut seen, mut next) = (Vec::new(), HashSet::from([id]), id);
    while let Some(earlier) = query.query_row([next.to_string()], statement).optional()? {
        next = earlier.id;
        // A document that was imported may go round in a circle.
        if !seen.insert(next) {
            break;
        }
        if statements.len() < max {
            statements.push(earlier);
        }
    }
    Ok((statements, u64::try_from(seen.len()).unwrap_or(u64::MAX).saturating_sub(1)))
}

/// The statement that replaced a record.
fn successor(reader: &Connection, id: MemoryId) -> Result<Option<Statement>, Error> {
    let sql = format!("SELECT {STATEMENT} FROM knowledge WHERE supersedes = ?1 ORDER BY record DESC LIMIT 1");
    reader.prepare_cached(&sql)?.query_row([id.to_string()], statement).optional()
}

/// The record that is in force in the place of one that is not.
fn current(reader: &Connection, id: MemoryId) -> Result<Option<MemoryId>, Error> {
    let (mut seen, mut last) = (HashSet::from([id]), id);
    while let Some(later) = successor(reader, last)? {
        last = later.id;
        if later.held_until.is_none() {
            return Ok(Some(last));
        }
        if !seen.insert(last) {
            break;
        }
    }
    Ok(None)
}

fn tags_of(reader: &Connection, id: MemoryId) -> Result<Option<Vec<String>>, Error> {
    let mut query = reader.prepare_cached("SELECT tags FROM knowledge WHERE id = ?1")?;
    query.query_row([id.to_string()], |row| parse_tags(row, 0)).optional()
}

/// The knowledge record of a correction.
fn record_of_correction(reader: &Connection, id: FeedbackId) -> Result<Option<MemoryId>, Error> {
    let mut query = reader.prepare_cached("SELECT said ->> '$.record' FROM feedback WHERE id = ?1")?;
    Ok(query.query_row([id.to_string()], |row| optional_column(row, 0)).optional()?.flatten())
}

/// Parses the columns [`STATEMENT`].
fn statement(row: &Row<'_>) -> Result<Statement, Error> {
    Ok(Statement {
        id: parse_column(row, 0)?,
        content: row.get(1)?,
        source: parse_column(row, 2)?,
        said_at: timestamp(row, 3)?,
        held_until: row.get::<_, Option<i64>>(4)?.map(Timestamp::from_unix_ms),
    })
}

/// Parses the columns for the task, the turn and the message, beginning at `column`.
fn origin(row: &Row<'_>, column: usize) -> Result<Option<FactOrigin>, Error> {
    if row.get_ref(column)? == rusqlite::types::ValueRef::Null {
        return Ok(None);
    }
    let turn_id: Option<TurnId> = optional_column(row, column + 1)?;
    let message_id: Option<MessageId> = optional_column(row, column + 2)?;
    Ok(Some(FactOrigin { task_id: task_id(row, column)?, turn_id, message_id }))
}

/// Parses a column that may be null.
fn optional_column<T>(row: &Row<'_>, column: usize) -> Result<Option<T>, Error>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    match row.get_ref(column)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => parse_column(row, column).map(Some),
    }
}

#[cfg(test)]
#[path = "../tests/unit/facts.rs"]
mod tests;
