//! Requests and answers of the engine.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Bounded, null_as_default};
use crate::{MessageId, TaskId};

/// The header that opens an engine.
pub const ENGINE_KEY_HEADER: &str = "x-engine-key";

/// The status of a part that works.
pub const HEALTHY: &str = "ok";

/// Answer of `GET /health`. Its schema and meaning are strictly stable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineHealth {
    /// `ok` when fully ready; `degraded` when a subsystem is unwell.
    pub status: String,
    /// Seconds since the engine started.
    pub uptime_seconds: f64,
    /// The state of each subsystem.
    pub subsystems: Subsystems,
}

/// The state of each subsystem: `ok`, or what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Subsystems {
    /// The brain.
    pub database: String,
    /// The language model provider: its configuration and its last calls. Checking it spends no tokens.
    pub llm_provider: String,
    /// The directory of tool servers.
    pub asset_directory: String,
}

/// The most model calls in one turn: at least 1.
pub type MaxTurns = Bounded<1, { i64::MAX }>;

/// Body of `POST /execute`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Execute {
    /// The user's message.
    pub message: String,
    /// The thread to start or continue.
    pub task_id: TaskId,
    /// Attached images and documents.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub media: Vec<serde_json::Value>,
    /// Skip planning and run the loop directly.
    #[serde(default, deserialize_with = "null_as_default")]
    pub direct: bool,
    /// Replace this earlier message with the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit_message_id: Option<MessageId>,
    /// Keep all messages and run the loop again from this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_message_id: Option<MessageId>,
    /// The most model calls in this turn; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<MaxTurns>,
    /// Let the model think before it answers.
    #[serde(default, deserialize_with = "null_as_default")]
    pub super_thinking: bool,
}

/// Query of `GET /execute/replay`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Replay {
    /// Events after this time (Unix milliseconds); 0, the default, for all. `Last-Event-ID` beats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Bounded<0, { i64::MAX }>>,
    /// The task; by default the one that ran last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
}
