//! Applies a staged import in one transaction of the writer.
//!
//! In mode [`ImportMode::Merge`] existing content stays as it is: an imported task, record or skill whose id or
//! name is taken is left out, together with everything that belongs to it.

use api::CallId;
use api::schedules::MAX_SCHEDULES;
use api::transfer::{ImportCounts, ImportMode};
use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, params};

use super::staging::StagingPath;
use crate::memory_ingest::ConversationLength;
use crate::{ErasureScope, StoreError, TaskRow, WriteTx};

impl WriteTx<'_> {
    /// Applies a staged import; its tasks get the rows from `first_task` on. If it replaces the existing content,
    /// the long `outputs` of calls are erased too.
    pub(crate) fn apply_import(
        &self,
        staged: &StagingPath,
        mode: ImportMode,
        TaskRow(first_task): TaskRow,
        outputs: &[CallId],
    ) -> Result<ImportCounts, StoreError> {
        let staging = staged.open()?;
        // Computed before the deletion and above all existing rows, because deleted rows may still be referred to
        // somewhere.
        let max_row = |table: &str, row: &str| {
            let sql = format!("SELECT COALESCE(MAX({row}), 0) FROM {table}");
            self.transaction.query_row(&sql, [], |row| row.get::<_, i64>(0))
        };
        let (first_turn, first_step) = (1 + max_row("turns", "turn")?, 1 + max_row("steps", "step")?);
        let grants = match mode {
            ImportMode::Merge => Vec::new(),
            ImportMode::Replace => {
                self.enqueue_erasure(&ErasureScope { outputs: outputs.to_vec() })?;
                self.delete_all_content()?
            }
        };
        let copier = ImportCopier { tx: self, staging: &staging };
        staging.execute_batch("BEGIN")?;
        copier.assign_task_rows(first_task)?;
        copier.assign_turn_and_step_rows(first_turn, first_step)?;
        let counts = copier.copy_all()?;
        // The staging file is read again if the commit is retried.
        staging.execute_batch("COMMIT")?;
        self.restore_task_grants(&grants)?;
        Ok(counts)
    }

    /// Deletes everything that an export contains, and the pending requests. Returns the ids of the grants for
    /// single tasks with their task ids: they also hold for an imported task of the same id.
    fn delete_all_content(&self) -> Result<Vec<(String, String)>, StoreError> {
        let mut grants =
            self.transaction.prepare("SELECT grant_id, task_id FROM grants JOIN tasks USING (task)")?;
        let grants = grants.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        // Their credentials must not outlive them.
        self.delete_user_server_connections()?;
        // The tables that are cleaned up by triggers of `tasks` come before it.
        for table in [
            "pending",
            "schedules",
            "user_servers",
            "knowledge",
            "lessons",
            "feedback",
            "batches",
            "skills",
            "recalled",
            "said",
            "usage",
            "title_requests",
            "conversations",
            "episodes",
            "trajectories",
            "working_memory",
            "events",
            "steps",
            "media_uses",
            "media",
            "turns",
            "tasks",
        ] {
            self.execute(&format!("DELETE FROM {table}"), [])?;
        }
        Ok(grants)
    }

    /// Restores the grants for tasks that exist again and deletes the others.
    fn restore_task_grants(&self, grants: &[(String, String)]) -> Result<(), StoreError> {
        for (grant, task_id) in grants {
            let sql =
                "UPDATE grants SET task = (SELECT task FROM tasks WHERE task_id = ?2) WHERE grant_id = ?1";
            self.execute(sql, [grant, task_id])?;
            let sql = "DELETE FROM grants WHERE grant_id = ?1
                       AND NOT EXISTS (SELECT 1 FROM tasks WHERE task_id = ?2)";
            self.execute(sql, [grant, task_id])?;
        }
        Ok(())
    }
}

/// Copies a document from the staging file into the brain.
pub(super) struct ImportCopier<'a> {
    pub(super) tx: &'a WriteTx<'a>,
    staging: &'a Connection,
}

impl ImportCopier<'_> {
    /// Assigns rows to the imported tasks. A task is left out if it, or one of its turns, exists already.
    fn assign_task_rows(&self, first: i64) -> Result<(), StoreError> {
        let mut tasks = self.staging.prepare("SELECT n, task_id FROM tasks ORDER BY n")?;
        let mut turns = self.staging.prepare("SELECT turn_id FROM turns WHERE task_id = ?1")?;
        let mut assign = self.staging.prepare("UPDATE tasks SET task = ?2 WHERE n = ?1")?;
        let mut rows = tasks.query([])?;
        while let Some(row) = rows.next()? {
            let (n, task_id): (i64, String) = (row.get(0)?, row.get(1)?);
            let mut exists = self.has_row("tasks", "task_id", &task_id)?;
            let mut turns = turns.query([&task_id])?;
            while let Some(row) = turns.next()? {
                let turn_id = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
                exists = exists || self.has_row("turns", "turn_id", turn_id)?;
            }
            assign.execute(params![n, (!exists).then_some(first + n)])?;
        }
        Ok(())
    }

    /// Whether the brain has a row with this value.
    fn has_row(&self, table: &str, column: &str, value: &str) -> Result<bool, StoreError> {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE {column} = ?1)");
        Ok(self.tx.transaction.prepare_cached(&sql)?.query_row([value], |row| row.get(0))?)
    }

    /// Assigns rows to turns and steps: consecutive ones from the first ones on, by their positions.
    fn assign_turn_and_step_rows(&self, first_turn: i64, first_step: i64) -> Result<(), StoreError> {
        self.staging.execute_batch(
            "CREATE TABLE IF NOT EXISTS turn_rows (
                 turn_id TEXT PRIMARY KEY, task INTEGER NOT NULL, turn INTEGER NOT NULL
             ) WITHOUT ROWID;
             CREATE TABLE IF NOT EXISTS first_step (step INTEGER NOT NULL);
             DELETE FROM turn_rows;
             DELETE FROM first_step;",
        )?;
        self.staging.execute("INSERT INTO first_step VALUES (?1)", [first_step])?;
        let sql = "INSERT INTO turn_rows
                   SELECT turn_id, task, ?1 + turns.n FROM turns JOIN tasks USING (task_id) WHERE task IS NOT NULL";
        self.staging.execute(sql, [first_turn])?;
        Ok(())
    }

    fn copy_all(&self) -> Result<ImportCounts, StoreError> {
        let mut counts = self.copy_conversations()?;
        self.copy_messages()?;
        self.copy_memory(&mut counts)?;
        self.copy_learning_records(&mut counts)?;
        counts.media = self.copy_media()?;
        self.copy_shown_of_conversations()?;
        self.copy_user_servers()?;
        self.copy_usage()?;
        // What was imported is found from now on.
        self.tx.index_backlog(usize::MAX)?;
        Ok(counts)
    }

    /// Passes the rows that `select` finds in the staging file to `insert`, and returns the number of inserted
    /// rows.
    pub(super) fn copy(&self, select: &str, insert: &str) -> Result<u64, StoreError> {
        let mut select = self.staging.prepare(select)?;
        let columns = select.column_count();
        let mut insert = self.tx.transaction.prepare(insert)?;
        let mut rows = select.query([])?;
        let mut copied = 0;
        while let Some(row) = rows.next()? {
            for column in 0..columns {
                insert.raw_bind_parameter(column + 1, ToSqlOutput::Borrowed(row.get_ref(column)?))?;
            }
            copied += u64::try_from(insert.raw_execute()?).unwrap_or(0);
        }
        Ok(copied)
    }

    fn copy_conversations(&self) -> Result<ImportCounts, StoreError> {
        let tasks = self.copy(
            "SELECT task, task_id, created_at, updated_at, message_count, covered, covered_at
             FROM tasks WHERE task IS NOT NULL ORDER BY n",
            "INSERT INTO tasks (task, task_id, created_at, updated_at, message_count, covered, covered_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        self.copy(
            "SELECT task, key, value FROM working_memory JOIN tasks USING (n) WHERE task IS NOT NULL ORDER BY n, key",
            "INSERT INTO working_memory (task, key, value) VALUES (?1, ?2, ?3)",
        )?;
        // `folded` is 1, because a document contains no deltas.
        let turns = self.copy(
            "SELECT turn, turn_id, task, message_id, opened_at, ended_at, opened_ts, client_request_id,
                    request_hash, taken_in, queued_at
             FROM turns CROSS JOIN turn_rows USING (turn_id) ORDER BY turns.n",
            "INSERT INTO turns (turn, turn_id, task, message_id, opened_at, ended_at, opened_ts,
                                client_request_id, request_hash, taken_in, queued_at, folded)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 1)",
        )?;
        self.copy(
            "SELECT (SELECT step FROM first_step) + n, task, turn, at, ts, body
             FROM steps CROSS JOIN turn_rows USING (turn_id) ORDER BY n",
            "INSERT INTO steps (step, task, turn, at, ts, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        self.copy(
            "SELECT task, (SELECT step FROM first_step) + recalled.step, kind, id
             FROM recalled CROSS JOIN steps ON steps.n = recalled.step CROSS JOIN turn_rows USING (turn_id)
             ORDER BY recalled.n",
            "INSERT INTO recalled (task, step, kind, id) VALUES (?1, ?2, ?3, ?4)",
        )?;
        self.copy(
            "SELECT task, ts, turn, kind, data FROM events CROSS JOIN turn_rows USING (turn_id) ORDER BY n",
            "INSERT INTO events (task, ts, turn, kind, data) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        // The last step of each task that is indexed into memory.
        self.copy(
            "SELECT task, (SELECT step FROM first_step) + MAX((SELECT MAX(n) FROM steps WHERE turn_id = turns.turn_id))
             FROM turns CROSS JOIN turn_rows USING (turn_id) WHERE taken_in GROUP BY task",
            "UPDATE tasks SET taken_in = COALESCE(?2, 0) WHERE task = ?1",
        )?;
        Ok(ImportCounts { tasks, turns, ..ImportCounts::default() })
    }

    /// Copies what is shown of the imported conversations. A fork names the task that has the id of its origin.
    fn copy_shown_of_conversations(&self) -> Result<(), StoreError> {
        self.copy(
            "SELECT task, title, title_source, title_asked, metadata, pinned, archived, origin_id, forked_after,
                    family, tainted
             FROM conversations CROSS JOIN tasks USING (task_id) WHERE task IS NOT NULL ORDER BY conversations.n",
            "INSERT INTO conversations (task, title, title_source, title_asked, metadata, pinned, archived,
                                        origin, forked_after, family, tainted)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, (SELECT task FROM tasks WHERE task_id = ?8), ?9, ?10, ?11)",
        )?;
        Ok(())
    }

    /// Copies the messages of the conversations to their positions.
    fn copy_messages(&self) -> Result<(), StoreError> {
        let mut messages = self.staging.prepare(
            "SELECT task, (SELECT step FROM first_step) + steps.n, message_id, length, has_words
             FROM said CROSS JOIN steps ON steps.n = said.step CROSS JOIN turn_rows USING (turn_id) ORDER BY said.n",
        )?;
        let mut insert = self.tx.transaction.prepare(
            "INSERT INTO said (task, step, message_id, length, place, nth) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        let mut conversation_end: Option<(i64, ConversationLength)> = None;
        let mut rows = messages.query([])?;
        while let Some(row) = rows.next()? {
            let (task, step, length): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(3)?);
            let (message_id, has_text): (String, bool) = (row.get(2)?, row.get(4)?);
            let end = match conversation_end {
                Some((same, end)) if same == task => end,
                _ => self.tx.conversation_length(task)?,
            };
            let nth = has_text.then_some(end.text_message_count);
            insert.execute(params![task, step, message_id, length, end.message_count, nth])?;
            conversation_end = Some((
                task,
                ConversationLength {
                    message_count: end.message_count + length,
                    text_message_count: end.text_message_count + i64::from(has_text),
                },
            ));
        }
        Ok(())
    }

    fn copy_memory(&self, counts: &mut ImportCounts) -> Result<(), StoreError> {
        counts.episodes = self.copy(
            "SELECT id, task, turn, (SELECT step FROM first_step) + episodes.step, content, source, created_at
             FROM episodes CROSS JOIN turn_rows USING (turn_id) ORDER BY episodes.n",
            "INSERT INTO episodes (id, task, turn, step, content, source, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
        )?;
        counts.trajectories = self.copy(
            "SELECT turn, task, (SELECT step FROM first_step) + trajectories.step, outcome, did, at
             FROM trajectories CROSS JOIN turn_rows USING (turn_id) ORDER BY trajectories.n",
            "INSERT INTO trajectories (turn, task, step, outcome, did, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        // Knowledge is imported even if the conversation from which it was drawn is left out.
        counts.knowledge = self.copy(
            "SELECT id, content, tags, source, created_at, valid_until, supersedes, task,
                    iif(task IS NULL, NULL, (SELECT step FROM first_step) + knowledge.step)
             FROM knowledge LEFT JOIN steps ON steps.n = knowledge.step LEFT JOIN turn_rows USING (turn_id)
             ORDER BY knowledge.n",
            "INSERT INTO knowledge (id, content, tags, source, created_at, valid_until, supersedes, task, step)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING",
        )?;
        // An imported record may supersede an existing one.
        self.tx.execute(
            "UPDATE knowledge SET valid_until = newer.at FROM (
                 SELECT supersedes AS id, MIN(created_at) AS at, MAX(source <> 'tool') AS is_better
                 FROM knowledge WHERE supersedes IS NOT NULL GROUP BY supersedes
             ) AS newer
             WHERE knowledge.id = newer.id AND valid_until IS NULL AND (is_better OR knowledge.source = 'tool')",
            [],
        )?;
        counts.skills = self.copy(
            "SELECT name, skill, created_at, updated_at FROM skills ORDER BY n",
            "INSERT INTO skills (name, skill, created_at, updated_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
        )?;
        self.copy(
            "SELECT id, task_id, definition, state, created_at, updated_at, last_due_at FROM schedules ORDER BY n",
            &format!(
                "INSERT INTO schedules (id, task_id, definition, state, created_at, updated_at, last_due_at)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE (SELECT COUNT(*) FROM schedules) < {MAX_SCHEDULES}
                 ON CONFLICT DO NOTHING"
            ),
        )?;
        Ok(())
    }

    fn copy_learning_records(&self, counts: &mut ImportCounts) -> Result<(), StoreError> {
        counts.batches = self.copy(
            "SELECT id, state, started_at, ended_at FROM batches ORDER BY n",
            "INSERT INTO batches (id, state, started_at, ended_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
        )?;
        counts.feedback = self.copy(
            "SELECT id, tasks.task, turn_rows.turn, iif(tasks.task IS NULL, NULL, (SELECT step FROM first_step) + feedback.step),
                    said, feedback.created_at, batch
             FROM feedback LEFT JOIN tasks USING (task_id) LEFT JOIN turn_rows USING (turn_id)
             ORDER BY feedback.n",
            "INSERT INTO feedback (id, task, turn, step, said, created_at, batch)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, (SELECT batch FROM batches WHERE id = ?7)) ON CONFLICT DO NOTHING",
        )?;
        counts.lessons = self.copy(
            "SELECT id, evidence, batch FROM lessons ORDER BY n",
            "INSERT INTO lessons (id, evidence, batch)
             SELECT ?1, ?2, (SELECT batch FROM batches WHERE id = ?3) WHERE EXISTS (SELECT 1 FROM knowledge WHERE id = ?1)
             ON CONFLICT DO NOTHING",
        )?;
        Ok(())
    }

    /// Copies the attachments of the imported conversations.
    fn copy_media(&self) -> Result<u64, StoreError> {
        self.copy(
            "SELECT task, hash FROM media_uses CROSS JOIN media USING (n) CROSS JOIN tasks USING (task_id)
             WHERE task IS NOT NULL",
            "INSERT INTO media_uses (task, hash) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        )?;
        self.copy(
            "SELECT hash, data FROM media ORDER BY n",
            "INSERT INTO media (hash, data)
             SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM media_uses WHERE hash = ?1) ON CONFLICT DO NOTHING",
        )
    }
}
