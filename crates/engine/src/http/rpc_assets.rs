//! The methods `assets.*` of `/rpc`.

use contract::rpc::{RpcMethod, RpcOutcome};
use serde_json::json;
use service::http::ApiError;

use super::Shared;

/// The methods and what they take.
pub(super) fn methods() -> impl Iterator<Item = RpcMethod> {
    let params = json!({"type": "object", "properties": {}});
    std::iter::once(RpcMethod { method: "assets.client_metadata".to_owned(), params })
}

/// Calls a method; none where there is none of this name.
pub(super) fn call(shared: &Shared, op: &str) -> Result<Option<RpcOutcome>, ApiError> {
    Ok(match op {
        "client_metadata" => Some(RpcOutcome::ClientMetadata(shared.mcp.client_metadata()?)),
        _ => None,
    })
}
