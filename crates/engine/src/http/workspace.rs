//! `/workspace`: the files of the agent's workspace, as the user downloads, uploads, lists and deletes them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::time::{SystemTime, UNIX_EPOCH};

use api::engine::{Deleted, DeletedStatus};
use api::files::{DeleteFile, FileEntry, FileKind, FolderFormat, FolderListing, GetFile, UploadedFile};
use api::serde_helpers::BoundedInt;
use api::{ErrorBody, ErrorCode, Timestamp};
use axum::Json;
use axum::body::Body;
use axum::extract::State as Extract;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE,
};
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use axum::response::{IntoResponse as _, Response};
use http_service::http::{ApiError, Query};
use tools::user_files::{
    Condition, EntryKind, FileError, FilePath, FolderEntry, Found, WrittenFile, display_name, encode,
};

use super::auth::Authenticated;
use super::content_type::content_type;
use super::download_body::download_body;
use super::file_response::{
    FileContent, Representation, add_protection, content_disposition, date, file_response, list, quoted, set,
};
use super::{AppState, Shared};

/// The number of entries on a page unless the request sets it.
const DEFAULT_LIMIT: usize = 100;
/// The beginning of the path of every file.
const PATH_PREFIX: &str = "/workspace/";

/// Lists the workspace, or returns all of it as a ZIP archive.
#[utoipa::path(
    method(get, head), path = "/workspace", operation_id = "list_workspace", security(("engine_key" = [])),
    params(
        ("format" = Option<FolderFormat>, Query, description = "The form; `json` by default"),
        ("limit" = Option<i64>, Query, description = "The most entries: 1 to 1,000, 100 by default"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses(
        (status = 200, description = "A page of the entries, or the archive", content(
            (FolderListing = "application/json"), (inline(FileContent) = "application/zip"),
        )),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "FILE_NOT_ACCESSIBLE"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE (an archive)"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn list_root(
    _: Authenticated,
    state: Extract<AppState>,
    query: Query<GetFile>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    respond(state, FilePath::default(), query, &method, &headers).await
}

/// Returns a file, or lists a folder, or returns it as a ZIP archive.
#[utoipa::path(
    method(get, head), path = "/workspace/{*path}", operation_id = "get_workspace_file",
    security(("engine_key" = [])),
    params(
        ("path" = String, Path, description = "The path, each name percent-encoded"),
        ("download" = Option<bool>, Query, description = "Whether a browser saves the file"),
        ("format" = Option<FolderFormat>, Query, description = "The form of a folder; `json` by default"),
        ("limit" = Option<i64>, Query, description = "The most entries: 1 to 1,000, 100 by default"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("Range" = Option<String>, Header, description = "A single range of bytes"),
        ("If-Range" = Option<String>, Header, description = "The version that the range belongs to"),
        ("If-None-Match" = Option<String>, Header, description = "Tags of versions that the caller has"),
        ("If-Modified-Since" = Option<String>, Header, description = "The date of the caller's version"),
    ),
    responses(
        (status = 200, description = "A page of the folder, the archive, or the file with its own type", content(
            (FolderListing = "application/json"), (inline(FileContent) = "application/zip"),
            (inline(FileContent) = "*/*"),
        ), headers(
            ("ETag" = String, description = "The version, for conditions"),
            ("Content-Disposition" = String, description = "The name of the file"),
            ("Accept-Ranges" = String, description = "`bytes`, for a file"),
        )),
        (status = 206, description = "The requested part of the file", body = inline(FileContent),
            content_type = "*/*", headers(
            ("ETag" = String, description = "The version, for conditions"),
            ("Content-Range" = String, description = "The part, and the size of the whole"),
        )),
        (status = 304, description = "The file is as the caller has it", headers(
            ("ETag" = String, description = "The version"),
        )),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "FILE_NOT_ACCESSIBLE"),
        (status = 404, body = ErrorBody, description = "FILE_NOT_FOUND"),
        (status = 412, body = ErrorBody, description = "PRECONDITION_FAILED"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE (an archive)"),
        (status = 416, body = ErrorBody, description = "RANGE_NOT_SATISFIABLE",
            headers(("Content-Range" = String, description = "`*` and the size of the file"))),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    state: Extract<AppState>,
    uri: Uri,
    query: Query<GetFile>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    respond(state, file_path(&uri)?, query, &method, &headers).await
}

/// Deletes a file, a link or a folder.
#[utoipa::path(
    delete, path = "/workspace/{*path}", operation_id = "delete_workspace_file",
    security(("engine_key" = [])),
    params(
        ("path" = String, Path, description = "The path, each name percent-encoded"),
        ("recursive" = Option<bool>, Query, description = "Whether a folder need not be empty"),
        ("If-Match" = Option<String>, Header, description = "Tags of the versions that may be deleted"),
        ("If-Unmodified-Since" = Option<String>, Header, description = "The date of the version that may be deleted"),
    ),
    responses(
        (status = 200, body = Deleted, description = "The file or folder is deleted"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "FILE_NOT_ACCESSIBLE"),
        (status = 404, body = ErrorBody, description = "FILE_NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "FILE_CONFLICT"),
        (status = 412, body = ErrorBody, description = "PRECONDITION_FAILED"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn delete(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    uri: Uri,
    Query(DeleteFile { recursive }): Query<DeleteFile>,
    headers: HeaderMap,
) -> Result<Json<Deleted>, ApiError> {
    let condition = condition(&headers)?;
    let _transfer = shared.agent.begin_transfer()?;
    shared.files.remove(file_path(&uri)?, recursive.unwrap_or(false), condition).await.map_err(file_error)?;
    Ok(Json(Deleted { status: DeletedStatus::Deleted }))
}

/// Returns the path of a file as the request names it. It is parsed from the undecoded form, in which an
/// encoded slash differs from one that separates names.
pub(super) fn file_path(uri: &Uri) -> Result<FilePath, ApiError> {
    FilePath::parse(uri.path().strip_prefix(PATH_PREFIX).unwrap_or_default()).map_err(file_error)
}

/// Returns the conditions of a change.
pub(super) fn condition(headers: &HeaderMap) -> Result<Condition, ApiError> {
    Ok(Condition {
        if_match: list(headers, &IF_MATCH)?,
        if_none_match: list(headers, &IF_NONE_MATCH)?,
        if_unmodified_since: date(headers, &IF_UNMODIFIED_SINCE).and_then(timestamp),
    })
}

fn timestamp(time: SystemTime) -> Option<Timestamp> {
    let since_epoch = time.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_unix_ms(i64::try_from(since_epoch.as_millis()).ok()?))
}

async fn respond(
    Extract(AppState(shared)): Extract<AppState>,
    path: FilePath,
    Query(query): Query<GetFile>,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    match shared.files.find(path.clone()).await.map_err(file_error)? {
        Found::File(file) => {
            let info = file.info().clone();
            let name = path.name().to_string_lossy();
            let representation = Representation {
                etag: &info.etag,
                modified: Some(info.modified),
                size: info.size,
                content_type: content_type(&name),
                name: &name,
                is_download: query.download.unwrap_or(false),
                cache_control: "private, no-cache",
            };
            file_response(method, headers, &representation, |range| {
                Ok(download_body(file.read(range), begin_download(&shared)?))
            })
        }
        Found::Folder(folder) if query.format == Some(FolderFormat::Zip) => {
            let held = begin_download(&shared)?;
            let archive = folder.archive().await.map_err(file_error)?;
            let body = if method == Method::HEAD { Body::empty() } else { download_body(archive, held) };
            let name = if path.is_root() { "workspace".into() } else { path.name().to_string_lossy() };
            Ok((archive_headers(&name), body).into_response())
        }
        Found::Folder(folder) => {
            let limit = query.limit.map(BoundedInt::get).and_then(|limit| usize::try_from(limit).ok());
            let after = query.after.as_deref().map(parse_cursor).transpose()?;
            let page = folder.list(after, limit.unwrap_or(DEFAULT_LIMIT)).await.map_err(file_error)?;
            let last = page.entries.last().filter(|_| page.has_more);
            let next = last.map(|entry| hex::encode(entry.name.as_bytes()));
            let entries = page.entries.iter().map(|entry| listed(&path, entry)).collect();
            Ok(([(CACHE_CONTROL, "no-store")], Json(FolderListing { entries, next })).into_response())
        }
    }
}

/// What a download holds until its end.
fn begin_download(shared: &Shared) -> Result<impl Send + 'static + use<>, ApiError> {
    Ok((shared.files.permit_download().map_err(file_error)?, shared.agent.begin_transfer()?))
}

fn archive_headers(name: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/zip"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    set(&mut headers, CONTENT_DISPOSITION, &content_disposition(&format!("{name}.zip"), true));
    add_protection(&mut headers);
    headers
}

/// Parses the cursor of a page: the last name of the page before, in hexadecimal digits.
fn parse_cursor(after: &str) -> Result<OsString, ApiError> {
    let invalid = |_| ApiError::new(ErrorCode::InvalidRequest, "`after`: must be `next` of the page before");
    hex::decode(after).map(OsString::from_vec).map_err(invalid)
}

fn listed(folder: &FilePath, FolderEntry { name, info }: &FolderEntry) -> FileEntry {
    let is_file = info.kind == EntryKind::File;
    let encoded = encode(name);
    FileEntry {
        name: display_name(name),
        path: if folder.is_root() { encoded } else { format!("{}/{encoded}", folder.encoded()) },
        kind: match info.kind {
            EntryKind::File => FileKind::File,
            EntryKind::Folder => FileKind::Folder,
            EntryKind::Link => FileKind::Link,
            EntryKind::Other => FileKind::Other,
        },
        size: is_file.then_some(info.size),
        modified: info.modified,
        etag: is_file.then(|| quoted(&info.etag)),
    }
}

/// Returns an uploaded file as responses describe it.
pub(super) fn uploaded(file: &WrittenFile) -> UploadedFile {
    UploadedFile {
        path: file.path.encoded(),
        size: file.info.size,
        modified: file.info.modified,
        etag: quoted(&file.info.etag),
    }
}

/// The answer to a failed request about files.
#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
pub(super) fn file_error(error: FileError) -> ApiError {
    let code = match &error {
        FileError::InvalidPath(_) | FileError::InvalidUpload(_) => ErrorCode::InvalidRequest,
        FileError::NotFound => ErrorCode::FileNotFound,
        FileError::UploadNotFound => ErrorCode::UploadNotFound,
        FileError::Conflict(_) => ErrorCode::FileConflict,
        FileError::NotAccessible(_) => ErrorCode::FileNotAccessible,
        FileError::PreconditionFailed => ErrorCode::PreconditionFailed,
        FileError::OffsetMismatch { .. } | FileError::Superseded => ErrorCode::UploadConflict,
        FileError::TooLarge(_) => ErrorCode::PayloadTooLarge,
        FileError::StorageFull(_) => ErrorCode::StorageFull,
        FileError::Busy => return ApiError::new(ErrorCode::Overloaded, error.to_string()).retry_after(1),
        FileError::Stopping => {
            return ApiError::new(ErrorCode::ShuttingDown, error.to_string()).retry_after(1);
        }
        FileError::Changed | FileError::Io(_) => {
            tracing::error!(error = &error as &dyn std::error::Error, "A request about files failed.");
            return ApiError::internal();
        }
    };
    ApiError::new(code, error.to_string())
}
