//! Forks: a new task with a copy of a conversation up to one of its messages.
//!
//! The journal is copied, which is all of a conversation: it is folded as that of the original was at that point. The
//! turns get ids of their own and bring no events; messages and calls keep their ids. Memory keeps what it knows of
//! these turns (episodes, trajectories, knowledge) from the original. The messages of a fork are indexed like any
//! others, so that nothing depends on which of the tasks is deleted first; of equal messages a search shows one.

use api::{MessageId, TaskId, Timestamp, TurnId};
use rusqlite::params;

use super::memory_ingest::MAX_INDEXED_MESSAGES;
use super::steps::MemoryWrite;
use super::{StoreError, TaskRow, WriteTx, to_json};

/// A fork to make.
#[derive(Clone, Debug, PartialEq)]
pub struct NewFork {
    /// The task that is forked.
    pub origin: (TaskRow, TaskId),
    /// The id of the new task.
    pub task_id: TaskId,
    /// The last message that is copied.
    pub after: MessageId,
    /// The last step of the journal that is copied.
    pub last_step: i64,
    /// The steps before it that are left out: messages of the user that the model got later.
    pub left_out: Vec<i64>,
    /// The number of messages that are listed then.
    pub message_count: u64,
    /// The working memory at that point.
    pub memory: Vec<MemoryWrite>,
    /// The title; by default that of the original.
    pub title: Option<String>,
    /// What the original and its forks have in common, unless that exists already.
    pub family: String,
}

/// What came of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The new task exists.
    Yes,
    /// The task that was to be forked is gone.
    OriginGone,
    /// There is another task of that id.
    TaskExists,
}

impl WriteTx<'_> {
    /// Makes a fork with the row `task`, completely or not at all.
    pub fn fork_task(&self, task: TaskRow, fork: &NewFork, at: Timestamp) -> Result<Forked, StoreError> {
        let (TaskRow(origin), origin_id) = &fork.origin;
        if self.find_task(origin_id)? != Some(*origin) {
            return Ok(Forked::OriginGone);
        }
        if self.find_task(&fork.task_id)?.is_some() {
            return Ok(Forked::TaskExists);
        }
        self.insert_task(task, &fork.task_id, at)?;
        let count = i64::try_from(fork.message_count).unwrap_or(i64::MAX);
        self.execute("UPDATE tasks SET message_count = ?2 WHERE task = ?1", params![task.0, count])?;
        self.copy_journal(*origin, task.0, fork, at)?;
        for write in &fork.memory {
            self.set_working_memory(task, write)?;
        }
        self.execute(
            "WITH with_media AS MATERIALIZED (
                 SELECT step FROM steps WHERE task = ?2 AND instr(body, '\"hash\"')
             )
             INSERT INTO media_uses (task, hash)
             SELECT ?2, hash FROM media_uses WHERE task = ?1
             AND EXISTS (SELECT 1 FROM with_media JOIN steps USING (step) WHERE instr(body, hash))",
            [*origin, task.0],
        )?;
        self.insert_fork(*origin, task.0, fork)?;
        let is_tainted = self.ingest_copied(task)?;
        self.execute(
            "UPDATE conversations SET tainted = ?3 OR (SELECT tainted FROM conversations WHERE task = ?1)
             WHERE task = ?2",
            params![origin, task.0, is_tainted],
        )?;
        // The others are indexed in the background.
        self.index_messages(task, MAX_INDEXED_MESSAGES)?;
        Ok(Forked::Yes)
    }

    fn copy_journal(&self, origin: i64, task: i64, fork: &NewFork, at: Timestamp) -> Result<(), StoreError> {
        let left_out = to_json(&fork.left_out)?;
        let turns: Vec<i64> = self
            .transaction
            .prepare_cached("SELECT DISTINCT turn FROM steps WHERE task = ?1 AND step <= ?2 ORDER BY turn")?
            .query_map([origin, fork.last_step], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let mut copies: Vec<[i64; 2]> = Vec::with_capacity(turns.len());
        for turn in turns {
            // The copies bring no events, and repeat no request.
            self.execute(
                "INSERT INTO turns (turn_id, task, message_id, opened_at, ended_at, folded)
                 SELECT ?1, ?2, message_id, opened_at, COALESCE(ended_at, ?4), 1 FROM turns WHERE turn = ?3",
                params![TurnId::new().to_string(), task, turn, at.unix_ms()],
            )?;
            copies.push([turn, self.transaction.last_insert_rowid()]);
        }
        self.execute(
            "WITH copies AS MATERIALIZED (SELECT value ->> 0 AS turn, value ->> 1 AS copy FROM json_each(?5))
             INSERT INTO steps (task, turn, at, ts, body)
             SELECT ?1, copy, at, ts, body FROM steps JOIN copies USING (turn)
             WHERE task = ?2 AND step <= ?3 AND step NOT IN (SELECT value FROM json_each(?4)) ORDER BY step",
            params![task, origin, fork.last_step, left_out, to_json(&copies)?],
        )?;
        self.execute(
            "INSERT INTO recalled (task, step, kind, id)
             SELECT ?1, copied.step, kind, id FROM recalled
             JOIN (SELECT step, ROW_NUMBER() OVER (ORDER BY step) AS n FROM steps WHERE task = ?2
                   AND step NOT IN (SELECT value FROM json_each(?3))) AS source ON source.step = recalled.step
             JOIN (SELECT step, ROW_NUMBER() OVER (ORDER BY step) AS n FROM steps WHERE task = ?1)
                  AS copied USING (n)
             WHERE recalled.task = ?2 ORDER BY recalled.rowid",
            params![task, origin, left_out],
        )
    }

    /// Stores what is shown of the fork, which begins as the original is.
    fn insert_fork(&self, origin: i64, task: i64, fork: &NewFork) -> Result<(), StoreError> {
        self.execute("INSERT INTO conversations (task) VALUES (?1) ON CONFLICT DO NOTHING", [origin])?;
        let sql = "UPDATE conversations SET family = ?2 WHERE task = ?1 AND family IS NULL";
        self.execute(sql, params![origin, fork.family])?;
        self.execute(
            "INSERT INTO conversations
                 (task, title, title_source, title_asked, metadata, origin, forked_after, family)
             SELECT ?2, COALESCE(?3, title), iif(?3 IS NULL, title_source, 'user'),
                    COALESCE(?3, title) IS NOT NULL, metadata, task, ?4, family
             FROM conversations WHERE task = ?1",
            params![origin, task, fork.title, fork.after.to_string()],
        )
    }
}
