//! The read queries of tasks, turns, steps, events, pending requests and grants.

use std::collections::BTreeMap;
use std::str::FromStr;

use api::engine::{Grant, GrantScope, PendingRequest, TaskSummary};
use api::event::{Event, HitlKind};
use api::{CallId, HitlId, MessageId, TaskId, Timestamp, TurnId};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};
use serde_json::Value;

use super::conversations::task_status;
use super::steps::Step;
use super::write_tx::IdempotencyKey;
use super::{TaskEntry, TaskRow};

/// An event in its stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Unix milliseconds, strictly increasing within the task.
    pub ts: i64,
    /// The turn of the event.
    pub turn_id: TurnId,
    /// The type of the event.
    pub kind: String,
    /// The event's own data, a JSON object.
    pub data: String,
}

impl StoredEvent {
    /// Parses the event.
    pub(super) fn into_event(self) -> Result<Event, Error> {
        let event = serde_json::from_str(&self.data).and_then(|data| Event::from_parts(&self.kind, data));
        event.map_err(|error| Error::FromSqlConversionFailure(3, Type::Text, Box::new(error)))
    }
}

/// A turn that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTurn {
    /// The id of the task.
    pub task_id: TaskId,
    /// The id of the turn.
    pub turn_id: TurnId,
    /// The number of engine starts that have resumed the turn since its last step.
    pub starts: u32,
    /// The user's message.
    pub message_id: MessageId,
    /// The idempotency key of the request that began it, if the caller sent one.
    pub request: Option<IdempotencyKey>,
    /// The `ts` of its first event; 0 if an earlier version did not record it.
    pub opened_ts: i64,
    /// The request with which the turn waits for the user.
    pub pending: Option<PendingHitl>,
}

/// A request that waits for an answer of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingHitl {
    /// The id of the request.
    pub request_id: HitlId,
    /// The kind of the request.
    pub kind: HitlKind,
    /// The time at which it was made.
    pub created_at: Timestamp,
}

/// A turn that was begun by a request with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedTurn {
    /// The id of the turn.
    pub turn_id: TurnId,
    /// The hash of the request's content.
    pub hash: String,
    /// The `ts` of the turn's first event.
    pub opened_ts: i64,
    /// Whether that event still exists: an edit deletes the events of turns.
    pub opened_event_exists: bool,
}

/// A step in its stored form.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredStep {
    /// The turn of the step.
    pub turn_id: TurnId,
    /// The `ts` of the turn's first event; the step's own `ts` if an earlier version did not record it.
    pub opened_ts: i64,
    /// The `ts` of the task's newest event when the step was stored.
    pub ts: i64,
    /// The time at which the step was stored.
    pub at: Timestamp,
    /// The step itself.
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
    // Turns that a fork has copied, and those of the first version, have no `opened_ts`.
    let newest = |condition: &str| {
        let sql = format!(
            "SELECT task_id FROM turns JOIN tasks USING (task) WHERE {condition} ORDER BY turn DESC LIMIT 1"
        );
        reader.prepare_cached(&sql)?.query_row([], |row| task_id(row, 0)).optional()
    };
    match newest("opened_ts IS NOT NULL")? {
        Some(task_id) => Ok(Some(task_id)),
        None => newest("TRUE"),
    }
}

pub(super) fn events_after(
    reader: &Connection,
    TaskRow(task): TaskRow,
    after: i64,
    (limit, bytes): (usize, usize),
) -> Result<Vec<StoredEvent>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT ts, turn_id, kind, data FROM events JOIN turns USING (turn)
         WHERE events.task = ?1 AND ts > ?2 ORDER BY ts LIMIT ?3",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = query.query_map([task, after, limit], |row| {
        Ok(StoredEvent {
            ts: row.get(0)?,
            turn_id: parse_column(row, 1)?,
            kind: row.get(2)?,
            data: row.get(3)?,
        })
    })?;
    let mut remaining = bytes;
    let mut events = Vec::new();
    for event in rows {
        let event = event?;
        let size = event.data.len();
        events.push(event);
        if size >= remaining {
            break;
        }
        remaining -= size;
    }
    Ok(events)
}

pub(super) fn steps(reader: &Connection, task: TaskRow) -> Result<Vec<StoredStep>, Error> {
    let mut steps = Vec::new();
    for_each_step(reader, task, 0, |_, _, step| {
        steps.push(step);
        true
    })?;
    Ok(steps)
}

/// Calls `visit` with each step of a task after the row `after`, oldest first, together with its row and its size
/// in bytes, until `visit` returns `false`.
pub(super) fn for_each_step(
    reader: &Connection,
    TaskRow(task): TaskRow,
    after: i64,
    mut visit: impl FnMut(i64, usize, StoredStep) -> bool,
) -> Result<(), Error> {
    let mut query = reader.prepare_cached(
        "SELECT turn_id, ts, body, at, COALESCE(opened_ts, ts), step
         FROM steps JOIN turns USING (turn) WHERE steps.task = ?1 AND step > ?2 ORDER BY step",
    )?;
    let mut rows = query.query([task, after])?;
    while let Some(row) = rows.next()? {
        let body = row.get_ref(2)?.as_str()?;
        let step = parse_step(body)
            .map_err(|error| Error::FromSqlConversionFailure(2, Type::Text, Box::new(error)))?;
        let (turn_id, opened_ts) = (parse_column(row, 0)?, row.get(4)?);
        let stored = StoredStep { turn_id, opened_ts, ts: row.get(1)?, at: timestamp(row, 3)?, step };
        if !visit(row.get(5)?, body.len(), stored) {
            break;
        }
    }
    Ok(())
}

/// A snapshot of a conversation at the end of a turn; only the journal after it has to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last step that it includes.
    pub step: i64,
    /// The turn of that step.
    pub turn_id: TurnId,
    /// The serialized conversation.
    pub body: String,
}

pub(super) fn checkpoint(
    reader: &Connection,
    TaskRow(task): TaskRow,
    form: i64,
) -> Result<Option<Checkpoint>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT checkpoints.step, turn_id, checkpoints.body
         FROM checkpoints JOIN steps USING (step) JOIN turns USING (turn)
         WHERE checkpoints.task = ?1 AND steps.task = ?1 AND form = ?2",
    )?;
    let found = query.query_row([task, form], |row| {
        Ok(Checkpoint { step: row.get(0)?, turn_id: parse_column(row, 1)?, body: row.get(2)? })
    });
    found.optional()
}

/// The values of a task's working memory, without removed ones (which are stored as null).
pub(super) fn working_memory(
    reader: &Connection,
    TaskRow(task): TaskRow,
) -> Result<BTreeMap<String, Value>, Error> {
    let mut query = reader.prepare_cached("SELECT key, value FROM working_memory WHERE task = ?1")?;
    let rows = query.query_map([task], |row| {
        let value = serde_json::from_str(row.get_ref(1)?.as_str()?)
            .map_err(|error| Error::FromSqlConversionFailure(1, Type::Text, Box::new(error)))?;
        Ok((row.get(0)?, value))
    })?;
    rows.filter(|row| !matches!(row, Ok((_, Value::Null)))).collect()
}

/// Parses a step. A step that a later version wrote with unknown content becomes [`Step::Unknown`].
pub(super) fn parse_step(body: &str) -> Result<Step, serde_json::Error> {
    serde_json::from_str(body).or_else(|error| {
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(body)?;
        let kind = fields.get("step").unwrap_or_default();
        tracing::warn!(%error, step = %kind, "A step cannot be parsed; it is skipped.");
        Ok(Step::Unknown)
    })
}

pub(super) fn open_turns(reader: &Connection) -> Result<Vec<OpenTurn>, Error> {
    let mut query = reader.prepare(
        "SELECT task_id, turn_id, starts, message_id, client_request_id, request_hash,
                COALESCE(opened_ts, 0), request_id, kind, pending.created_at
         FROM turns JOIN tasks USING (task) LEFT JOIN pending USING (turn)
         WHERE ended_at IS NULL ORDER BY turn",
    )?;
    let rows = query.query_map([], |row| {
        let request = match (row.get(4)?, row.get(5)?) {
            (Some(id), Some(hash)) => Some(IdempotencyKey { id, hash }),
            _ => None,
        };
        let pending = match row.get_ref(7)? {
            rusqlite::types::ValueRef::Null => None,
            _ => Some(PendingHitl {
                request_id: parse_column(row, 7)?,
                kind: parse_column(row, 8)?,
                created_at: timestamp(row, 9)?,
            }),
        };
        Ok(OpenTurn {
            task_id: task_id(row, 0)?,
            turn_id: parse_column(row, 1)?,
            starts: row.get(2)?,
            message_id: parse_column(row, 3)?,
            request,
            opened_ts: row.get(6)?,
            pending,
        })
    })?;
    rows.collect()
}

pub(super) fn turn_by_request(
    reader: &Connection,
    task_id: &TaskId,
    request: &str,
) -> Result<Option<RequestedTurn>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT turn_id, COALESCE(request_hash, ''), COALESCE(opened_ts, 0),
                EXISTS (SELECT 1 FROM events WHERE events.task = turns.task AND ts = opened_ts)
         FROM turns JOIN tasks USING (task) WHERE task_id = ?1 AND client_request_id = ?2",
    )?;
    let turn = query.query_row([task_id.as_str(), request], |row| {
        Ok(RequestedTurn {
            turn_id: parse_column(row, 0)?,
            hash: row.get(1)?,
            opened_ts: row.get(2)?,
            opened_event_exists: row.get(3)?,
        })
    });
    turn.optional()
}

pub(super) fn tasks(reader: &Connection, limit: i64, offset: i64) -> Result<Vec<TaskSummary>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT task_id, message_count, updated_at,
                EXISTS (SELECT 1 FROM turns WHERE turns.task = page.task AND ended_at IS NULL),
                EXISTS (SELECT 1 FROM pending WHERE pending.task = page.task)
         FROM (SELECT * FROM tasks ORDER BY updated_at DESC, task DESC LIMIT ?1 OFFSET ?2) AS page
         ORDER BY updated_at DESC, page.task DESC",
    )?;
    let rows = query.query_map([limit, offset], |row| {
        Ok(TaskSummary {
            task_id: task_id(row, 0)?,
            status: task_status(row, 3)?,
            message_count: row.get::<_, i64>(1)?.try_into().unwrap_or(0),
            updated_at: timestamp(row, 2)?,
        })
    })?;
    rows.collect()
}

pub(super) fn task_count(reader: &Connection) -> Result<u64, Error> {
    let count: i64 = reader.query_row("SELECT COUNT(*) FROM tasks", [], |row| row.get(0))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

pub(super) fn pending(reader: &Connection) -> Result<Vec<PendingRequest>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT request_id, task_id, kind, question, pending.created_at
         FROM pending JOIN tasks USING (task) ORDER BY pending.created_at, request_id",
    )?;
    let rows = query.query_map([], |row| {
        Ok(PendingRequest {
            request_id: parse_column(row, 0)?,
            task_id: task_id(row, 1)?,
            kind: parse_column(row, 2)?,
            question: row.get(3)?,
            created_at: timestamp(row, 4)?,
        })
    })?;
    rows.collect()
}

pub(super) fn pending_count(reader: &Connection) -> Result<u64, Error> {
    let count: i64 = reader.query_row("SELECT COUNT(*) FROM pending", [], |row| row.get(0))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// The time of the last change of any task.
pub(super) fn last_change_at(reader: &Connection) -> Result<Option<Timestamp>, Error> {
    let at: Option<i64> = reader.query_row("SELECT MAX(updated_at) FROM tasks", [], |row| row.get(0))?;
    Ok(at.map(Timestamp::from_unix_ms))
}

pub(super) fn pending_of_task(reader: &Connection, task_id: &TaskId) -> Result<Option<HitlId>, Error> {
    let mut query =
        reader.prepare_cached("SELECT request_id FROM pending JOIN tasks USING (task) WHERE task_id = ?1")?;
    query.query_row([task_id.as_str()], |row| parse_column(row, 0)).optional()
}

pub(super) fn grants(reader: &Connection) -> Result<Vec<Grant>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT grant_id, tool, task_id, prefix, grants.created_at
         FROM grants LEFT JOIN tasks USING (task) ORDER BY grants.created_at, grant_id",
    )?;
    let rows = query.query_map([], |row| {
        let task_id = match row.get_ref(2)? {
            rusqlite::types::ValueRef::Null => None,
            _ => Some(task_id(row, 2)?),
        };
        Ok(Grant {
            id: parse_column(row, 0)?,
            tool: row.get(1)?,
            scope: if task_id.is_some() { GrantScope::Task } else { GrantScope::Engine },
            task_id,
            prefix: row.get(3)?,
            created_at: timestamp(row, 4)?,
        })
    })?;
    rows.collect()
}

/// A lasting approval of the user for a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolGrant {
    /// The prefix that a command must have, for a tool that runs commands.
    pub prefix: Option<String>,
    /// A hash of the tool's definition; `None` if the tool is built in or an earlier version did not record it.
    pub binding: Option<String>,
}

pub(super) fn grants_for_tool(
    reader: &Connection,
    TaskRow(task): TaskRow,
    tool: &str,
) -> Result<Vec<ToolGrant>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT DISTINCT prefix, binding FROM grants WHERE tool = ?1 AND (task IS NULL OR task = ?2)",
    )?;
    let rows = query
        .query_map(params![tool, task], |row| Ok(ToolGrant { prefix: row.get(0)?, binding: row.get(1)? }))?;
    rows.collect()
}

/// The end of the earliest ended turn whose deltas have not been folded away.
pub(super) fn first_unfolded(reader: &Connection) -> Result<Option<Timestamp>, Error> {
    let mut query =
        reader.prepare_cached("SELECT MIN(ended_at) FROM turns WHERE folded = 0 AND ended_at IS NOT NULL")?;
    let ended_at: Option<i64> = query.query_row([], |row| row.get(0))?;
    Ok(ended_at.map(Timestamp::from_unix_ms))
}

pub(super) fn timestamp(row: &Row<'_>, column: usize) -> Result<Timestamp, Error> {
    row.get(column).map(Timestamp::from_unix_ms)
}

/// A column with a time, or nothing.
pub(super) fn optional_timestamp(row: &Row<'_>, column: usize) -> Result<Option<Timestamp>, Error> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_unix_ms))
}

pub(super) fn task_id(row: &Row<'_>, column: usize) -> Result<TaskId, Error> {
    let text: String = row.get(column)?;
    TaskId::new(text).map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

pub(super) fn parse_column<T>(row: &Row<'_>, column: usize) -> Result<T, Error>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// The number of content blocks in a turn's event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCounts {
    /// The number of blocks that were started.
    pub started: u32,
    /// The number of blocks that were stopped.
    pub stopped: u32,
    /// The number of blocks of its sub-agents that were started.
    pub agents_started: u32,
}

impl BlockCounts {
    /// The block that was started and not stopped.
    pub fn open_block(self) -> Option<u32> {
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
                COUNT(*) FILTER (WHERE kind = 'content_block_stop'),
                COUNT(*) FILTER (WHERE kind = 'agent_event' AND data ->> '$.event' = 'content_block_start')
         FROM events WHERE task = ?1 AND turn = (SELECT turn FROM turns WHERE turn_id = ?2)
         AND ts >= COALESCE((SELECT opened_ts FROM turns WHERE turn_id = ?2), 0)",
    )?;
    query.query_row(rusqlite::params![task, turn_id.to_string()], |row| {
        Ok(BlockCounts { started: row.get(0)?, stopped: row.get(1)?, agents_started: row.get(2)? })
    })
}

/// The calls of a turn that clients have seen without a result yet: the id and the tool of each.
pub(super) fn open_calls(
    reader: &Connection,
    TaskRow(task): TaskRow,
    turn_id: TurnId,
) -> Result<Vec<(CallId, String)>, Error> {
    let mut query = reader.prepare(
        "WITH told AS (
             SELECT kind, data ->> '$.tool_call_id' AS call, data ->> '$.tool' AS tool, ts FROM events
             WHERE task = ?1 AND turn = (SELECT turn FROM turns WHERE turn_id = ?2)
             AND ts >= COALESCE((SELECT opened_ts FROM turns WHERE turn_id = ?2), 0)
             AND kind IN ('tool_call', 'tool_result')
         )
         SELECT call, tool FROM told
         WHERE kind = 'tool_call' AND call NOT IN (SELECT call FROM told WHERE kind = 'tool_result')
         ORDER BY ts",
    )?;
    let rows = query
        .query_map(params![task, turn_id.to_string()], |row| Ok((parse_column(row, 0)?, row.get(1)?)))?;
    rows.collect()
}
