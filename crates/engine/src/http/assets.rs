//! `/assets`: MCP servers, and the user's connections to them.

use api::assets::{
    Callback, CallbackOutcome, Connect, ConnectOutcome, ConnectedStatus, ConnectionList, Disconnected,
    DisconnectedStatus, ServerList,
};
use api::{ErrorBody, ErrorCode};
use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use http_service::http::{ApiError, Path, Query};

use super::AppState;
use super::admission::Admitted;
use super::auth::Authenticated;
use crate::mcp::McpError;

/// Lists the tool servers that the catalog names, by their names in order.
#[utoipa::path(
    get, path = "/assets/servers", security(("engine_key" = [])),
    responses(
        (status = 200, body = ServerList),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
    ),
)]
pub(super) async fn servers(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> axum::Json<ServerList> {
    axum::Json(ServerList { servers: shared.mcp.servers() })
}

/// Lists the user's connections, the oldest first.
#[utoipa::path(
    get, path = "/assets/connections", security(("engine_key" = [])),
    responses(
        (status = 200, body = ConnectionList),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn connections(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<ConnectionList>, ApiError> {
    Ok(axum::Json(ConnectionList { connections: shared.mcp.connections()? }))
}

/// Connects a server, or says where the user must give leave for that.
#[utoipa::path(
    post, path = "/assets/connect", request_body = Connect, security(("engine_key" = [])),
    responses(
        (status = 200, body = ConnectOutcome),
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
    Admitted(connect, _memory): Admitted<Connect>,
) -> Result<axum::Json<ConnectOutcome>, ApiError> {
    Ok(axum::Json(shared.mcp.connect(connect).await?))
}

/// Finishes an authorization with what the authorization server sent the user's browser back with.
#[utoipa::path(
    post, path = "/assets/callback", request_body = Callback, security(("engine_key" = [])),
    responses(
        (status = 200, body = CallbackOutcome),
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
    Admitted(callback, _memory): Admitted<Callback>,
) -> Result<axum::Json<CallbackOutcome>, ApiError> {
    let (connection, _) = shared.mcp.callback(callback).await?;
    Ok(axum::Json(CallbackOutcome { status: ConnectedStatus::Connected, connection }))
}

/// Takes what an authorization server sends the user's browser back with, as the product's backend forwards it.
#[utoipa::path(
    get, path = "/assets/oauth/callback", security(("engine_key" = [])),
    params(
        ("code" = Option<String>, Query, description = "What the tokens are given for"),
        ("state" = Option<String>, Query, description = "What `POST /assets/connect` gave"),
        ("iss" = Option<String>, Query, description = "The authorization server"),
        ("error" = Option<String>, Query, description = "Why no leave was given"),
        ("error_description" = Option<String>, Query, description = "The same for a person"),
    ),
    responses(
        (status = 200, body = CallbackOutcome),
        (status = 302, description = "To `redirect_to`, where that was given"),
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
    let (connection, redirect_to) = shared.mcp.callback(callback).await?;
    Ok(match redirect_to {
        Some(address) => (StatusCode::FOUND, [(LOCATION, String::from(address))]).into_response(),
        None => {
            axum::Json(CallbackOutcome { status: ConnectedStatus::Connected, connection }).into_response()
        }
    })
}

/// Ends a connection: its credentials are revoked where that can be done, and forgotten.
#[utoipa::path(
    delete, path = "/assets/connections/{connection}",
    params(("connection" = String, Path, description = "The connection")), security(("engine_key" = [])),
    responses(
        (status = 200, body = Disconnected),
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
    shared.mcp.disconnect(&connection).await?;
    Ok(axum::Json(Disconnected { status: DisconnectedStatus::Disconnected }))
}

impl From<McpError> for ApiError {
    fn from(error: McpError) -> Self {
        let code = match &error {
            McpError::Invalid(_) => ErrorCode::InvalidRequest,
            McpError::UnknownServer(_) => ErrorCode::ServerNotFound,
            McpError::UnknownConnection => ErrorCode::ConnectionNotFound,
            McpError::NotConfigured(_) => ErrorCode::AssetsNotConfigured,
            McpError::InvalidState => ErrorCode::InvalidState,
            McpError::InvalidIssuer => ErrorCode::InvalidIssuer,
            McpError::Denied(_) => ErrorCode::OauthDenied,
            McpError::Unauthorized(_) | McpError::Failed(_) => ErrorCode::ServerFailed,
            McpError::Stopping => {
                return Self::new(ErrorCode::ShuttingDown, error.to_string()).retry_after(1);
            }
            McpError::Write(error) => return crate::agent::AgentError::Write(error.clone()).into(),
            McpError::Read(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "A request failed.");
                return Self::internal();
            }
        };
        Self::new(code, error.to_string())
    }
}
