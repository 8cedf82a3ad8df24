//! Takes ended turns into memory: their messages, one episode each, and a trajectory of what they did.
//!
//! Everything is derived from the journal, in its order, and each task records the last step that was indexed. A
//! turn run by an earlier version of the engine is therefore indexed later, and no turn is indexed twice.

use api::memory::{Episode, Source};
use api::{EpisodeId, MessageId};
use llm::{Answer, Content};
use resources::text::shorten_to_bytes;
use rusqlite::{Connection, Error, OptionalExtension as _, params};
use serde_json::json;

use super::message_text::{MessageText, Speaker};
use super::steps::{Step, TurnBase, TurnOutcome};
use super::{StoreError, TaskRow, WriteTx, queries};
use crate::memory_format;

/// The number of turns that are indexed when one ends: that turn, and a few of the backlog before it.
const MAX_TURNS_PER_INGEST: usize = 4;
/// The most messages of its task that are indexed with a turn: its own, and a few that an earlier version left.
pub(super) const MAX_INDEXED_MESSAGES: usize = 256;
/// The parts of the user's message and of the answer that an episode contains, in bytes.
const MAX_EPISODE_BYTES: (usize, usize) = (400, 600);
/// The most tool calls that a trajectory contains.
const MAX_TRAJECTORY_CALLS: usize = 64;

/// A stored step with its row.
struct StepRow {
    step: i64,
    turn: i64,
    at: i64,
    body: Step,
}

/// A message of a turn.
struct TurnMessage {
    message_id: MessageId,
    step: i64,
    has_text: bool,
    /// The number of messages of the conversation that it stands for, including the results of its calls.
    length: i64,
}

/// The length of a conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConversationLength {
    /// The number of all messages.
    pub(super) message_count: i64,
    /// The number of messages with text.
    pub(super) text_message_count: i64,
}

impl WriteTx<'_> {
    /// Indexes a turn that has just ended. If that fails, it is deferred: the turn has ended regardless.
    pub(super) fn ingest_or_defer(&self, task: TaskRow) -> Result<(), StoreError> {
        self.transaction.execute_batch("SAVEPOINT taking_in")?;
        if let Err(error) = self.ingest(task, MAX_TURNS_PER_INGEST) {
            tracing::warn!(%error, "A turn could not be indexed into memory; this is retried later.");
            self.transaction.execute_batch("ROLLBACK TO taking_in")?;
        }
        Ok(self.transaction.execute_batch("RELEASE taking_in")?)
    }

    /// Indexes at most `limit` ended turns of a task, oldest first.
    pub fn ingest(&self, TaskRow(task): TaskRow, limit: usize) -> Result<(), StoreError> {
        let Some(from) = self.ingested_up_to(task)? else { return Ok(()) };
        for steps in self.ended_turns(task, from, limit)? {
            let Some(last) = steps.last() else { continue };
            self.ingest_turn(task, &steps)?;
            self.execute("UPDATE tasks SET taken_in = ?2 WHERE task = ?1", [task, last.step])?;
            let sql = "UPDATE turns SET taken_in = 1 WHERE task = ?1 AND turn <= ?2 AND taken_in = 0";
            self.execute(sql, [task, last.turn])?;
        }
        Ok(())
    }

    /// Indexes at most `limit` turns of the backlog.
    pub fn ingest_backlog(&self, limit: usize) -> Result<(), StoreError> {
        let sql =
            "SELECT turn, task FROM turns WHERE taken_in = 0 AND ended_at IS NOT NULL ORDER BY turn LIMIT 1";
        let oldest =
            self.transaction.prepare_cached(sql)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)));
        let Some((turn, task)): Option<(i64, i64)> = oldest.optional()? else { return Ok(()) };
        self.ingest(TaskRow(task), limit)?;
        // A turn without a step, or of a deleted task, has nothing to index.
        let sql = "UPDATE turns SET taken_in = 1 WHERE turn = ?1 AND NOT EXISTS (
                       SELECT 1 FROM steps JOIN tasks USING (task)
                       WHERE steps.task = ?2 AND steps.turn = ?1 AND step > tasks.taken_in
                   )";
        self.execute(sql, [turn, task])
    }

    /// The last indexed step of a task; `None` if there is no such task.
    fn ingested_up_to(&self, task: i64) -> Result<Option<i64>, StoreError> {
        let mut query = self.transaction.prepare_cached("SELECT taken_in FROM tasks WHERE task = ?1")?;
        Ok(query.query_row([task], |row| row.get(0)).optional()?)
    }

    /// The steps after `from` of ended turns, grouped by turn.
    fn ended_turns(&self, task: i64, from: i64, limit: usize) -> Result<Vec<Vec<StepRow>>, StoreError> {
        let mut query = self.transaction.prepare_cached(
            "SELECT step, turn, at, body FROM steps JOIN turns USING (turn)
             WHERE steps.task = ?1 AND step > ?2 AND ended_at IS NOT NULL ORDER BY step",
        )?;
        let mut rows = query.query([task, from])?;
        let mut turns: Vec<Vec<StepRow>> = Vec::new();
        while let Some(row) = rows.next()? {
            let body = row.get_ref(3)?.as_str().map_err(Error::from)?;
            let body = queries::parse_step(body).unwrap_or(Step::Unknown);
            let row = StepRow { step: row.get(0)?, turn: row.get(1)?, at: row.get(2)?, body };
            let continues_turn =
                turns.last().and_then(|steps| steps.last()).is_some_and(|last| last.turn == row.turn);
            if !continues_turn && turns.len() == limit {
                break;
            }
            match turns.last_mut().filter(|_| continues_turn) {
                Some(steps) => steps.push(row),
                None => turns.push(vec![row]),
            }
        }
        Ok(turns)
    }

    /// Takes the messages of a fork's copied turns into their places. Nothing else of them is remembered: memory has
    /// it from the task that was forked. Returns whether some of it came from a tool.
    pub(super) fn ingest_copied(&self, TaskRow(task): TaskRow) -> Result<bool, StoreError> {
        let mut is_tainted = false;
        loop {
            let Some(from) = self.ingested_up_to(task)? else { break };
            let turns = self.ended_turns(task, from, MAX_TURNS_PER_INGEST)?;
            for steps in &turns {
                self.ingest_messages(task, steps)?;
                is_tainted |= shows_tool_content(steps);
                if let Some(last) = steps.last() {
                    self.execute("UPDATE tasks SET taken_in = ?2 WHERE task = ?1", [task, last.step])?;
                }
            }
            if turns.is_empty() {
                break;
            }
        }
        self.execute("UPDATE turns SET taken_in = 1 WHERE task = ?1", [task])?;
        Ok(is_tainted)
    }

    fn ingest_turn(&self, task: i64, steps: &[StepRow]) -> Result<(), StoreError> {
        self.ingest_messages(task, steps)?;
        self.insert_episode(task, steps)?;
        self.index_messages(TaskRow(task), MAX_INDEXED_MESSAGES)
    }

    /// Puts the messages of a turn into their places in the conversation.
    fn ingest_messages(&self, task: i64, steps: &[StepRow]) -> Result<(), StoreError> {
        for row in steps {
            if let Step::Opened(opened) = &row.body {
                self.rewind_memory(TaskRow(task), opened.base, row.step)?;
            }
        }
        let ConversationLength { message_count: mut position, text_message_count: mut nth } =
            self.conversation_length(task)?;
        for TurnMessage { message_id, step, has_text, length } in turn_messages(steps) {
            self.execute(
                "INSERT INTO said (task, place, length, message_id, step, nth) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![task, position, length, message_id.to_string(), step, has_text.then_some(nth)],
            )?;
            position += length;
            nth += i64::from(has_text);
        }
        // What a conversation no longer shows may be recalled into it.
        for row in steps {
            if let Step::Compacted(compacted) = &row.body {
                let covers = i64::try_from(compacted.covers).unwrap_or(i64::MAX);
                let sql = "UPDATE tasks SET covered = ?2, covered_at = ?3 WHERE task = ?1";
                self.execute(sql, [task, covers, position])?;
            }
        }
        Ok(())
    }

    pub(super) fn conversation_length(&self, task: i64) -> Result<ConversationLength, StoreError> {
        let sql = "SELECT COALESCE((
                       SELECT place + length FROM said WHERE task = ?1 ORDER BY place DESC LIMIT 1
                   ), 0), COALESCE((
                       SELECT nth + 1 FROM said WHERE task = ?1 AND nth IS NOT NULL ORDER BY nth DESC LIMIT 1
                   ), 0)";
        let mut query = self.transaction.prepare_cached(sql)?;
        let length = query.query_row([task], |row| {
            Ok(ConversationLength { message_count: row.get(0)?, text_message_count: row.get(1)? })
        })?;
        Ok(length)
    }

    /// Removes from memory what becomes invalid when a turn, opened by the step `opening`, continues from an
    /// earlier message. What was stored for that turn itself is kept.
    pub(super) fn rewind_memory(
        &self,
        TaskRow(task): TaskRow,
        base: TurnBase,
        opening: i64,
    ) -> Result<(), StoreError> {
        let (message_id, is_edit) = match base {
            TurnBase::End => return Ok(()),
            TurnBase::Edit { message_id } => (message_id.to_string(), true),
            TurnBase::Retry { message_id } => (message_id.to_string(), false),
        };
        let Some((step, kind)) = step_of_message(self.transaction, task, &message_id)? else { return Ok(()) };
        // A retry of the user's message keeps that message.
        let kept = i64::from(!is_edit && matches!(kind.as_str(), "opened" | "steered"));
        let from = step + kept;
        // A message that is missing, because it was removed before or is not indexed yet, may be followed by
        // indexed ones.
        let void = "task = ?1 AND place >= COALESCE(
                        (SELECT place + ?3 FROM said WHERE task = ?1 AND message_id = ?2),
                        (SELECT MIN(place) FROM said WHERE task = ?1 AND step >= ?4)
                    )";
        let message = params![task, message_id, kept, from];
        // A message that the user sent while the model was answering has an earlier step than the answer it
        // follows. What was derived from indexed messages is therefore found through those messages.
        let sql = format!(
            "SELECT COALESCE(
                 (SELECT MIN(step) FROM said WHERE {void}),
                 iif(EXISTS (SELECT 1 FROM said WHERE task = ?1 AND message_id = ?2), ?5, ?4)
             )"
        );
        let values = params![task, message_id, kept, from, opening];
        let first: i64 = self.transaction.prepare_cached(&sql)?.query_row(values, |row| row.get(0))?;
        self.execute(&format!("DELETE FROM said WHERE {void}"), message)?;
        let ConversationLength { message_count: position, .. } = self.conversation_length(task)?;
        self.execute("UPDATE tasks SET covered = 0 WHERE task = ?1 AND covered_at > ?2", [task, position])?;
        if is_edit {
            self.withdraw_feedback(task, first..opening)?;
        }
        self.withdraw_knowledge(task, first..opening, is_edit)?;
        self.execute(
            "DELETE FROM episodes WHERE task = ?1 AND step >= ?2 AND step < ?3",
            [task, from, opening],
        )?;
        // Notes that were sent with an answer to the same message stand beside that message and stay.
        self.execute(
            "DELETE FROM recalled WHERE task = ?1 AND step >= ?2 AND step < ?3 AND NOT EXISTS (
                 SELECT 1 FROM steps WHERE steps.step = recalled.step
                 AND body ->> '$.base.from' = 'retry' AND body ->> '$.base.message_id' = ?4
             )",
            params![task, from, opening, (!is_edit).then_some(&message_id)],
        )?;
        if is_edit {
            self.execute(
                "DELETE FROM trajectories WHERE task = ?1 AND step >= ?2 AND step < ?3",
                [task, from, opening],
            )?;
        }
        Ok(())
    }

    /// Adds the episode and the trajectory of a turn. The episode of an earlier answer to the same message was
    /// removed by the rewind.
    fn insert_episode(&self, task: i64, steps: &[StepRow]) -> Result<(), StoreError> {
        let Some(last) = steps.last() else { return Ok(()) };
        let opened = steps.iter().find_map(|row| match &row.body {
            Step::Opened(opened) => Some(opened),
            _ => None,
        });
        let Some(opened) = opened else { return Ok(()) };
        let question = match opened.base {
            TurnBase::Retry { .. } => self.user_text_of(task, opened.message_id)?,
            TurnBase::End | TurnBase::Edit { .. } => opened.message.clone(),
        };
        let answer = steps.iter().rev().find_map(|row| {
            MessageText::from_step(&row.body).filter(|message| message.speaker == Speaker::Agent)
        });
        let outcome = outcome_name(last);
        let answer_line = match answer {
            Some(MessageText { text, .. }) => {
                format!("The agent: {}", shorten_to_bytes(&text, MAX_EPISODE_BYTES.1))
            }
            None => format!("There was no answer: {outcome}."),
        };
        let content =
            format!("The user: {}\n{answer_line}", shorten_to_bytes(&question, MAX_EPISODE_BYTES.0));
        let calls: Vec<_> = turn_calls(steps).collect();
        // Content from a tool, or from a memory record that came from one, may be repeated in later turns, and
        // nothing shows where. A task that is tainted therefore stays so.
        let is_tainted = shows_tool_content(steps) || self.is_task_tainted(task)?;
        let source = if is_tainted { Source::Tool } else { Source::Agent };
        self.execute(
            "INSERT INTO episodes (id, task, turn, step, content, source, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                EpisodeId::new().to_string(),
                task,
                last.turn,
                last.step,
                content,
                source.as_str(),
                last.at
            ],
        )?;
        let calls: Vec<_> = calls
            .into_iter()
            .take(MAX_TRAJECTORY_CALLS)
            .map(|(tool, failed)| json!([tool, failed]))
            .collect();
        let did = json!({"message_id": opened.message_id, "calls": calls}).to_string();
        self.execute(
            "INSERT OR REPLACE INTO trajectories (turn, task, step, outcome, did, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![last.turn, task, last.step, outcome, did, last.at],
        )
    }

    /// Whether an earlier turn of the task contains content from a tool.
    fn is_task_tainted(&self, task: i64) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM episodes WHERE task = ?1 AND source = 'tool')
                   OR EXISTS (SELECT 1 FROM conversations WHERE task = ?1 AND tainted)";
        Ok(self.transaction.prepare_cached(sql)?.query_row([task], |row| row.get(0))?)
    }

    /// The text of an indexed message of the user.
    fn user_text_of(&self, task: i64, message_id: MessageId) -> Result<String, StoreError> {
        let sql = "SELECT body FROM said JOIN steps USING (step) WHERE said.task = ?1 AND message_id = ?2";
        let mut query = self.transaction.prepare_cached(sql)?;
        let body: Option<String> =
            query.query_row(params![task, message_id.to_string()], |row| row.get(0)).optional()?;
        Ok(body
            .and_then(|body| MessageText::from_stored(&body))
            .map(|message| message.text)
            .unwrap_or_default())
    }
}

pub(super) fn episodes(reader: &Connection, limit: i64, offset: i64) -> Result<Vec<Episode>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT id, task_id, turn_id, content, episodes.created_at
         FROM episodes JOIN tasks USING (task) JOIN turns USING (turn)
         ORDER BY episode DESC LIMIT ?1 OFFSET ?2",
    )?;
    let rows = query.query_map([limit, offset], |row| {
        Ok(Episode {
            id: queries::parse_column(row, 0)?,
            task_id: queries::task_id(row, 1)?,
            turn_id: queries::parse_column(row, 2)?,
            content: row.get(3)?,
            created_at: queries::timestamp(row, 4)?,
        })
    })?;
    rows.collect()
}

pub(super) fn episode_count(reader: &Connection) -> Result<u64, Error> {
    let count: i64 = reader.query_row("SELECT COUNT(*) FROM episodes", [], |row| row.get(0))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Whether there is an ended turn that is not indexed.
pub(super) fn has_backlog(reader: &Connection) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM turns WHERE taken_in = 0 AND ended_at IS NOT NULL)";
    reader.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// The step that contains a message of a task, and the kind of that step.
pub(super) fn step_of_message(
    reader: &Connection,
    task: i64,
    message_id: &str,
) -> Result<Option<(i64, String)>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT step, body ->> '$.step' FROM steps
         WHERE task = ?1 AND instr(body, ?2)
         AND ?2 IN (body ->> '$.message_id', body ->> '$.outcome.said.message_id')
         ORDER BY step LIMIT 1",
    )?;
    query.query_row(params![task, message_id], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

/// The message that a step represents, if any: its id, the number of messages it stands for including the results
/// of its calls, and whether it has text.
pub(super) fn message_of_step(step: &Step) -> Option<(MessageId, i64, bool)> {
    let (message_id, length) = match step {
        Step::Opened(opened) if !opened.base.is_retry() => (opened.message_id, 1),
        Step::Steered { message_id, .. } | Step::OutputRejected { message_id, .. } => (*message_id, 1),
        Step::Answered { message_id, answer, .. } => {
            (*message_id, 1 + i64::from(answer.calls().next().is_some()))
        }
        Step::Ended { outcome: TurnOutcome::Cancelled { said: Some(said) } } => (said.message_id, 1),
        _ => return None,
    };
    Some((message_id, length, MessageText::from_step(step).is_some()))
}

/// The messages of a turn, in the order of the conversation.
fn turn_messages(steps: &[StepRow]) -> Vec<TurnMessage> {
    let mut messages: Vec<TurnMessage> = Vec::new();
    // Messages that the user sent while the model was answering; they follow the answer.
    let mut waiting: Vec<TurnMessage> = Vec::new();
    // The number of calls of the last answer without a result; `None` while the model is expected to answer.
    let mut open: Option<usize> = None;
    for StepRow { step, body, .. } in steps {
        let has_text = MessageText::from_step(body).is_some();
        let message = |message_id, length| TurnMessage { message_id, step: *step, has_text, length };
        match body {
            Step::Opened(opened) if !opened.base.is_retry() => messages.push(message(opened.message_id, 1)),
            Step::Answered { message_id, answer, .. } => {
                let calls = answer.calls().count();
                messages.push(message(*message_id, 1 + i64::from(calls > 0)));
                let causes_call = calls == 0 && !waiting.is_empty();
                messages.append(&mut waiting);
                open = (!causes_call).then_some(calls);
            }
            Step::Resulted { .. } => {
                open = open.map(|open| open.saturating_sub(1)).filter(|open| *open > 0);
            }
            Step::Steered { message_id, .. } => match open {
                Some(calls) => {
                    messages.push(message(*message_id, 1));
                    // After an answer without calls, the message causes one more model call.
                    open = (calls > 0).then_some(calls);
                }
                None => waiting.push(message(*message_id, 1)),
            },
            Step::OutputRejected { message_id, .. } => {
                messages.push(message(*message_id, 1));
                open = None;
            }
            Step::Ended { outcome } => {
                messages.append(&mut waiting);
                if let TurnOutcome::Cancelled { said: Some(said) } = outcome {
                    messages.push(message(said.message_id, 1));
                }
            }
            _ => {}
        }
    }
    messages.append(&mut waiting);
    messages
}

/// The tool calls of a turn, each with the tool's name and whether it failed.
fn turn_calls(steps: &[StepRow]) -> impl Iterator<Item = (&str, bool)> {
    let answers = steps.iter().filter_map(|row| match &row.body {
        Step::Answered { answer, .. } => Some(answer),
        _ => None,
    });
    answers.flat_map(Answer::calls).map(|call| {
        let failed = steps.iter().any(|row| {
            matches!(&row.body, Step::Resulted { call_id, outcome, .. }
                if *call_id == call.call_id && outcome.error.is_some())
        });
        (call.name.as_str(), failed)
    })
}

/// Whether a turn shows content that came from a tool, or attached documents or recordings.
fn shows_tool_content(steps: &[StepRow]) -> bool {
    turn_calls(steps).any(|(tool, _)| memory_format::is_untrusted_tool(tool))
        || steps.iter().any(|row| {
            let attached = match &row.body {
                Step::Opened(opened) => &opened.media[..],
                Step::Resolved { remarks, .. } | Step::InputChanged { remarks, .. } => &remarks[..],
                _ => &[],
            };
            row.body.source() == Source::Tool || attached.iter().any(Content::may_be_others_words)
        })
}

/// The outcome of a turn in a word or two.
fn outcome_name(last: &StepRow) -> &'static str {
    match &last.body {
        Step::Ended { outcome: TurnOutcome::Completed { .. } } => "completed",
        Step::Ended { outcome: TurnOutcome::Errored { .. } } => "errored",
        Step::Ended { outcome: TurnOutcome::Cancelled { .. } } => "cancelled",
        _ => "given up",
    }
}
