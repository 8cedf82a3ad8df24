//! `POST /rpc`: calls of an engine's parts, without the agent's loop.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::engine::Deleted;
use crate::memory::{Knowledge, KnowledgeList, MemoryResults};
use crate::{ErrorCode, Timestamp};

/// The level of confinement of an engine that runs no programs for its agent.
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
    /// What the operation takes: `config` for `set_config`, `key_hash` for `set_key_hash`, `lift` for `quiesce`.
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
    /// Of `get_config`.
    Config(GatewayConfig),
    /// Of `quota_state`.
    Quota(QuotaState),
    /// Of `cache_state`.
    Cache(CacheState),
    /// Of `tool.<name>` and `skill.<name>`.
    Tool(ToolOutput),
    /// Of `memory.search`.
    Memories(MemoryResults),
    /// Of `memory.list`.
    Knowledge(KnowledgeList),
    /// Of `memory.save`.
    Known(Knowledge),
    /// Of `memory.delete`.
    Deleted(Deleted),
    /// Of `memory.export`: the document of `GET /memory/export`.
    Exported(Value),
    /// Of `assets.client_metadata`: the document that the product is to serve.
    ClientMetadata(Value),
    /// Of `set_config`, `reload` and `set_key_hash`, which have nothing to tell.
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

/// Result of `tool.<name>` and `skill.<name>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolOutput {
    /// What the tool or the script gave, as a model would be told it; of a skill without a script, what the model
    /// answered.
    pub output: String,
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
    /// Whether no turn and no learning batch runs, and none can begin.
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

/// Result of the control operation `get_config`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GatewayConfig {
    /// The configuration in force, as `gateway.json` would say it and as `set_config` takes it; null where no model can
    /// be used. Holds no key.
    pub config: Value,
}

/// Result of the telemetry operation `quota_state`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QuotaState {
    /// The budgets and what is left of them.
    pub budgets: BudgetStates,
    /// The models in force and how they are doing.
    pub models: Vec<ModelState>,
    /// What was spent within the last 24 hours, by model, also on models that are in force no more.
    pub spent: Vec<ModelSpending>,
}

/// The budgets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BudgetStates {
    /// The most tokens of one turn; null where there is no bound.
    pub tokens_per_turn: Option<u64>,
    /// The last hour's.
    pub tokens_per_hour: BudgetState,
    /// The last 24 hours'.
    pub tokens_per_day: BudgetState,
}

/// A budget that looks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BudgetState {
    /// The most tokens; null where there is no bound.
    pub limit: Option<u64>,
    /// Those that were spent, input and output.
    pub used: u64,
    /// Those that are left; null where there is no bound.
    pub remaining: Option<u64>,
    /// When the oldest call that counts will count no more; null where none counts.
    pub frees_at: Option<Timestamp>,
}

/// How a model is doing. Kept in memory, from the start of the engine or a change of the configuration on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelState {
    /// What the configuration calls it.
    pub name: String,
    /// The vendor's name of it.
    pub model: String,
    /// For how many seconds new turns ask the other models first; 0 where they do not.
    pub cool_down_seconds: f64,
    /// In how many seconds the provider wants to be asked again; null where it did not say, or that is over.
    pub retry_after_seconds: Option<f64>,
    /// How many calls in a row have failed.
    pub failures_in_a_row: u32,
    /// The last failure; null where there was none.
    pub last_failure: Option<ModelFailure>,
}

/// A failed call of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelFailure {
    /// `auth`, `no_such_model`, `quota`, `busy`, `broken` or `not_configured`.
    pub kind: String,
    /// What went wrong.
    pub message: String,
    /// How many seconds ago.
    pub seconds_ago: f64,
}

/// What a model's calls have spent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelSpending {
    /// The vendor's name of the model.
    pub model: String,
    /// How many calls there were.
    pub calls: u64,
    /// Tokens of the prompts, those of the cache included.
    pub input_tokens: u64,
    /// Tokens of the answers.
    pub output_tokens: u64,
    /// In US dollars, at the prices in force; null where the model has none.
    pub cost_usd: Option<f64>,
}

/// Result of the telemetry operation `cache_state`: how much of the prompts the providers' caches served since the
/// engine started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheState {
    /// All models together.
    pub total: CacheUse,
    /// Each model that answered, by the vendor's name of it.
    pub models: BTreeMap<String, CacheUse>,
}

/// How much of the prompts a cache served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheUse {
    /// How many calls were answered.
    pub calls: u64,
    /// Tokens of the prompts, those of the cache included.
    pub input_tokens: u64,
    /// Those of them that were read from the cache.
    pub cache_read_tokens: u64,
    /// Those of them that were written to the cache.
    pub cache_write_tokens: u64,
    /// The share that was read from the cache, from 0 to 1; null where there was no prompt.
    pub share: Option<f64>,
}
