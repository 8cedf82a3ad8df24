//! Lessons: knowledge records that were drawn from corrections, stored together with their evidence.

use std::collections::HashSet;

use api::learning::{CorrectionGiven, Evidence, Lesson, Verdict};
use api::memory::Source;
use api::{BatchId, FeedbackId, MemoryId, TaskId, Timestamp};
use retrieval::{content_words, count_words};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::feedback::{Correction, correction};
use super::knowledge::{KnowledgeDraft, NewKnowledge, check_active};
use super::queries::{parse_column, timestamp};
use super::{StoreError, WriteTx, to_json};

/// The most corrections that a lesson's evidence contains.
const MAX_EVIDENCE_CORRECTIONS: usize = 64;

/// A lesson that has passed its evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLesson {
    /// The id of the lesson's knowledge record.
    pub id: MemoryId,
    /// The text of the lesson.
    pub content: String,
    /// The correction from which it was drawn.
    pub correction: Correction,
    /// The existing lesson that this one is merged with.
    pub merges: Option<MemoryId>,
    /// Whether the lesson may contain content from a tool.
    pub is_tainted: bool,
    /// The verdicts of the evaluation.
    pub verdicts: Vec<Verdict>,
}

/// A lesson as it is shown to the model that drafts another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLesson {
    /// The id of the lesson.
    pub id: MemoryId,
    /// The text of the lesson.
    pub content: String,
}

impl WriteTx<'_> {
    /// Activates a lesson in place of the correction and of the lesson that it was merged with. Returns whether
    /// that was still possible. A lesson that may contain content from a tool is data and supersedes only data.
    pub(super) fn adopt_lesson(
        &self,
        lesson: &NewLesson,
        batch_id: BatchId,
        at: Timestamp,
    ) -> Result<bool, StoreError> {
        let NewLesson { id, content, correction: given, merges, is_tainted, verdicts } = lesson;
        // Meanwhile the user may have withdrawn the correction, edited it away, or undone the lesson.
        let Some(given) = correction(self.transaction, given.id)? else { return Ok(false) };
        let mut corrections = vec![CorrectionGiven {
            feedback_id: given.id,
            task_id: given.task_id,
            turn_id: given.turn_id,
            correction_text: given.text,
        }];
        if let Some(merged) = merges {
            let Some(evidence) = evidence(self.transaction, *merged)? else { return Ok(false) };
            corrections.extend(evidence.corrections);
            corrections.truncate(MAX_EVIDENCE_CORRECTIONS);
        }
        let source = if *is_tainted { Source::Tool } else { Source::Learned };
        let supersedes = merges.or((!is_tainted).then_some(given.knowledge_id));
        let draft = KnowledgeDraft { content: content.clone(), tags: Vec::new(), supersedes };
        let record = NewKnowledge { id: *id, draft, source };
        if self.save_knowledge(&record, Some(given.task), at)?.is_err() {
            return Ok(false);
        }
        let (id, feedback_id) = (id.to_string(), given.id.to_string());
        // The lesson is linked to the step that the correction is about.
        self.execute(
            "UPDATE knowledge SET step = (SELECT step FROM feedback WHERE id = ?2) WHERE id = ?1",
            [&id, &feedback_id],
        )?;
        if !is_tainted {
            let sql = "UPDATE knowledge SET valid_until = ?2 WHERE id = ?1";
            self.execute(sql, params![given.knowledge_id.to_string(), at.unix_ms()])?;
        }
        // A turn that was judged may have been deleted.
        let turn_exists = "SELECT EXISTS (SELECT 1 FROM turns WHERE turn_id = ?1)";
        let mut turn_exists = self.transaction.prepare_cached(turn_exists)?;
        let mut remaining = Vec::new();
        for verdict in verdicts {
            if turn_exists.query_row([verdict.turn_id.to_string()], |row| row.get(0))? {
                remaining.push(verdict.clone());
            }
        }
        let evidence = Evidence { batch_id, corrections, verdicts: remaining };
        let sql = "INSERT INTO lessons (id, evidence, batch)
                   SELECT ?1, ?2, batch FROM batches WHERE id = ?3";
        self.execute(sql, params![id, to_json(&evidence)?, batch_id.to_string()])?;
        Ok(true)
    }

    /// Undoes an active lesson and returns whether there was one. The records that it replaced become active again
    /// and are not learned again.
    pub fn undo_lesson(&self, id: MemoryId) -> Result<bool, StoreError> {
        let is_known = evidence(self.transaction, id)?.is_some();
        if !is_known || check_active(self.transaction, id)?.is_err() {
            return Ok(false);
        }
        self.revoke_lesson(id)?;
        Ok(true)
    }

    /// Deletes the lessons that contain one of these corrections, newest first. Their other corrections are queued
    /// to be learned again.
    pub(super) fn withdraw_lessons_from(&self, withdrawn: &HashSet<String>) -> Result<(), StoreError> {
        let is_withdrawn = |given: &CorrectionGiven| withdrawn.contains(&given.feedback_id.to_string());
        for (id, evidence) in quoting(self.transaction, withdrawn)? {
            self.revoke_lesson(id)?;
            if let Some(own) = evidence.corrections.first().filter(|own| !is_withdrawn(own)) {
                self.requeue_correction(own.feedback_id)?;
            }
        }
        Ok(())
    }

    /// Withdraws a lesson. The correction from which it was drawn is in force again, unless the lesson itself has been
    /// superseded.
    fn revoke_lesson(&self, id: MemoryId) -> Result<(), StoreError> {
        if check_active(self.transaction, id)?.is_ok()
            && let Some(own) = source_correction(self.transaction, id)?
        {
            self.reinstate_correction(own)?;
        }
        self.withdraw_record(id)
    }
}

/// The lessons whose evidence has feedback among these, the newest first.
pub(super) fn quoting(
    reader: &Connection,
    feedback: &HashSet<String>,
) -> Result<Vec<(MemoryId, Evidence)>, Error> {
    if feedback.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = reader
        .prepare_cached("SELECT id, evidence FROM lessons JOIN knowledge USING (id) ORDER BY record DESC")?;
    let lessons = query.query_map([], |row| Ok((parse_column(row, 0)?, parse_evidence(row, 1)?)))?;
    let mut lessons: Vec<(MemoryId, Evidence)> = lessons.collect::<Result<_, _>>()?;
    lessons.retain(|(_, evidence)| {
        evidence.corrections.iter().any(|given| feedback.contains(&given.feedback_id.to_string()))
    });
    Ok(lessons)
}

/// Removes the verdicts on turns of a task from the evidence of all lessons.
pub(super) fn remove_verdicts(tx: &WriteTx<'_>, task_id: &TaskId) -> Result<(), StoreError> {
    let mut query = tx.transaction.prepare_cached("SELECT id, evidence FROM lessons")?;
    let lessons = query.query_map([], |row| Ok((row.get(0)?, parse_evidence(row, 1)?)))?;
    for (id, mut evidence) in lessons.collect::<Result<Vec<(String, Evidence)>, _>>()? {
        let before = evidence.verdicts.len();
        evidence.verdicts.retain(|verdict| verdict.task_id != *task_id);
        if evidence.verdicts.len() < before {
            tx.execute("UPDATE lessons SET evidence = ?2 WHERE id = ?1", params![id, to_json(&evidence)?])?;
        }
    }
    Ok(())
}

/// The correction from which a lesson was drawn.
fn source_correction(reader: &Connection, id: MemoryId) -> Result<Option<FeedbackId>, Error> {
    let evidence = evidence(reader, id)?;
    Ok(evidence.and_then(|evidence| evidence.corrections.first().map(|own| own.feedback_id)))
}

/// The evidence of a record, if the record is a lesson.
pub(super) fn evidence(reader: &Connection, id: MemoryId) -> Result<Option<Evidence>, Error> {
    let mut query = reader.prepare_cached("SELECT evidence FROM lessons WHERE id = ?1")?;
    query.query_row([id.to_string()], |row| parse_evidence(row, 0)).optional()
}

fn parse_evidence(row: &Row<'_>, column: usize) -> Result<Evidence, Error> {
    serde_json::from_str(row.get_ref(column)?.as_str()?)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// The active lessons, newest first.
pub(super) fn list(reader: &Connection, limit: i64, offset: i64) -> Result<Vec<Lesson>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT id, content, evidence, created_at FROM lessons JOIN knowledge USING (id)
         WHERE valid_until IS NULL ORDER BY record DESC LIMIT ?1 OFFSET ?2",
    )?;
    let rows = query.query_map([limit, offset], |row| {
        Ok(Lesson {
            id: parse_column(row, 0)?,
            content: row.get(1)?,
            evidence: parse_evidence(row, 2)?,
            created_at: timestamp(row, 3)?,
        })
    })?;
    rows.collect()
}

/// The number of newest lessons that are searched for relevant ones.
const MAX_LESSONS_SCANNED: i64 = 500;

/// Active lessons that are tainted (data), or that are not: those most relevant to `about` first, then the newest.
pub(super) fn most_relevant(
    reader: &Connection,
    is_tainted: bool,
    about: &str,
    limit: usize,
) -> Result<Vec<KnownLesson>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT id, content FROM lessons JOIN knowledge USING (id)
         WHERE valid_until IS NULL AND (source = 'tool') = ?1 ORDER BY record DESC LIMIT ?2",
    )?;
    let rows = query.query_map(params![is_tainted, MAX_LESSONS_SCANNED], |row| {
        Ok(KnownLesson { id: parse_column(row, 0)?, content: row.get(1)? })
    })?;
    let mut lessons: Vec<KnownLesson> = rows.collect::<Result<_, _>>()?;
    let words = content_words(about);
    lessons.sort_by_cached_key(|lesson| std::cmp::Reverse(count_words(&words, &lesson.content)));
    lessons.truncate(limit);
    Ok(lessons)
}
