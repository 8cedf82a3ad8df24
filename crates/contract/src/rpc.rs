//! `POST /rpc`: calls of an engine's parts, without the agent's loop.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{ErrorCode, Timestamp};

/// The level of confinement of an engine whose tools run as the engine itself does.
pub const UNCONFINED: &str = "none";

// It holds whatever a caller sends, key hashes too, so it cannot be printed.
/// Body of `POST /rpc`: `method` with `params`, or `subsystem` with `op` and, beside it, what the operation takes.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct RpcCall {
    /// The method, such as `rpc.methods`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// What the method takes. Required with `method`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Map<String, Value>>,
    /// `control` or `telemetry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// The operation of the subsystem. Required with `subsystem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// What the operation takes: `key_hash` for `set_key_hash`, `lift` for `quiesce`.
    #[serde(flatten)]
    pub parameters: Map<String, Value>,
}

/// Answer of a call that went well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RpcResult<T> {
    /// What came of it.
    pub result: T,
}

/// What the methods and operations give.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum RpcOutcome {
    /// Of `rpc.methods`.
    Methods(RpcMethods),
    /// Of `quiesce`.
    Quiesced(Quiesced),
    /// Of `activity`.
    Activity(Activity),
    /// Of `set_key_hash`, which has nothing to tell.
    Done {},
}

/// Answer of a call that was refused or failed. It is flat, unlike every other one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RpcError {
    /// The stable code.
    pub error: ErrorCode,
    /// What is wrong, where, and what to do. Not to be matched.
    pub message: String,
}

/// Result of `rpc.methods`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RpcMethods {
    /// The methods there are.
    pub methods: Vec<RpcMethod>,
}

/// A method that can be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RpcMethod {
    /// Its name.
    pub method: String,
    /// The JSON schema of its `params`.
    pub params: Value,
}

/// Result of the control operation `quiesce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quiesced {
    /// Whether no turn runs and none can begin.
    pub quiesced: bool,
}

/// Result of the telemetry operation `activity`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// How many turns are at work. Those that wait for a person are not.
    pub running_turns: u64,
    /// How many requests wait for a person.
    pub pending_hitl: u64,
    /// When a turn last did something; null where none ever did.
    pub last_activity_at: Option<Timestamp>,
    /// How tools are confined; `none` where they are not.
    pub confinement: String,
}
