//! Loads the results of a search with their texts.

use api::MessageId;
use api::memory::{MemoryKind, Source};
use resources::text::shorten_to_bytes;
use retrieval::Hit;
use rusqlite::{Connection, Error, OptionalExtension as _, Row};

use super::SearchHit;
use crate::knowledge::parse_tags;
use crate::message_text::{MessageText, Speaker};
use crate::queries::{parse_column, task_id, timestamp};
use crate::search_index::{Indexed, MAX_SHOWN_MESSAGE_BYTES};

/// Loads a result; `None` if nothing of it has text.
pub(super) fn load(reader: &Connection, hit: &Hit) -> Result<Option<SearchHit>, Error> {
    let task = i64::try_from(hit.task).unwrap_or(i64::MAX);
    match Indexed::new(task, i64::from(hit.first)) {
        Indexed::Message { task, .. } => load_run(reader, task, hit),
        Indexed::Knowledge(record) => {
            let sql = "SELECT id, content, source, created_at, tags FROM knowledge WHERE record = ?1";
            let mut query = reader.prepare_cached(sql)?;
            let found = query.query_row([record], |row| {
                Ok(SearchHit { tags: parse_tags(row, 4)?, ..load_record(row, MemoryKind::Knowledge, hit)? })
            });
            found.optional()
        }
    }
}

/// Loads the episodes of the turns that are shown by runs, at most `limit`. They rank behind all else.
pub(super) fn load_episodes(
    reader: &Connection,
    hits: &[Hit],
    limit: usize,
) -> Result<Vec<SearchHit>, Error> {
    // The episode of a turn has the turn's last step, so those of a run are among the first ones behind it.
    let sql = "WITH run (step, turn) AS (
                   SELECT steps.step, steps.turn FROM said JOIN steps ON steps.step = said.step
                   WHERE said.task = ?1 AND nth BETWEEN ?2 AND ?3
               )
               SELECT id, content, source, next.created_at, task_id FROM (
                   SELECT * FROM episodes WHERE task = ?1 AND step >= (SELECT MIN(step) FROM run)
                   ORDER BY step LIMIT 8
               ) AS next JOIN tasks USING (task)
               WHERE next.turn IN (SELECT turn FROM run) ORDER BY next.step";
    let mut query = reader.prepare_cached(sql)?;
    let lowest = hits.last().map_or(0.0, |hit| hit.score);
    let mut episodes: Vec<SearchHit> = Vec::new();
    for hit in hits {
        let place = Indexed::new(i64::try_from(hit.task).unwrap_or(i64::MAX), i64::from(hit.first));
        let Indexed::Message { task, nth } = place else { continue };
        let mut rows = query.query([task, nth, i64::from(hit.last)])?;
        while let Some(row) = rows.next()? {
            if episodes.len() >= limit {
                return Ok(episodes);
            }
            let record = load_record(row, MemoryKind::Episode, hit)?;
            let is_new = episodes.iter().all(|episode| episode.id != record.id);
            if is_new {
                let score = record.score.min(lowest);
                episodes.push(SearchHit { task_id: Some(task_id(row, 4)?), score, ..record });
            }
        }
    }
    Ok(episodes)
}

/// Builds a result from the columns id, content, source and creation time.
fn load_record(row: &Row<'_>, kind: MemoryKind, hit: &Hit) -> Result<SearchHit, Error> {
    let content: String = row.get(1)?;
    Ok(SearchHit {
        kind,
        id: row.get(0)?,
        excerpt: content.clone(),
        content,
        source: Some(parse_column(row, 2)?),
        tags: Vec::new(),
        created_at: timestamp(row, 3)?,
        task_id: None,
        message_ids: Vec::new(),
        excerpt_ids: Vec::new(),
        score: hit.score,
        is_relevant: hit.is_relevant,
    })
}

fn load_run(reader: &Connection, task: i64, hit: &Hit) -> Result<Option<SearchHit>, Error> {
    // Content from a tool may be repeated in later turns of its task, and nothing shows where.
    let sql = "SELECT steps.body, steps.at, task_id,
                      EXISTS (SELECT 1 FROM episodes WHERE episodes.task = said.task
                              AND episodes.turn <= steps.turn AND source = 'tool')
                      OR EXISTS (SELECT 1 FROM conversations WHERE conversations.task = said.task AND tainted), nth
               FROM said JOIN tasks USING (task) JOIN steps ON steps.step = said.step
               WHERE said.task = ?1 AND nth BETWEEN ?2 AND ?3 ORDER BY nth";
    let mut query = reader.prepare_cached(sql)?;
    let mut rows = query.query([task, i64::from(hit.first), i64::from(hit.last)])?;
    let (mut lines, mut excerpt): (Vec<String>, Vec<String>) = Default::default();
    let mut run: Option<SearchHit> = None;
    while let Some(row) = rows.next()? {
        let Some(message) = MessageText::from_stored(row.get_ref(0)?.as_str()?) else { continue };
        let MessageText { message_id, speaker, text } = message;
        let (at, is_tainted, index) = (timestamp(row, 1)?, row.get::<_, bool>(3)?, row.get::<_, u32>(4)?);
        let run = match &mut run {
            Some(run) => run,
            none => none.insert(empty_run(hit, message_id, at, task_id(row, 2)?)),
        };
        run.created_at = at;
        run.message_ids.push(message_id);
        if is_tainted && speaker == Speaker::Agent {
            run.source = Some(Source::Tool);
        }
        let line = render_line(speaker, &text);
        if hit.excerpt.contains(&index) {
            run.excerpt_ids.push(message_id);
            excerpt.push(line.clone());
        }
        lines.push(line);
    }
    Ok(run.map(|run| SearchHit { content: lines.join("\n"), excerpt: excerpt.join("\n"), ..run }))
}

fn empty_run(
    hit: &Hit,
    message_id: MessageId,
    created_at: api::Timestamp,
    task_id: api::TaskId,
) -> SearchHit {
    SearchHit {
        kind: MemoryKind::Message,
        id: message_id.to_string(),
        content: String::new(),
        excerpt: String::new(),
        source: None,
        tags: Vec::new(),
        created_at,
        task_id: Some(task_id),
        message_ids: Vec::new(),
        excerpt_ids: Vec::new(),
        score: hit.score,
        is_relevant: hit.is_relevant,
    }
}

fn render_line(speaker: Speaker, text: &str) -> String {
    let name = match speaker {
        Speaker::User => "The user",
        Speaker::Agent => "The agent",
    };
    format!("{name}: {}", shorten_to_bytes(text, MAX_SHOWN_MESSAGE_BYTES))
}
