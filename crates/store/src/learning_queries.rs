//! Queries about corrections, lessons and learning batches.

use api::learning::Lesson;
use api::{BatchId, FeedbackId, Timestamp, TurnId};

use super::{
    BatchProgress, Brain, Correction, FeedbackRow, KnownLesson, StoreError, UnrelatedTurn, feedback,
    learning_batches, lessons,
};

impl Brain {
    /// A page of the active lessons, newest first. Blocks.
    pub fn lessons(&self, limit: i64, offset: i64) -> Result<Vec<Lesson>, StoreError> {
        self.read_long(|reader| lessons::list(reader, limit, offset))
    }

    /// Active lessons that are tainted (data), or that are not: those most relevant to `about` first, then the
    /// newest. Blocks.
    pub fn relevant_lessons(
        &self,
        is_tainted: bool,
        about: &str,
        limit: usize,
    ) -> Result<Vec<KnownLesson>, StoreError> {
        self.read_long(|reader| lessons::most_relevant(reader, is_tainted, about, limit))
    }

    /// The active learning batch and its progress.
    pub fn active_batch(&self) -> Result<Option<(BatchId, BatchProgress)>, StoreError> {
        self.read(learning_batches::active_batch)
    }

    /// The time since when there is something that no learning batch has processed. Blocks.
    pub fn unprocessed_since(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read_long(learning_batches::unprocessed_since)
    }

    /// The first correction after `after` that no batch has processed and whose turn has ended. Blocks.
    pub fn next_correction(
        &self,
        after: FeedbackRow,
    ) -> Result<Option<(FeedbackRow, FeedbackId)>, StoreError> {
        self.read_long(|reader| feedback::next_correction(reader, after))
    }

    /// An active correction that no batch has processed. Blocks.
    pub fn correction(&self, id: FeedbackId) -> Result<Option<Correction>, StoreError> {
        self.read_long(|reader| feedback::correction(reader, id))
    }

    /// A turn other than `turn_id` that is unrelated to `text`. Blocks.
    pub fn unrelated_turn(&self, turn_id: TurnId, text: &str) -> Result<Option<UnrelatedTurn>, StoreError> {
        self.read_long(|reader| learning_batches::find_unrelated_turn(reader, turn_id, text))
    }
}
