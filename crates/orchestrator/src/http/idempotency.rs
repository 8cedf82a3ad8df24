//! `Idempotency-Key`: a call that is made again with the same key gets the first one's answer, and changes nothing.
//!
//! Requests with the header take other routes than those without, on which this middleware is. It authenticates the
//! caller as the handler will, so that nobody's key meets that of another one.

use std::panic;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::{ErrorBody, ProductId};
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_service::http::{ApiError, buffer_body};
use tower::Service;
use tracing::Instrument as _;

use super::AppState;
use super::auth::{Admin, AuthenticatedProduct, KeyedProduct};
use super::error::to_api_error;
use crate::domain::idempotency::{CallId, Fingerprint, IdempotencyKey, KeyHolder, MAX_KEY_CHARS};
use crate::fleet::{Begun, Call, CallAnswer, CallPermit, KeyedRequest};

/// The header with the key.
pub(super) static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header of an answer that was given before.
static IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Who may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// The operator.
    Operator,
    /// A product, or the operator for it.
    Product,
    /// A product with its own key.
    KeyedProduct,
}

/// Whether calls of this route honour the header: all that change something but admits, which have an effect of their
/// own each time, and what is forwarded to an engine.
pub(super) fn honours(method: &Method, route: &str) -> bool {
    access(method, route).is_some()
}

fn access(method: &Method, route: &str) -> Option<Access> {
    if ![Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method) {
        return None;
    }
    match route {
        "/engines/{user_id}/admit" => None,
        // The document has the rest of its path under another name than the router.
        _ if route.starts_with("/engines/{user_id}/proxy/") => None,
        "/engines/{user_id}/tokens" => Some(Access::KeyedProduct),
        _ if ["/products", "/fleet", "/admin"].iter().any(|prefix| route.starts_with(prefix)) => {
            Some(Access::Operator)
        }
        _ => Some(Access::Product),
    }
}

impl Access {
    /// Authenticates the caller as the handler of the route does.
    async fn authenticate(self, parts: &mut Parts, app: &AppState) -> Result<KeyHolder, ApiError> {
        match self {
            Self::Operator => {
                Admin::from_request_parts(parts, app).await?;
                Ok(KeyHolder::Operator(None))
            }
            Self::Product => {
                let AuthenticatedProduct(caller) =
                    AuthenticatedProduct::from_request_parts(parts, app).await?;
                let product_id = caller.product_id;
                Ok(if caller.is_operator() {
                    KeyHolder::Operator(Some(product_id))
                } else {
                    KeyHolder::Product(product_id)
                })
            }
            Self::KeyedProduct => {
                let KeyedProduct(product) = KeyedProduct::from_request_parts(parts, app).await?;
                Ok(KeyHolder::Product(product.product_id))
            }
        }
    }
}

/// The call that a request makes, if it has a key.
pub(super) struct Keyed(pub(super) Option<Call>);

impl<S: Send + Sync> FromRequestParts<S> for Keyed {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(parts.extensions.get().cloned()))
    }
}

/// Executes the request, or answers it as the same call was answered.
pub(super) async fn execute_once(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    match route.and_then(|route| access(request.method(), route.as_str())) {
        Some(access) => {
            execute_keyed(access, app, request, next).await.unwrap_or_else(IntoResponse::into_response)
        }
        None => next.run(request).await,
    }
}

async fn execute_keyed(
    access: Access,
    app: AppState,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let holder = access.authenticate(&mut parts, &app).await?;
    let key = key(&parts.headers)?;
    let (mut parts, body) = buffer_body(Request::from_parts(parts, body)).await?;
    let (method, path) = (parts.method.as_str(), parts.uri.path());
    let request = KeyedRequest {
        call_id: CallId::new(&holder, method, path, &key),
        fingerprint: Fingerprint::of(method, path, parts.uri.query(), &body),
        product_id: owning_product(&holder, path),
        holder,
    };
    match app.fleet.idempotent_calls.begin(request).await.map_err(to_api_error)? {
        Begun::Answered(answer) => Ok(replay(answer)),
        Begun::Execute(permit) => {
            parts.extensions.insert(permit.call());
            Ok(execute(permit, Request::from_parts(parts, Body::from(body)), next).await)
        }
    }
}

/// Executes a request in a task of its own: the answer is stored also if the caller disconnects.
async fn execute(permit: CallPermit, request: Request, next: Next) -> Response {
    let execution = async move {
        let (parts, body) = next.run(request).await.into_parts();
        // Handlers answer with a body that is complete.
        let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
        let retry_after_s =
            parts.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = Arc::from(String::from_utf8_lossy(&body));
        permit.finish(CallAnswer { status: parts.status.as_u16(), body: text, retry_after_s }).await;
        Response::from_parts(parts, Body::from(body))
    };
    match tokio::spawn(traces::in_current_span(execution).in_current_span()).await {
        Ok(response) => response,
        // The layer around all routes answers a panic.
        Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
        Err(_) => ApiError::internal().into_response(),
    }
}

fn key(headers: &HeaderMap) -> Result<IdempotencyKey, ApiError> {
    let invalid = || {
        let message = format!(
            "`Idempotency-Key`, in the header: must be given once, with 1 to {MAX_KEY_CHARS} visible ASCII characters"
        );
        ApiError::new(api::ErrorCode::InvalidRequest, message)
    };
    let mut values = headers.get_all(&IDEMPOTENCY_KEY).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => IdempotencyKey::parse(value.as_bytes()).ok_or_else(invalid),
        _ => Err(invalid()),
    }
}

/// The product with which a call is removed: its own, or the one whose keys or policy an operator changes. What an
/// operator does to the life of a product stays, so that its deletion can be repeated.
fn owning_product(holder: &KeyHolder, path: &str) -> Option<ProductId> {
    match holder {
        KeyHolder::Product(product_id) | KeyHolder::Operator(Some(product_id)) => Some(*product_id),
        KeyHolder::Operator(None) => {
            let (product_id, rest) = path.strip_prefix("/products/")?.split_once('/')?;
            let is_owned = ["keys", "policy"].contains(&rest.split('/').next().unwrap_or_default());
            product_id.parse().ok().filter(|_| is_owned)
        }
    }
}

/// The answer that was given before.
fn replay(answer: CallAnswer) -> Response {
    let CallAnswer { status, body, retry_after_s } = answer;
    let code = serde_json::from_str::<ErrorBody>(&body).ok().map(|body| body.error.code);
    let mut response = (
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))],
        body.to_string(),
    )
        .into_response();
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED.clone(), HeaderValue::from_static("true"));
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(code) = code {
        // For the layer that counts errors.
        response.extensions_mut().insert(code);
    }
    response
}

/// Routes of which those with the middleware take the requests that have a key: the others do not pay for it.
#[derive(Clone)]
pub(crate) struct ByKey<S> {
    pub(super) keyed: S,
    pub(super) others: S,
}

impl<S: Service<Request, Response = Response>> Service<Request> for ByKey<S> {
    type Response = Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match self.keyed.poll_ready(context) {
            Poll::Ready(Ok(())) => self.others.poll_ready(context),
            other => other,
        }
    }

    fn call(&mut self, request: Request) -> Self::Future {
        if request.headers().contains_key(&IDEMPOTENCY_KEY) {
            self.keyed.call(request)
        } else {
            self.others.call(request)
        }
    }
}
