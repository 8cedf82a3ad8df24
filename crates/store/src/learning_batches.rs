//! Batches of the learning component and their progress. At most one batch is active at a time.

use api::learning::Verdict;
use api::{BatchId, FeedbackId, MemoryId, TaskId, Timestamp, TurnId};
use retrieval::{content_words, count_words};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};

use super::feedback::FeedbackRow;
use super::lessons::NewLesson;
use super::queries::{parse_column, task_id};
use super::usage::CallUsage;
use super::{StoreError, WriteTx, to_json};

/// The number of newest turns among which an unrelated turn is selected.
const MAX_UNRELATED_TURN_CANDIDATES: i64 = 100;

/// The progress of a batch. The stored form is read by later versions, so fields may only be added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchProgress {
    /// The number of turns that have ended since the previous batch began.
    pub trajectory_count: u64,
    /// The last correction that was considered.
    #[serde(default)]
    pub after: FeedbackRow,
    /// The number of corrections that were considered.
    #[serde(default)]
    pub taken: u32,
    /// The number of lessons that were adopted.
    #[serde(default)]
    pub adopted: u32,
    /// The stage to execute next.
    #[serde(default)]
    pub stage: BatchStage,
    /// The number of model calls since the last stage that gave no answer.
    #[serde(default)]
    pub failures: u32,
    /// The number of engine starts since the last stage that resumed the batch.
    #[serde(default)]
    pub starts: u32,
}

/// The next stage of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum BatchStage {
    /// Select the next correction.
    #[default]
    Choosing,
    /// Draft a lesson from a correction.
    Drafting {
        /// The correction.
        feedback_id: FeedbackId,
    },
    /// Repeat the corrected turn with the lesson.
    Trying(LessonDraft),
    /// Judge the repeated answer of the corrected turn.
    Judging {
        /// The lesson under evaluation.
        draft: LessonDraft,
        /// The repeated answer.
        answer: String,
    },
    /// Repeat an unrelated turn with the lesson.
    TryingOther {
        /// The lesson under evaluation.
        draft: LessonDraft,
        /// The verdict on the corrected turn.
        verdict: Verdict,
        /// The unrelated turn.
        other: UnrelatedTurn,
    },
    /// Judge the repeated answer of the unrelated turn.
    JudgingOther {
        /// The lesson under evaluation.
        draft: LessonDraft,
        /// The verdict on the corrected turn.
        verdict: Verdict,
        /// The unrelated turn.
        other: UnrelatedTurn,
        /// The repeated answer.
        answer: String,
    },
}

impl BatchStage {
    /// The correction that the stage works on.
    pub fn feedback_id(&self) -> Option<FeedbackId> {
        match self {
            Self::Choosing => None,
            Self::Drafting { feedback_id } => Some(*feedback_id),
            _ => self.draft().map(|draft| draft.feedback_id),
        }
    }

    /// The lesson that the stage evaluates.
    fn draft(&self) -> Option<&LessonDraft> {
        match self {
            Self::Choosing | Self::Drafting { .. } => None,
            Self::Trying(draft)
            | Self::Judging { draft, .. }
            | Self::TryingOther { draft, .. }
            | Self::JudgingOther { draft, .. } => Some(draft),
        }
    }
}

/// A lesson under evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LessonDraft {
    /// The correction from which the lesson is drawn.
    pub feedback_id: FeedbackId,
    /// The text of the lesson.
    pub lesson: String,
    /// The existing lesson that this one is merged with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merges: Option<MemoryId>,
    /// Whether the lesson may contain content from a tool.
    pub is_tainted: bool,
}

/// A turn that is unrelated to a correction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnrelatedTurn {
    /// The task of the turn.
    pub task_id: TaskId,
    /// The id of the turn.
    pub turn_id: TurnId,
}

/// The effect of a completed stage, apart from the transition to the next one.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchEffect {
    /// No effect.
    None,
    /// The correction is processed, without a lesson.
    NoLesson(FeedbackId),
    /// The lesson is adopted, if that is still possible.
    Adopt(Box<NewLesson>),
    /// The batch ends.
    End,
}

impl WriteTx<'_> {
    /// Begins a batch and returns it, or returns the active one if there is one.
    pub fn begin_batch(&self, id: BatchId, at: Timestamp) -> Result<(BatchId, BatchProgress), StoreError> {
        if let Some(active) = active_batch(self.transaction)? {
            return Ok(active);
        }
        let since = last_started_at(self.transaction)?;
        let sql = "SELECT COUNT(*) FROM trajectories WHERE at > ?1";
        let count: i64 =
            self.transaction.prepare_cached(sql)?.query_row([since.unwrap_or(i64::MIN)], |row| row.get(0))?;
        let trajectory_count = u64::try_from(count).unwrap_or(0);
        let progress = BatchProgress { trajectory_count, ..BatchProgress::default() };
        self.execute(
            "INSERT INTO batches (id, state, started_at) VALUES (?1, ?2, ?3)",
            params![id.to_string(), to_json(&progress)?, at.unix_ms()],
        )?;
        // Feedback from which nothing can be learned counts as processed by this batch.
        self.execute(
            "UPDATE feedback SET batch = ?1 WHERE batch IS NULL AND (task IS NULL OR NOT EXISTS (
                 SELECT 1 FROM knowledge WHERE knowledge.id = said ->> '$.record' AND valid_until IS NULL
             ))",
            [self.transaction.last_insert_rowid()],
        )?;
        Ok((id, progress))
    }

    /// Stores the progress of a batch together with the effect and the usage of its last stage. A lesson that can
    /// no longer be adopted is dropped.
    pub fn advance_batch(
        &self,
        id: BatchId,
        progress: &BatchProgress,
        effect: &BatchEffect,
        calls: &[CallUsage],
        at: Timestamp,
    ) -> Result<(), StoreError> {
        for call in calls {
            self.insert_call_usage(at, call)?;
        }
        // An import may have replaced the brain's content.
        let is_open = "SELECT EXISTS (SELECT 1 FROM batches WHERE id = ?1 AND ended_at IS NULL)";
        if !self.transaction.query_row(is_open, [id.to_string()], |row| row.get::<_, bool>(0))? {
            return Ok(());
        }
        let mut progress = progress.clone();
        if *effect == BatchEffect::End || self.refers_to_deleted(&progress.stage)? {
            progress.stage = BatchStage::Choosing;
        }
        match effect {
            BatchEffect::Adopt(lesson) => {
                // If it is not adopted, the next batch considers the correction again, provided that it still
                // exists.
                if self.adopt_lesson(lesson, id, at)? {
                    progress.adopted += 1;
                    self.mark_processed(lesson.correction.id, id)?;
                }
            }
            BatchEffect::NoLesson(feedback_id) => self.mark_processed(*feedback_id, id)?,
            BatchEffect::None | BatchEffect::End => {}
        }
        let ended_at = (*effect == BatchEffect::End).then_some(at.unix_ms());
        self.execute(
            "UPDATE batches SET state = ?2, ended_at = ?3 WHERE id = ?1",
            params![id.to_string(), to_json(&progress)?, ended_at],
        )
    }

    /// Whether a stage refers to a deleted task, or to a deleted lesson, whose words its draft may have.
    fn refers_to_deleted(&self, stage: &BatchStage) -> Result<bool, StoreError> {
        let exists = |sql: &str, id: String| {
            self.transaction.prepare_cached(sql)?.query_row([id], |row| row.get::<_, bool>(0))
        };
        let correction = "SELECT EXISTS (SELECT 1 FROM feedback WHERE id = ?1 AND task IS NOT NULL)";
        if let Some(id) = stage.feedback_id()
            && !exists(correction, id.to_string())?
        {
            return Ok(true);
        }
        if let Some(merged) = stage.draft().and_then(|draft| draft.merges)
            && !exists("SELECT EXISTS (SELECT 1 FROM lessons WHERE id = ?1)", merged.to_string())?
        {
            return Ok(true);
        }
        match stage {
            BatchStage::TryingOther { other, .. } | BatchStage::JudgingOther { other, .. } => {
                let turn = "SELECT EXISTS (SELECT 1 FROM turns WHERE turn_id = ?1)";
                Ok(!exists(turn, other.turn_id.to_string())?)
            }
            _ => Ok(false),
        }
    }

    /// Marks a correction as processed, so that no batch considers it again.
    fn mark_processed(&self, feedback_id: FeedbackId, batch_id: BatchId) -> Result<(), StoreError> {
        self.execute(
            "UPDATE feedback SET batch = (SELECT batch FROM batches WHERE id = ?2) WHERE id = ?1",
            [feedback_id.to_string(), batch_id.to_string()],
        )
    }
}

/// Removes from all batches what refers to deleted tasks and lessons. A batch that was working on it selects another
/// correction.
pub(super) fn reset_orphaned_batches(tx: &WriteTx<'_>) -> Result<(), StoreError> {
    let mut query = tx.transaction.prepare_cached("SELECT batch, state FROM batches")?;
    let states = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (batch, state) in states.collect::<Result<Vec<(i64, String)>, _>>()? {
        // A state that a later version wrote cannot be parsed; the batch restarts when it is loaded.
        let Ok(progress) = serde_json::from_str::<BatchProgress>(&state) else { continue };
        if tx.refers_to_deleted(&progress.stage)? {
            let state = to_json(&BatchProgress { stage: BatchStage::Choosing, ..progress })?;
            tx.execute("UPDATE batches SET state = ?2 WHERE batch = ?1", params![batch, state])?;
        }
    }
    Ok(())
}

/// The active batch and its progress. A batch that a later version wrote and that this one cannot parse restarts.
pub(super) fn active_batch(reader: &Connection) -> Result<Option<(BatchId, BatchProgress)>, Error> {
    let mut query = reader
        .prepare_cached("SELECT id, state FROM batches WHERE ended_at IS NULL ORDER BY batch LIMIT 1")?;
    let found = query.query_row([], |row| {
        let state = row.get_ref(1)?.as_str()?;
        let progress = serde_json::from_str(state).or_else(|error| {
            tracing::warn!(%error, "The progress of a learning batch cannot be parsed; the batch restarts.");
            let fields: serde_json::Value = serde_json::from_str(state)?;
            let count = fields.get("trajectory_count").and_then(serde_json::Value::as_u64);
            let trajectory_count = count.unwrap_or(0);
            Ok(BatchProgress { trajectory_count, ..BatchProgress::default() })
        });
        let failed =
            |error: serde_json::Error| Error::FromSqlConversionFailure(1, Type::Text, Box::new(error));
        Ok((parse_column(row, 0)?, progress.map_err(failed)?))
    });
    found.optional()
}

/// The start of the newest batch in Unix milliseconds; turns that ended before it are processed. Compared by time,
/// because an import changes row numbers.
fn last_started_at(reader: &Connection) -> Result<Option<i64>, Error> {
    reader.prepare_cached("SELECT MAX(started_at) FROM batches")?.query_row([], |row| row.get(0))
}

/// The time since when there is something that no batch has processed: the start of the newest batch, or, if there
/// was none, the time of the oldest unprocessed item.
pub(super) fn unprocessed_since(reader: &Connection) -> Result<Option<Timestamp>, Error> {
    let last = last_started_at(reader)?;
    let first = "SELECT MIN(at) FROM (
                     SELECT MIN(at) AS at FROM trajectories WHERE at > ?1
                     UNION ALL SELECT MIN(created_at) FROM feedback WHERE batch IS NULL
                 )";
    let first: Option<i64> =
        reader.prepare_cached(first)?.query_row([last.unwrap_or(i64::MIN)], |row| row.get(0))?;
    Ok(first.map(|first| Timestamp::from_unix_ms(last.unwrap_or(first))))
}

/// Of the newest completed turns without feedback, the one that has the fewest words in common with `text`.
pub(super) fn find_unrelated_turn(
    reader: &Connection,
    turn_id: TurnId,
    text: &str,
) -> Result<Option<UnrelatedTurn>, Error> {
    let words = content_words(text);
    let mut query = reader.prepare_cached(
        "SELECT task_id, turn_id, content FROM trajectories JOIN turns USING (turn)
         JOIN tasks ON tasks.task = trajectories.task JOIN episodes USING (turn)
         WHERE outcome = 'completed' AND turn_id <> ?1
         AND NOT EXISTS (SELECT 1 FROM feedback WHERE feedback.turn = trajectories.turn)
         ORDER BY turn DESC LIMIT ?2",
    )?;
    let rows = query.query_map(params![turn_id.to_string(), MAX_UNRELATED_TURN_CANDIDATES], |row| {
        let shared = count_words(&words, row.get_ref(2)?.as_str()?);
        Ok((shared, UnrelatedTurn { task_id: task_id(row, 0)?, turn_id: parse_column(row, 1)? }))
    })?;
    let turns: Vec<(usize, UnrelatedTurn)> = rows.collect::<Result<_, _>>()?;
    Ok(turns.into_iter().min_by_key(|(shared, _)| *shared).map(|(_, other)| other))
}
