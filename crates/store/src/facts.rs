//! Facts: the knowledge in force with its history. They are listed, corrected by the user, and erased.

use std::collections::HashSet;

use api::facts::{Fact, FactOrigin, Facts, MAX_LISTED_REPLACED, MAX_REPLACED, Statement};
use api::memory::Source;
use api::{FeedbackId, MemoryId, MessageId, Timestamp, TurnId};
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::knowledge::{KnowledgeDraft, NewKnowledge, check_active, parse_tags};
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

    /// Deletes a fact with all that goes with it (see [`erased_with`]), and returns whether it existed. The erasure of
    /// the traces in files is to be queued in the same transaction.
    pub fn delete_fact(&self, id: MemoryId) -> Result<bool, StoreError> {
        let erased = with_history(self.transaction, id)?;
        let feedback = feedback_of(self.transaction, &erased)?;
        for id in &erased {
            self.delete_knowledge(*id)?;
        }
        if !feedback.is_empty() {
            self.withdraw_lessons_from(&feedback)?;
            for id in &feedback {
                self.execute("DELETE FROM feedback WHERE id = ?1", [id])?;
            }
            // Corrections that a withdrawn lesson had replaced are found again.
            self.index_knowledge(usize::MAX)?;
        }
        learning_batches::reset_orphaned_batches(self)?;
        Ok(!erased.is_empty())
    }
}

/// What is erased together with a fact, the newest first and at most `max` of it, and how many statements it is in all:
/// those that it replaced, of a lesson the corrections that it replaced, and of corrections the lessons that quote them.
pub(super) fn erased_with(
    reader: &Connection,
    id: MemoryId,
    max: usize,
) -> Result<(Vec<Statement>, usize), Error> {
    let snapshot = reader.unchecked_transaction()?;
    let mut all = with_history(&snapshot, id)?;
    let feedback = feedback_of(&snapshot, &all)?;
    all.extend(lessons::quoting(&snapshot, &feedback)?.into_iter().map(|(lesson, _)| lesson));
    all.remove(&id);
    let sql = format!(
        "SELECT {STATEMENT} FROM json_each(?1) JOIN knowledge ON knowledge.id = value
         ORDER BY created_at DESC, record DESC LIMIT ?2"
    );
    let mut query = snapshot.prepare_cached(&sql)?;
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let shown = query.query_map(params![json_list(&all), max], statement)?.collect::<Result<_, _>>()?;
    Ok((shown, all.len()))
}

/// A record, those that it replaced one after the other, and the corrections that lessons among them replaced; empty if
/// there is no such record.
fn with_history(reader: &Connection, id: MemoryId) -> Result<HashSet<MemoryId>, Error> {
    let (mut all, mut pending) = (HashSet::new(), vec![id]);
    while let Some(id) = pending.pop() {
        // A document that was imported may go round in a circle.
        if all.contains(&id) || !exists(reader, id)? {
            continue;
        }
        all.insert(id);
        pending.extend(replaced_by(reader, id)?);
        for given in lessons::evidence(reader, id)?.into_iter().flat_map(|evidence| evidence.corrections) {
            // A lesson that quotes a tool does not replace its correction, which is a fact of its own.
            if let Some(record) = record_of_correction(reader, given.feedback_id)?
                && check_active(reader, record)?.is_err()
            {
                pending.push(record);
            }
        }
    }
    Ok(all)
}

/// The ids of the feedback in which records among these were given as corrections.
fn feedback_of(reader: &Connection, records: &HashSet<MemoryId>) -> Result<HashSet<String>, Error> {
    let sql = "SELECT id FROM feedback WHERE said ->> '$.record' IN (SELECT value FROM json_each(?1))";
    let mut query = reader.prepare_cached(sql)?;
    query.query_map([json_list(records)], |row| row.get(0))?.collect()
}

fn json_list(records: &HashSet<MemoryId>) -> String {
    records.iter().map(ToString::to_string).collect::<serde_json::Value>().to_string()
}

fn exists(reader: &Connection, id: MemoryId) -> Result<bool, Error> {
    let mut query = reader.prepare_cached("SELECT EXISTS (SELECT 1 FROM knowledge WHERE id = ?1)")?;
    query.query_row([id.to_string()], |row| row.get(0))
}

/// The record that a record replaced. One that it names but that is in force was not replaced: an import keeps a
/// statement of the user beside one of a tool that claims its place.
fn replaced_by(reader: &Connection, id: MemoryId) -> Result<Option<MemoryId>, Error> {
    let sql =
        "SELECT earlier.id FROM knowledge JOIN knowledge AS earlier ON earlier.id = knowledge.supersedes
               WHERE knowledge.id = ?1 AND earlier.valid_until IS NOT NULL";
    reader.prepare_cached(sql)?.query_row([id.to_string()], |row| parse_column(row, 0)).optional()
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
    let sql = format!("SELECT {STATEMENT} FROM knowledge WHERE id = ?1");
    let mut query = reader.prepare_cached(&sql)?;
    let (mut statements, mut seen, mut last) = (Vec::new(), HashSet::from([id]), id);
    while let Some(earlier) = replaced_by(reader, last)? {
        // A document that was imported may go round in a circle.
        if !seen.insert(earlier) {
            break;
        }
        if statements.len() < max {
            statements.push(query.query_row([earlier.to_string()], statement)?);
        }
        last = earlier;
    }
    Ok((statements, u64::try_from(seen.len()).unwrap_or(u64::MAX).saturating_sub(1)))
}

/// The statement that replaced a record, or the lesson into which a correction was merged; nothing replaced what is in
/// force.
fn successor(reader: &Connection, id: MemoryId) -> Result<Option<Statement>, Error> {
    if check_active(reader, id)?.is_ok() {
        return Ok(None);
    }
    let sql = format!("SELECT {STATEMENT} FROM knowledge WHERE supersedes = ?1 ORDER BY record DESC LIMIT 1");
    let found = reader.prepare_cached(&sql)?.query_row([id.to_string()], statement).optional()?;
    if found.is_some() {
        return Ok(found);
    }
    let sql = format!(
        "SELECT {STATEMENT} FROM lessons JOIN knowledge ON knowledge.id = lessons.id
         WHERE source <> 'tool' AND knowledge.id <> ?1 AND EXISTS (
             SELECT 1 FROM json_each(evidence, '$.corrections') AS given
             JOIN feedback ON feedback.id = given.value ->> '$.feedback_id'
             WHERE said ->> '$.record' = ?1
         ) ORDER BY record DESC LIMIT 1"
    );
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
