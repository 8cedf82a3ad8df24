//! The messages that wait for their turn. A row is written before a message is accepted, and deleted by the commit
//! that opens its turn, so a message is either queued or has begun, never both and never neither. A message that
//! was taken out of the queue leaves a row without its words: what became of it can still be looked up.

use api::turns::QueuedMessage;
use api::webhooks::WebhookEvent;
use api::{TaskId, Timestamp, TurnId};
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::queries::{parse_column, task_id, timestamp};
use super::write_tx::IdempotencyKey;
use super::{Brain, ErasureScope, StoreError, TaskRow, WriteTx};

/// A message to insert.
#[derive(Clone, Debug)]
pub struct NewQueuedTurn {
    /// Its place among all queued messages of the engine.
    pub entry: i64,
    /// The turn that it will become.
    pub turn_id: TurnId,
    /// The request as JSON.
    pub body: String,
    /// The idempotency key of the request, if the caller sent one.
    pub request: Option<IdempotencyKey>,
    /// Whether it takes the place of the running turn and comes before those that do not.
    pub interrupts: bool,
}

/// A queued message without its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedTurnRow {
    /// Its place among all queued messages of the engine.
    pub entry: i64,
    /// The task.
    pub task_id: TaskId,
    /// The turn that it will become.
    pub turn_id: TurnId,
    /// The size of the request in bytes.
    pub bytes: u64,
    /// The idempotency key of the request, if the caller sent one.
    pub request: Option<IdempotencyKey>,
    /// Whether it takes the place of the running turn and comes before those that do not.
    pub interrupts: bool,
}

/// A queued message with its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRequest {
    /// The request as JSON.
    pub body: String,
    /// When it was queued.
    pub queued_at: Timestamp,
    /// The idempotency key of the request, if the caller sent one.
    pub request: Option<IdempotencyKey>,
}

/// How a message left the queue without becoming a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueEnd {
    /// Its user took it out.
    Cancelled,
    /// Its turn could not begin.
    Failed,
    /// The message that its turn was to edit or to retry is not in the conversation.
    UnknownMessage,
}

impl QueueEnd {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::UnknownMessage => "unknown_message",
        }
    }

    /// Parses the stored form. A word of a later version counts as a failure.
    pub(super) fn parse(word: &str) -> Self {
        let known = [Self::Cancelled, Self::UnknownMessage];
        known.into_iter().find(|end| end.as_str() == word).unwrap_or(Self::Failed)
    }
}

/// A message that left the queue without becoming a turn, found by the idempotency key of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedQueuedTurn {
    /// The turn that it would have become.
    pub turn_id: TurnId,
    /// The hash of the request's content.
    pub hash: String,
    /// How it left the queue.
    pub end: QueueEnd,
}

impl WriteTx<'_> {
    /// Queues a message. Returns `false` if its task does not exist any more.
    pub fn insert_queued_turn(
        &self,
        TaskRow(task): TaskRow,
        turn: &NewQueuedTurn,
        at: Timestamp,
    ) -> Result<bool, StoreError> {
        let NewQueuedTurn { entry, turn_id, body, request, interrupts } = turn;
        let (request_id, hash) = request.as_ref().map(|request| (&request.id, &request.hash)).unzip();
        let bytes = i64::try_from(body.len()).unwrap_or(i64::MAX);
        let sql = "INSERT INTO queued_turns
                       (entry, task, turn_id, queued_at, bytes, client_request_id, request_hash, body, interrupts)
                   SELECT ?1, task, ?3, ?4, ?5, ?6, ?7, ?8, ?9 FROM tasks WHERE task = ?2";
        let turn = turn_id.to_string();
        let values = params![entry, task, turn, at.unix_ms(), bytes, request_id, hash, body, interrupts];
        Ok(self.transaction.prepare_cached(sql)?.execute(values)? > 0)
    }

    /// Takes a message out of the queue because its turn begins, which the same commit has inserted.
    pub fn dequeue_turn(&self, turn_id: TurnId) -> Result<(), StoreError> {
        let turn = turn_id.to_string();
        self.execute(
            "UPDATE turns SET queued_at = (SELECT queued_at FROM queued_turns WHERE turn_id = ?1) WHERE turn_id = ?1",
            [&turn],
        )?;
        self.execute("DELETE FROM queued_turns WHERE turn_id = ?1", [&turn])
    }

    /// Takes a message out of the queue without a turn, and queues the erasure of its words. Returns whether it was
    /// queued.
    pub fn end_queued_turn(&self, turn_id: TurnId, end: QueueEnd, at: Timestamp) -> Result<bool, StoreError> {
        let sql = "UPDATE queued_turns SET body = NULL, bytes = 0, ended_at = ?2, outcome = ?3
                   WHERE turn_id = ?1 AND ended_at IS NULL";
        let turn = turn_id.to_string();
        let values = params![turn, at.unix_ms(), end.as_str()];
        let ended = self.transaction.prepare_cached(sql)?.execute(values)? > 0;
        if ended {
            let sql = "SELECT task FROM queued_turns WHERE turn_id = ?1";
            let task = self.transaction.prepare_cached(sql)?.query_row([&turn], |row| row.get(0))?;
            self.report_event(WebhookEvent::TurnEnded, TaskRow(task), &turn, None, at)?;
            self.enqueue_erasure(&ErasureScope::default())?;
        }
        Ok(ended)
    }
}

impl Brain {
    /// The queued messages of all tasks, each task's in their order, without their words, and the entry after the last one.
    pub fn queued_turns(&self) -> Result<(Vec<QueuedTurnRow>, i64), StoreError> {
        self.read(|reader| Ok((queued_turns(reader)?, next_entry(reader)?)))
    }

    /// A queued message with its words. Blocks.
    pub fn queued_request(&self, turn_id: TurnId) -> Result<Option<QueuedRequest>, StoreError> {
        self.read_long(|reader| {
            let sql = "SELECT body, queued_at, client_request_id, request_hash FROM queued_turns
                       WHERE turn_id = ?1 AND ended_at IS NULL";
            let mut query = reader.prepare_cached(sql)?;
            let request = |row: &Row<'_>| {
                Ok(QueuedRequest {
                    body: row.get(0)?,
                    queued_at: timestamp(row, 1)?,
                    request: key_columns(row, 2)?,
                })
            };
            query.query_row([turn_id.to_string()], request).optional()
        })
    }

    /// The queued messages of a task in their order. Blocks.
    pub fn queued_messages(&self, task: TaskRow) -> Result<Vec<QueuedMessage>, StoreError> {
        self.read_long(|reader| queued_messages(reader, task))
    }

    /// The message of the task that was sent by the request with the idempotency key `request`, and left the queue
    /// without becoming a turn.
    pub fn ended_queued_turn(
        &self,
        task_id: &TaskId,
        request: &str,
    ) -> Result<Option<EndedQueuedTurn>, StoreError> {
        self.read(|reader| ended_queued_turn(reader, task_id, request))
    }
}

fn queued_turns(reader: &Connection) -> Result<Vec<QueuedTurnRow>, Error> {
    let mut query = reader.prepare(
        "SELECT entry, task_id, turn_id, bytes, client_request_id, request_hash, interrupts
         FROM queued_turns JOIN tasks USING (task) WHERE ended_at IS NULL ORDER BY interrupts DESC, entry",
    )?;
    let rows = query.query_map([], |row| {
        Ok(QueuedTurnRow {
            entry: row.get(0)?,
            task_id: task_id(row, 1)?,
            turn_id: parse_column(row, 2)?,
            bytes: size_column(row, 3)?,
            request: key_columns(row, 4)?,
            interrupts: row.get(6)?,
        })
    })?;
    rows.collect()
}

fn next_entry(reader: &Connection) -> Result<i64, Error> {
    reader.query_row("SELECT 1 + COALESCE(MAX(entry), 0) FROM queued_turns", [], |row| row.get(0))
}

fn queued_messages(reader: &Connection, TaskRow(task): TaskRow) -> Result<Vec<QueuedMessage>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT turn_id, COALESCE(body ->> '$.message', ''), COALESCE(json_array_length(body, '$.media'), 0),
                bytes, queued_at
         FROM queued_turns WHERE task = ?1 AND ended_at IS NULL ORDER BY interrupts DESC, entry",
    )?;
    let rows = query.query_map([task], |row| {
        Ok(QueuedMessage {
            turn_id: parse_column(row, 0)?,
            position: 0,
            message: row.get(1)?,
            media_count: size_column(row, 2)?,
            size_bytes: size_column(row, 3)?,
            queued_at: timestamp(row, 4)?,
        })
    })?;
    let numbered = (1..).zip(rows).map(|(position, row)| Ok(QueuedMessage { position, ..row? }));
    numbered.collect()
}

fn ended_queued_turn(
    reader: &Connection,
    task_id: &TaskId,
    request: &str,
) -> Result<Option<EndedQueuedTurn>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT turn_id, COALESCE(request_hash, ''), COALESCE(outcome, '')
         FROM queued_turns JOIN tasks USING (task)
         WHERE task_id = ?1 AND client_request_id = ?2 AND ended_at IS NOT NULL ORDER BY entry DESC LIMIT 1",
    )?;
    let found = query.query_row([task_id.as_str(), request], |row| {
        Ok(EndedQueuedTurn {
            turn_id: parse_column(row, 0)?,
            hash: row.get(1)?,
            end: QueueEnd::parse(row.get_ref(2)?.as_str()?),
        })
    });
    found.optional()
}

/// The idempotency key in two columns, of which the first is `column`.
fn key_columns(row: &Row<'_>, column: usize) -> Result<Option<IdempotencyKey>, Error> {
    let (id, hash): (Option<String>, Option<String>) = (row.get(column)?, row.get(column + 1)?);
    Ok(id.zip(hash).map(|(id, hash)| IdempotencyKey { id, hash }))
}

fn size_column(row: &Row<'_>, column: usize) -> Result<u64, Error> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}

#[cfg(test)]
#[path = "../tests/unit/turn_queue.rs"]
mod tests;
