//! The steps of a turn, as the journal keeps them.
//!
//! The journal is the thread: what the model is sent next is read from it, and a turn that was cut off goes on
//! after its last step. Its JSON form is stored in users' brains, so it may only grow.

use contract::event::{Failure, StopReason};
use contract::{CallId, MessageId};
use serde::{Deserialize, Serialize};

use crate::models::{Answer, ToolOutcome};

/// One step of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// The turn was opened with the user's message.
    Opened {
        /// The message's id.
        message_id: MessageId,
        /// What the user wrote.
        message: String,
        /// How the turn is to run.
        options: TurnOptions,
    },
    /// The model answered, to the end of its answer.
    Answered {
        /// The message that the answer is.
        message_id: MessageId,
        /// The model that answered.
        model: String,
        /// What it said.
        answer: Answer,
    },
    /// A tool is about to run: from here on its outcome is unknown until a result is on record.
    Intended {
        /// The call.
        call_id: CallId,
    },
    /// A tool finished, or will never run.
    Resulted {
        /// The call.
        call_id: CallId,
        /// What came of it.
        outcome: ToolOutcome,
    },
    /// The turn ended.
    Ended {
        /// How.
        outcome: TurnOutcome,
    },
}

/// How a turn is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnOptions {
    /// The most model calls.
    pub max_turns: u64,
    /// Whether the model may think before it answers.
    pub super_thinking: bool,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum TurnOutcome {
    /// Well.
    Completed {
        /// Why it ended.
        stop_reason: StopReason,
    },
    /// With an error.
    Errored {
        /// What went wrong.
        failure: Failure,
    },
}
