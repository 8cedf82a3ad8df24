//! The methods `assets.*` of `/rpc`.

use api::rpc::{RpcMethod, RpcOutcome};
use http_service::http::ApiError;
use serde_json::json;

use super::Shared;

/// Returns the methods with their parameters.
pub(super) fn methods() -> impl Iterator<Item = RpcMethod> {
    let params = json!({"type": "object", "properties": {}});
    std::iter::once(RpcMethod { method: "assets.client_metadata".to_owned(), params })
}

/// Calls a method; `None` if there is none with this name.
pub(super) fn call(shared: &Shared, op: &str) -> Result<Option<RpcOutcome>, ApiError> {
    Ok(match op {
        "client_metadata" => {
            Some(RpcOutcome::ClientMetadata(shared.mcp.client_metadata().map_err(super::error::mcp_error)?))
        }
        _ => None,
    })
}
