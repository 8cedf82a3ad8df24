//! The writes to the brain, as methods of an open transaction.

use std::cell::Cell;

use api::engine::GrantScope;
use api::event::HitlRequest;
use api::memory::MemoryKind;
use api::webhooks::WebhookEvent;
use api::{GrantId, HitlId, MessageId, TaskId, Timestamp, TurnId};
use rusqlite::{Transaction, params};

use super::steps::{MemoryWrite, Opened, Step, TurnBase};
use super::{StoreError, TaskRow};

/// An open write transaction.
pub struct WriteTx<'a> {
    pub(super) transaction: &'a Transaction<'a>,
    /// Whether there is something new for the webhook.
    pub(super) wakes_webhook: Cell<bool>,
}

#[cfg(any(test, feature = "testing"))]
impl WriteTx<'_> {
    /// Returns the transaction, for statements that a test writes itself.
    pub fn transaction(&self) -> &Transaction<'_> {
        self.transaction
    }
}

/// A turn to insert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTurn {
    /// The id of the turn.
    pub turn_id: TurnId,
    /// The user's message, to which every phase of the turn refers.
    pub message_id: MessageId,
    /// The idempotency key of the request that began the turn, if the caller sent one.
    pub request: Option<IdempotencyKey>,
}

/// The idempotency key of a request, with a hash that detects its reuse for a different request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The caller's key (`client_request_id`).
    pub id: String,
    /// A hash of the request's content.
    pub hash: String,
}

/// The effects of an edit or a retry on a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewind {
    /// The `ts` of the first deleted event; `None` if all events stay.
    pub events_from: Option<i64>,
    /// The number of removed messages.
    pub messages: u64,
    /// The values that working memory is reset to; `None` for a key that did not exist.
    pub memory: Vec<(String, Option<serde_json::Value>)>,
}

/// A lasting approval to insert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGrant {
    /// The id of the grant.
    pub id: GrantId,
    /// The name of the tool.
    pub tool: String,
    /// The scope of the grant.
    pub scope: GrantScope,
    /// The request with whose answer it was given.
    pub request_id: HitlId,
    /// The prefix that a command must have, for a tool that runs commands.
    pub prefix: Option<String>,
    /// A hash of the tool's definition; `None` for a built-in tool.
    pub binding: Option<String>,
}

impl WriteTx<'_> {
    /// Inserts a task.
    pub fn insert_task(
        &self,
        TaskRow(task): TaskRow,
        task_id: &TaskId,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let sql = "INSERT INTO tasks (task, task_id, created_at, updated_at) VALUES (?1, ?2, ?3, ?3)";
        self.execute(sql, params![task, task_id.as_str(), at.unix_ms()])
    }

    /// Inserts a turn with the first event `opened_ts`. An earlier turn that could not be written to its end is
    /// given up, because it cannot continue after this one.
    pub fn insert_turn(
        &self,
        TaskRow(task): TaskRow,
        turn: &NewTurn,
        opened_ts: i64,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        self.give_up_open_turns(TaskRow(task), at)?;
        self.execute("DELETE FROM pending WHERE task = ?1", [task])?;
        let NewTurn { turn_id, message_id, request } = turn;
        let (request_id, hash) = request.as_ref().map(|request| (&request.id, &request.hash)).unzip();
        // A deleted task gets no turn.
        self.insert(
            "INSERT INTO turns (turn_id, task, message_id, opened_at, opened_ts, client_request_id, request_hash)
             SELECT ?1, task, ?3, ?4, ?5, ?6, ?7 FROM tasks WHERE task = ?2",
            params![
                turn_id.to_string(),
                task,
                message_id.to_string(),
                at.unix_ms(),
                opened_ts,
                request_id,
                hash
            ],
        )
    }

    /// Gives up the turns of a task that have not ended, with what waits for the user in them.
    fn give_up_open_turns(&self, TaskRow(task): TaskRow, at: Timestamp) -> Result<(), StoreError> {
        // Few turns are open, but a task may have had thousands: the `+` keeps SQLite from looking through those.
        let mut open = self
            .transaction
            .prepare_cached("SELECT turn_id FROM turns WHERE +task = ?1 AND ended_at IS NULL")?;
        let turns: Vec<String> = open.query_map([task], |row| row.get(0))?.collect::<Result<_, _>>()?;
        turns.iter().try_for_each(|turn| self.end_turn(TaskRow(task), turn, at))
    }

    /// Ends a turn, with what waits for the user in it, and reports that.
    fn end_turn(&self, task: TaskRow, turn: &str, at: Timestamp) -> Result<(), StoreError> {
        self.execute("DELETE FROM pending WHERE turn = (SELECT turn FROM turns WHERE turn_id = ?1)", [turn])?;
        self.execute("UPDATE turns SET ended_at = ?2 WHERE turn_id = ?1", params![turn, at.unix_ms()])?;
        self.report_event(WebhookEvent::TurnEnded, task, turn, None, at)
    }

    /// Resets the start count of a turn that waits for the user; engine starts do not resume it meanwhile.
    pub fn reset_start_count(&self, turn_id: TurnId) -> Result<(), StoreError> {
        self.execute("UPDATE turns SET starts = 0 WHERE turn_id = ?1", [turn_id.to_string()])
    }

    /// Counts an engine start that resumes the turn.
    pub fn increment_start_count(&self, turn_id: TurnId) -> Result<(), StoreError> {
        self.execute("UPDATE turns SET starts = starts + 1 WHERE turn_id = ?1", [turn_id.to_string()])
    }

    /// Inserts a step, with its effects on the turn, the task, usage and memory.
    pub fn insert_step(
        &self,
        TaskRow(task): TaskRow,
        turn_id: TurnId,
        at: Timestamp,
        ts: i64,
        step: &Step,
    ) -> Result<(), StoreError> {
        let body = to_json(step)?;
        let turn = turn_id.to_string();
        self.insert(
            "INSERT INTO steps (task, turn, at, ts, body)
             SELECT task, turn, ?2, ?3, ?4 FROM turns WHERE turn_id = ?1",
            params![turn, at.unix_ms(), ts, body],
        )?;
        if let Step::Opened(Opened {
            base: base @ (TurnBase::Edit { .. } | TurnBase::Retry { .. }), ..
        }) = step
        {
            let opening = self.transaction.last_insert_rowid();
            // The turn may go back before a turn that was given up, which must be indexed first.
            self.ingest_or_defer(TaskRow(task))?;
            self.rewind_memory(TaskRow(task), *base, opening)?;
        }
        self.insert_step_usage(at, step)?;
        let messages = step.message_count();
        let ended = matches!(step, Step::Ended { .. });
        if messages > 0 || ended || matches!(step, Step::Opened(_)) {
            let sql = "UPDATE tasks SET message_count = message_count + ?2, updated_at = ?3 WHERE task = ?1";
            self.execute(sql, params![task, messages, at.unix_ms()])?;
        }
        if ended {
            self.end_turn(TaskRow(task), &turn, at)?;
            self.ingest_or_defer(TaskRow(task))
        } else if step.is_progress() {
            self.execute("UPDATE turns SET starts = 0 WHERE turn_id = ?1 AND starts > 0", [turn])
        } else {
            Ok(())
        }
    }

    /// Inserts an event. `data` is the event's own data, a JSON object.
    pub fn insert_event(
        &self,
        TaskRow(task): TaskRow,
        turn_id: TurnId,
        ts: i64,
        kind: &str,
        data: &str,
    ) -> Result<(), StoreError> {
        self.insert(
            "INSERT INTO events (task, ts, turn, kind, data)
             SELECT ?1, ?2, turn, ?4, ?5 FROM turns WHERE turn_id = ?3",
            params![task, ts, turn_id.to_string(), kind, data],
        )
    }

    /// Sets a value in a task's working memory.
    pub fn set_working_memory(
        &self,
        TaskRow(task): TaskRow,
        MemoryWrite { key, value }: &MemoryWrite,
    ) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO working_memory (task, key, value) VALUES (?1, ?2, ?3)
             ON CONFLICT (task, key) DO UPDATE SET value = excluded.value",
            params![task, key, to_json(value)?],
        )
    }

    /// Writes to a task's working memory between two turns. Returns `false` if the task has had no turn.
    pub fn write_memory_between_turns(
        &self,
        task: TaskRow,
        writes: &[MemoryWrite],
        at: Timestamp,
    ) -> Result<bool, StoreError> {
        let TaskRow(row) = task;
        let body = to_json(&Step::Noted { memory: writes.to_vec() })?;
        let sql = "INSERT INTO steps (task, turn, at, ts, body)
                   SELECT task, turn, ?2, COALESCE((SELECT MAX(ts) FROM events WHERE events.task = ?1), 0), ?3
                   FROM turns WHERE task = ?1 ORDER BY turn DESC LIMIT 1";
        let is_stored = self.transaction.prepare_cached(sql)?.execute(params![row, at.unix_ms(), body])? > 0;
        if is_stored {
            writes.iter().try_for_each(|write| self.set_working_memory(task, write))?;
        }
        Ok(is_stored)
    }

    /// Records that the task's newest turn was shown a memory record. It belongs to the step that opened the turn, as
    /// the note belongs to the turn's message: what removes or keeps the message does so with both.
    pub fn insert_recalled(
        &self,
        TaskRow(task): TaskRow,
        kind: MemoryKind,
        id: &str,
    ) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO recalled (task, step, kind, id)
             SELECT ?1, step, ?2, ?3 FROM steps WHERE task = ?1 AND body ->> '$.step' = 'opened'
             ORDER BY step DESC LIMIT 1",
            params![task, kind.as_str(), id],
        )
    }

    /// Removes from a task what an edit or a retry invalidates. The journal keeps it.
    pub fn rewind(&self, task: TaskRow, rewind: &Rewind) -> Result<(), StoreError> {
        let TaskRow(row) = task;
        if let Some(from) = rewind.events_from {
            self.execute("DELETE FROM events WHERE task = ?1 AND ts >= ?2", params![row, from])?;
        }
        let sql = "UPDATE tasks SET message_count = message_count - ?2 WHERE task = ?1";
        self.execute(sql, params![row, i64::try_from(rewind.messages).unwrap_or(i64::MAX)])?;
        for (key, value) in &rewind.memory {
            match value {
                Some(value) => {
                    self.set_working_memory(task, &MemoryWrite { key: key.clone(), value: value.clone() })?;
                }
                None => self
                    .execute("DELETE FROM working_memory WHERE task = ?1 AND key = ?2", params![row, key])?,
            }
        }
        Ok(())
    }

    /// Inserts a request that waits for the user.
    pub fn insert_pending(
        &self,
        TaskRow(task): TaskRow,
        turn_id: TurnId,
        request: &HitlRequest,
    ) -> Result<(), StoreError> {
        self.insert(
            "INSERT INTO pending (request_id, task, turn, kind, question, created_at)
             SELECT ?1, ?2, turn, ?4, ?5, ?6 FROM turns WHERE turn_id = ?3",
            params![
                request.request_id.to_string(),
                task,
                turn_id.to_string(),
                request.kind.as_str(),
                request.question,
                request.created_at.unix_ms(),
            ],
        )?;
        let (turn, request_id) = (turn_id.to_string(), Some(request.request_id));
        self.report_event(WebhookEvent::TurnWaiting, TaskRow(task), &turn, request_id, request.created_at)
    }

    /// Deletes a request that the user has answered.
    pub fn delete_pending(&self, request_id: HitlId) -> Result<(), StoreError> {
        self.execute("DELETE FROM pending WHERE request_id = ?1", [request_id.to_string()])
    }

    /// Inserts a grant. It replaces grants for another definition of the same tool.
    pub fn insert_grant(
        &self,
        TaskRow(task): TaskRow,
        grant: &NewGrant,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let task = (grant.scope == GrantScope::Task).then_some(task);
        let NewGrant { id, tool, prefix, binding, request_id, .. } = grant;
        self.execute(
            // One for each: to revoke it is to revoke all that it covers.
            "DELETE FROM grants WHERE tool = ?1 AND task IS ?2 AND prefix IS ?3",
            params![tool, task, prefix],
        )?;
        self.execute(
            "INSERT INTO grants (grant_id, tool, task, prefix, created_at, binding, request_id)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![id.to_string(), tool, task, prefix, at.unix_ms(), binding, request_id.to_string()],
        )
    }

    /// Deletes the grants for tools whose names have this prefix.
    pub fn delete_grants_by_tool_prefix(&self, tool_name_prefix: &str) -> Result<(), StoreError> {
        self.execute("DELETE FROM grants WHERE substr(tool, 1, length(?1)) = ?1", [tool_name_prefix])
    }

    /// Deletes a grant and returns whether it existed.
    pub fn delete_grant(&self, id: GrantId) -> Result<bool, StoreError> {
        let sql = "DELETE FROM grants WHERE grant_id = ?1";
        Ok(self.transaction.prepare_cached(sql)?.execute([id.to_string()])? > 0)
    }

    /// Stores an attachment of a message of the task.
    pub fn insert_media(&self, TaskRow(task): TaskRow, hash: &str, data: &[u8]) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO media (hash, data) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
            params![hash, data],
        )?;
        let sql = "INSERT INTO media_uses (task, hash) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        self.execute(sql, params![task, hash])
    }

    /// Stores a checkpoint of a conversation whose journal ended with `step`, replacing the older one.
    pub fn set_checkpoint(
        &self,
        TaskRow(task): TaskRow,
        step: i64,
        form: i64,
        body: &str,
    ) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO checkpoints (task, step, form, body) SELECT task, ?2, ?3, ?4 FROM tasks WHERE task = ?1
             ON CONFLICT (task) DO UPDATE SET step = excluded.step, form = excluded.form, body = excluded.body",
            params![task, step, form, body],
        )
    }

    /// Deletes the deltas of at most `limit` turns that ended at or before `before`.
    pub fn fold_deltas(&self, before: Timestamp, limit: u32) -> Result<(), StoreError> {
        let due =
            "SELECT turn, task FROM turns WHERE folded = 0 AND ended_at <= ?1 ORDER BY ended_at LIMIT ?2";
        let due: Vec<(i64, i64)> = self
            .transaction
            .prepare_cached(due)?
            .query_map(params![before.unix_ms(), limit], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for (turn, task) in due {
            self.execute(
                "DELETE FROM events WHERE task = ?1 AND turn = ?2
                 AND CASE kind WHEN 'agent_event' THEN data ->> '$.event' ELSE kind END IN
                     ('text_delta', 'thinking_delta', 'content_block_start', 'content_block_stop')
                 AND ts >= COALESCE((SELECT opened_ts FROM turns WHERE turn = ?2), 0)
                 AND ts < COALESCE(
                     (SELECT opened_ts FROM turns
                      WHERE task = ?1 AND turn > ?2 AND opened_ts IS NOT NULL ORDER BY turn LIMIT 1),
                     9223372036854775807)",
                [task, turn],
            )?;
            self.execute("UPDATE turns SET folded = 1 WHERE turn = ?1", [turn])?;
        }
        Ok(())
    }

    /// Inserts a row that depends on a turn. Fails if the turn does not exist, instead of silently inserting
    /// nothing.
    pub(super) fn insert(&self, sql: &str, params: impl rusqlite::Params) -> Result<(), StoreError> {
        self.transaction.prepare_cached(sql)?.insert(params)?;
        Ok(())
    }

    pub(super) fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<(), StoreError> {
        self.transaction.prepare_cached(sql)?.execute(params)?;
        Ok(())
    }
}

/// Serializes a value to JSON, the form in which values are stored.
pub(crate) fn to_json(value: &impl serde::Serialize) -> Result<String, rusqlite::Error> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}
