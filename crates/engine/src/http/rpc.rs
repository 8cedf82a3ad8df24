//! `POST /rpc`: calls of the engine's subsystems, outside the agent's loop. Error responses are flat, without the
//! envelope.

use std::time::Duration;

use api::log_filter::{DEFAULT_FILTER_SECONDS, FilterSeconds, SetLogFilter};
use api::rpc::{
    AnyRpcResult, NextDue, Quiesced, RpcCall, RpcError, RpcMethod, RpcMethods, RpcOutcome, RpcResult,
};
use api::usage::Day;
use api::{ErrorCode, KeyHash};
use axum::extract::{FromRequest, FromRequestParts as _, Request, State as Extract};
use axum::response::{IntoResponse, Response};
use http_service::http::{ApiError, parse_fields};
use http_service::log_filter;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::admission::Admitted;
use super::auth::KeyHolder;
use super::{AppState, Shared, rpc_assets, rpc_cassettes, rpc_gateway, rpc_memory, rpc_skills, rpc_tools};
use crate::config::parse_log_filter;

/// Calls a method, or an operation of a subsystem.
#[utoipa::path(
    post, path = "/rpc", operation_id = "call_rpc", request_body = RpcCall, security(("engine_key" = [])),
    responses(
        (status = 200, body = AnyRpcResult, description = "The result"),
        (status = 400, body = RpcError, description = "INVALID_REQUEST, MODEL_NOT_PERMITTED, TOOL_DENIED, TOOL_FAILED"),
        (status = 401, body = RpcError, description = "INVALID_ENGINE_KEY, INVALID_TOKEN, TOKEN_EXPIRED, TOKEN_REVOKED"),
        (status = 403, body = RpcError, description = "TOKEN_SCOPE"),
        (status = 404, body = RpcError, description = "METHOD_NOT_FOUND"),
        (status = 409, body = RpcError, description = "FACT_REPLACED, TASK_BUSY"),
        (status = 413, body = RpcError, description = "PAYLOAD_TOO_LARGE"),
        (status = 429, body = RpcError, description = "USAGE_CAP_REACHED"),
        (status = 500, body = RpcError, description = "INTERNAL_ERROR"),
        (status = 502, body = RpcError, description = "OUTPUT_INVALID"),
        (status = 503, body = RpcError, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED, ASSETS_NOT_CONFIGURED"),
    ),
)]
pub(super) async fn rpc(
    Extract(AppState(shared)): Extract<AppState>,
    AuthenticatedCall { caller, call: Admitted(call, _memory) }: AuthenticatedCall,
) -> Result<axum::Json<RpcResult<RpcOutcome>>, RpcRejection> {
    let RpcCall { method, params, subsystem, op, parameters } = call;
    let result = match (method, subsystem) {
        (Some(method), None) => {
            let params = params.ok_or_else(|| invalid("`params`: must be an object; `method` needs it"))?;
            call_method(&shared, &method, params, parameters).await?
        }
        (None, Some(subsystem)) => {
            let op = op.ok_or_else(|| invalid("`op`: must be a string; `subsystem` needs it"))?;
            call_operation(&shared, &caller, (&subsystem, &op), parameters).await?
        }
        _ => return Err(invalid("`method`, `subsystem`: exactly one of them must be given").into()),
    };
    Ok(axum::Json(RpcResult { result }))
}

async fn call_method(
    shared: &Shared,
    method: &str,
    params: Map<String, Value>,
    options: Map<String, Value>,
) -> Result<RpcOutcome, ApiError> {
    if method == "rpc.methods" {
        return Ok(RpcOutcome::Methods(methods(shared).await?));
    }
    let outcome = match method.split_once('.') {
        Some(("skill", skill)) => return rpc_skills::call(shared, skill, params, options).await,
        Some(("tool", tool)) => return rpc_tools::call(shared, tool, params).await,
        Some(("memory", op)) => rpc_memory::call(shared, op, params).await?,
        Some(("assets", op)) => rpc_assets::call(shared, op)?,
        Some(("cassette", op)) => rpc_cassettes::call(shared, op, params).await?,
        _ => None,
    };
    outcome.ok_or_else(|| {
        let message = "`method`: unknown; `rpc.methods` lists all methods";
        ApiError::new(ErrorCode::MethodNotFound, message)
    })
}

async fn methods(shared: &Shared) -> Result<RpcMethods, ApiError> {
    let params = json!({"type": "object", "properties": {}});
    let itself = RpcMethod { method: "rpc.methods".to_owned(), params };
    let others = rpc_memory::methods()
        .chain(rpc_assets::methods())
        .chain(rpc_cassettes::methods())
        .chain(rpc_tools::methods(shared))
        .chain(rpc_skills::methods(shared).await?);
    Ok(RpcMethods { methods: std::iter::once(itself).chain(others).collect() })
}

/// The parameters of `set_key_hash`.
#[derive(Deserialize)]
struct SetKeyHash {
    key_hash: KeyHash,
}

/// The parameters of `quiesce`.
#[derive(Deserialize)]
struct Quiesce {
    #[serde(default)]
    lift: Option<bool>,
    /// Whether to quiesce whatever is running.
    #[serde(default)]
    force: Option<bool>,
}

/// The parameters of `usage_days`.
#[derive(Deserialize)]
struct ReadUsageDays {
    /// The first day; by default the first one that is kept.
    #[serde(default)]
    from: Option<Day>,
}

async fn call_operation(
    shared: &Shared,
    caller: &KeyHolder,
    operation: (&str, &str),
    parameters: Map<String, Value>,
) -> Result<RpcOutcome, ApiError> {
    match operation {
        ("control", "set_key_hash") => {
            let SetKeyHash { key_hash } = parse_fields(parameters)?;
            shared.key_guard.replace_hash(caller, key_hash)?;
            tracing::info!("The engine's key was changed.");
            Ok(RpcOutcome::Done {})
        }
        ("control", "quiesce") => {
            let Quiesce { lift, force } = parse_fields(parameters)?;
            let quiesced = if lift.unwrap_or_default() {
                shared.agent.lift_quiesce();
                false
            } else if force.unwrap_or_default() {
                shared.agent.force_quiesce();
                true
            } else {
                shared.agent.quiesce()
            };
            Ok(RpcOutcome::Quiesced(Quiesced { quiesced }))
        }
        ("control", "set_browser_access") => {
            shared.browser_tokens.set_access(parse_fields(parameters)?);
            Ok(RpcOutcome::Done {})
        }
        ("control", "get_log_filter") => Ok(RpcOutcome::LogFilter(log_filter::control().filter())),
        ("control", "set_log_filter") => set_log_filter(shared, parse_fields(parameters)?),
        ("control", "reset_log_filter") => Ok(RpcOutcome::LogFilter(log_filter::control().reset())),
        ("control", "set_config") => rpc_gateway::set_config(shared, parameters).await,
        ("control", "get_config") => Ok(rpc_gateway::get_config(shared).await),
        ("control", "reload") => rpc_gateway::reload(shared).await,
        ("telemetry", "quota_state") => rpc_gateway::quota_state(shared).await,
        ("telemetry", "cache_state") => Ok(RpcOutcome::Cache(shared.active_config.gateway().cache())),
        ("telemetry", "activity") => Ok(RpcOutcome::Activity(shared.agent.activity()?)),
        ("telemetry", "waiting") => Ok(RpcOutcome::Waiting(shared.agent.waiting_questions().await?)),
        ("telemetry", "usage_days") => {
            let ReadUsageDays { from } = parse_fields(parameters)?;
            Ok(RpcOutcome::UsageDays(shared.agent.usage_days(from).await?))
        }
        ("telemetry", "next_due") => {
            Ok(RpcOutcome::NextDue(NextDue { next_due_at: shared.agent.next_due_at()? }))
        }
        ("control" | "telemetry", _) => {
            Err(ApiError::new(ErrorCode::MethodNotFound, "`op`: the subsystem has no such operation"))
        }
        _ => Err(ApiError::new(
            ErrorCode::MethodNotFound,
            "`subsystem`: unknown; it must be `control` or `telemetry`",
        )),
    }
}

/// Changes what is logged, for some time.
fn set_log_filter(shared: &Shared, request: SetLogFilter) -> Result<RpcOutcome, ApiError> {
    let SetLogFilter { filter, for_s } = request;
    let parsed = parse_log_filter(&filter).ok_or_else(|| invalid("`filter`: no log filter"))?;
    let seconds = for_s.map_or(DEFAULT_FILTER_SECONDS, FilterSeconds::get);
    let duration = Duration::from_secs(seconds.unsigned_abs());
    let now = shared.clock.now();
    tracing::warn!(filter, seconds, "The log filter is changed.");
    Ok(RpcOutcome::LogFilter(log_filter::control().replace(parsed, duration, now)))
}

fn invalid(message: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, message)
}

/// A call by an authenticated caller. The key is checked before the body is read.
pub(super) struct AuthenticatedCall {
    caller: KeyHolder,
    call: Admitted<RpcCall>,
}

impl FromRequest<AppState> for AuthenticatedCall {
    type Rejection = RpcRejection;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, RpcRejection> {
        let (mut parts, body) = request.into_parts();
        let caller = KeyHolder::from_request_parts(&mut parts, state).await?;
        let call = Admitted::from_request(Request::from_parts(parts, body), state).await?;
        Ok(Self { caller, call })
    }
}

/// An error in the flat form.
pub(super) struct RpcRejection(ApiError);

impl From<ApiError> for RpcRejection {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for RpcRejection {
    fn into_response(self) -> Response {
        self.0.with_body(|error, message| RpcError { error, message })
    }
}
