//! `skill.<name>` of `/rpc`: runs skills outside a turn.

use api::rpc::{RpcMethod, RpcOutcome, ToolOutput};
use api::turn_options::TurnOverrides;
use http_service::http::{ApiError, parse_fields};
use serde_json::{Map, Value};

use super::Shared;

/// The prefix of a skill's method.
const PREFIX: &str = "skill.";

pub(super) async fn call(
    shared: &Shared,
    skill: &str,
    params: Map<String, Value>,
    options: Map<String, Value>,
) -> Result<RpcOutcome, ApiError> {
    let overrides: TurnOverrides = parse_fields(options)?;
    let output = shared.agent.run_skill(skill, params, overrides).await?;
    Ok(RpcOutcome::Tool(ToolOutput { output }))
}

/// Returns the methods.
pub(super) async fn methods(shared: &Shared) -> Result<impl Iterator<Item = RpcMethod>, ApiError> {
    let skills = shared.agent.skill_methods().await?;
    Ok(skills.into_iter().map(|(name, params)| RpcMethod { method: format!("{PREFIX}{name}"), params }))
}
