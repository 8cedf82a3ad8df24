//! The user's feedback on turns. A correction is also a knowledge record, active from the moment it is given.

use std::collections::HashSet;
use std::ops::Range;

use api::memory::Source;
use api::{FeedbackId, MemoryId, TaskId, Timestamp, TurnId};
use resources::text::shorten_to_bytes;
use rusqlite::{Connection, Error, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};

use super::knowledge::{KnowledgeDraft, NewKnowledge};
use super::memory_ingest::step_of_message;
use super::queries::{self, parse_column, task_id};
use super::steps::Step;
use super::{StoreError, TaskRow, WriteTx, to_json};

/// The longest quotation of the user's question beside a correction, in bytes.
const MAX_QUOTED_QUESTION_BYTES: usize = 400;

/// The content of a user's feedback on a turn, in its stored form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FeedbackContent {
    /// The user states the right answer.
    Correction {
        /// The text of the correction.
        text: String,
        /// The knowledge record that holds the correction.
        record: MemoryId,
    },
    /// The user rates the turn.
    Rating {
        /// The rating, from 1 to 5.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rating: Option<i64>,
    },
    /// The user reports that something went wrong.
    ErrorReport {
        /// The description of the error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
    },
}

/// An active correction and the turn that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// The id of the feedback.
    pub id: FeedbackId,
    /// The knowledge record that holds the correction.
    pub knowledge_id: MemoryId,
    /// The right answer, as the user stated it.
    pub text: String,
    /// The row of the task.
    pub task: TaskRow,
    /// The id by which callers name the task.
    pub task_id: TaskId,
    /// The corrected turn.
    pub turn_id: TurnId,
    /// Whether the task had received content from a tool up to this turn.
    pub is_tainted: bool,
}

/// The position of a feedback among all feedback, in the order in which it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FeedbackRow(i64);

impl WriteTx<'_> {
    /// Stores feedback on the newest turn of a task. Returns `false` if the task has no turn.
    pub fn insert_feedback(
        &self,
        id: FeedbackId,
        task: TaskRow,
        feedback: &FeedbackContent,
        at: Timestamp,
    ) -> Result<bool, StoreError> {
        let TaskRow(row) = task;
        let newest = "SELECT MAX(turn), (SELECT MAX(step) FROM steps WHERE steps.task = tasks.task)
                      FROM tasks JOIN turns USING (task) WHERE tasks.task = ?1";
        let (turn, step): (Option<i64>, Option<i64>) = self
            .transaction
            .prepare_cached(newest)?
            .query_row([row], |found| Ok((found.get(0)?, found.get(1)?)))?;
        let Some(turn) = turn else { return Ok(false) };
        self.execute(
            "INSERT INTO feedback (id, task, turn, step, said, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![id.to_string(), row, turn, step, to_json(feedback)?, at.unix_ms()],
        )?;
        if let FeedbackContent::Correction { text, record } = feedback {
            let content = correction_content(&self.question_of_turn(row, turn)?, text);
            let draft = KnowledgeDraft { content, tags: Vec::new(), supersedes: None };
            let record = NewKnowledge { id: *record, draft, source: Source::Feedback };
            // The record supersedes nothing, so it cannot be rejected.
            self.save_knowledge(&record, Some(task), at)?.ok();
        }
        Ok(true)
    }

    /// The user's message of a turn, without attachments.
    fn question_of_turn(&self, task: i64, turn: i64) -> Result<String, StoreError> {
        let message = "SELECT message_id FROM turns WHERE turn = ?1";
        let message: String =
            self.transaction.prepare_cached(message)?.query_row([turn], |row| row.get(0))?;
        let Some((step, _)) = step_of_message(self.transaction, task, &message)? else {
            return Ok(String::new());
        };
        let body = "SELECT body FROM steps WHERE step = ?1";
        let body: String = self.transaction.prepare_cached(body)?.query_row([step], |row| row.get(0))?;
        // Attachments are not the user's own words.
        Ok(match queries::parse_step(&body) {
            Ok(Step::Opened(opened)) => opened.message,
            _ => String::new(),
        })
    }

    /// Deletes the feedback on these steps of a task, and all lessons drawn from it. Other corrections in those
    /// lessons are queued to be learned again.
    pub(super) fn withdraw_feedback(&self, task: i64, steps: Range<i64>) -> Result<(), StoreError> {
        let withdrawn = "SELECT id FROM feedback WHERE task = ?1 AND step >= ?2 AND step < ?3";
        let withdrawn: HashSet<String> = self
            .transaction
            .prepare_cached(withdrawn)?
            .query_map([task, steps.start, steps.end], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        if withdrawn.is_empty() {
            return Ok(());
        }
        self.withdraw_lessons_from(&withdrawn)?;
        let sql = "DELETE FROM feedback WHERE task = ?1 AND step >= ?2 AND step < ?3";
        self.execute(sql, [task, steps.start, steps.end])
    }

    /// Queues a correction to be learned again.
    pub(super) fn requeue_correction(&self, id: FeedbackId) -> Result<(), StoreError> {
        self.execute("UPDATE feedback SET batch = NULL WHERE id = ?1", [id.to_string()])
    }

    /// Makes the knowledge record of a correction active again, after the lesson that replaced it is gone.
    pub(super) fn reinstate_correction(&self, id: FeedbackId) -> Result<(), StoreError> {
        self.execute(
            "UPDATE knowledge SET valid_until = NULL
             WHERE id = (SELECT said ->> '$.record' FROM feedback WHERE id = ?1)",
            [id.to_string()],
        )
    }
}

/// The content of a correction's knowledge record: the user's question and the correction. It must be useful in
/// other tasks and be found by similar questions. The agent's answer is left out because a tool may have provided
/// it.
fn correction_content(question: &str, text: &str) -> String {
    let question: Vec<&str> = question.split_whitespace().collect();
    match shorten_to_bytes(&question.join(" "), MAX_QUOTED_QUESTION_BYTES) {
        question if question.is_empty() => text.to_owned(),
        question => format!("When asked “{question}”: {text}"),
    }
}

/// The first correction after `after` that no batch has processed and whose turn has ended. It requires another
/// completed turn without feedback: an evaluation needs one to see whether a lesson does harm.
pub(super) fn next_correction(
    reader: &Connection,
    FeedbackRow(after): FeedbackRow,
) -> Result<Option<(FeedbackRow, FeedbackId)>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT feedback, feedback.id FROM feedback JOIN turns USING (turn)
         JOIN knowledge ON knowledge.id = said ->> '$.record' AND valid_until IS NULL
         WHERE feedback > ?1 AND batch IS NULL AND ended_at IS NOT NULL AND EXISTS (
             SELECT 1 FROM trajectories JOIN episodes ON episodes.turn = trajectories.turn
             WHERE outcome = 'completed' AND trajectories.turn <> feedback.turn
             AND NOT EXISTS (SELECT 1 FROM feedback AS others WHERE others.turn = trajectories.turn)
         )
         ORDER BY feedback LIMIT 1",
    )?;
    query.query_row([after], |row| Ok((FeedbackRow(row.get(0)?), parse_column(row, 1)?))).optional()
}

/// An active correction that no batch has processed.
pub(super) fn correction(reader: &Connection, id: FeedbackId) -> Result<Option<Correction>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT knowledge.id, said ->> '$.text', feedback.task, task_id, turn_id,
                EXISTS (SELECT 1 FROM episodes WHERE episodes.task = feedback.task
                        AND episodes.turn <= feedback.turn AND source = 'tool')
                OR EXISTS (SELECT 1 FROM conversations WHERE conversations.task = feedback.task AND tainted)
         FROM feedback JOIN tasks USING (task) JOIN turns USING (turn)
         JOIN knowledge ON knowledge.id = said ->> '$.record' AND valid_until IS NULL
         WHERE feedback.id = ?1 AND batch IS NULL",
    )?;
    let found = query.query_row([id.to_string()], |row| {
        Ok(Correction {
            id,
            knowledge_id: parse_column(row, 0)?,
            text: row.get(1)?,
            task: TaskRow(row.get(2)?),
            task_id: task_id(row, 3)?,
            turn_id: parse_column(row, 4)?,
            is_tainted: row.get(5)?,
        })
    });
    found.optional()
}
