//! Requests of pages to the proxy: preflights, and calls with a browser token. The token names its engine and thereby
//! the product, and is passed on to the engine, which decides what it permits.

use api::browser::BrowserToken;
use api::engine::ENGINE_KEY_HEADER;
use api::orchestrator::{ADMIN_KEY_HEADER, PLATFORM_KEY_HEADER};
use api::{ErrorCode, ProductId, UserId};
use axum::RequestExt as _;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Response};
use futures::future::Either;
use http_service::http::cors::{is_preflight, origin, preflight_response, remove_sharing, share_response};
use http_service::http::{ApiError, Path, browser_token, note_engine, note_product};

use super::{addressed, engine_target, invalid_path_error, without_hop_by_hop_headers};
use crate::fleet::StreamHolder;
use crate::http::AppState;
use crate::http::auth::{log_refusal, stream_permit};
use crate::http::error::to_api_error;
use crate::http::guarded_body::with_guard;
use crate::http::starting_up;

/// Handles a request of a page. Returns any other request: that of a product's backend.
pub(super) async fn handle(app: &AppState, request: Request) -> Either<Response, Request> {
    let headers = request.headers();
    if headers.contains_key(PLATFORM_KEY_HEADER) {
        return Either::Right(request);
    }
    let browsers = &app.fleet.browsers;
    let page = origin(headers).cloned();
    let named = page.as_ref().and_then(|page| page.to_str().ok());
    let is_known = named.is_some_and(|page| browsers.any_product_allows(page));
    if is_preflight(request.method(), headers) && browsers.is_used() {
        return Either::Left(preflight_response(headers, page.filter(|_| is_known)));
    }
    let token = match browser_token(headers) {
        Ok(Some(token)) => token,
        Ok(None) => return Either::Right(request),
        Err(refusal) => return Either::Left(shared(ApiError::from(refusal).into_response(), page, is_known)),
    };
    // Until the product is known, a page of any product may read the refusal.
    let mut may_read = is_known;
    let result = forward(app, &token, request, |product_id| {
        may_read = named.is_some_and(|page| browsers.product_allows(product_id, page));
    })
    .await;
    Either::Left(shared(result.unwrap_or_else(ApiError::into_response), page, may_read))
}

/// Lets a page read a response if it may.
fn shared(mut response: Response, page: Option<HeaderValue>, may_read: bool) -> Response {
    remove_sharing(response.headers_mut());
    share_response(response.headers_mut(), page.filter(|_| may_read));
    response
}

/// Forwards a request with a token. Calls `on_product` once it is known whose token it is.
async fn forward(
    app: &AppState,
    token: &BrowserToken,
    mut request: Request,
    on_product: impl FnOnce(ProductId),
) -> Result<Response, ApiError> {
    let fleet = &app.fleet;
    if !fleet.serves().await {
        return Err(starting_up());
    }
    let Path((user_id, _)) = request.extract_parts::<Path<(UserId, String)>>().await?;
    let target = engine_target(request.uri()).ok_or_else(invalid_path_error)?;
    let owner = fleet.browsers.verify(token, &user_id).await.map_err(to_api_error).inspect_err(|error| {
        if error.code() == ErrorCode::InvalidToken {
            log_refusal(fleet, header::AUTHORIZATION.as_str(), &request);
        }
    })?;
    on_product(owner.product_id);
    note_product(owner.product_id);
    fleet.check_product_in_use(owner.product_id).map_err(to_api_error)?;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        fleet.check_product_not_suspended(owner.product_id).map_err(to_api_error)?;
    }
    let permit = stream_permit(fleet, StreamHolder::Product(owner.product_id))?;
    let endpoint = fleet.engines.resolve_endpoint_of(owner).await.map_err(to_api_error)?;
    let headers = forwarded_headers(request.headers(), token).ok_or_else(ApiError::internal)?;
    note_engine(endpoint.engine_id);
    let request = addressed(request, endpoint.address, &target, headers)?;
    let response = app.proxy_client.send_to(fleet, endpoint.engine_id, request).await?;
    Ok(response.map(|body| with_guard(body, permit)))
}

/// Returns the caller's headers with the token as the only credential; `None` if it is not a valid header value. The
/// engine is not told the origin: the orchestrator answers for it.
fn forwarded_headers(headers: &HeaderMap, token: &BrowserToken) -> Option<HeaderMap> {
    let mut forwarded = without_hop_by_hop_headers(headers);
    let dropped = [PLATFORM_KEY_HEADER, ADMIN_KEY_HEADER, ENGINE_KEY_HEADER];
    for name in dropped.into_iter().chain([header::HOST.as_str(), header::ORIGIN.as_str()]) {
        forwarded.remove(name);
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose())).ok()?;
    value.set_sensitive(true);
    forwarded.insert(header::AUTHORIZATION, value);
    Some(forwarded)
}
