//! Uploads into the workspace, in one request or in several.
//!
//! Resumable uploads follow the IETF's draft-ietf-httpbis-resumable-upload: a `PUT` with `Upload-Complete:
//! ?0` creates one, and its own address tells how much was received (`HEAD`), takes more (`PATCH`) and
//! cancels it (`DELETE`).

use api::files::{CreatedUpload, UploadOutcome, UploadedFile};
use api::{ErrorBody, ErrorCode};
use axum::Json;
use axum::body::{Body, HttpBody as _};
use axum::extract::State as Extract;
use axum::http::header::{CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use http_service::http::{ApiError, BodyTimeout, Path, is_body_timeout};
use tools::user_files::{FileError, NewUpload, UPLOAD_LIFETIME, Upload, WrittenFile};
use uuid::Uuid;

use super::AppState;
use super::auth::Authenticated;
use super::file_response::{FileContent, quoted, set};
use super::workspace::{condition, file_error, file_path, uploaded};

static UPLOAD_COMPLETE: HeaderName = HeaderName::from_static("upload-complete");
static UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
static UPLOAD_LENGTH: HeaderName = HeaderName::from_static("upload-length");
static UPLOAD_LIMIT: HeaderName = HeaderName::from_static("upload-limit");

/// The media type of a part of an upload.
const PARTIAL_UPLOAD: &str = "application/partial-upload";

/// Uploads a file, in place of the one that is there. The new file appears whole, or not at all.
///
/// With `Upload-Complete: ?0` it creates a resumable upload, which `PATCH` on its `Location` continues.
#[utoipa::path(
    put, path = "/workspace/{*path}", operation_id = "put_workspace_file", security(("engine_key" = [])),
    params(
        ("path" = String, Path, description = "The path, each name percent-encoded; its folders are made"),
        ("If-Match" = Option<String>, Header, description = "Tags of the versions that may be replaced"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if there is no such file"),
        ("If-Unmodified-Since" = Option<String>, Header, description = "The date of the version that may be replaced"),
        ("Upload-Complete" = Option<String>, Header, description = "`?0`: more follows in later requests"),
        ("Upload-Length" = Option<u64>, Header, description = "The size of the whole file, if more follows"),
    ),
    request_body(content = inline(FileContent), description = "The content", content_type = "application/octet-stream"),
    responses(
        (status = 200, body = UploadedFile, description = "The file was replaced"),
        (status = 201, body = UploadOutcome, description = "The file was created, or the resumable upload was",
            headers(
                ("Location" = String, description = "The address of the resumable upload"),
                ("Upload-Offset" = u64, description = "The number of bytes received of it"),
            )),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "FILE_NOT_ACCESSIBLE"),
        (status = 404, body = ErrorBody, description = "FILE_NOT_FOUND"),
        (status = 408, body = ErrorBody, description = "REQUEST_TIMEOUT"),
        (status = 409, body = ErrorBody, description = "FILE_CONFLICT"),
        (status = 412, body = ErrorBody, description = "PRECONDITION_FAILED"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
        (status = 507, body = ErrorBody, description = "STORAGE_FULL"),
    ),
)]
pub(super) async fn put(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    if uri.path().ends_with('/') {
        return Err(invalid("the path must name a file, so it must not end with a slash"));
    }
    if headers.contains_key(CONTENT_RANGE) {
        // A part would take the place of the whole (RFC 9110, section 14.5).
        return Err(invalid("`Content-Range`: a file is uploaded whole; resumable uploads take parts"));
    }
    let _transfer = shared.agent.begin_transfer()?;
    let (path, condition, now) = (file_path(&uri)?, condition(&headers)?, shared.clock.now());
    let length = number(&headers, &UPLOAD_LENGTH)?;
    if is_complete(&headers)?.unwrap_or(true) {
        let new = NewUpload { path, length: length.or(body.size_hint().exact()), condition };
        let mut upload = shared.files.begin(new, now).await.map_err(file_error)?;
        receive(&mut upload, body).await?;
        return Ok(respond_written(&upload.commit().await.map_err(file_error)?));
    }
    let new = NewUpload { path, length, condition };
    let mut upload = shared.files.begin_resumable(new, now).await.map_err(file_error)?;
    let (id, depth) = (upload.id(), upload.path().depth());
    let stored = match receive(&mut upload, body).await {
        Ok(()) => upload.suspend().await.map_err(file_error),
        Err(error) => {
            drop(upload);
            Err(error)
        }
    };
    let offset = match stored {
        Ok(offset) => offset,
        Err(error) => {
            // Nobody learns of the upload from an error.
            shared.files.cancel_upload(id, now).await.map_err(file_error)?;
            return Err(error);
        }
    };
    let created = CreatedUpload { upload_id: id.simple().to_string(), offset };
    let mut response = (StatusCode::CREATED, Json(&created)).into_response();
    // Relative to the request, whatever path it came by.
    let location = format!("{}workspace-uploads/{}", "../".repeat(depth), created.upload_id);
    set(response.headers_mut(), LOCATION, &location);
    add_progress(response.headers_mut(), offset, false);
    let max_age = UPLOAD_LIFETIME.as_secs();
    set(response.headers_mut(), UPLOAD_LIMIT.clone(), &format!("max-age={max_age}"));
    Ok(response)
}

/// Says how many bytes of a resumable upload were received. A request that continues it at the moment is
/// stopped.
#[utoipa::path(
    head, path = "/workspace-uploads/{upload_id}", operation_id = "get_upload", security(("engine_key" = [])),
    params(("upload_id" = String, Path, description = "The upload")),
    responses(
        (status = 204, description = "The upload can be continued", headers(
            ("Upload-Offset" = u64, description = "The number of bytes received"),
            ("Upload-Complete" = String, description = "`?0`"),
            ("Upload-Length" = u64, description = "The size of the whole file, if it was announced"),
        )),
        (status = 401, description = "INVALID_ENGINE_KEY"),
        (status = 404, description = "UPLOAD_NOT_FOUND"),
        (status = 500, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn status(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let status = shared.files.upload_status(parse_id(&id)?, shared.clock.now()).await.map_err(file_error)?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    add_progress(headers, status.offset, false);
    if let Some(length) = status.length {
        headers.insert(UPLOAD_LENGTH.clone(), HeaderValue::from(length));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Continues a resumable upload. With `Upload-Complete: ?1`, the file is put in its place when the body has
/// ended.
#[utoipa::path(
    patch, path = "/workspace-uploads/{upload_id}", operation_id = "append_to_upload",
    security(("engine_key" = [])),
    params(
        ("upload_id" = String, Path, description = "The upload"),
        ("Upload-Offset" = u64, Header, description = "The number of bytes received before"),
        ("Upload-Complete" = String, Header, description = "`?1` if the file ends with this body, else `?0`"),
    ),
    request_body(content = inline(FileContent), description = "The next bytes", content_type = "application/partial-upload"),
    responses(
        (status = 200, body = UploadedFile, description = "The upload is complete; the file was replaced"),
        (status = 201, body = UploadedFile, description = "The upload is complete; the file was created"),
        (status = 204, description = "More can follow", headers(
            ("Upload-Offset" = u64, description = "The number of bytes received"),
        )),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "FILE_NOT_ACCESSIBLE"),
        (status = 404, body = ErrorBody, description = "UPLOAD_NOT_FOUND"),
        (status = 408, body = ErrorBody, description = "REQUEST_TIMEOUT"),
        (status = 409, body = ErrorBody, description = "UPLOAD_CONFLICT, FILE_CONFLICT", headers(
            ("Upload-Offset" = u64, description = "The number of bytes received, if another was assumed"),
        )),
        (status = 412, body = ErrorBody, description = "PRECONDITION_FAILED"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
        (status = 507, body = ErrorBody, description = "STORAGE_FULL"),
    ),
)]
pub(super) async fn append(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let _transfer = shared.agent.begin_transfer()?;
    let id = parse_id(&id)?;
    if headers.get(CONTENT_TYPE).is_none_or(|media_type| media_type != PARTIAL_UPLOAD) {
        return Err(invalid(format!("`Content-Type`: must be {PARTIAL_UPLOAD}")));
    }
    let missing = |name: &HeaderName| invalid(format!("`{name}`: must be given"));
    let offset = number(&headers, &UPLOAD_OFFSET)?.ok_or_else(|| missing(&UPLOAD_OFFSET))?;
    let is_complete = is_complete(&headers)?.ok_or_else(|| missing(&UPLOAD_COMPLETE))?;
    let mut upload = match shared.files.resume(id, offset, shared.clock.now()).await {
        Ok(upload) => upload,
        Err(FileError::OffsetMismatch { offset }) => {
            let mut response = file_error(FileError::OffsetMismatch { offset }).into_response();
            add_progress(response.headers_mut(), offset, false);
            return Ok(response);
        }
        Err(error) => return Err(file_error(error)),
    };
    let received = receive(&mut upload, body).await;
    if is_complete && received.is_ok() {
        let received = upload.received();
        let mut response = respond_written(&upload.commit().await.map_err(file_error)?);
        add_progress(response.headers_mut(), received, true);
        return Ok(response);
    }
    // What was received is kept, even if the connection was lost.
    let offset = upload.suspend().await.map_err(file_error)?;
    received?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    add_progress(response.headers_mut(), offset, false);
    Ok(response)
}

/// Cancels a resumable upload, and deletes what was received.
#[utoipa::path(
    delete, path = "/workspace-uploads/{upload_id}", operation_id = "cancel_upload",
    security(("engine_key" = [])),
    params(("upload_id" = String, Path, description = "The upload")),
    responses(
        (status = 204, description = "The upload was cancelled"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "UPLOAD_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn cancel(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    shared.files.cancel_upload(parse_id(&id)?, shared.clock.now()).await.map_err(file_error)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Receives a body to its end.
async fn receive(upload: &mut Upload, body: Body) -> Result<(), ApiError> {
    if let Some(length) = body.size_hint().exact() {
        // Refused before the body is sent, if there is no room for it.
        upload.reserve(length).await.map_err(file_error)?;
    }
    let superseded = upload.superseded();
    let mut pieces = body.into_data_stream();
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            () = superseded.cancelled() => return Err(file_error(FileError::Superseded)),
        };
        match piece {
            Some(Ok(piece)) => upload.write(piece).await.map_err(file_error)?,
            Some(Err(error)) if is_body_timeout(&error) => return Err(BodyTimeout.into()),
            Some(Err(_)) => return Err(invalid("the body could not be read to its end")),
            None => return Ok(()),
        }
    }
}

fn respond_written(file: &WrittenFile) -> Response {
    let status = if file.is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = (status, Json(uploaded(file))).into_response();
    set(response.headers_mut(), ETAG, &quoted(&file.info.etag));
    response
}

fn add_progress(headers: &mut HeaderMap, offset: u64, is_complete: bool) {
    headers.insert(UPLOAD_OFFSET.clone(), HeaderValue::from(offset));
    let is_complete = HeaderValue::from_static(if is_complete { "?1" } else { "?0" });
    headers.insert(UPLOAD_COMPLETE.clone(), is_complete);
}

fn is_complete(headers: &HeaderMap) -> Result<Option<bool>, ApiError> {
    match headers.get(&UPLOAD_COMPLETE).map(HeaderValue::as_bytes) {
        None => Ok(None),
        Some(b"?1") => Ok(Some(true)),
        Some(b"?0") => Ok(Some(false)),
        Some(_) => Err(invalid("`upload-complete`: must be `?0` or `?1`")),
    }
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse().ok());
    number.map(Some).ok_or_else(|| invalid(format!("`{name}`: must be a number of bytes")))
}

fn parse_id(id: &str) -> Result<Uuid, ApiError> {
    Uuid::try_parse(id).map_err(|_| file_error(FileError::UploadNotFound))
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, message)
}
