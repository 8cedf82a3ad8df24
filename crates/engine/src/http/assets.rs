//! `/assets`: MCP servers, and the user's connections to them.

use api::ErrorBody;
use api::assets::{
    Callback, CallbackOutcome, Connect, ConnectOutcome, ConnectedStatus, ConnectionList, Disconnected,
    DisconnectedStatus, ServerList,
};
use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use http_service::http::{ApiError, Path, Query};

use super::AppState;
use super::admission::AdmittedLenient;
use super::auth::Authenticated;
use super::error::mcp_error;

/// Lists the tool servers of the catalog, ordered by name.
#[utoipa::path(
    get, path = "/assets/servers", operation_id = "list_servers", security(("engine_key" = [])),
    responses(
        (status = 200, body = ServerList, description = "The servers"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
    ),
)]
pub(super) async fn servers(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> axum::Json<ServerList> {
    axum::Json(ServerList { servers: shared.mcp.servers() })
}

/// Lists the user's connections, oldest first.
#[utoipa::path(
    get, path = "/assets/connections", operation_id = "list_connections", security(("engine_key" = [])),
    responses(
        (status = 200, body = ConnectionList, description = "The connections"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn connections(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<ConnectionList>, ApiError> {
    Ok(axum::Json(ConnectionList { connections: shared.mcp.connections().map_err(mcp_error)? }))
}

/// Connects a server, or returns the address at which the user must authorize that.
#[utoipa::path(
    post, path = "/assets/connect", operation_id = "connect_server",
    request_body = Connect, security(("engine_key" = [])),
    responses(
        (status = 200, body = ConnectOutcome, description = "The connection, or where the user must authorize it"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SERVER_NOT_FOUND"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 502, body = ErrorBody, description = "SERVER_FAILED"),
        (status = 503, body = ErrorBody, description = "ASSETS_NOT_CONFIGURED, SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn connect(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(connect, _memory): AdmittedLenient<Connect>,
) -> Result<axum::Json<ConnectOutcome>, ApiError> {
    Ok(axum::Json(shared.mcp.connect(connect).await.map_err(mcp_error)?))
}

/// Completes an authorization with the parameters of the authorization server's redirect.
#[utoipa::path(
    post, path = "/assets/callback", operation_id = "complete_authorization",
    request_body = Callback, security(("engine_key" = [])),
    responses(
        (status = 200, body = CallbackOutcome, description = "The connection is established"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST, INVALID_STATE, INVALID_ISSUER, OAUTH_DENIED"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 502, body = ErrorBody, description = "SERVER_FAILED"),
        (status = 503, body = ErrorBody, description = "ASSETS_NOT_CONFIGURED, SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn callback(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(callback, _memory): AdmittedLenient<Callback>,
) -> Result<axum::Json<CallbackOutcome>, ApiError> {
    let (connection, _) = shared.mcp.callback(callback).await.map_err(mcp_error)?;
    Ok(axum::Json(CallbackOutcome { status: ConnectedStatus::Connected, connection }))
}

/// Receives an authorization server's redirect of the user's browser, forwarded by the product's backend.
#[utoipa::path(
    get, path = "/assets/oauth/callback", operation_id = "receive_oauth_redirect",
    security(("engine_key" = [])),
    params(
        ("code" = Option<String>, Query, description = "The authorization code"),
        ("state" = Option<String>, Query, description = "The `state` that `POST /assets/connect` returned"),
        ("iss" = Option<String>, Query, description = "The authorization server"),
        ("error" = Option<String>, Query, description = "The reason for a refusal"),
        ("error_description" = Option<String>, Query, description = "The same in words for a person"),
    ),
    responses(
        (status = 200, body = CallbackOutcome, description = "The connection is established"),
        (status = 302, description = "To `redirect_to`, if that was given", headers(
            ("Location" = String, description = "`redirect_to`"),
        )),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST, INVALID_STATE, INVALID_ISSUER, OAUTH_DENIED"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 502, body = ErrorBody, description = "SERVER_FAILED"),
        (status = 503, body = ErrorBody, description = "ASSETS_NOT_CONFIGURED, SHUTTING_DOWN"),
    ),
)]
pub(super) async fn oauth_callback(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(callback): Query<Callback>,
) -> Result<Response, ApiError> {
    let (connection, redirect_to) = shared.mcp.callback(callback).await.map_err(mcp_error)?;
    Ok(match redirect_to {
        Some(address) => (StatusCode::FOUND, [(LOCATION, String::from(address))]).into_response(),
        None => {
            axum::Json(CallbackOutcome { status: ConnectedStatus::Connected, connection }).into_response()
        }
    })
}

/// Removes a connection: its credentials are revoked, if possible, and deleted.
#[utoipa::path(
    delete, path = "/assets/connections/{connection}", operation_id = "delete_connection",
    params(("connection" = String, Path, description = "The connection")), security(("engine_key" = [])),
    responses(
        (status = 200, body = Disconnected, description = "The connection is removed"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "CONNECTION_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn disconnect(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(connection): Path<String>,
) -> Result<axum::Json<Disconnected>, ApiError> {
    shared.mcp.disconnect(&connection).await.map_err(mcp_error)?;
    Ok(axum::Json(Disconnected { status: DisconnectedStatus::Disconnected }))
}
