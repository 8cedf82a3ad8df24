//! What the brain knows of what was taught and learned.

use contract::learning::Lesson;
use contract::{BatchId, FeedbackId, Timestamp, TurnId};
use rusqlite::Error;

use super::steps::TurnBase;
use super::{
    BatchProgress, Brain, Correction, Corrections, FeedbackRow, KnownLesson, TaskRow, UnrelatedTurn,
    feedback, learning_batches, lessons,
};

impl Brain {
    /// What the user taught that a conversation, as it goes on from `base`, does not show. Blocks.
    pub fn corrections(&self, task: TaskRow, base: TurnBase) -> Result<Corrections, Error> {
        self.read(|reader| feedback::load_corrections(reader, task, base))
    }

    /// A page of the lessons in force, the newest first. Blocks.
    pub fn lessons(&self, limit: i64, offset: i64) -> Result<Vec<Lesson>, Error> {
        self.read_long(|reader| lessons::list(reader, limit, offset))
    }

    /// Lessons in force that are data, or that are not: those that bear most on `about`, and then the newest. Blocks.
    pub fn relevant_lessons(
        &self,
        is_tainted: bool,
        about: &str,
        limit: usize,
    ) -> Result<Vec<KnownLesson>, Error> {
        self.read_long(|reader| lessons::most_relevant(reader, is_tainted, about, limit))
    }

    /// The learning batch that is under way, and how far it has come.
    pub fn active_batch(&self) -> Result<Option<(BatchId, BatchProgress)>, Error> {
        self.read(learning_batches::active_batch)
    }

    /// Since when there is something that no learning batch has read. Blocks.
    pub fn unprocessed_since(&self) -> Result<Option<Timestamp>, Error> {
        self.read_long(learning_batches::unprocessed_since)
    }

    /// The first correction after `after` that no batch is done with and whose turn has ended. Blocks.
    pub fn next_correction(&self, after: FeedbackRow) -> Result<Option<(FeedbackRow, FeedbackId)>, Error> {
        self.read_long(|reader| feedback::next_correction(reader, after))
    }

    /// A correction that is in force and that no batch is done with. Blocks.
    pub fn correction(&self, id: FeedbackId) -> Result<Option<Correction>, Error> {
        self.read_long(|reader| feedback::correction(reader, id))
    }

    /// A turn, other than `turn_id`, that has nothing to do with `text`. Blocks.
    pub fn unrelated_turn(&self, turn_id: TurnId, text: &str) -> Result<Option<UnrelatedTurn>, Error> {
        self.read_long(|reader| learning_batches::find_unrelated_turn(reader, turn_id, text))
    }
}
