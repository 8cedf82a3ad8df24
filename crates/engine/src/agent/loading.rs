//! Reads a task's conversation from the brain.
//!
//! A journal holds all that a task ever was, and a turn needs what its model is sent. So the journal is folded as it is
//! read, and what a compaction has replaced is let go of on the way ([`Branch`]). Where much was read for little, the
//! result is kept as a **checkpoint**, from which the next turn goes on. The journal is only ever added to, so a
//! checkpoint stays right whichever version of the engine adds to it; a turn that goes back to where it does not reach
//! has the journal read from its beginning.

use contract::TurnId;

use super::branch::Branch;
use super::thread::{FoldError, Folding, NotOpened, Thread};
use crate::brain::steps::Base;
use crate::brain::{Brain, Checkpoint, StoredStep, TaskRow};
use crate::models::estimate;

/// The form of checkpoints. What another version of the engine kept in another form is not read.
const FORM: i64 = 1;
/// From how many bytes on a checkpoint is kept, and how many times as much must have been read as it has.
const WORTH: (usize, usize) = (1024 * 1024, 2);
/// About how many bytes a token is in a checkpoint.
const TOKEN_BYTES: u64 = 5;

/// Why a conversation could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The brain could not be read.
    #[error(transparent)]
    Read(#[from] rusqlite::Error),
    /// The journal makes no sense.
    #[error(transparent)]
    NotOpened(#[from] NotOpened),
}

/// How a task's journal was read.
struct Loaded {
    folding: Folding,
    /// The last step, and its turn.
    last: Option<(i64, TurnId)>,
    /// How many bytes were read.
    bytes: usize,
}

/// Where reading begins.
enum From {
    Checkpoint(Box<Branch>, Checkpoint),
    Beginning,
    /// The same, and all is held in memory.
    BeginningWhole,
}

/// Reads the conversation of `task` up to where `turn_id` stands. Blocks.
pub(crate) fn load(brain: &Brain, task: TaskRow, turn_id: TurnId) -> Result<Thread, LoadError> {
    let Loaded { folding, last, .. } = read(brain, task)?;
    let thread = folding.thread.filter(|_| last.is_some_and(|(_, last)| last == turn_id));
    thread.ok_or_else(|| NotOpened(turn_id).into())
}

/// What remains of the conversation of `task` once its last turn is over, for a turn that goes on from `base`. Blocks.
pub(crate) fn load_ended(brain: &Brain, task: TaskRow, base: Base) -> Result<Branch, LoadError> {
    let Loaded { folding, last, bytes } = read(brain, task)?;
    let branch = folding.ended();
    if let Some((step, _)) = last {
        keep(brain, task, step, &branch, bytes);
    }
    if branch.reaches(base) {
        return Ok(branch);
    }
    Ok(fold(brain, task, From::BeginningWhole)?.map(|loaded| loaded.folding.ended()).unwrap_or_default())
}

/// Reads the journal from a checkpoint on, or from its beginning where none reaches far enough.
fn read(brain: &Brain, task: TaskRow) -> Result<Loaded, LoadError> {
    let checkpoint = brain.checkpoint(task, FORM)?;
    let known = checkpoint.and_then(|checkpoint| {
        let branch = Branch::from_checkpoint(&checkpoint.body);
        branch
            .map(|branch| From::Checkpoint(Box::new(branch), checkpoint))
            .inspect_err(
                |error| tracing::warn!(%error, "A checkpoint of a task cannot be read; its journal is."),
            )
            .ok()
    });
    for from in known.into_iter().chain([From::Beginning]) {
        if let Some(loaded) = fold(brain, task, from)? {
            return Ok(loaded);
        }
    }
    let whole = fold(brain, task, From::BeginningWhole)?;
    Ok(whole.unwrap_or(Loaded { folding: Folding::new(Branch::default()), last: None, bytes: 0 }))
}

/// Folds the journal; none where a turn of it goes back to what is not in memory.
fn fold(brain: &Brain, task: TaskRow, from: From) -> Result<Option<Loaded>, LoadError> {
    let (before, last, mut bytes) = match from {
        From::Checkpoint(branch, checkpoint) => {
            (*branch, Some((checkpoint.step, checkpoint.turn_id)), checkpoint.body.len())
        }
        From::Beginning => (Branch::default(), None, 0),
        From::BeginningWhole => (Branch::whole(), None, 0),
    };
    let (mut folding, mut last) = (Folding::new(before), last);
    let after = last.map_or(0, |(step, _)| step);
    let mut failed = None;
    brain.each_step(task, after, |step: i64, size: usize, stored: StoredStep| {
        (last, bytes) = (Some((step, stored.turn_id)), bytes + size);
        failed = folding.take(stored).err();
        failed.is_none()
    })?;
    match failed {
        None => Ok(Some(Loaded { folding, last, bytes })),
        Some(FoldError::Unreachable(_)) => Ok(None),
        Some(FoldError::NotOpened(error)) => Err(error.into()),
    }
}

/// Keeps a checkpoint, where that is worth it.
fn keep(brain: &Brain, task: TaskRow, step: i64, branch: &Branch, read: usize) {
    let (least, times) = WORTH;
    let is_worth = |bytes: usize| read >= least && bytes.saturating_mul(times) <= read;
    let about = estimate::messages(branch.messages()).saturating_mul(TOKEN_BYTES);
    if !is_worth(usize::try_from(about).unwrap_or(usize::MAX)) {
        return;
    }
    match branch.to_checkpoint() {
        Ok(body) if is_worth(body.len()) => brain.keep_checkpoint(task, step, FORM, body),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "A checkpoint of a task could not be made."),
    }
}
