//! The methods `cassette.*` of `/rpc`.

use api::cassettes::RunCassette;
use api::rpc::{RpcMethod, RpcOutcome};
use api::{ErrorCode, TaskId};
use http_service::http::{ApiError, parse_fields};
use resources::threads::run_blocking;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Shared;
use crate::agent::AgentError;

/// The parameters of `cassette.export`.
#[derive(Deserialize)]
struct ExportParams {
    #[serde(default)]
    task_id: Option<TaskId>,
    turn_id: String,
}

/// Returns the methods with their parameters.
pub(super) fn methods() -> impl Iterator<Item = RpcMethod> {
    let text = || json!({"type": "string"});
    let export = json!({"task_id": text(), "turn_id": text()});
    let run = json!({"cassette": {"type": "object"}, "with": {"type": "object"}});
    [("cassette.export", export, "turn_id"), ("cassette.run", run, "cassette")].into_iter().map(
        |(method, properties, required)| RpcMethod {
            method: method.to_owned(),
            params: json!({"type": "object", "properties": properties, "required": [required]}),
        },
    )
}

/// Calls `cassette.<op>`; `None` if there is no such method.
pub(super) async fn call(
    shared: &Shared,
    op: &str,
    params: Map<String, Value>,
) -> Result<Option<RpcOutcome>, ApiError> {
    match op {
        "export" => {
            let ExportParams { task_id, turn_id } = parse_fields(params)?;
            let cassette = shared.agent.export_cassette(task_id.as_ref(), &turn_id).await;
            let cassette = cassette.map_err(api_error)?;
            let parse = move || serde_json::from_slice(&cassette).map_err(|_| ApiError::internal());
            let cassette = run_blocking(parse).await.ok_or(AgentError::Stopping)??;
            Ok(Some(RpcOutcome::Cassette(cassette)))
        }
        "run" => {
            // A large one would block all streams for as long as it is parsed.
            let parse = move || parse_fields::<RunCassette>(params);
            let run = run_blocking(parse).await.ok_or(AgentError::Stopping)??;
            Ok(Some(RpcOutcome::Replayed(Box::new(shared.agent.run_cassette(run).await?))))
        }
        _ => Ok(None),
    }
}

/// Converts an error. Here only a method can be not found: a missing turn is an invalid parameter.
fn api_error(error: AgentError) -> ApiError {
    match error {
        AgentError::UnknownTask | AgentError::UnknownTurn(_) => {
            ApiError::new(ErrorCode::InvalidRequest, error.to_string())
        }
        error => error.into(),
    }
}
