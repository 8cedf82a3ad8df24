//! Feedback on turns, and the lessons that an engine learns from it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::BoundedInt;
use crate::{BatchId, FeedbackId, MemoryId, TaskId, Timestamp, TurnId};

/// The maximum length of a correction and of a comment, in bytes.
pub const MAX_FEEDBACK: usize = 8 * 1024;

/// Body of `POST /feedback`. Fields that do not belong to its type are ignored.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Feedback {
    /// The task whose newest turn it is about.
    pub task_id: TaskId,
    /// The type of feedback.
    pub feedback_type: FeedbackType,
    /// The right answer: 1 to 8,192 bytes, not blank. Required for a correction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction_text: Option<String>,
    /// How good the turn was, from 1 to 5. Optional for a rating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rating: Option<BoundedInt<1, 5>>,
    /// What went wrong: at most 8,192 bytes. Optional for an error report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// The type of feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeedbackType {
    /// The right answer. It is in force from the next turn on.
    Correction,
    /// How good the turn was.
    Rating,
    /// A report that something went wrong.
    ErrorReport,
}

/// Response of `POST /feedback`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedbackRecorded {
    /// `recorded`.
    pub status: RecordedStatus,
    /// The id of the feedback.
    pub feedback_id: FeedbackId,
}

/// The only status of [`FeedbackRecorded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordedStatus {
    /// It is stored.
    Recorded,
}

/// Response of `POST /admin/lc/trigger`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchStarted {
    /// `started`.
    pub status: StartedStatus,
    /// The batch: a new one, or the one that was already under way.
    pub batch_id: BatchId,
    /// The number of turns that it reads: those that have ended since the previous batch began.
    pub trajectory_count: u64,
}

/// The only status of [`BatchStarted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartedStatus {
    /// The batch is under way.
    Started,
}

/// Response of `GET /memory/lessons`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LessonList)]
pub struct Lessons {
    /// The lessons in force, newest first.
    pub lessons: Vec<Lesson>,
}

/// A lesson that was learned. It is also a record of knowledge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lesson {
    /// The lesson's id.
    pub id: MemoryId,
    /// What was learned.
    pub content: String,
    /// What it was derived from, and why it was adopted.
    pub evidence: Evidence,
    /// When it was adopted and came into force.
    pub created_at: Timestamp,
}

/// What a lesson was derived from, and why it was adopted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evidence {
    /// The batch that derived it.
    pub batch_id: BatchId,
    /// The corrections behind it: the one that it was derived from, then those of the lesson that it was merged
    /// with.
    pub corrections: Vec<CorrectionGiven>,
    /// The checks that it passed before it was adopted.
    pub verdicts: Vec<Verdict>,
}

/// A correction behind a lesson.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CorrectionGiven {
    /// The id of the correction.
    pub feedback_id: FeedbackId,
    /// The task of the corrected turn.
    pub task_id: TaskId,
    /// The turn that was corrected.
    pub turn_id: TurnId,
    /// The right answer.
    pub correction_text: String,
}

/// A model's verdict on an answer that was given with the lesson in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verdict {
    /// What was checked.
    pub check: Check,
    /// The task of the repeated turn.
    pub task_id: TaskId,
    /// The repeated turn.
    pub turn_id: TurnId,
    /// The new answer, or its beginning if it is long.
    pub answer: String,
    /// Whether the answer passed the check.
    pub passed: bool,
    /// The reason, in the judge's words.
    pub reason: String,
}

/// A check that a lesson must pass before it is adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The corrected turn, when repeated, is answered as the correction says.
    Corrected,
    /// An unrelated turn, when repeated, is answered as well as before.
    Unharmed,
}
