//! Writes a brain's content as a document.

use std::io::Write;
use std::path::Path;

use api::TaskId;
use api::conversations::{ForkedFrom, TitleSource};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row};
use serde::Serialize;
use serde_json::value::RawValue;

use super::DOCUMENT_VERSION;
use super::records::{
    Base64Bytes, BatchRecord, ConversationRecord, EpisodeRecord, EventRecord, FeedbackRecord,
    KnowledgeRecord, LessonRecord, MediaRecord, MessageRecord, QueuedTurnRecord, RawJson, RecalledRecord,
    ScheduleRecord, SkillRecord, StepRecord, TaskRecord, TrajectoryRecord, TurnRecord,
};
use crate::StoreError;
use crate::conversations::metadata_column;
use crate::knowledge::parse_tags;
use crate::queries::{optional_timestamp, parse_column, task_id, timestamp};

/// The reasons why an export fails.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The brain could not be read.
    #[error("the brain could not be read")]
    Read(#[from] StoreError),
    /// The receiver of the document is gone or fails.
    #[error("the document could not be written")]
    Write(#[from] std::io::Error),
    /// A record of the brain cannot be represented in the document.
    #[error("a record could not be written")]
    Record(#[from] serde_json::Error),
}

impl From<Error> for ExportError {
    fn from(error: Error) -> Self {
        Self::Read(error.into())
    }
}

/// Writes the document of the brain in `file`, as a snapshot.
pub(super) fn write(file: &Path, to: &mut dyn Write) -> Result<(), ExportError> {
    let reader = crate::read_pool::open_reader(file, 1024)?;
    // All reads in one transaction see the same snapshot.
    let snapshot = reader.unchecked_transaction()?;
    let mut document = DocumentWriter { reader: &snapshot, to, steps: RowPositions::default() };
    document.write()
}

/// Writes a document. Each query begins with the table that it scans (`CROSS JOIN` fixes that order), so the rows
/// come in the order of the document and need not be sorted.
pub(super) struct DocumentWriter<'a> {
    reader: &'a Connection,
    to: &'a mut dyn Write,
    /// The positions of the steps in the document.
    steps: RowPositions,
}

impl DocumentWriter<'_> {
    fn write(&mut self) -> Result<(), ExportError> {
        write!(self.to, "{{\"version\":{DOCUMENT_VERSION}")?;
        self.tasks()?;
        self.conversations()?;
        self.turns()?;
        self.steps()?;
        self.messages()?;
        self.events()?;
        self.episodes_and_trajectories()?;
        self.knowledge()?;
        self.skills()?;
        self.learning_records()?;
        self.media()?;
        self.queue()?;
        self.schedules()?;
        self.user_servers()?;
        self.usage()?;
        self.to.write_all(b"}")?;
        Ok(())
    }

    /// Writes the records that `sql` selects as the array `name`.
    pub(super) fn section<T: Serialize>(
        &mut self,
        name: &str,
        sql: &str,
        mut record: impl FnMut(&Row<'_>, &mut Self) -> Result<T, Error>,
    ) -> Result<(), ExportError> {
        write!(self.to, ",\n\"{name}\":[")?;
        let reader = self.reader;
        let mut query = reader.prepare(sql)?;
        let mut rows = query.query([])?;
        let mut separator = "\n";
        while let Some(row) = rows.next()? {
            let record = record(row, self)?;
            self.to.write_all(separator.as_bytes())?;
            serde_json::to_writer(&mut *self.to, &record)?;
            separator = ",\n";
        }
        self.to.write_all(b"]")?;
        Ok(())
    }

    fn tasks(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT task_id, created_at, updated_at, message_count, covered, covered_at, task
                   FROM tasks ORDER BY task";
        self.section("tasks", sql, |row, document| {
            let values = "SELECT key, value FROM working_memory WHERE task = ?1";
            let mut values = document.reader.prepare_cached(values)?;
            let values = values
                .query_map([row.get::<_, i64>(6)?], |row| Ok((row.get(0)?, raw_json_column(row, 1)?)))?;
            Ok(TaskRecord {
                task_id: task_id(row, 0)?,
                created_at: timestamp(row, 1)?,
                updated_at: timestamp(row, 2)?,
                message_count: count_column(row, 3)?,
                covered: count_column(row, 4)?,
                covered_at: count_column(row, 5)?,
                working_memory: values.collect::<Result<_, _>>()?,
            })
        })
    }

    /// Writes what is shown of the conversations of which anything is.
    fn conversations(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT tasks.task_id, title, title_source, title_asked, metadata, pinned, archived,
                          origins.task_id, forked_after, family, tainted
                   FROM tasks CROSS JOIN conversations USING (task)
                   LEFT JOIN tasks AS origins ON origins.task = origin ORDER BY tasks.task";
        self.section("conversations", sql, |row, _| {
            let origin: Option<String> = row.get(7)?;
            let origin = origin.and_then(|id| TaskId::new(id).ok());
            let after: Option<String> = row.get(8)?;
            let after = after.and_then(|id| id.parse().ok());
            let source: Option<String> = row.get(2)?;
            let is_from_model = source.as_deref() == Some(TitleSource::Model.as_str());
            Ok(ConversationRecord {
                task_id: task_id(row, 0)?,
                title: row.get(1)?,
                title_source: source
                    .map(|_| if is_from_model { TitleSource::Model } else { TitleSource::User }),
                title_asked: row.get(3)?,
                metadata: metadata_column(row, 4)?,
                pinned: row.get(5)?,
                archived: row.get(6)?,
                forked_from: origin
                    .zip(after)
                    .map(|(task_id, message_id)| ForkedFrom { task_id, message_id }),
                family: row.get(9)?,
                tainted: row.get(10)?,
            })
        })
    }

    fn turns(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT turn_id, task_id, message_id, opened_at,
                          COALESCE(ended_at, (
                              SELECT MAX(at) FROM steps
                              WHERE steps.task = turns.task AND steps.turn = turns.turn
                          ), opened_at),
                          opened_ts, client_request_id, request_hash, turns.taken_in, queued_at
                   FROM turns CROSS JOIN tasks USING (task) ORDER BY turn";
        self.section("turns", sql, |row, _| {
            let request: Option<String> = row.get(6)?;
            Ok(TurnRecord {
                turn_id: parse_column(row, 0)?,
                task_id: task_id(row, 1)?,
                message_id: parse_column(row, 2)?,
                opened_at: timestamp(row, 3)?,
                ended_at: timestamp(row, 4)?,
                opened_ts: row.get(5)?,
                client_request_id: request.and_then(|id| api::ClientRequestId::new(id).ok()),
                request_hash: row.get(7)?,
                taken_in: row.get(8)?,
                queued_at: optional_timestamp(row, 9)?,
            })
        })
    }

    /// Whether there are rows of a table.
    pub(super) fn has_rows(&self, from: &str) -> Result<bool, Error> {
        self.reader.query_row(&format!("SELECT EXISTS (SELECT 1 FROM {from})"), [], |row| row.get(0))
    }

    /// Writes the queued messages, if there are any.
    fn queue(&mut self) -> Result<(), ExportError> {
        if !self.has_rows("queued_turns WHERE ended_at IS NULL")? {
            return Ok(());
        }
        let sql = "SELECT turn_id, task_id, queued_at, body
                   FROM queued_turns CROSS JOIN tasks USING (task) WHERE ended_at IS NULL
                   ORDER BY interrupts DESC, entry";
        self.section("queue", sql, |row, _| {
            Ok(QueuedTurnRecord {
                turn_id: parse_column(row, 0)?,
                task_id: task_id(row, 1)?,
                queued_at: timestamp(row, 2)?,
                request: raw_json_column(row, 3)?,
            })
        })
    }

    /// Writes the schedules, if there are any.
    fn schedules(&mut self) -> Result<(), ExportError> {
        if !self.has_rows("schedules")? {
            return Ok(());
        }
        let sql = "SELECT id, definition, state, created_at, updated_at, last_due_at FROM schedules ORDER BY schedule";
        self.section("schedules", sql, |row, _| {
            Ok(ScheduleRecord {
                id: row.get(0)?,
                definition: raw_json_column(row, 1)?,
                state: row.get(2)?,
                created_at: timestamp(row, 3)?,
                updated_at: timestamp(row, 4)?,
                last_due_at: optional_timestamp(row, 5)?,
            })
        })
    }

    fn steps(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT turn_id, at, ts, body, step
                   FROM steps CROSS JOIN turns USING (turn) CROSS JOIN tasks ON tasks.task = steps.task ORDER BY step";
        self.section("steps", sql, |row, document| {
            document.steps.push(row.get(4)?);
            Ok(StepRecord {
                turn_id: parse_column(row, 0)?,
                at: timestamp(row, 1)?,
                ts: row.get(2)?,
                step: raw_json_column(row, 3)?,
            })
        })
    }

    /// Writes the indexed messages of the conversations, and the memory records that they show.
    fn messages(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT step FROM said CROSS JOIN tasks USING (task) ORDER BY task, place";
        self.section("said", sql, |row, document| Ok(MessageRecord(document.steps.position_of(row, 0)?)))?;
        let sql = "SELECT step, kind, id FROM recalled CROSS JOIN tasks USING (task)
                   WHERE step IN (SELECT step FROM steps) ORDER BY recalled.rowid";
        self.section("recalled", sql, |row, document| {
            Ok(RecalledRecord {
                step: document.steps.position_of(row, 0)?,
                kind: row.get(1)?,
                id: row.get(2)?,
            })
        })
    }

    /// Writes the events, in the form that they have after their deltas were folded away.
    fn events(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT task_id, turn_id, ts, kind, data
                   FROM events CROSS JOIN turns USING (turn) CROSS JOIN tasks ON tasks.task = events.task
                   WHERE CASE kind WHEN 'agent_event' THEN data ->> '$.event' ELSE kind END NOT IN
                       ('text_delta', 'thinking_delta', 'content_block_start', 'content_block_stop')
                   ORDER BY events.task, ts";
        self.section("events", sql, |row, _| {
            Ok(EventRecord {
                task_id: task_id(row, 0)?,
                turn_id: parse_column(row, 1)?,
                ts: row.get(2)?,
                event: row.get(3)?,
                data: raw_json_column(row, 4)?,
            })
        })
    }

    fn episodes_and_trajectories(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT id, turn_id, step, content, source, created_at
                   FROM episodes CROSS JOIN turns USING (turn) ORDER BY episode";
        self.section("episodes", sql, |row, document| {
            Ok(EpisodeRecord {
                id: parse_column(row, 0)?,
                turn_id: parse_column(row, 1)?,
                step: document.steps.position_of(row, 2)?,
                content: row.get(3)?,
                source: parse_column(row, 4)?,
                created_at: timestamp(row, 5)?,
            })
        })?;
        let sql = "SELECT turn_id, step, outcome, did, at FROM trajectories CROSS JOIN turns USING (turn) ORDER BY turn";
        self.section("trajectories", sql, |row, document| {
            Ok(TrajectoryRecord {
                turn_id: parse_column(row, 0)?,
                step: document.steps.position_of(row, 1)?,
                outcome: row.get(2)?,
                did: raw_json_column(row, 3)?,
                at: timestamp(row, 4)?,
            })
        })
    }

    fn knowledge(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT id, content, tags, source, created_at, valid_until, supersedes, step
                   FROM knowledge ORDER BY record";
        self.section("knowledge", sql, |row, document| {
            let supersedes: Option<String> = row.get(6)?;
            Ok(KnowledgeRecord {
                id: parse_column(row, 0)?,
                content: row.get(1)?,
                tags: parse_tags(row, 2)?,
                source: parse_column(row, 3)?,
                created_at: timestamp(row, 4)?,
                valid_until: optional_timestamp(row, 5)?,
                supersedes: supersedes.and_then(|id| id.parse().ok()),
                step: document.steps.optional_position_of(row, 7)?,
            })
        })
    }

    fn skills(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT name, skill, created_at, updated_at FROM skills ORDER BY name";
        self.section("skills", sql, |row, _| {
            Ok(SkillRecord {
                name: row.get(0)?,
                skill: raw_json_column(row, 1)?,
                created_at: timestamp(row, 2)?,
                updated_at: timestamp(row, 3)?,
            })
        })
    }

    /// Writes the batches that have ended, with their feedback and lessons. Feedback of the active batch is
    /// exported as unprocessed.
    fn learning_records(&mut self) -> Result<(), ExportError> {
        let sql =
            "SELECT id, state, started_at, ended_at FROM batches WHERE ended_at IS NOT NULL ORDER BY batch";
        self.section("batches", sql, |row, _| {
            Ok(BatchRecord {
                id: row.get(0)?,
                state: raw_json_column(row, 1)?,
                started_at: timestamp(row, 2)?,
                ended_at: timestamp(row, 3)?,
            })
        })?;
        let ended = "LEFT JOIN batches ON batches.batch = learned.batch AND batches.ended_at IS NOT NULL";
        let sql = format!(
            "SELECT learned.id, task_id, turn_id, learned.step, said, learned.created_at, batches.id
             FROM feedback AS learned LEFT JOIN tasks USING (task) LEFT JOIN turns ON turns.turn = learned.turn {ended}
             ORDER BY feedback"
        );
        self.section("feedback", &sql, |row, document| {
            let task_id: Option<String> = row.get(1)?;
            let turn_id: Option<String> = row.get(2)?;
            Ok(FeedbackRecord {
                id: row.get(0)?,
                task_id: task_id.and_then(|id| TaskId::new(id).ok()),
                turn_id: turn_id.and_then(|id| id.parse().ok()),
                step: document.steps.optional_position_of(row, 3)?,
                said: raw_json_column(row, 4)?,
                created_at: timestamp(row, 5)?,
                batch: row.get(6)?,
            })
        })?;
        let sql = format!(
            "SELECT learned.id, evidence, batches.id
             FROM lessons AS learned JOIN knowledge USING (id) {ended} ORDER BY learned.id"
        );
        self.section("lessons", &sql, |row, _| {
            Ok(LessonRecord {
                id: parse_column(row, 0)?,
                evidence: raw_json_column(row, 1)?,
                batch: row.get(2)?,
            })
        })
    }

    fn media(&mut self) -> Result<(), ExportError> {
        let sql = "SELECT hash FROM media WHERE EXISTS (SELECT 1 FROM media_uses WHERE media_uses.hash = media.hash) ORDER BY hash";
        self.section("media", sql, |row, document| {
            let hash: String = row.get(0)?;
            let mut data = document.reader.prepare_cached("SELECT data FROM media WHERE hash = ?1")?;
            let data = data.query_row([&hash], |row| row.get(0)).optional()?.unwrap_or_default();
            let tasks =
                "SELECT task_id FROM media_uses JOIN tasks USING (task) WHERE hash = ?1 ORDER BY task";
            let mut tasks = document.reader.prepare_cached(tasks)?;
            let task_ids = tasks.query_map([&hash], |row| task_id(row, 0))?.collect::<Result<_, _>>()?;
            Ok(MediaRecord { hash, data: Base64Bytes(data), task_ids })
        })
    }
}

/// Reads a column that contains JSON.
pub(super) fn raw_json_column(row: &Row<'_>, column: usize) -> Result<RawJson, Error> {
    RawValue::from_string(row.get(column)?)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// Reads a number of messages.
fn count_column(row: &Row<'_>, column: usize) -> Result<u32, Error> {
    Ok(u32::try_from(row.get::<_, i64>(column)?.max(0)).unwrap_or(u32::MAX))
}

/// The positions of rows that were written in ascending order, as runs without a gap, because only deletions leave
/// gaps.
#[derive(Default)]
struct RowPositions {
    /// The first row of each run, and its position.
    runs: Vec<(i64, u32)>,
    /// The row after the last one, and its position.
    end: (i64, u32),
}

impl RowPositions {
    fn push(&mut self, row: i64) {
        let (next, position) = self.end;
        if self.runs.is_empty() || row != next {
            self.runs.push((row, position));
        }
        self.end = (row + 1, position.saturating_add(1));
    }

    fn position(&self, row: i64) -> Option<u32> {
        let after = self.runs.partition_point(|(first, _)| *first <= row);
        let (first, position) = *self.runs.get(after.checked_sub(1)?)?;
        let found = position.checked_add(u32::try_from(row - first).ok()?)?;
        let (_, next_position) = *self.runs.get(after).unwrap_or(&self.end);
        (found < next_position).then_some(found)
    }

    /// The position of the row that a column refers to.
    fn position_of(&self, row: &Row<'_>, column: usize) -> Result<u32, Error> {
        self.position(row.get(column)?).ok_or(Error::QueryReturnedNoRows)
    }

    /// The position of the row that a column refers to; `None` if the column is null or the row was deleted.
    fn optional_position_of(&self, row: &Row<'_>, column: usize) -> Result<Option<u32>, Error> {
        Ok(row.get::<_, Option<i64>>(column)?.and_then(|row| self.position(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_at_their_places_and_what_was_deleted_is_not() {
        let mut positions = RowPositions::default();
        let rows = [2, 3, 4, 9, 10, 30];
        for row in rows {
            positions.push(row);
        }
        assert_eq!(positions.runs.len(), 3);
        for row in -1..40 {
            let expected = rows.iter().position(|known| *known == row);
            assert_eq!(
                positions.position(row),
                expected.and_then(|position| u32::try_from(position).ok()),
                "{row}"
            );
        }
    }
}
