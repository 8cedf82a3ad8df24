//! The errors of the agent.

use api::cassettes::MAX_CASSETTE_BYTES;
use api::{MemoryId, SkillName};
use resources::memory_budget::NoMemory;
use store::WriteError;

use super::attachments::AttachmentError;
use super::caps::ReachedCap;
use super::thread_loader::LoadError;
use super::turn_queue::QueueFull;
use super::{MAX_DIRECT_CALLS, MAX_TURNS_AT_ONCE};

/// Why the agent did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The configuration has no such model.
    #[error("{0}")]
    ModelNotPermitted(String),
    /// There is no such task, or no task at all yet.
    #[error("there is no such task")]
    UnknownTask,
    /// There is no such message in the task.
    #[error("{0}")]
    UnknownMessage(String),
    /// There is no such turn in the task.
    #[error("{0}")]
    UnknownTurn(&'static str),
    /// There is no such memory record.
    #[error("{0}")]
    UnknownRecord(String),
    /// The fact is no longer in force, so it cannot be corrected.
    #[error("{}", describe_replaced(*.0))]
    FactReplaced(Option<MemoryId>),
    /// There is no such schedule.
    #[error("there is no such schedule; GET /schedules lists them")]
    UnknownSchedule,
    /// There is no such delivery to the webhook.
    #[error("there is no such delivery; GET /webhook/deliveries lists them")]
    UnknownDelivery,
    /// The catalog names no webhook.
    #[error("the product has no webhook: its catalog has no valid webhook.json")]
    NoWebhook,
    /// A schedule has the id of a new one.
    #[error("`id`: there is another schedule of this id already; choose another id or change that one")]
    ScheduleExists,
    /// There are too many schedules.
    #[error("there are {0} schedules, which is the limit; delete one first")]
    ScheduleLimit(u64),
    /// Other changes of the schedule were faster each time.
    #[error("the schedule is being changed or run at this moment; try again")]
    ScheduleInUse,
    /// A schedule would never be due.
    #[error("`when`: is never due from now on")]
    NeverDue,
    /// There is no such skill.
    #[error("there is no such skill; GET /skills lists them")]
    UnknownSkill,
    /// The skill belongs to the platform; the user cannot change it.
    #[error("the skill comes with the platform and can be neither changed nor deleted")]
    PlatformSkill,
    /// Another skill has the name.
    #[error("`name`: a skill called `{0}` already exists; choose another name or update that skill")]
    SkillExists(SkillName),
    /// A task has the id of a new one.
    #[error("`task_id`: there is a task of this id already; choose another id")]
    TaskExists,
    /// The turn has not ended, so it cannot be exported.
    #[error("the turn has not ended yet; export it when it has")]
    TurnNotEnded,
    /// The cassette of the turn would be too large.
    #[error("the cassette of this turn would have {0} bytes, and {MAX_CASSETTE_BYTES} is the limit")]
    CassetteTooLarge(usize),
    /// No turn is running on the task.
    #[error("no turn is running on this task")]
    NotRunning,
    /// No request for the user is pending, or not the one that was answered.
    #[error("no such request is pending on this task")]
    NotPending,
    /// There is no such request for an approval in the task.
    #[error(
        "there is no such approval request in this task; GET /tasks/{{task_id}}/approvals lists the open ones"
    )]
    UnknownApproval,
    /// The request for an approval is not open any more.
    #[error("the approval request is not open any more: {0}")]
    ApprovalAnswered(String),
    /// Another turn is running on the task.
    #[error("another turn is running on this task; it can be cancelled")]
    TaskBusy,
    /// The message does not fit into the queue.
    #[error("{0}; send the message again when a turn has ended")]
    QueueFull(#[from] QueueFull),
    /// A cap on usage is reached.
    #[error("{0}")]
    UsageCapReached(ReachedCap),
    /// Too many turns are running.
    #[error("{MAX_TURNS_AT_ONCE} turns are running, which is the limit; try again later")]
    TooManyTurns,
    /// Too many documents are being read.
    #[error("too many documents are being read at the moment; try again later")]
    DocumentsBusy,
    /// Too many tools are running outside turns.
    #[error("{MAX_DIRECT_CALLS} tools are running outside turns, which is the limit; try again later")]
    TooManyCalls,
    /// Too many exports or imports are running.
    #[error("the maximum number of exports or imports is already running; try again when one is done")]
    TooManyTransfers,
    /// Memory cannot be replaced while turns are open.
    #[error("turns are running, queued or waiting for the user: cancel them, or import with `mode=merge`")]
    TurnsInProgress,
    /// A document could not be staged beside the brain.
    #[error("the document could not be staged next to the brain")]
    Staging(#[source] store::StoreError),
    /// The brain's disk cannot keep up.
    #[error(
        "too much text is waiting to be stored: the disk is slower than the running turns; try again later"
    )]
    StoreBacklogFull,
    /// The workspace could not be read.
    #[error("the workspace could not be read")]
    Workspace(#[from] std::io::Error),
    /// The turn's journal cannot be read at the moment.
    #[error(
        "the turn cannot be read from the brain at the moment; the engine retries every few seconds: try again"
    )]
    TemporarilyUnreadable,
    /// The memory budget is used up.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
    /// The engine is about to be put to sleep.
    #[error("the engine is about to sleep; admit the user again, which wakes it")]
    Quiesced,
    /// The brain could not be read.
    #[error("the brain could not be read")]
    Read(#[from] store::StoreError),
    /// The task's journal could not be read.
    #[error("the task's journal could not be read: {0}")]
    Unreadable(String),
    /// The brain could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The message about a fact that is no longer in force: it names the one that is.
fn describe_replaced(current: Option<MemoryId>) -> String {
    match current {
        Some(id) => format!("the fact has been replaced: correct `{id}`, which is in force, instead"),
        None => "the fact is no longer in force, and no other one is in its place: save it anew".to_owned(),
    }
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
