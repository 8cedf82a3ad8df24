//! `POST /rpc`: direct calls of an engine's subsystems and tools, without the agent's loop.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::cassettes::CassetteReport;
use crate::engine::Deleted;
use crate::facts::{Fact, Facts};
use crate::inbox::WaitingQuestions;
use crate::log_filter::LogFilter;
use crate::memory::{Knowledge, KnowledgeList, MemoryResults};
use crate::usage_days::UsageDays;
use crate::{ErrorCode, Timestamp};

/// The confinement reported by an engine whose tools are not confined.
pub const UNCONFINED: &str = "none";

// It may contain secrets of a caller, such as key hashes, so it does not implement `Debug`.
/// Body of `POST /rpc`: `method` with `params`, or `subsystem` with `op` and the operation's parameters.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct RpcCall {
    /// The method, such as `rpc.methods`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The method's parameters. Required with `method`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Map<String, Value>>,
    /// `control` or `telemetry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// The operation of the subsystem. Required with `subsystem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The operation's parameters: `config` for `set_config`, `key_hash` for `set_key_hash`, `lift` for `quiesce`, `filter` and
    /// `for_s` for `set_log_filter`, `from` for `usage_days`. With `skill.<name>`: `model`, `effort`, `instructions`, `max_output_tokens`, `max_cost_usd` and `response_format`, as in
    /// `POST /execute`.
    #[serde(flatten)]
    pub parameters: Map<String, Value>,
}

/// Response of a successful call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcResult<T> {
    /// The result.
    pub result: T,
}

/// The schema of every [`RpcResult`], which the OpenAPI document names like it.
#[derive(ToSchema)]
#[schema(as = RpcResult)]
pub struct AnyRpcResult {
    /// The result of the method or operation.
    pub result: RpcOutcome,
}

/// The results of the methods and operations.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum RpcOutcome {
    /// The result of `rpc.methods`.
    Methods(RpcMethods),
    /// The result of `quiesce`.
    Quiesced(Quiesced),
    /// The result of `activity`.
    Activity(Activity),
    /// The result of `next_due`.
    NextDue(NextDue),
    /// The result of `waiting`.
    Waiting(WaitingQuestions),
    /// The result of `usage_days`.
    UsageDays(UsageDays),
    /// The result of `get_log_filter`, `set_log_filter` and `reset_log_filter`.
    LogFilter(LogFilter),
    /// The result of `get_config`.
    Config(GatewayConfig),
    /// The result of `quota_state`.
    Quota(QuotaState),
    /// The result of `cache_state`.
    Cache(CacheState),
    /// The result of `tool.<name>` and `skill.<name>`.
    Tool(ToolOutput),
    /// The result of `memory.search`.
    Memories(MemoryResults),
    /// The result of `memory.list`.
    Knowledge(KnowledgeList),
    /// The result of `memory.save`.
    Known(Knowledge),
    /// The result of `memory.facts`.
    Facts(Facts),
    /// The result of `memory.fact` and `memory.correct`.
    Fact(Box<Fact>),
    /// The result of `memory.delete` and `memory.forget`.
    Deleted(Deleted),
    /// The result of `memory.export`: the document of `GET /memory/export`.
    Exported(Value),
    /// The result of `cassette.export`: the document of `GET /tasks/{task_id}/turns/{turn_id}/cassette`.
    Cassette(Value),
    /// The result of `cassette.run`.
    Replayed(Box<CassetteReport>),
    /// The result of `assets.client_metadata`: the document that the product must serve.
    ClientMetadata(Value),
    /// The empty result of `set_config`, `reload` and `set_key_hash`.
    #[schema(title = "Done")]
    Done {},
}

/// Response of a call that was refused or failed. It is flat, unlike every other error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RpcError {
    /// The stable code.
    pub error: ErrorCode,
    /// What is wrong, where, and what to do. Not meant for matching.
    pub message: String,
}

/// Result of `tool.<name>` and `skill.<name>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolOutput {
    /// The output of the tool or the script, as a model would see it; for a skill without a script, the model's
    /// answer.
    pub output: String,
}

/// Result of `rpc.methods`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RpcMethods {
    /// The available methods.
    pub methods: Vec<RpcMethod>,
}

/// A method that can be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RpcMethod {
    /// The method's name.
    pub method: String,
    /// The JSON schema of the method's `params`.
    pub params: Value,
}

/// Result of the control operation `quiesce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quiesced {
    /// Whether no turn and no learning batch is running, and none can start.
    pub quiesced: bool,
}

/// Result of the telemetry operation `activity`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// The number of active turns, without those that wait for a person.
    pub running_turns: u64,
    /// The number of requests that wait for a person.
    pub pending_hitl: u64,
    /// When a turn was last active; null if never.
    pub last_activity_at: Option<Timestamp>,
    /// How tools are confined; `none` if they are not.
    pub confinement: String,
}

/// Result of the telemetry operation `next_due`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextDue {
    /// When a schedule is due next; null if none is.
    pub next_due_at: Option<Timestamp>,
}

/// Result of the control operation `get_config`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GatewayConfig {
    /// The configuration in force, in the format of `gateway.json` and `set_config`; null if no model can be used.
    /// It contains no keys.
    pub config: Value,
}

/// Result of the telemetry operation `quota_state`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QuotaState {
    /// The budgets and their remaining tokens.
    pub budgets: BudgetStates,
    /// The models in force and their health.
    pub models: Vec<ModelState>,
    /// The usage of the last 24 hours, by model, including models no longer in force.
    pub spent: Vec<ModelSpending>,
}

/// The token budgets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BudgetStates {
    /// The maximum number of tokens of one turn; null if there is no limit.
    pub tokens_per_turn: Option<u64>,
    /// The budget of the last hour.
    pub tokens_per_hour: BudgetState,
    /// The budget of the last 24 hours.
    pub tokens_per_day: BudgetState,
}

/// The state of a budget over a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BudgetState {
    /// The maximum number of tokens; null if there is no limit.
    pub limit: Option<u64>,
    /// The number of tokens used, input and output.
    pub used: u64,
    /// The number of tokens left; null if there is no limit.
    pub remaining: Option<u64>,
    /// When the oldest call leaves the window; null if there is none in it.
    pub frees_at: Option<Timestamp>,
}

/// The health of a model. Kept in memory since the engine's start or the last change of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelState {
    /// The model's name in the configuration.
    pub name: String,
    /// The vendor's name for the model.
    pub model: String,
    /// For how many seconds new turns try the other models first; 0 if they do not.
    pub cool_down_seconds: f64,
    /// In how many seconds the provider wants to be asked again; null if it did not say, or the time is over.
    pub retry_after_seconds: Option<f64>,
    /// The number of consecutive failed calls.
    pub failures_in_a_row: u32,
    /// The last failure; null if there was none.
    pub last_failure: Option<ModelFailure>,
}

/// A failed call of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelFailure {
    /// `auth`, `no_such_model`, `quota`, `busy`, `broken` or `not_configured`.
    pub kind: String,
    /// What went wrong.
    pub message: String,
    /// The number of seconds since then.
    pub seconds_ago: f64,
}

/// The usage of a model's calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelSpending {
    /// The vendor's name for the model.
    pub model: String,
    /// The number of calls.
    pub calls: u64,
    /// The number of prompt tokens, including cached ones.
    pub input_tokens: u64,
    /// The number of output tokens.
    pub output_tokens: u64,
    /// The cost in US dollars at the prices in force; null if the model has none.
    pub cost_usd: Option<f64>,
}

/// Result of the telemetry operation `cache_state`: the share of prompts served from the providers' caches.
///
/// Counted since the engine started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheState {
    /// The total over all models.
    pub total: CacheUse,
    /// Each model that answered, by the vendor's name for it.
    pub models: BTreeMap<String, CacheUse>,
}

/// The part of prompts that a cache served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheUse {
    /// The number of answered calls.
    pub calls: u64,
    /// The number of prompt tokens, including cached ones.
    pub input_tokens: u64,
    /// The number of prompt tokens read from the cache.
    pub cache_read_tokens: u64,
    /// The number of prompt tokens written to the cache.
    pub cache_write_tokens: u64,
    /// The share of prompt tokens read from the cache, from 0 to 1; null if there were none.
    pub share: Option<f64>,
}
