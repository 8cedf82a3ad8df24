//! The methods `memory.*` of `/rpc`.

use api::ErrorCode;
use api::engine::{Deleted, DeletedStatus};
use api::facts::CorrectFact;
use api::memory::{
    MAX_CONTENT, MAX_QUERY, MAX_SEARCH_OFFSET, MAX_TAG, MAX_TAGS, MemoryResult, MemoryResults,
};
use api::rpc::{RpcMethod, RpcOutcome};
use http_service::http::{ApiError, parse_fields};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::{SearchHit, SearchScope};

use super::Shared;
use crate::agent::AgentError;

/// The maximum size of a document returned by `memory.export`, in bytes; a larger one must be streamed.
const MAX_EXPORT_BYTES: usize = 8 * 1024 * 1024;

/// The parameters of `memory.delete`, `memory.fact` and `memory.forget`.
#[derive(Deserialize)]
struct RecordParams {
    id: String,
}

/// The parameters of `memory.correct`.
#[derive(Deserialize)]
struct CorrectParams {
    id: String,
    #[serde(flatten)]
    correction: CorrectFact,
}

/// Returns the methods with their parameters.
pub(super) fn methods() -> impl Iterator<Item = RpcMethod> {
    let text = |max: usize| json!({"type": "string", "minLength": 1, "maxLength": max});
    let tags = || json!({"type": "array", "items": text(MAX_TAG), "maxItems": MAX_TAGS});
    let count = |min: i64, max: Option<i64>, default: i64| match max {
        Some(max) => json!({"type": "integer", "minimum": min, "maximum": max, "default": default}),
        None => json!({"type": "integer", "minimum": min, "default": default}),
    };
    [
        (
            "memory.search",
            json!({
                "query": {"type": "string", "maxLength": MAX_QUERY},
                "limit": count(1, Some(100), 10),
                "offset": count(0, Some(MAX_SEARCH_OFFSET), 0),
            }),
            json!(["query"]),
        ),
        (
            "memory.save",
            json!({
                "content": text(MAX_CONTENT),
                "tags": tags(),
                "supersedes": {"type": "string"},
            }),
            json!(["content"]),
        ),
        ("memory.list", json!({"limit": count(1, Some(1_000), 50), "offset": count(0, None, 0)}), json!([])),
        ("memory.delete", json!({"id": {"type": "string"}}), json!(["id"])),
        (
            "memory.facts",
            json!({
                "limit": count(1, Some(100), 50),
                "offset": count(0, None, 0),
                "tag": {"type": "string"},
                "source": {"enum": ["user", "agent", "tool", "feedback", "learned"]},
            }),
            json!([]),
        ),
        ("memory.fact", json!({"id": {"type": "string"}}), json!(["id"])),
        (
            "memory.correct",
            json!({"id": {"type": "string"}, "content": text(MAX_CONTENT), "tags": tags()}),
            json!(["id", "content"]),
        ),
        ("memory.forget", json!({"id": {"type": "string"}}), json!(["id"])),
        ("memory.export", json!({}), json!([])),
    ]
    .into_iter()
    .map(|(method, properties, required)| RpcMethod {
        method: method.to_owned(),
        params: json!({"type": "object", "properties": properties, "required": required}),
    })
}

/// Calls `memory.<op>`; `None` if there is no such method.
pub(super) async fn call(
    shared: &Shared,
    op: &str,
    params: Map<String, Value>,
) -> Result<Option<RpcOutcome>, ApiError> {
    let agent = &shared.agent;
    let outcome = match op {
        "search" => {
            let found = agent.search_memory(parse_fields(params)?, SearchScope::WithEpisodes).await?;
            RpcOutcome::Memories(MemoryResults { results: found.into_iter().map(to_memory_result).collect() })
        }
        "save" => RpcOutcome::Known(agent.save_knowledge(parse_fields(params)?).await.map_err(api_error)?),
        "list" => RpcOutcome::Knowledge(agent.knowledge(parse_fields(params)?).await?),
        "delete" => {
            let RecordParams { id } = parse_fields(params)?;
            agent.delete_knowledge(&id).await.map_err(api_error)?;
            RpcOutcome::Deleted(Deleted { status: DeletedStatus::Deleted })
        }
        "facts" => RpcOutcome::Facts(agent.facts(parse_fields(params)?).await?),
        "fact" => {
            let RecordParams { id } = parse_fields(params)?;
            RpcOutcome::Fact(Box::new(agent.fact(&id).await.map_err(api_error)?))
        }
        "correct" => {
            let CorrectParams { id, correction } = parse_fields(params)?;
            RpcOutcome::Fact(Box::new(agent.correct_fact(&id, correction).await.map_err(api_error)?))
        }
        "forget" => {
            let RecordParams { id } = parse_fields(params)?;
            agent.forget_fact(&id).await.map_err(api_error)?;
            RpcOutcome::Deleted(Deleted { status: DeletedStatus::Deleted })
        }
        "export" => {
            let document = agent.export_to_vec(MAX_EXPORT_BYTES).await?;
            RpcOutcome::Exported(serde_json::from_slice(&document).map_err(|_| ApiError::internal())?)
        }
        _ => return Ok(None),
    };
    Ok(Some(outcome))
}

/// Converts an error. Here only a method can be not found: a missing record is an invalid parameter.
fn api_error(error: AgentError) -> ApiError {
    match error {
        AgentError::UnknownRecord(message) => ApiError::new(ErrorCode::InvalidRequest, message),
        error => error.into(),
    }
}

/// What callers see of a search result.
pub(super) fn to_memory_result(found: SearchHit) -> MemoryResult {
    let SearchHit { kind, id, content, source, tags, score, created_at, task_id, message_ids, .. } = found;
    MemoryResult { kind, id, content, source, tags, score, created_at, task_id, message_ids }
}
