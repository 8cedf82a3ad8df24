//! The errors of the agent.

use api::SkillName;

use super::MAX_TURNS_AT_ONCE;
use super::attachments::AttachmentError;
use super::direct_calls::MAX_DIRECT_CALLS;
use super::thread_loader::LoadError;
use crate::memory_budget::NoMemory;
use crate::store::WriteError;

/// Why the agent did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// There is no such task, or no task at all yet.
    #[error("there is no such task, or none yet")]
    UnknownTask,
    /// There is no such message in the task.
    #[error("{0}")]
    UnknownMessage(String),
    /// There is no such memory record.
    #[error("{0}")]
    UnknownRecord(String),
    /// There is no such skill.
    #[error("there is no such skill; GET /skills lists them")]
    UnknownSkill,
    /// The skill belongs to the platform; the user cannot change it.
    #[error("the skill comes with the platform: it can be neither changed nor deleted")]
    PlatformSkill,
    /// Another skill has the name.
    #[error("`name`: there is a skill called `{0}` already; take another name, or change that one")]
    SkillExists(SkillName),
    /// No turn is running on the task.
    #[error("no turn is running on this task")]
    NotRunning,
    /// No request for the user is pending, or not the one that was answered.
    #[error("no such request is pending on this task")]
    NotPending,
    /// Another turn is running on the task.
    #[error("another turn is running on this task; it can be cancelled")]
    Busy,
    /// Too many turns are running.
    #[error("{MAX_TURNS_AT_ONCE} turns are running, and more cannot")]
    TooManyTurns,
    /// Too many tools are running outside turns.
    #[error("{MAX_DIRECT_CALLS} tools are running beside turns, and more cannot")]
    TooManyCalls,
    /// Too many exports or imports are running.
    #[error("as many exports or imports as can be at once are under way; ask again when they are done")]
    TooManyTransfers,
    /// Memory cannot be replaced while turns are open.
    #[error("turns are under way, or wait for a person: cancel them, or import with `mode=merge`")]
    TurnsInProgress,
    /// A document could not be staged beside the brain.
    #[error("the document could not be kept beside the brain")]
    Staging(#[source] rusqlite::Error),
    /// The brain's disk cannot keep up.
    #[error("too much waits to be stored: the disk is slower than the turns that are running")]
    StoreBacklogFull,
    /// The workspace could not be read.
    #[error("the workspace could not be read")]
    Workspace(#[from] std::io::Error),
    /// The turn's journal cannot be read at the moment.
    #[error(
        "the turn cannot be read from the brain just now; it is tried again every few seconds: ask again"
    )]
    TemporarilyUnreadable,
    /// The memory budget is used up.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
    /// The engine is about to be put to sleep.
    #[error("the engine is about to be put to sleep; ask for admission again, which wakes it")]
    Quiesced,
    /// The brain could not be read.
    #[error("the brain could not be read")]
    Read(#[from] rusqlite::Error),
    /// The task's journal could not be read.
    #[error("the task's journal could not be read: {0}")]
    Unreadable(String),
    /// The brain could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<AttachmentError> for AgentError {
    fn from(error: AttachmentError) -> Self {
        match error {
            AttachmentError::NoMemory(error) => Self::NoMemory(error),
            AttachmentError::Read(error) => Self::Read(error),
            AttachmentError::Stopping => Self::Stopping,
        }
    }
}

impl From<LoadError> for AgentError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Read(error) => Self::Read(error),
            LoadError::MissingOpening(error) => Self::Unreadable(error.to_string()),
        }
    }
}
