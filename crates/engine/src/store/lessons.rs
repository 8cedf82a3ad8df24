//! Lessons: records of knowledge that were drawn from corrections, with what they were drawn from.

use std::collections::HashSet;

use contract::learning::{CorrectionGiven, Evidence, Lesson, Verdict};
use contract::memory::Source;
use contract::{BatchId, FeedbackId, MemoryId, TaskId, Timestamp};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::feedback::{Correction, correction};
use super::knowledge::{KnowledgeDraft, NewKnowledge, check_active};
use super::queries::{parse_column, timestamp};
use super::tokenize::QueryTerms;
use super::{WriteTx, to_json};

/// The most corrections that a lesson names.
const MAX_EVIDENCE_CORRECTIONS: usize = 64;

/// A lesson that has stood its trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLesson {
    /// Its id.
    pub id: MemoryId,
    /// What was learned.
    pub content: String,
    /// What it was drawn from.
    pub correction: Correction,
    /// The lesson that it is merged with.
    pub merges: Option<MemoryId>,
    /// Whether what came from a tool may be in it.
    pub is_tainted: bool,
    /// What was judged.
    pub verdicts: Vec<Verdict>,
}

/// A lesson as the drafting of another one is shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLesson {
    /// Its id.
    pub id: MemoryId,
    /// What was learned.
    pub content: String,
}

impl WriteTx<'_> {
    /// Puts a lesson in force, in the place of the correction and of the lesson that it was merged with; whether that
    /// was still possible. One that may hold what came from a tool is data, which takes the place of nothing but data.
    pub(super) fn adopt_lesson(
        &self,
        lesson: &NewLesson,
        batch_id: BatchId,
        at: Timestamp,
    ) -> Result<bool, Error> {
        let NewLesson { id, content, correction: given, merges, is_tainted, verdicts } = lesson;
        // The person may have taken it back, edited it away or had the lesson undone meanwhile.
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
        let to_know = KnowledgeDraft { content: content.clone(), tags: Vec::new(), supersedes };
        let record = NewKnowledge { id: *id, draft: to_know, source };
        if self.save_knowledge(&record, Some(given.task), at)?.is_err() {
            return Ok(false);
        }
        let (id, feedback_id) = (id.to_string(), given.id.to_string());
        // It is drawn from the step that the correction is about.
        self.execute(
            "UPDATE knowledge SET step = (SELECT step FROM feedback WHERE id = ?2) WHERE id = ?1",
            [&id, &feedback_id],
        )?;
        if !is_tainted {
            let sql = "UPDATE knowledge SET valid_until = ?2 WHERE id = ?1";
            self.execute(sql, params![given.knowledge_id.to_string(), at.unix_ms()])?;
        }
        // A turn that was judged may be gone by now.
        let is_there = "SELECT EXISTS (SELECT 1 FROM turns WHERE turn_id = ?1)";
        let mut is_there = self.transaction.prepare_cached(is_there)?;
        let mut standing = Vec::new();
        for verdict in verdicts {
            if is_there.query_row([verdict.turn_id.to_string()], |row| row.get(0))? {
                standing.push(verdict.clone());
            }
        }
        let evidence = Evidence { batch_id, corrections, verdicts: standing };
        let sql = "INSERT INTO lessons (id, evidence, batch)
                   SELECT ?1, ?2, batch FROM batches WHERE id = ?3";
        self.execute(sql, params![id, to_json(&evidence)?, batch_id.to_string()])?;
        Ok(true)
    }

    /// Takes a lesson in force back; whether there was one. What it came in the place of is in force again, and is not
    /// learned again.
    pub fn undo_lesson(&self, id: MemoryId) -> Result<bool, Error> {
        let is_known = evidence(self.transaction, id)?.is_some();
        if !is_known || check_active(self.transaction, id)?.is_err() {
            return Ok(false);
        }
        self.revoke_lesson(id)?;
        Ok(true)
    }

    /// Takes out the lessons in which one of these corrections is, the newest first. The others in them are to be
    /// learned again.
    pub(super) fn withdraw_lessons_from(&self, void: &HashSet<String>) -> Result<(), Error> {
        let mut query = self.transaction.prepare_cached(
            "SELECT id, evidence FROM lessons JOIN knowledge USING (id) ORDER BY record DESC",
        )?;
        let lessons = query.query_map([], |row| Ok((parse_column(row, 0)?, parse_evidence(row, 1)?)))?;
        let lessons: Vec<(MemoryId, Evidence)> = lessons.collect::<Result<_, _>>()?;
        for (id, evidence) in lessons {
            let is_void = |given: &CorrectionGiven| void.contains(&given.feedback_id.to_string());
            if !evidence.corrections.iter().any(is_void) {
                continue;
            }
            self.revoke_lesson(id)?;
            if let Some(own) = evidence.corrections.first().filter(|own| !is_void(own)) {
                self.requeue_correction(own.feedback_id)?;
            }
        }
        Ok(())
    }

    /// Takes a lesson out, and puts what it came in the place of in force again, unless another record has come in its
    /// own place.
    fn revoke_lesson(&self, id: MemoryId) -> Result<(), Error> {
        let own = source_correction(self.transaction, id)?;
        if check_active(self.transaction, id)?.is_ok() {
            let sql = "UPDATE knowledge SET valid_until = NULL
                       WHERE id = (SELECT supersedes FROM knowledge WHERE id = ?1)";
            self.execute(sql, [id.to_string()])?;
            if let Some(own) = own {
                self.reinstate_correction(own)?;
            }
        }
        self.execute("DELETE FROM knowledge WHERE id = ?1", [id.to_string()])
    }
}

/// Takes out of the evidence of all lessons what was judged of turns of a task.
pub(super) fn remove_verdicts(rows: &WriteTx<'_>, task_id: &TaskId) -> Result<(), Error> {
    let mut query = rows.transaction.prepare_cached("SELECT id, evidence FROM lessons")?;
    let lessons = query.query_map([], |row| Ok((row.get(0)?, parse_evidence(row, 1)?)))?;
    for (id, mut evidence) in lessons.collect::<Result<Vec<(String, Evidence)>, _>>()? {
        let before = evidence.verdicts.len();
        evidence.verdicts.retain(|verdict| verdict.task_id != *task_id);
        if evidence.verdicts.len() < before {
            rows.execute("UPDATE lessons SET evidence = ?2 WHERE id = ?1", params![id, to_json(&evidence)?])?;
        }
    }
    Ok(())
}

/// The correction that a lesson was drawn from.
fn source_correction(reader: &Connection, id: MemoryId) -> Result<Option<FeedbackId>, Error> {
    let evidence = evidence(reader, id)?;
    Ok(evidence.and_then(|evidence| evidence.corrections.first().map(|own| own.feedback_id)))
}

/// What a lesson was drawn from, if it is one.
pub(super) fn evidence(reader: &Connection, id: MemoryId) -> Result<Option<Evidence>, Error> {
    let mut query = reader.prepare_cached("SELECT evidence FROM lessons WHERE id = ?1")?;
    query.query_row([id.to_string()], |row| parse_evidence(row, 0)).optional()
}

fn parse_evidence(row: &Row<'_>, column: usize) -> Result<Evidence, Error> {
    serde_json::from_str(row.get_ref(column)?.as_str()?)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// The lessons in force, the newest first.
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

/// How many lessons are looked at for those that bear on something: the newest.
const MAX_LESSONS_SCANNED: i64 = 500;

/// Lessons in force that are data, or that are not: those that bear most on `about`, and then the newest.
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
    let mut known: Vec<KnownLesson> = rows.collect::<Result<_, _>>()?;
    let terms = QueryTerms::parse(about);
    known.sort_by_cached_key(|known| std::cmp::Reverse(terms.count(terms.coverage(&known.content))));
    known.truncate(limit);
    Ok(known)
}
