//! `/skills`: lists, reads, changes and exports the agent's skills.

use std::collections::BTreeMap;

use api::ErrorBody;
use api::engine::{Deleted, DeletedStatus};
use api::skills::{CreateSkill, Skill, SkillList, UpdateSkill};
use axum::extract::State as Extract;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use http_service::http::{ApiError, Path};

use super::AppState;
use super::admission::AdmittedLenient;
use super::auth::Authenticated;

/// The path at which skills are created.
pub(super) const CREATE_PATH: &str = "/skills/create";

/// The parameters of a path to a skill: its name.
pub(super) type SkillPath = Path<BTreeMap<String, String>>;

/// Returns the skill that a path names. The router treats [`CREATE_PATH`] as a path of its own without a name in
/// it: for any method but POST it means the skill called `create`.
fn skill_name(Path(mut path): SkillPath) -> String {
    path.remove("name").unwrap_or_else(|| "create".to_owned())
}

/// Returns the routes of a skill that is called `create`.
pub(super) fn routes_of_skill_named_create() -> MethodRouter<AppState> {
    get(read).put(update).delete(delete)
}

/// Lists the platform's and the user's own skills, ordered by name.
#[utoipa::path(
    get, path = "/skills", operation_id = "list_skills", security(("engine_key" = [])),
    responses(
        (status = 200, body = SkillList, description = "The skills"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn list(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<SkillList>, ApiError> {
    Ok(axum::Json(shared.agent.skills().await?))
}

/// Returns a skill with its content.
#[utoipa::path(
    get, path = "/skills/{name}", operation_id = "get_skill",
    params(("name" = String, Path, description = "The skill")),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Skill, description = "The skill"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SKILL_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    path: SkillPath,
) -> Result<axum::Json<Skill>, ApiError> {
    Ok(axum::Json(shared.agent.skill(&skill_name(path)).await?))
}

/// Creates a user's own skill.
#[utoipa::path(
    post, path = "/skills/create", operation_id = "create_skill",
    request_body = CreateSkill, security(("engine_key" = [])),
    responses(
        (status = 200, body = Skill, description = "The skill is created"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 409, body = ErrorBody, description = "SKILL_EXISTS"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn create(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(request, _memory): AdmittedLenient<CreateSkill>,
) -> Result<axum::Json<Skill>, ApiError> {
    Ok(axum::Json(shared.agent.create_skill(request).await?))
}

/// Changes a user's own skill.
#[utoipa::path(
    put, path = "/skills/{name}", operation_id = "update_skill",
    params(("name" = String, Path, description = "The skill")),
    request_body = UpdateSkill, security(("engine_key" = [])),
    responses(
        (status = 200, body = Skill, description = "The skill after the change"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "PLATFORM_SKILL"),
        (status = 404, body = ErrorBody, description = "SKILL_NOT_FOUND"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn update(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    path: SkillPath,
    AdmittedLenient(request, _memory): AdmittedLenient<UpdateSkill>,
) -> Result<axum::Json<Skill>, ApiError> {
    Ok(axum::Json(shared.agent.update_skill(&skill_name(path), request).await?))
}

/// Deletes a user's own skill.
#[utoipa::path(
    delete, path = "/skills/{name}", operation_id = "delete_skill",
    params(("name" = String, Path, description = "The skill")),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Deleted, description = "The skill is deleted"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 403, body = ErrorBody, description = "PLATFORM_SKILL"),
        (status = 404, body = ErrorBody, description = "SKILL_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn delete(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    path: SkillPath,
) -> Result<axum::Json<Deleted>, ApiError> {
    shared.agent.delete_skill(&skill_name(path)).await?;
    Ok(axum::Json(Deleted { status: DeletedStatus::Deleted }))
}

/// A skill's folder in a tar archive, for the OpenAPI document.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, format = Binary)]
struct Archive(#[expect(dead_code, reason = "only its schema is used")] Vec<u8>);

/// Exports a skill as a folder of the open Agent Skills format, in a tar archive.
#[utoipa::path(
    get, path = "/skills/{name}/export", operation_id = "export_skill",
    params(("name" = String, Path, description = "The skill")),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = inline(Archive), content_type = "application/x-tar", description = "A tar archive"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST: its files are too large"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SKILL_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn export(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    path: SkillPath,
) -> Result<impl IntoResponse, ApiError> {
    let name = skill_name(path);
    let archive = shared.agent.export_skill(&name).await?;
    let disposition = format!("attachment; filename=\"{name}.tar\"");
    Ok(([(CONTENT_TYPE, "application/x-tar".to_owned()), (CONTENT_DISPOSITION, disposition)], archive))
}
