//! The user's corrections and the lessons drawn from them that a turn may be given.

use std::collections::{HashMap, HashSet};

use api::memory::{MemoryKind, Source};
use api::{FeedbackId, MessageId};
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::knowledge::parse_tags;
use super::memory_ingest::step_of_message;
use super::queries::timestamp;
use super::search::{AlreadyShown, SearchHit};
use super::steps::TurnBase;
use super::{TaskRow, lessons};

/// The corrections and lessons that may be put into a turn.
#[derive(Clone, Debug, Default)]
pub struct Corrections {
    /// Corrections that the conversation does not show: those of its own task first, then the newest.
    pub corrections: Vec<SearchHit>,
    /// Lessons that the conversation does not show, newest first.
    pub lessons: Vec<SearchHit>,
    /// The number of corrections and lessons that the conversation shows already.
    pub already_shown: usize,
}

/// The most corrections, and the most lessons, that are considered: the newest ones.
const MAX_CORRECTIONS_SCANNED: i64 = 200;

/// Loads the active corrections and lessons, without those that the conversation shows already.
pub(super) fn load_corrections(
    reader: &Connection,
    task: TaskRow,
    base: TurnBase,
) -> Result<Corrections, Error> {
    let mut corrections = load_active(reader, Source::Feedback, task)?;
    let mut lessons = load_active(reader, Source::Learned, task)?;
    if corrections.is_empty() && lessons.is_empty() {
        return Ok(Corrections::default());
    }
    let shown = recalled_ids(reader, task, base)?;
    if let TurnBase::Edit { message_id } = base {
        exclude_voided(reader, task, message_id, &mut corrections, &mut lessons)?;
    }
    let before = corrections.len() + lessons.len();
    corrections.retain(|(hit, _)| !shown.contains(&hit.id));
    lessons.retain(|(hit, _)| !shown.contains(&hit.id));
    corrections.sort_by_key(|(_, is_own_task)| !is_own_task);
    let hits = |all: Vec<(SearchHit, bool)>| all.into_iter().map(|(hit, _)| hit).collect();
    Ok(Corrections {
        already_shown: before - corrections.len() - lessons.len(),
        corrections: hits(corrections),
        lessons: hits(lessons),
    })
}

/// Excludes what the pending edit of a message will delete, although the deletion is not stored yet. Each excluded
/// lesson is replaced by those of its corrections that remain.
fn exclude_voided(
    reader: &Connection,
    TaskRow(task): TaskRow,
    message_id: MessageId,
    corrections: &mut Vec<(SearchHit, bool)>,
    lessons: &mut Vec<(SearchHit, bool)>,
) -> Result<(), Error> {
    let Some((from, _)) = step_of_message(reader, task, &message_id.to_string())? else { return Ok(()) };
    let mut query = reader.prepare_cached(
        "SELECT id, COALESCE(said ->> '$.record', '') FROM feedback WHERE task = ?1 AND step >= ?2",
    )?;
    let voided = query.query_map([task, from], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let voided: HashMap<String, String> = voided.collect::<Result<_, _>>()?;
    corrections.retain(|(hit, _)| !voided.values().any(|record| *record == hit.id));
    let all = std::mem::take(lessons);
    for (lesson, is_own_task) in all {
        let evidence = match lesson.id.parse() {
            Ok(id) => lessons::evidence(reader, id)?,
            Err(_) => None,
        };
        let given = evidence.map(|evidence| evidence.corrections).unwrap_or_default();
        let (voided, kept): (Vec<_>, Vec<_>) =
            given.into_iter().partition(|given| voided.contains_key(&given.feedback_id.to_string()));
        if voided.is_empty() {
            lessons.push((lesson, is_own_task));
            continue;
        }
        for given in kept {
            corrections.extend(correction_record(reader, given.feedback_id)?.map(|hit| (hit, false)));
        }
    }
    Ok(())
}

/// The knowledge record of a correction.
fn correction_record(reader: &Connection, id: FeedbackId) -> Result<Option<SearchHit>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT knowledge.id, content, tags, knowledge.created_at FROM feedback
         JOIN knowledge ON knowledge.id = said ->> '$.record' WHERE feedback.id = ?1",
    )?;
    query.query_row([id.to_string()], |row| search_hit(row, Source::Feedback)).optional()
}

/// Builds a search hit from the columns id, content, tags and creation time.
fn search_hit(row: &Row<'_>, source: Source) -> Result<SearchHit, Error> {
    let content: String = row.get(1)?;
    Ok(SearchHit {
        kind: MemoryKind::Knowledge,
        id: row.get(0)?,
        excerpt: content.clone(),
        content,
        source: Some(source),
        tags: parse_tags(row, 2)?,
        created_at: timestamp(row, 3)?,
        task_id: None,
        message_ids: Vec::new(),
        excerpt_ids: Vec::new(),
        score: 0.0,
        is_relevant: false,
    })
}

/// The active records of a source, newest first, each with whether it was drawn from the task.
fn load_active(
    reader: &Connection,
    source: Source,
    TaskRow(task): TaskRow,
) -> Result<Vec<(SearchHit, bool)>, Error> {
    // The condition repeats that of the index `knowledge_taught`, so that no other knowledge is scanned.
    let mut query = reader.prepare_cached(
        "SELECT id, content, tags, created_at, task IS ?1 FROM knowledge
         WHERE source IN ('feedback', 'learned') AND valid_until IS NULL AND source = ?2
         ORDER BY record DESC LIMIT ?3",
    )?;
    let rows = query.query_map(params![task, source.as_str(), MAX_CORRECTIONS_SCANNED], |row| {
        Ok((search_hit(row, source)?, row.get(4)?))
    })?;
    rows.collect()
}

/// The ids of the memory records that a conversation shows when it continues from `base`. Notes that were sent
/// with an answer that is now replaced stand beside its question and remain visible.
fn recalled_ids(reader: &Connection, task: TaskRow, base: TurnBase) -> Result<HashSet<String>, Error> {
    let TaskRow(row) = task;
    let from = AlreadyShown::load(reader, Some((task, base)))?.from_step;
    let (before, retried) = match base {
        TurnBase::End => (None, None),
        TurnBase::Edit { message_id } => (step_of_message(reader, row, &message_id.to_string())?, None),
        TurnBase::Retry { message_id } => {
            let message_id = message_id.to_string();
            let after = step_of_message(reader, row, &message_id)?.map(|(step, kind)| (step + 1, kind));
            (after, Some(message_id))
        }
    };
    let before = before.map_or(i64::MAX, |(step, _)| step);
    let mut query = reader.prepare_cached(
        "SELECT id FROM recalled WHERE task = ?1 AND step >= ?2 AND (step < ?3 OR EXISTS (
             SELECT 1 FROM steps WHERE steps.step = recalled.step
             AND body ->> '$.base.from' = 'retry' AND body ->> '$.base.message_id' = ?4
         ))",
    )?;
    let ids = query.query_map(params![row, from, before, retried], |row| row.get(0))?;
    ids.collect()
}
