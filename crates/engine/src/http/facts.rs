//! `/memory/facts`: what the engine knows about its user now, to look at, correct and erase.

use api::ErrorBody;
use api::engine::{Deleted, DeletedStatus};
use api::facts::{CorrectFact, Fact, Facts, ListFacts};
use axum::extract::State as Extract;
use http_service::http::{ApiError, Path, Query};

use super::AppState;
use super::admission::Admitted;
use super::auth::Authenticated;

/// Lists the facts in force, the last said first, with what each has replaced.
#[utoipa::path(
    get, path = "/memory/facts", operation_id = "list_facts", security(("engine_key" = [])),
    params(
        ("limit" = Option<i64>, Query, description = "The maximum number: 1 to 100, 50 by default"),
        ("offset" = Option<i64>, Query, description = "The number to skip; 0 by default"),
        ("tag" = Option<String>, Query, description = "Only facts with exactly this tag"),
        ("source" = Option<api::memory::Source>, Query, description = "Only facts of this origin"),
    ),
    responses(
        (status = 200, body = Facts, description = "A page of facts, and the total number"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn list(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<ListFacts>,
) -> Result<axum::Json<Facts>, ApiError> {
    Ok(axum::Json(shared.agent.facts(query).await?))
}

/// Returns a fact with its history, also one that is no longer in force.
#[utoipa::path(
    get, path = "/memory/facts/{id}", operation_id = "get_fact",
    params(("id" = String, Path, description = "The fact")), security(("engine_key" = [])),
    responses(
        (status = 200, body = Fact, description = "The fact"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<axum::Json<Fact>, ApiError> {
    Ok(axum::Json(shared.agent.fact(&id).await?))
}

/// Corrects a fact: saves a new one from the user, which replaces it.
#[utoipa::path(
    put, path = "/memory/facts/{id}", operation_id = "correct_fact",
    params(("id" = String, Path, description = "The fact")), request_body = CorrectFact,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Fact, description = "The new fact"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "FACT_REPLACED"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn correct(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
    Admitted(request, _memory): Admitted<CorrectFact>,
) -> Result<axum::Json<Fact>, ApiError> {
    Ok(axum::Json(shared.agent.correct_fact(&id, request).await?))
}

/// Erases a fact with all that it replaced.
#[utoipa::path(
    delete, path = "/memory/facts/{id}", operation_id = "forget_fact",
    params(("id" = String, Path, description = "The fact")), security(("engine_key" = [])),
    responses(
        (status = 200, body = Deleted, description = "The fact is erased"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn forget(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<axum::Json<Deleted>, ApiError> {
    shared.agent.forget_fact(&id).await?;
    Ok(axum::Json(Deleted { status: DeletedStatus::Deleted }))
}
