//! What is read from the brain.

use std::str::FromStr;

use contract::event::Event;
use contract::{MessageId, TaskId, TurnId};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row};

use super::steps::Step;
use super::{TaskEntry, TaskRow};

/// An event as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Unix milliseconds, strictly increasing within the task.
    pub ts: i64,
    /// The turn.
    pub turn_id: TurnId,
    /// Its type.
    pub kind: String,
    /// Its own data, a JSON object.
    pub data: String,
}

impl StoredEvent {
    /// The event itself.
    pub(super) fn into_event(self) -> Result<Event, Error> {
        let event = serde_json::from_str(&self.data).and_then(|data| Event::from_parts(&self.kind, data));
        event.map_err(|error| Error::FromSqlConversionFailure(3, Type::Text, Box::new(error)))
    }
}

/// A turn that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTurn {
    /// The task.
    pub task_id: TaskId,
    /// The turn.
    pub turn_id: TurnId,
    /// How many starts of the engine have taken it up since its last step.
    pub starts: u32,
    /// The user's message.
    pub message_id: MessageId,
}

/// A step as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredStep {
    /// The turn.
    pub turn_id: TurnId,
    /// The task's newest event when the step was on record.
    pub ts: i64,
    /// The step.
    pub step: Step,
}

pub(super) fn task(reader: &Connection, task_id: &TaskId) -> Result<Option<TaskEntry>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT task, COALESCE((SELECT MAX(ts) FROM events WHERE events.task = tasks.task), 0)
         FROM tasks WHERE task_id = ?1",
    )?;
    query
        .query_row([task_id.as_str()], |row| {
            Ok(TaskEntry { row: TaskRow(row.get(0)?), last_ts: row.get(1)? })
        })
        .optional()
}

pub(super) fn last_task(reader: &Connection) -> Result<Option<TaskId>, Error> {
    let mut query = reader
        .prepare_cached("SELECT task_id FROM turns JOIN tasks USING (task) ORDER BY turn DESC LIMIT 1")?;
    query.query_row([], |row| task_id(row, 0)).optional()
}

pub(super) fn events_after(
    reader: &Connection,
    TaskRow(task): TaskRow,
    after: i64,
    limit: usize,
) -> Result<Vec<StoredEvent>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT ts, turn_id, kind, data FROM events JOIN turns USING (turn)
         WHERE events.task = ?1 AND ts > ?2 ORDER BY ts LIMIT ?3",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = query.query_map([task, after, limit], |row| {
        Ok(StoredEvent { ts: row.get(0)?, turn_id: parsed(row, 1)?, kind: row.get(2)?, data: row.get(3)? })
    })?;
    rows.collect()
}

pub(super) fn steps(reader: &Connection, TaskRow(task): TaskRow) -> Result<Vec<StoredStep>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT turn_id, ts, body FROM steps JOIN turns USING (turn) WHERE steps.task = ?1 ORDER BY step",
    )?;
    let rows = query.query_map([task], |row| {
        let step = serde_json::from_str(row.get_ref(2)?.as_str()?)
            .map_err(|error| Error::FromSqlConversionFailure(2, Type::Text, Box::new(error)))?;
        Ok(StoredStep { turn_id: parsed(row, 0)?, ts: row.get(1)?, step })
    })?;
    rows.collect()
}

pub(super) fn open_turns(reader: &Connection) -> Result<Vec<OpenTurn>, Error> {
    let mut query = reader.prepare(
        "SELECT task_id, turn_id, starts, message_id FROM turns JOIN tasks USING (task)
         WHERE ended_at IS NULL ORDER BY turn",
    )?;
    let rows = query.query_map([], |row| {
        Ok(OpenTurn {
            task_id: task_id(row, 0)?,
            turn_id: parsed(row, 1)?,
            starts: row.get(2)?,
            message_id: parsed(row, 3)?,
        })
    })?;
    rows.collect()
}

fn task_id(row: &Row<'_>, column: usize) -> Result<TaskId, Error> {
    let text: String = row.get(column)?;
    TaskId::new(text).map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

fn parsed<T>(row: &Row<'_>, column: usize) -> Result<T, Error>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// The content blocks of a turn's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCounts {
    /// How many have begun.
    pub started: u32,
    /// How many have ended.
    pub stopped: u32,
}

impl BlockCounts {
    /// The block that has begun and not ended.
    pub fn open(self) -> Option<u32> {
        (self.started > self.stopped).then(|| self.started - 1)
    }
}

pub(super) fn block_counts(
    reader: &Connection,
    TaskRow(task): TaskRow,
    turn_id: TurnId,
) -> Result<BlockCounts, Error> {
    let mut query = reader.prepare_cached(
        "SELECT COUNT(*) FILTER (WHERE kind = 'content_block_start'),
                COUNT(*) FILTER (WHERE kind = 'content_block_stop')
         FROM events WHERE task = ?1 AND turn = (SELECT turn FROM turns WHERE turn_id = ?2)",
    )?;
    query.query_row(rusqlite::params![task, turn_id.to_string()], |row| {
        Ok(BlockCounts { started: row.get(0)?, stopped: row.get(1)? })
    })
}
