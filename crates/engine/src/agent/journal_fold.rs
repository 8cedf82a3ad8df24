//! Folds a task's journal, turn by turn, into its conversation. Pure.

use api::{MessageId, TurnId};
use store::StoredStep;
use store::steps::Step;

use super::branch::Branch;
use super::thread::Thread;

/// A journal in which a turn does not begin with its opening step.
#[derive(Debug, thiserror::Error)]
#[error("the journal of turn {0} does not begin with its opening")]
pub(crate) struct MissingOpening(pub(super) TurnId);

/// Folds a journal up to its end; `None` if it contains no conversation.
pub(super) fn fold_journal(steps: Vec<StoredStep>) -> Result<Option<Thread>, MissingOpening> {
    let mut fold = JournalFold::new(Branch::retaining_all());
    steps.into_iter().try_for_each(|stored| fold.apply(stored)).map_err(|error| match error {
        FoldError::MissingOpening(error) => error,
        FoldError::BaseNotInMemory(turn_id) => MissingOpening(turn_id),
    })?;
    Ok(fold.thread)
}

/// Folds a journal step by step.
pub(super) struct JournalFold {
    /// The branch before the first turn.
    base: Option<Branch>,
    pub(super) thread: Option<Thread>,
}

/// Why a journal cannot be folded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FoldError {
    /// The journal is invalid.
    #[error(transparent)]
    MissingOpening(#[from] MissingOpening),
    /// A turn continues from a message that is not in memory.
    #[error("turn {0} continues from a message that is not in memory")]
    BaseNotInMemory(TurnId),
}

impl JournalFold {
    /// Folds a journal that continues from a branch.
    pub(super) fn new(before: Branch) -> Self {
        Self { base: Some(before), thread: None }
    }

    /// Applies the next step.
    pub(super) fn apply(&mut self, stored: StoredStep) -> Result<(), FoldError> {
        let StoredStep { turn_id, opened_ts, ts, step, .. } = stored;
        match (step, &mut self.thread) {
            (Step::Opened(opened), thread) => {
                let before =
                    thread.take().map(Thread::into_branch).or_else(|| self.base.take()).unwrap_or_default();
                if !before.can_continue_from(opened.base) {
                    return Err(FoldError::BaseNotInMemory(turn_id));
                }
                *thread = Some(Thread::open(before, opened, opened_ts..=ts));
            }
            (Step::Unknown, _) => {}
            (_, None) => return Err(MissingOpening(turn_id).into()),
            (step, Some(thread)) => thread.apply(step, ts),
        }
        Ok(())
    }

    /// The last listed message.
    pub(super) fn last_listed(&self) -> Option<MessageId> {
        self.thread.as_ref().map(Thread::branch).or(self.base.as_ref())?.last_listed()
    }

    /// Returns the conversation after its last turn.
    pub(super) fn into_branch(self) -> Branch {
        self.thread.map(Thread::into_branch).or(self.base).unwrap_or_default()
    }
}
