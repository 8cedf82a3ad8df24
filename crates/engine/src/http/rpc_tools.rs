//! `tool.<name>` of `/rpc`: calls tools outside a turn.

use api::ErrorCode;
use api::rpc::{RpcMethod, RpcOutcome, ToolOutput};
use http_service::http::ApiError;
use serde_json::{Map, Value};

use super::Shared;
use crate::agent::DirectError;

/// The prefix of a tool's method.
pub(super) const PREFIX: &str = "tool.";

pub(super) async fn call(
    shared: &Shared,
    tool: &str,
    params: Map<String, Value>,
) -> Result<RpcOutcome, ApiError> {
    let output = shared.agent.call_tool(tool, Value::Object(params)).await?;
    Ok(RpcOutcome::Tool(ToolOutput { output }))
}

/// Returns the methods.
pub(super) fn methods(shared: &Shared) -> impl Iterator<Item = RpcMethod> {
    let tools = shared.agent.direct_tools();
    tools
        .into_iter()
        .map(|spec| RpcMethod { method: format!("{PREFIX}{}", spec.name), params: spec.input_schema })
}

impl From<DirectError> for ApiError {
    fn from(error: DirectError) -> Self {
        let code = match error {
            DirectError::NoSuchTool(_) | DirectError::NoSuchSkill(_) => ErrorCode::MethodNotFound,
            DirectError::Invalid(_) => ErrorCode::InvalidRequest,
            DirectError::Denied(_) => ErrorCode::ToolDenied,
            DirectError::Failed(_) => ErrorCode::ToolFailed,
            DirectError::NoAnswer(_) => ErrorCode::InternalError,
            DirectError::OutputInvalid(_) => ErrorCode::OutputInvalid,
            DirectError::Agent(error) => return error.into(),
        };
        Self::new(code, error.to_string())
    }
}
