//! `/mcp/servers`: the user's own tool servers, and the approval of their tools.

use api::ErrorBody;
use api::assets::ConnectOutcome;
use api::engine::{Deleted, DeletedStatus};
use api::user_servers::{
    AddUserServer, ApproveTools, ConnectUserServer, UpdateUserServer, UserServer, UserServerList,
};
use axum::extract::State as Extract;
use axum::http::StatusCode;
use http_service::http::{ApiError, Path};

use super::AppState;
use super::admission::Admitted;
use super::auth::Authenticated;
use super::error::mcp_error;

/// Adds a tool server of the user. Repeated with the same content, it returns the server.
#[utoipa::path(
    post, path = "/mcp/servers", operation_id = "add_user_server", request_body = AddUserServer,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = UserServer, description = "The same request has added it before"),
        (status = 201, body = UserServer, description = "The server is added"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "USER_SERVERS_NOT_PERMITTED"),
        (status = 409, body = ErrorBody, description = "SERVER_EXISTS"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 429, body = ErrorBody, description = "SERVER_LIMIT"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn add(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Admitted(request, _memory): Admitted<AddUserServer>,
) -> Result<(StatusCode, axum::Json<UserServer>), ApiError> {
    let (server, is_new) = shared.mcp.add_user_server(request).await.map_err(mcp_error)?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, axum::Json(server)))
}

/// Lists the tool servers of the user, the oldest first, without their tools.
#[utoipa::path(
    get, path = "/mcp/servers", operation_id = "list_user_servers", security(("engine_key" = [])),
    responses(
        (status = 200, body = UserServerList, description = "The servers, and how many there may be"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn list(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<UserServerList>, ApiError> {
    Ok(axum::Json(shared.mcp.user_servers().await.map_err(mcp_error)?))
}

/// Returns a tool server of the user with its tools, and what has changed of them since they were approved.
#[utoipa::path(
    get, path = "/mcp/servers/{name}", operation_id = "get_user_server",
    params(("name" = String, Path, description = "The server")), security(("engine_key" = [])),
    responses(
        (status = 200, body = UserServer, description = "The server"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SERVER_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(name): Path<String>,
) -> Result<axum::Json<UserServer>, ApiError> {
    Ok(axum::Json(shared.mcp.user_server(&name).await.map_err(mcp_error)?))
}

/// Changes the description of a tool server of the user, or whether the agent may use it.
#[utoipa::path(
    patch, path = "/mcp/servers/{name}", operation_id = "update_user_server",
    params(("name" = String, Path, description = "The server")), request_body = UpdateUserServer,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = UserServer, description = "The server after the change"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SERVER_NOT_FOUND"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn update(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(name): Path<String>,
    Admitted(change, _memory): Admitted<UpdateUserServer>,
) -> Result<axum::Json<UserServer>, ApiError> {
    Ok(axum::Json(shared.agent.update_user_server(&name, change).await.map_err(mcp_error)?))
}

/// Deletes a tool server of the user. Its credentials are revoked, if possible, and erased.
#[utoipa::path(
    delete, path = "/mcp/servers/{name}", operation_id = "delete_user_server",
    params(("name" = String, Path, description = "The server")), security(("engine_key" = [])),
    responses(
        (status = 200, body = Deleted, description = "The server is deleted"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SERVER_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN"),
    ),
)]
pub(super) async fn delete(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(name): Path<String>,
) -> Result<axum::Json<Deleted>, ApiError> {
    shared.agent.delete_user_server(&name).await.map_err(mcp_error)?;
    Ok(axum::Json(Deleted { status: DeletedStatus::Deleted }))
}

/// Connects a tool server of the user and lists its tools, or returns the address at which the user must
/// authorize that.
#[utoipa::path(
    post, path = "/mcp/servers/{name}/connect", operation_id = "connect_user_server",
    params(("name" = String, Path, description = "The server")), request_body = ConnectUserServer,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = ConnectOutcome, description = "The connection, or where the user must authorize it"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "USER_SERVERS_NOT_PERMITTED"),
        (status = 404, body = ErrorBody, description = "SERVER_NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "SERVER_EXISTS (the catalog has one of this name now)"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 502, body = ErrorBody, description = "SERVER_FAILED"),
        (status = 503, body = ErrorBody, description = "ASSETS_NOT_CONFIGURED, SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn connect(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(name): Path<String>,
    Admitted(request, _memory): Admitted<ConnectUserServer>,
) -> Result<axum::Json<ConnectOutcome>, ApiError> {
    Ok(axum::Json(shared.mcp.connect_user_server(&name, request).await.map_err(mcp_error)?))
}

/// Approves the tools of a tool server of the user, if they are those that the user was shown.
#[utoipa::path(
    post, path = "/mcp/servers/{name}/approve", operation_id = "approve_user_server_tools",
    params(("name" = String, Path, description = "The server")), request_body = ApproveTools,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = UserServer, description = "The server with its approved tools"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "USER_SERVERS_NOT_PERMITTED"),
        (status = 404, body = ErrorBody, description = "SERVER_NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "TOOLS_CHANGED, SERVER_EXISTS"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn approve(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(name): Path<String>,
    Admitted(request, _memory): Admitted<ApproveTools>,
) -> Result<axum::Json<UserServer>, ApiError> {
    Ok(axum::Json(shared.mcp.approve_tools(&name, request).await.map_err(mcp_error)?))
}
