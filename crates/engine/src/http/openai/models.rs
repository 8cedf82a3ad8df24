//! `GET /v1/models`: the models that a request can name.

use axum::extract::State as Extract;
use http_service::http::Path;
use serde_json::{Value, json};

use super::error::VendorErrorBody;
use super::options::DEFAULT_MODEL;
use super::refusals;
use super::{BearerAuthenticated, Vendor, VendorError};
use crate::http::AppState;
use crate::http::front_schemas::{ModelList, ModelObject};

/// Lists the models that a request can name, in the form of OpenAI's API. `default` is the configured one.
#[utoipa::path(
    get, path = "/v1/models", operation_id = "openai_list_models", tag = "openai",
    security(("engine_key" = []), ("bearer" = [])),
    responses(
        (status = 200, description = "The models", body = ModelList),
        (status = 401, description = refusals::WRONG_KEY, body = VendorErrorBody),
        (status = 403, description = refusals::TOKEN, body = VendorErrorBody),
    ),
)]
pub(in crate::http) async fn list_models(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> axum::Json<Value> {
    let data: Vec<Value> = names(&shared.agent.model_names()).map(model).collect();
    axum::Json(json!({"object": "list", "data": data}))
}

/// Returns a model that a request can name, in the form of OpenAI's API.
#[utoipa::path(
    get, path = "/v1/models/{model}", operation_id = "openai_read_model", tag = "openai",
    params(("model" = String, Path, description = "The name of the model")),
    security(("engine_key" = []), ("bearer" = [])),
    responses(
        (status = 200, description = "The model", body = ModelObject),
        (status = 400, description = refusals::INVALID_PARAMETER, body = VendorErrorBody),
        (status = 401, description = refusals::WRONG_KEY, body = VendorErrorBody),
        (status = 403, description = refusals::TOKEN, body = VendorErrorBody),
        (status = 404, description = refusals::UNKNOWN_MODEL, body = VendorErrorBody),
    ),
)]
pub(in crate::http) async fn read_model(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Vendor(Path(name)): Vendor<Path<String>>,
) -> Result<axum::Json<Value>, VendorError> {
    if names(&shared.agent.model_names()).any(|known| known == name) {
        return Ok(axum::Json(model(&name)));
    }
    Err(VendorError::not_found("there is no such model; GET /v1/models lists them", "model_not_found"))
}

fn names(configured: &[String]) -> impl Iterator<Item = &str> {
    let others = configured.iter().map(String::as_str).filter(|name| *name != DEFAULT_MODEL);
    std::iter::once(DEFAULT_MODEL).chain(others)
}

fn model(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "roundhouse"})
}
