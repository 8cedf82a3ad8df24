//! The products' endpoints for browsers: tokens of their users' engines, and the origins of their pages.

use std::sync::Arc;

use api::browser::{AllowedOrigins, ListTokens, MintToken, MintedToken, RevokedToken, TokenList};
use api::orchestrator::PageLimit;
use api::{ErrorBody, TokenId, UserId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json, Path, Query};

use super::auth::{AuthenticatedProduct, KeyedProduct};
use super::error::to_api_error;
use super::idempotency::Keyed;
use crate::fleet::{Fleet, FleetError};

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Mints a token with which a page may talk to the user's engine. The token is returned only here.
#[utoipa::path(
    post, path = "/engines/{user_id}/tokens", operation_id = "mint_browser_token", tag = "browser",
    security(("platform_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    request_body = MintToken,
    responses(
        (status = 200, description = "The token", body = MintedToken),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 429, description = "`TOKEN_LIMIT`, with `Retry-After`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn mint(
    KeyedProduct(product): KeyedProduct,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path(user_id): Path<UserId>,
    Json(request): Json<MintToken>,
) -> JsonResult<MintedToken> {
    fleet.browsers.mint(&product, user_id, request, call.as_ref()).await.map(Answer).map_err(to_api_error)
}

/// Lists the tokens of a user's engine that have not expired, newest first, without the tokens themselves.
#[utoipa::path(
    get, path = "/engines/{user_id}/tokens", operation_id = "list_browser_tokens", tag = "browser",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("user_id" = UserId, Path, description = "The product's user"),
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("before" = Option<TokenId>, Query, description = "Only tokens older than the one with this id"),
    ),
    responses(
        (status = 200, description = "A page of tokens", body = TokenList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
    Query(query): Query<ListTokens>,
) -> JsonResult<TokenList> {
    fleet.browsers.list(&product, user_id, query).await.map(Answer).map_err(to_api_error)
}

/// Revokes a token, at once and for good. It may be called again.
#[utoipa::path(
    delete, path = "/engines/{user_id}/tokens/{token_id}", operation_id = "revoke_browser_token", tag = "browser",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("user_id" = UserId, Path, description = "The product's user"),
        ("token_id" = TokenId, Path, description = "The token's id"),
    ),
    responses(
        (status = 200, description = "The revoked token", body = RevokedToken),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`, `TOKEN_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn revoke(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path((user_id, token_id)): Path<(UserId, String)>,
) -> JsonResult<RevokedToken> {
    // A text that is no id cannot be that of a token.
    let token_id = token_id.parse().map_err(|_| to_api_error(FleetError::TokenNotFound))?;
    fleet.browsers.revoke(&product, user_id, token_id).await.map(Answer).map_err(to_api_error)
}

/// Returns the origins of the calling product's pages.
#[utoipa::path(
    get, path = "/origins", operation_id = "get_origins", tag = "browser",
    security(("platform_key" = []), ("admin_key" = [])),
    responses(
        (status = 200, description = "The origins", body = AllowedOrigins),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn origins(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
) -> JsonResult<AllowedOrigins> {
    fleet.browsers.origins(&product).await.map(Answer).map_err(to_api_error)
}

/// Replaces the origins whose pages may call the product's engines.
#[utoipa::path(
    put, path = "/origins", operation_id = "replace_origins", tag = "browser",
    security(("platform_key" = []), ("admin_key" = [])),
    request_body = AllowedOrigins,
    responses(
        (status = 200, description = "The new origins", body = AllowedOrigins),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn replace_origins(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Json(request): Json<AllowedOrigins>,
) -> JsonResult<AllowedOrigins> {
    fleet.browsers.set_origins(&product, request.origins).await.map(Answer).map_err(to_api_error)
}
