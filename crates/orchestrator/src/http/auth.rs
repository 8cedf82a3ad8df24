//! Extractors that authenticate the caller.
//!
//! They are a handler's first argument, so that authentication precedes the parsing of path, query and body. Until
//! the orchestrator is ready, they reject every request with `STARTING_UP`.

use std::net::IpAddr;
use std::sync::Arc;

use api::orchestrator::{ADMIN_KEY_HEADER, PLATFORM_KEY_HEADER};
use api::{AdminKey, ErrorCode, ProductId};
use axum::extract::{FromRef, FromRequestParts, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method};
use http_service::http::{ApiError, ClientAddress};

use super::error::to_api_error;
use super::starting_up;
use crate::fleet::{Admission, Fleet, StreamPermit};
use crate::registry::Product;

/// The `Retry-After`, in seconds, of a request that got no stream permit.
const STREAM_RETRY_AFTER_S: u64 = 5;

/// The fleet, extracted only once it is ready.
pub(super) struct Ready(Arc<Fleet>);

impl<S: Send + Sync> FromRequestParts<S> for Ready
where
    Arc<Fleet>: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let fleet = Arc::<Fleet>::from_ref(state);
        if fleet.serves().await { Ok(Self(fleet)) } else { Err(starting_up()) }
    }
}

/// The calling product. A suspended product passes only with GET or HEAD.
pub(super) struct AuthenticatedProduct(pub(super) Arc<Product>);

impl<S: Send + Sync> FromRequestParts<S> for AuthenticatedProduct
where
    Arc<Fleet>: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Ready(fleet) = Ready::from_request_parts(parts, state).await?;
        let unknown = || {
            ApiError::new(ErrorCode::InvalidPlatformKey, "X-Platform-Key must contain the key of a product")
        };
        let key = header(parts, PLATFORM_KEY_HEADER).ok_or_else(unknown)?;
        let product = fleet.admission.authenticate(key).await.map_err(to_api_error)?;
        let product = product.ok_or_else(|| {
            fleet.admission.log_auth_failure(PLATFORM_KEY_HEADER, client_address(parts));
            unknown()
        })?;
        // HEAD is a GET without the body of the response.
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            Admission::check_not_suspended(&product).map_err(to_api_error)?;
        }
        Ok(Self(product))
    }
}

/// The calling product, with one of its permits for long-lived responses.
pub(super) struct StreamingProduct(pub(super) Arc<Product>, pub(super) StreamPermit);

impl<S: Send + Sync> FromRequestParts<S> for StreamingProduct
where
    Arc<Fleet>: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let AuthenticatedProduct(product) = AuthenticatedProduct::from_request_parts(parts, state).await?;
        let permit = stream_permit(&Arc::<Fleet>::from_ref(state), product.product_id)?;
        Ok(Self(product, permit))
    }
}

/// Takes one of a product's permits for long-lived responses.
pub(super) fn stream_permit(fleet: &Fleet, product_id: ProductId) -> Result<StreamPermit, ApiError> {
    fleet.admission.stream_limiter().acquire(product_id).ok_or_else(|| {
        let message = "the product has reached its share of connections for event streams and proxied calls: \
                       close some of them";
        ApiError::new(ErrorCode::CapacityExhausted, message).retry_after(STREAM_RETRY_AFTER_S)
    })
}

/// Logs that the credential in `header` of a request was refused.
pub(super) fn log_refusal(fleet: &Fleet, header: &'static str, request: &Request) {
    let client = request.extensions().get().map(|ClientAddress(address)| *address);
    fleet.admission.log_auth_failure(header, client);
}

/// The calling product, which may also send its key as `Authorization: Bearer`: for the proxy, through which other
/// programs talk to an engine.
pub(super) struct BearerProduct(pub(super) StreamingProduct);

impl<S: Send + Sync> FromRequestParts<S> for BearerProduct
where
    Arc<Fleet>: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        if parts.headers.contains_key(PLATFORM_KEY_HEADER) {
            return StreamingProduct::from_request_parts(parts, state).await.map(Self);
        }
        let key = header(parts, AUTHORIZATION.as_str()).and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| HeaderValue::from_str(key.trim()).ok())?
        });
        // Only while it is checked: `proxy` takes the key's own header for the sign that it was used.
        if let Some(key) = key {
            parts.headers.insert(PLATFORM_KEY_HEADER, key);
        }
        let product = StreamingProduct::from_request_parts(parts, state).await;
        parts.headers.remove(PLATFORM_KEY_HEADER);
        product.map(Self)
    }
}

/// The deployment's operator.
pub(super) struct Admin;

impl<S: Send + Sync> FromRequestParts<S> for Admin
where
    Arc<Fleet>: FromRef<S>,
    AdminKey: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Ready(fleet) = Ready::from_request_parts(parts, state).await?;
        let key = header(parts, ADMIN_KEY_HEADER);
        if key.is_some_and(|key| AdminKey::from_ref(state).matches(key)) {
            return Ok(Self);
        }
        if key.is_some() {
            fleet.admission.log_auth_failure(ADMIN_KEY_HEADER, client_address(parts));
        }
        Err(ApiError::new(ErrorCode::InvalidAdminKey, "X-Admin-Key must contain the deployment's admin key"))
    }
}

fn client_address(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get().map(|ClientAddress(address)| *address)
}

fn header<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    parts.headers.get(name)?.to_str().ok()
}
