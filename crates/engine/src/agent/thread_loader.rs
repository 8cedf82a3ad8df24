//! Reads a task's conversation from the brain.
//!
//! A journal holds all that a task ever was, and a turn needs what its model is sent. So the journal is folded as it is
//! read, and what a compaction has replaced is let go of on the way ([`Branch`]). Where much was read for little, the
//! result is kept as a **checkpoint**, from which the next turn goes on. The journal is only ever added to, so a
//! checkpoint stays right whichever version of the engine adds to it; a turn that goes back to where it does not reach
//! has the journal read from its beginning.

use contract::TurnId;

use super::branch::Branch;
use super::thread::{FoldError, JournalFold, MissingOpening, Thread};
use crate::llm::estimate;
use crate::store::steps::TurnBase;
use crate::store::{Brain, Checkpoint, StoredStep, TaskRow};

/// The form of checkpoints. What another version of the engine kept in another form is not read.
const CHECKPOINT_FORMAT: i64 = 1;
/// From how many bytes on a checkpoint is kept, and how many times as much must have been read as it has.
const CHECKPOINT_THRESHOLD: (usize, usize) = (1024 * 1024, 2);
/// About how many bytes a token is in a checkpoint.
const BYTES_PER_TOKEN: u64 = 5;

/// Why a conversation could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The brain could not be read.
    #[error(transparent)]
    Read(#[from] rusqlite::Error),
    /// The journal makes no sense.
    #[error(transparent)]
    MissingOpening(#[from] MissingOpening),
}

/// How a task's journal was read.
struct FoldedJournal {
    folding: JournalFold,
    /// The last step, and its turn.
    last: Option<(i64, TurnId)>,
    /// How many bytes were read.
    bytes: usize,
}

/// Where reading begins.
enum ReadFrom {
    Checkpoint(Box<Branch>, Checkpoint),
    Beginning,
    /// The same, and all is held in memory.
    BeginningRetainingAll,
}

/// Reads the conversation of `task` up to where `turn_id` stands. Blocks.
pub(crate) fn load(brain: &Brain, task: TaskRow, turn_id: TurnId) -> Result<Thread, LoadError> {
    let FoldedJournal { folding, last, .. } = read_journal(brain, task)?;
    let thread = folding.thread.filter(|_| last.is_some_and(|(_, last)| last == turn_id));
    thread.ok_or_else(|| MissingOpening(turn_id).into())
}

/// What remains of the conversation of `task` once its last turn is over, for a turn that goes on from `base`. Blocks.
pub(crate) fn load_branch(brain: &Brain, task: TaskRow, base: TurnBase) -> Result<Branch, LoadError> {
    let FoldedJournal { folding, last, bytes } = read_journal(brain, task)?;
    let branch = folding.into_branch();
    if let Some((step, _)) = last {
        save_checkpoint(brain, task, step, &branch, bytes);
    }
    if branch.can_continue_from(base) {
        return Ok(branch);
    }
    Ok(fold_from(brain, task, ReadFrom::BeginningRetainingAll)?
        .map(|loaded| loaded.folding.into_branch())
        .unwrap_or_default())
}

/// Reads the journal from a checkpoint on, or from its beginning where none reaches far enough.
fn read_journal(brain: &Brain, task: TaskRow) -> Result<FoldedJournal, LoadError> {
    let checkpoint = brain.checkpoint(task, CHECKPOINT_FORMAT)?;
    let known = checkpoint.and_then(|checkpoint| {
        let branch = Branch::from_checkpoint(&checkpoint.body);
        branch
            .map(|branch| ReadFrom::Checkpoint(Box::new(branch), checkpoint))
            .inspect_err(
                |error| tracing::warn!(%error, "A checkpoint of a task cannot be read; its journal is."),
            )
            .ok()
    });
    for from in known.into_iter().chain([ReadFrom::Beginning]) {
        if let Some(loaded) = fold_from(brain, task, from)? {
            return Ok(loaded);
        }
    }
    let whole = fold_from(brain, task, ReadFrom::BeginningRetainingAll)?;
    Ok(whole.unwrap_or(FoldedJournal { folding: JournalFold::new(Branch::default()), last: None, bytes: 0 }))
}

/// Folds the journal; none where a turn of it goes back to what is not in memory.
fn fold_from(brain: &Brain, task: TaskRow, from: ReadFrom) -> Result<Option<FoldedJournal>, LoadError> {
    let (before, last, mut bytes) = match from {
        ReadFrom::Checkpoint(branch, checkpoint) => {
            (*branch, Some((checkpoint.step, checkpoint.turn_id)), checkpoint.body.len())
        }
        ReadFrom::Beginning => (Branch::default(), None, 0),
        ReadFrom::BeginningRetainingAll => (Branch::retaining_all(), None, 0),
    };
    let (mut folding, mut last) = (JournalFold::new(before), last);
    let after = last.map_or(0, |(step, _)| step);
    let mut failed = None;
    brain.for_each_step(task, after, |step: i64, size: usize, stored: StoredStep| {
        (last, bytes) = (Some((step, stored.turn_id)), bytes + size);
        failed = folding.apply(stored).err();
        failed.is_none()
    })?;
    match failed {
        None => Ok(Some(FoldedJournal { folding, last, bytes })),
        Some(FoldError::BaseNotInMemory(_)) => Ok(None),
        Some(FoldError::MissingOpening(error)) => Err(error.into()),
    }
}

/// Keeps a checkpoint, where that is worth it.
fn save_checkpoint(brain: &Brain, task: TaskRow, step: i64, branch: &Branch, read: usize) {
    let (least, times) = CHECKPOINT_THRESHOLD;
    let is_worthwhile = |bytes: usize| read >= least && bytes.saturating_mul(times) <= read;
    let about = estimate::messages(branch.messages()).saturating_mul(BYTES_PER_TOKEN);
    if !is_worthwhile(usize::try_from(about).unwrap_or(usize::MAX)) {
        return;
    }
    match branch.to_checkpoint() {
        Ok(body) if is_worthwhile(body.len()) => brain.save_checkpoint(task, step, CHECKPOINT_FORMAT, body),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "A checkpoint of a task could not be made."),
    }
}
