//! `/memory`: what the engine remembers beyond a task.

use api::ErrorBody;
use api::engine::{Deleted, DeletedStatus};
use api::memory::{
    Episodes, Knowledge, KnowledgeList, KnowledgeResult, KnowledgeResults, ListMemory, MemorySearch,
    SaveKnowledge, Source,
};
use axum::extract::State as Extract;
use http_service::http::{ApiError, Path, Query};
use store::{SearchHit, SearchScope};

use super::AppState;
use super::admission::AdmittedLenient;
use super::auth::Authenticated;

/// Searches the records of knowledge, best match first.
#[utoipa::path(
    post, path = "/memory/knowledge/search", operation_id = "search_knowledge",
    request_body = MemorySearch, security(("engine_key" = [])),
    responses(
        (status = 200, body = KnowledgeResults, description = "The best matches"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn search(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(request, _memory): AdmittedLenient<MemorySearch>,
) -> Result<axum::Json<KnowledgeResults>, ApiError> {
    let found = shared.agent.search_memory(request, SearchScope::Knowledge).await?;
    Ok(axum::Json(KnowledgeResults { results: found.into_iter().filter_map(to_knowledge_result).collect() }))
}

fn to_knowledge_result(
    SearchHit { id, content, source, tags, score, created_at, .. }: SearchHit,
) -> Option<KnowledgeResult> {
    let (id, source) = (id.parse().ok()?, source.unwrap_or(Source::Tool));
    Some(KnowledgeResult { id, content, source, tags, score, created_at })
}

/// Lists the records of knowledge, newest first.
#[utoipa::path(
    get, path = "/memory/knowledge", operation_id = "list_knowledge", security(("engine_key" = [])),
    params(
        ("limit" = Option<i64>, Query, description = "The maximum number: 1 to 1,000, 50 by default"),
        ("offset" = Option<i64>, Query, description = "The number to skip; 0 by default"),
    ),
    responses(
        (status = 200, body = KnowledgeList, description = "A page of records, and the total number"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn list(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<ListMemory>,
) -> Result<axum::Json<KnowledgeList>, ApiError> {
    Ok(axum::Json(shared.agent.knowledge(query).await?))
}

/// Saves a record of knowledge.
#[utoipa::path(
    post, path = "/memory/knowledge", operation_id = "save_knowledge",
    request_body = SaveKnowledge, security(("engine_key" = [])),
    responses(
        (status = 200, body = Knowledge, description = "The record"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "NOT_FOUND"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn save(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(request, _memory): AdmittedLenient<SaveKnowledge>,
) -> Result<axum::Json<Knowledge>, ApiError> {
    Ok(axum::Json(shared.agent.save_knowledge(request).await?))
}

/// Deletes a record of knowledge permanently.
#[utoipa::path(
    delete, path = "/memory/knowledge/{id}", operation_id = "delete_knowledge",
    params(("id" = String, Path, description = "The record")),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Deleted, description = "The record is deleted"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn delete(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<axum::Json<Deleted>, ApiError> {
    shared.agent.delete_knowledge(&id).await?;
    Ok(axum::Json(Deleted { status: DeletedStatus::Deleted }))
}

/// Lists the episodes of turns that have ended, newest first.
#[utoipa::path(
    get, path = "/memory/episodes", operation_id = "list_episodes", security(("engine_key" = [])),
    params(
        ("limit" = Option<i64>, Query, description = "The maximum number: 1 to 1,000, 50 by default"),
        ("offset" = Option<i64>, Query, description = "The number to skip; 0 by default"),
    ),
    responses(
        (status = 200, body = Episodes, description = "A page of episodes, and the total number"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn episodes(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<ListMemory>,
) -> Result<axum::Json<Episodes>, ApiError> {
    Ok(axum::Json(shared.agent.episodes(query).await?))
}
