//! `/tasks/{task_id}/media`: the files that are attached to the messages of a task.

use api::files::TaskMedia;
use api::{ErrorBody, ErrorCode, TaskId};
use axum::extract::State as Extract;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use http_service::http::{ApiError, Path};

use super::AppState;
use super::auth::Authenticated;
use super::download_body::download_body;
use super::file_response::{FileContent, Representation, file_response};
use super::workspace::file_error;

/// Lists the files that are attached to the messages of a task, in their order.
#[utoipa::path(
    get, path = "/tasks/{task_id}/media", operation_id = "list_task_media", security(("engine_key" = [])),
    params(("task_id" = String, Path, description = "The task")),
    responses(
        (status = 200, body = TaskMedia, description = "The attached files"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn list(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
) -> Result<axum::Json<TaskMedia>, ApiError> {
    Ok(axum::Json(TaskMedia { media: shared.agent.media(&task_id).await? }))
}

/// Returns a file that is attached to a message of the task. It never changes.
#[utoipa::path(
    method(get, head), path = "/tasks/{task_id}/media/{hash}", operation_id = "get_task_media",
    security(("engine_key" = [])),
    params(
        ("task_id" = String, Path, description = "The task"),
        ("hash" = String, Path, description = "The file's SHA-256, as `GET /tasks/{task_id}/media` lists it"),
        ("Range" = Option<String>, Header, description = "A single range of bytes"),
        ("If-None-Match" = Option<String>, Header, description = "Tags of versions that the caller has"),
    ),
    responses(
        (status = 200, description = "The content, with its own type", body = inline(FileContent),
            content_type = "*/*", headers(
            ("ETag" = String, description = "The version, for conditions"),
            ("Content-Disposition" = String, description = "The name of the file"),
            ("Accept-Ranges" = String, description = "`bytes`, for a file"),
        )),
        (status = 206, description = "The requested part of the content", body = inline(FileContent),
            content_type = "*/*", headers(
            ("ETag" = String, description = "The version, for conditions"),
            ("Content-Range" = String, description = "The part, and the size of the whole"),
        )),
        (status = 304, description = "The caller has it already", headers(
            ("ETag" = String, description = "The version"),
        )),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, FILE_NOT_FOUND"),
        (status = 412, body = ErrorBody, description = "PRECONDITION_FAILED"),
        (status = 416, body = ErrorBody, description = "RANGE_NOT_SATISFIABLE",
            headers(("Content-Range" = String, description = "`*` and the size of the file"))),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path((task_id, hash)): Path<(TaskId, String)>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let attached = shared.agent.media(&task_id).await?.into_iter().find(|file| file.hash == hash);
    let Some(file) = attached else {
        let message = "no message of this task has such a file; GET /tasks/{task_id}/media lists them";
        return Err(ApiError::new(ErrorCode::FileNotFound, message));
    };
    let representation = Representation {
        etag: &file.hash,
        modified: None,
        size: file.size,
        content_type: &file.media_type,
        name: file.name.as_deref().unwrap_or(&file.hash),
        is_download: false,
        cache_control: "private, max-age=31536000, immutable",
    };
    file_response(&method, &headers, &representation, |range| {
        let held = (shared.files.permit_download().map_err(file_error)?, shared.agent.begin_transfer()?);
        let bytes = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        let length = bytes(range.end - range.start);
        let content = shared.agent.read_media(file.hash.clone(), bytes(range.start), length);
        Ok(download_body(content, held))
    })
}
