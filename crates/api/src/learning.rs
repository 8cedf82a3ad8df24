//! What people say of turns, and what an engine learns from it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::BoundedInt;
use crate::{BatchId, FeedbackId, MemoryId, TaskId, Timestamp, TurnId};

/// The longest correction, and the longest comment, in bytes.
pub const MAX_FEEDBACK: usize = 8 * 1024;

/// Body of `POST /feedback`. What is not of its type is left out.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Feedback {
    /// The task that it is about: its newest turn.
    pub task_id: TaskId,
    /// What it is.
    pub feedback_type: FeedbackType,
    /// The right answer: 1 to 8,192 bytes, not blank. A correction has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction_text: Option<String>,
    /// How good it was. A rating may have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rating: Option<BoundedInt<1, 5>>,
    /// What went wrong: at most 8,192 bytes. An error report may have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// What feedback is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeedbackType {
    /// The right answer. It is in force from the next turn on.
    Correction,
    /// How good the turn was.
    Rating,
    /// That something went wrong.
    ErrorReport,
}

/// Answer of `POST /feedback`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedbackRecorded {
    /// `recorded`.
    pub status: RecordedStatus,
    /// Its id.
    pub feedback_id: FeedbackId,
}

/// The one status of [`FeedbackRecorded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordedStatus {
    /// It is stored.
    Recorded,
}

/// Answer of `POST /admin/lc/trigger`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchStarted {
    /// `started`.
    pub status: StartedStatus,
    /// The batch: a new one, or the one that was under way.
    pub batch_id: BatchId,
    /// How many turns it reads: those that have ended since the batch before it began.
    pub trajectory_count: u64,
}

/// The one status of [`BatchStarted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartedStatus {
    /// It is under way.
    Started,
}

/// Answer of `GET /memory/lessons`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lessons {
    /// The lessons in force, the newest first.
    pub lessons: Vec<Lesson>,
}

/// Something that was learned. It is a record of knowledge too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lesson {
    /// Its id.
    pub id: MemoryId,
    /// What was learned.
    pub content: String,
    /// What it was drawn from, and why it was adopted.
    pub evidence: Evidence,
    /// When it was adopted: from then on it is in force.
    pub created_at: Timestamp,
}

/// What a lesson was drawn from, and why it was adopted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evidence {
    /// The batch that drew it.
    pub batch_id: BatchId,
    /// The corrections in it: the one that it was drawn from, then those of the lesson that it was merged with.
    pub corrections: Vec<CorrectionGiven>,
    /// What was judged before it was adopted.
    pub verdicts: Vec<Verdict>,
}

/// A correction in a lesson.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CorrectionGiven {
    /// Its id.
    pub feedback_id: FeedbackId,
    /// The task.
    pub task_id: TaskId,
    /// The turn that was corrected.
    pub turn_id: TurnId,
    /// The right answer.
    pub correction_text: String,
}

/// What a model judged of an answer that was given with the lesson in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verdict {
    /// What was asked.
    pub check: Check,
    /// The task of the turn that was asked again.
    pub task_id: TaskId,
    /// The turn that was asked again.
    pub turn_id: TurnId,
    /// What it answered now; its beginning where it is long.
    pub answer: String,
    /// Whether that is as it should be.
    pub passed: bool,
    /// Why, in the judge's words.
    pub reason: String,
}

/// What a lesson must stand before it is adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The corrected turn, asked again, answers as the correction says.
    Corrected,
    /// An unrelated turn, asked again, is as good as it was.
    Unharmed,
}
