//! Loads a task's conversation from the brain.
//!
//! A journal holds everything that ever happened in a task, but a turn needs only what its model is sent. So
//! the journal is folded while it is read, and what a compaction has replaced is evicted on the way
//! ([`Branch`]). If much was read for a small result, that is saved as a **checkpoint** from which the next
//! turn continues. The journal is append-only, so a checkpoint stays valid whichever version of the engine
//! appends to it; for a turn that goes back further than the checkpoint, the journal is read from its
//! beginning.

use api::TurnId;
use llm::estimate;
use store::steps::TurnBase;
use store::{Brain, Checkpoint, StoredStep, TaskRow};

use super::branch::Branch;
use super::journal_fold::{FoldError, JournalFold, MissingOpening};
use super::thread::Thread;

/// The format of checkpoints. A checkpoint that another version of the engine saved in another format is not
/// read.
const CHECKPOINT_FORMAT: i64 = 3;
/// The fewest bytes read for which a checkpoint is saved, and the minimum ratio of bytes read to its size.
const CHECKPOINT_THRESHOLD: (usize, usize) = (1024 * 1024, 2);
/// The approximate bytes per token in a checkpoint.
const BYTES_PER_TOKEN: u64 = 5;

/// Why a conversation could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The brain could not be read.
    #[error(transparent)]
    Read(#[from] store::StoreError),
    /// The journal is invalid.
    #[error(transparent)]
    MissingOpening(#[from] MissingOpening),
}

/// A journal that was read, with statistics.
struct FoldedJournal {
    fold: JournalFold,
    /// The last step and its turn.
    last: Option<(i64, TurnId)>,
    /// The number of bytes read.
    bytes: usize,
}

/// Where reading begins.
enum ReadFrom {
    Checkpoint(Box<Branch>, Checkpoint),
    Beginning,
    /// At the beginning, holding everything in memory.
    BeginningRetainingAll,
}

/// Loads the conversation of `task`, whose last turn must be `turn_id`. Blocks.
pub(crate) fn load(brain: &Brain, task: TaskRow, turn_id: TurnId) -> Result<Thread, LoadError> {
    let FoldedJournal { fold, last, .. } = read_journal(brain, task)?;
    let thread = fold.thread.filter(|_| last.is_some_and(|(_, last)| last == turn_id));
    thread.ok_or_else(|| MissingOpening(turn_id).into())
}

/// Loads the conversation of `task` after its last turn, for a turn that continues from `base`. Blocks.
pub(crate) fn load_branch(brain: &Brain, task: TaskRow, base: TurnBase) -> Result<Branch, LoadError> {
    let FoldedJournal { fold, last, bytes } = read_journal(brain, task)?;
    let branch = fold.into_branch();
    if let Some((step, _)) = last {
        save_checkpoint(brain, task, step, &branch, bytes);
    }
    if branch.can_continue_from(base) {
        return Ok(branch);
    }
    Ok(fold_from(brain, task, ReadFrom::BeginningRetainingAll)?
        .map(|loaded| loaded.fold.into_branch())
        .unwrap_or_default())
}

/// Reads the journal from a checkpoint, or from its beginning if no checkpoint reaches far enough.
fn read_journal(brain: &Brain, task: TaskRow) -> Result<FoldedJournal, LoadError> {
    let checkpoint = brain.checkpoint(task, CHECKPOINT_FORMAT)?;
    let from_checkpoint = checkpoint.and_then(|checkpoint| {
        let branch = Branch::from_checkpoint(&checkpoint.body);
        branch
            .map(|branch| ReadFrom::Checkpoint(Box::new(branch), checkpoint))
            .inspect_err(
                |error| tracing::warn!(%error, "A checkpoint could not be read; the journal is replayed."),
            )
            .ok()
    });
    for from in from_checkpoint.into_iter().chain([ReadFrom::Beginning]) {
        if let Some(loaded) = fold_from(brain, task, from)? {
            return Ok(loaded);
        }
    }
    let complete = fold_from(brain, task, ReadFrom::BeginningRetainingAll)?;
    Ok(complete.unwrap_or(FoldedJournal { fold: JournalFold::new(Branch::default()), last: None, bytes: 0 }))
}

/// Folds the journal; `None` if one of its turns goes back to a message that is not in memory.
fn fold_from(brain: &Brain, task: TaskRow, from: ReadFrom) -> Result<Option<FoldedJournal>, LoadError> {
    let (before, last, mut bytes) = match from {
        ReadFrom::Checkpoint(branch, checkpoint) => {
            (*branch, Some((checkpoint.step, checkpoint.turn_id)), checkpoint.body.len())
        }
        ReadFrom::Beginning => (Branch::default(), None, 0),
        ReadFrom::BeginningRetainingAll => (Branch::retaining_all(), None, 0),
    };
    let (mut fold, mut last) = (JournalFold::new(before), last);
    let after = last.map_or(0, |(step, _)| step);
    let mut failed = None;
    brain.for_each_step(task, after, |step: i64, size: usize, stored: StoredStep| {
        (last, bytes) = (Some((step, stored.turn_id)), bytes + size);
        failed = fold.apply(stored).err();
        failed.is_none()
    })?;
    match failed {
        None => Ok(Some(FoldedJournal { fold, last, bytes })),
        Some(FoldError::BaseNotInMemory(_)) => Ok(None),
        Some(FoldError::MissingOpening(error)) => Err(error.into()),
    }
}

/// Saves a checkpoint if that is worthwhile.
fn save_checkpoint(brain: &Brain, task: TaskRow, step: i64, branch: &Branch, read: usize) {
    let (min_bytes, min_factor) = CHECKPOINT_THRESHOLD;
    let is_worthwhile = |bytes: usize| read >= min_bytes && bytes.saturating_mul(min_factor) <= read;
    let estimated_bytes = estimate::messages(branch.messages()).saturating_mul(BYTES_PER_TOKEN);
    if !is_worthwhile(usize::try_from(estimated_bytes).unwrap_or(usize::MAX)) {
        return;
    }
    match branch.to_checkpoint() {
        Ok(body) if is_worthwhile(body.len()) => brain.save_checkpoint(task, step, CHECKPOINT_FORMAT, body),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "A checkpoint of a task could not be created."),
    }
}
