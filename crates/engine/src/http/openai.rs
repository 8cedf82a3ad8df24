//! The API of OpenAI, as far as it can be said with turns: chat completions, responses and models. Requests become
//! requests to run a turn, and answers are projections of the turn's events; nothing is kept beside the log.

mod chat;
mod chat_projection;
mod chat_request;
mod error;
mod fields;
mod ids;
mod models;
mod options;
mod prompt;
pub(super) mod refusals;
mod responses;
mod responses_items;
mod responses_projection;
mod responses_request;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
pub(super) use chat::*;
pub(super) use error::VendorError;
pub(super) use fields::{Fields, WithoutEffect};
use http_service::http::{ApiError, WARNING_HEADER};
pub(super) use models::*;
pub(super) use options::{Extension, parse_effort};
pub(super) use prompt::Prompt;
pub(super) use responses::*;
use serde_json::{Map, Value};

use super::AppState;
use super::admission::{Admitted, BodyMemory};
use super::auth::authenticate_bearer;

/// The paths of the vendor's API that the engine does not have.
pub(super) const OTHER_PATHS: &str = "/v1/{*path}";

/// The header that names the task of a request, and of its response.
const TASK_HEADER: HeaderName = HeaderName::from_static("roundhouse-task");

/// A caller with the valid key, as `Authorization: Bearer` or in the engine's own header.
pub(super) struct BearerAuthenticated;

impl FromRequestParts<AppState> for BearerAuthenticated {
    type Rejection = VendorError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, VendorError> {
        authenticate_bearer(parts, state)?;
        Ok(Self)
    }
}

/// The fields of a JSON body, and their memory.
pub(super) struct VendorBody(pub(super) Map<String, Value>, pub(super) BodyMemory);

impl FromRequest<AppState> for VendorBody {
    type Rejection = VendorError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, VendorError> {
        let Admitted(fields, memory) = Admitted::from_request(request, state).await?;
        Ok(Self(fields, memory))
    }
}

/// Parameters of the path or the query, whose rejections have the vendor's form.
pub(super) struct Vendor<T>(T);

impl<T> FromRequestParts<AppState> for Vendor<T>
where
    T: FromRequestParts<AppState, Rejection = ApiError>,
{
    type Rejection = VendorError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, VendorError> {
        Ok(Self(T::from_request_parts(parts, state).await?))
    }
}

/// The answer to a path of the vendor's API that the engine does not have.
pub(super) async fn unknown_path(_: BearerAuthenticated) -> VendorError {
    VendorError::not_found("there is no such path; GET /openapi.json lists the paths", "unknown_url")
}

/// Sets the headers that name the task, and the fields that were accepted without an effect.
pub(super) fn annotate(headers: &mut HeaderMap, task_id: &str, without_effect: &WithoutEffect) {
    // A task id may be any text; a header may not.
    if let Ok(value) = HeaderValue::from_str(task_id) {
        headers.insert(TASK_HEADER, value);
    }
    if let Some(names) = without_effect.list()
        && let Ok(value) = HeaderValue::try_from(format!("fields without effect: {names}"))
    {
        headers.insert(WARNING_HEADER, value);
    }
}

/// The task that a header names.
fn task_of_header(headers: &HeaderMap) -> Result<Option<api::TaskId>, VendorError> {
    let Some(value) = headers.get(TASK_HEADER) else { return Ok(None) };
    let invalid = || VendorError::invalid(TASK_HEADER.as_str(), "must be the id of a task, 1 to 1,024 bytes");
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| invalid())?;
    api::TaskId::new(text).map(Some).map_err(|_| invalid())
}

#[cfg(test)]
#[path = "../../tests/unit/http/openai.rs"]
mod tests;
