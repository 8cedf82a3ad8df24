//! Extractors that authenticate the caller.
//!
//! They are a handler's first argument, so that authentication precedes the parsing of path, query and body. Until
//! the orchestrator is ready, they reject every request with `STARTING_UP`.

use std::net::IpAddr;
use std::sync::Arc;

use api::orchestrator::{ADMIN_KEY_HEADER, PLATFORM_KEY_HEADER, PRODUCT_ID_HEADER};
use api::product_state::ProductState;
use api::{AdminKey, ErrorCode};
use axum::extract::{FromRef, FromRequestParts, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method};
use http_service::http::{ApiError, ClientAddress, note_product};

use super::error::to_api_error;
use super::starting_up;
use crate::fleet::{Admission, Caller, Fleet, FleetError, StreamHolder, StreamPermit};
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

/// The calling product, by its own key. A suspended product passes only with GET or HEAD, and a disabled one not at all.
pub(super) struct KeyedProduct(pub(super) Arc<Product>);

impl<S: Send + Sync> FromRequestParts<S> for KeyedProduct
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
        Admission::check_in_use(&product).map_err(to_api_error)?;
        // HEAD is a GET without the body of the response.
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            Admission::check_not_suspended(&product).map_err(to_api_error)?;
        }
        note_product(product.product_id);
        Ok(Self(product))
    }
}

/// The product that a call is about: the one whose key it has, or the one that the operator names in `X-Product-Id`
/// beside the admin key. Without `X-Product-Id` an admin key counts for nothing here, as the contract has it.
pub(super) struct AuthenticatedProduct(pub(super) Caller);

impl<S: Send + Sync> FromRequestParts<S> for AuthenticatedProduct
where
    Arc<Fleet>: FromRef<S>,
    AdminKey: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let has = |name| parts.headers.contains_key(name);
        match (has(ADMIN_KEY_HEADER), has(PRODUCT_ID_HEADER), has(PLATFORM_KEY_HEADER)) {
            (true, true, false) => operator_for_product(parts, state).await.map(Self),
            (true, true, true) => {
                Ready::from_request_parts(parts, state).await?;
                let message = "send X-Platform-Key, or X-Admin-Key with X-Product-Id, but not both";
                Err(ApiError::new(ErrorCode::InvalidRequest, message))
            }
            (true, false, false) => {
                Ready::from_request_parts(parts, state).await?;
                let message = "X-Platform-Key must contain the key of a product; an operator sends X-Admin-Key \
                               with X-Product-Id, the id of a product";
                Err(ApiError::new(ErrorCode::InvalidPlatformKey, message))
            }
            _ => {
                let KeyedProduct(product) = KeyedProduct::from_request_parts(parts, state).await?;
                Ok(Self(Caller::product(product).making(parts.extensions.get().cloned())))
            }
        }
    }
}

/// The operator, who acts for the product in `X-Product-Id`. Neither a suspension nor that it is disabled holds: whatever
/// would run an engine of such a product is refused where it is claimed.
async fn operator_for_product<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<Caller, ApiError>
where
    Arc<Fleet>: FromRef<S>,
    AdminKey: FromRef<S>,
{
    Admin::from_request_parts(parts, state).await?;
    let product_id = header(parts, PRODUCT_ID_HEADER).unwrap_or_default();
    let product = Arc::<Fleet>::from_ref(state).admission.product(product_id).await.map_err(to_api_error)?;
    let product = product.ok_or(FleetError::ProductNotFound).map_err(to_api_error)?;
    note_product(product.product_id);
    // What is left of a deleted one is its audit log.
    if product.state == ProductState::Deleted && !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(to_api_error(FleetError::ProductNotFound));
    }
    Ok(Caller::operator(product).making(parts.extensions.get().cloned()))
}

/// The product that a call is about, with one of the caller's permits for long-lived responses.
pub(super) struct StreamingProduct(pub(super) Caller, pub(super) StreamPermit);

impl<S: Send + Sync> FromRequestParts<S> for StreamingProduct
where
    Arc<Fleet>: FromRef<S>,
    AdminKey: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let AuthenticatedProduct(caller) = AuthenticatedProduct::from_request_parts(parts, state).await?;
        let permit = stream_permit(&Arc::<Fleet>::from_ref(state), caller.stream_holder())?;
        Ok(Self(caller, permit))
    }
}

/// Takes one of the holder's permits for long-lived responses.
pub(super) fn stream_permit(fleet: &Fleet, holder: StreamHolder) -> Result<StreamPermit, ApiError> {
    fleet.admission.stream_limiter().acquire(holder).ok_or_else(|| {
        let message = "the caller has reached its share of connections for event streams and proxied calls: \
                       close some of them";
        ApiError::new(ErrorCode::CapacityExhausted, message).retry_after(STREAM_RETRY_AFTER_S)
    })
}

/// Logs that the credential in `header` of a request was refused.
pub(super) fn log_refusal(fleet: &Fleet, header: &'static str, request: &Request) {
    let client = request.extensions().get().map(|ClientAddress(address)| *address);
    fleet.admission.log_auth_failure(header, client);
}

/// The calling product with a permit for a long-lived response. It may also send its key as `Authorization: Bearer`: for
/// the proxy, through which other programs talk to an engine. An operator does not: nobody talks as the users of others.
pub(super) struct BearerProduct(pub(super) Arc<Product>, pub(super) StreamPermit);

impl<S: Send + Sync> FromRequestParts<S> for BearerProduct
where
    Arc<Fleet>: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let has_own_header = parts.headers.contains_key(PLATFORM_KEY_HEADER);
        // Only while it is checked: `proxy` takes the key's own header for the sign that it was used.
        if let Some(key) = bearer(parts).filter(|_| !has_own_header) {
            parts.headers.insert(PLATFORM_KEY_HEADER, key);
        }
        let product = KeyedProduct::from_request_parts(parts, state).await;
        if !has_own_header {
            parts.headers.remove(PLATFORM_KEY_HEADER);
        }
        let KeyedProduct(product) = product?;
        let holder = StreamHolder::Product(product.product_id);
        let permit = stream_permit(&Arc::<Fleet>::from_ref(state), holder)?;
        Ok(Self(product, permit))
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

/// The operator, whose key may also come as `Authorization: Bearer`: for programs that scrape metrics, which send no
/// header of ours.
pub(super) struct BearerAdmin;

impl<S: Send + Sync> FromRequestParts<S> for BearerAdmin
where
    Arc<Fleet>: FromRef<S>,
    AdminKey: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        if !parts.headers.contains_key(ADMIN_KEY_HEADER)
            && let Some(key) = bearer(parts)
        {
            parts.headers.insert(ADMIN_KEY_HEADER, key);
        }
        Admin::from_request_parts(parts, state).await.map(|Admin| Self)
    }
}

/// The credentials of `Authorization: Bearer`, as the value of another header.
fn bearer(parts: &Parts) -> Option<HeaderValue> {
    let (scheme, key) = header(parts, AUTHORIZATION.as_str())?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| HeaderValue::from_str(key.trim()).ok())?
}

fn client_address(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get().map(|ClientAddress(address)| *address)
}

fn header<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    parts.headers.get(name)?.to_str().ok()
}
