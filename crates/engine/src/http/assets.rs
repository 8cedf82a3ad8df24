//! `/assets`: tool servers, and the user's connections to them.

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use contract::assets::{
    Callback, CallbackOutcome, Connect, ConnectOutcome, ConnectedStatus, ConnectionList, Disconnected,
    DisconnectedStatus, ServerList,
};
use contract::{ErrorBody, ErrorCode};
use service::http::{ApiError, Path, Query};

use super::State;
use super::admission::Admitted;
use super::auth::Authenticated;
use crate::assets::AssetsError;

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
    Extract(State(shared)): Extract<State>,
) -> axum::Json<ServerList> {
    axum::Json(ServerList { servers: shared.assets.servers() })
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
    Extract(State(shared)): Extract<State>,
) -> Result<axum::Json<ConnectionList>, ApiError> {
    Ok(axum::Json(ConnectionList { connections: shared.assets.connections()? }))
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
    Extract(State(shared)): Extract<State>,
    Admitted(connect, _memory): Admitted<Connect>,
) -> Result<axum::Json<ConnectOutcome>, ApiError> {
    Ok(axum::Json(shared.assets.connect(connect).await?))
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
    Extract(State(shared)): Extract<State>,
    Admitted(callback, _memory): Admitted<Callback>,
) -> Result<axum::Json<CallbackOutcome>, ApiError> {
    let (connection, _) = shared.assets.callback(callback).await?;
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
    Extract(State(shared)): Extract<State>,
    Query(callback): Query<Callback>,
) -> Result<Response, ApiError> {
    let (connection, redirect_to) = shared.assets.callback(callback).await?;
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
    Extract(State(shared)): Extract<State>,
    Path(connection): Path<String>,
) -> Result<axum::Json<Disconnected>, ApiError> {
    shared.assets.disconnect(&connection).await?;
    Ok(axum::Json(Disconnected { status: DisconnectedStatus::Disconnected }))
}

impl From<AssetsError> for ApiError {
    fn from(error: AssetsError) -> Self {
        let code = match &error {
            AssetsError::Invalid(_) => ErrorCode::InvalidRequest,
            AssetsError::UnknownServer(_) => ErrorCode::ServerNotFound,
            AssetsError::UnknownConnection => ErrorCode::ConnectionNotFound,
            AssetsError::NotConfigured(_) => ErrorCode::AssetsNotConfigured,
            AssetsError::InvalidState => ErrorCode::InvalidState,
            AssetsError::InvalidIssuer => ErrorCode::InvalidIssuer,
            AssetsError::Denied(_) => ErrorCode::OauthDenied,
            AssetsError::NotLetIn(_) | AssetsError::Failed(_) => ErrorCode::ServerFailed,
            AssetsError::Stopping => {
                return Self::new(ErrorCode::ShuttingDown, error.to_string()).retry_after(1);
            }
            AssetsError::Write(error) => return crate::agent::AgentError::Write(error.clone()).into(),
            AssetsError::Read(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "A request failed.");
                return Self::internal();
            }
        };
        Self::new(code, error.to_string())
    }
}
