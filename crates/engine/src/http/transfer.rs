//! `GET /memory/export` and `POST /memory/import`: the engine's memory as one document.

use std::io;

use api::ErrorBody;
use api::transfer::{ImportMemory, Imported};
use axum::body::{Body, Bytes};
use axum::extract::State as Extract;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use http_service::http::{ApiError, Query};

use super::AppState;
use super::auth::Authenticated;
use crate::agent::{AgentError, Export};

/// Streams a snapshot of the engine's whole memory as one JSON document.
///
/// It holds no credentials, no grants and no configuration. A document that could not be completed lacks its
/// closing brace, and the response is cut off.
#[utoipa::path(
    get, path = "/memory/export", operation_id = "export_memory", security(("engine_key" = [])),
    responses(
        (status = 200, description = "The document", body = serde_json::Value, content_type = "application/json"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "OVERLOADED"),
    ),
)]
pub(super) async fn export(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<Response, ApiError> {
    let mut export = shared.agent.export()?;
    // A brain that cannot be read is reported before the response begins.
    let first = match export.next().await {
        Some(Ok(first)) => first,
        Some(Err(error)) => return Err(AgentError::from(error).into()),
        None => return Err(ApiError::internal()),
    };
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"memory.json\""),
    ];
    Ok((headers, Body::from_stream(export_chunks(first, export))).into_response())
}

/// Returns the chunks of a document, starting with the first one.
fn export_chunks(first: Bytes, export: Export) -> impl Stream<Item = Result<Bytes, io::Error>> {
    futures::stream::unfold((Some(first), export), |(first, mut export)| async move {
        let piece = match first {
            Some(first) => Ok(first),
            None => export.next().await?.map_err(|error| {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "An export was cut off by an error."
                );
                io::Error::other(error)
            }),
        };
        Some((piece, (None, export)))
    })
}

/// Imports a document of `GET /memory/export` of any size, completely or not at all.
#[utoipa::path(
    post, path = "/memory/import", operation_id = "import_memory", security(("engine_key" = [])),
    params(("mode" = Option<api::transfer::ImportMode>, Query,
            description = "What happens to existing memory; `merge` by default")),
    request_body(content = serde_json::Value, description = "The document", content_type = "application/json"),
    responses(
        (status = 200, body = Imported, description = "The document is imported"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 409, body = ErrorBody, description = "TASK_BUSY (replace, and a turn is under way)"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn import(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(ImportMemory { mode }): Query<ImportMemory>,
    body: Body,
) -> Result<axum::Json<Imported>, ApiError> {
    // Read as it arrives: the limit on bodies applies to collected ones.
    Ok(axum::Json(shared.agent.import(mode, body.into_data_stream()).await?))
}
