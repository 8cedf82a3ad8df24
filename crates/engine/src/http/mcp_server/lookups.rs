//! The tools that only look something up.

use std::time::Duration;

use api::TaskId;
use api::conversations::ListConversations;
use api::memory::MemorySearch;
use api::serde_helpers::BoundedInt;
use api::turns::ListTurns;
use http_service::http::{ApiError, parse_fields};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::SearchScope;

use super::tools;
use crate::http::Shared;
use crate::http::rpc_memory::to_memory_result;

/// The number of turns of a task that are listed unless the caller sets it.
const DEFAULT_TURNS: i64 = 10;

/// The arguments of `tasks`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TasksArguments {
    #[serde(default)]
    task_id: Option<TaskId>,
    #[serde(default)]
    turn_id: Option<String>,
    #[serde(default)]
    limit: Option<BoundedInt<1, 100>>,
    #[serde(default)]
    after: Option<String>,
}

/// The arguments of `memory_search`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchArguments {
    query: String,
    #[serde(default)]
    limit: Option<BoundedInt<1, 100>>,
    #[serde(default)]
    offset: Option<BoundedInt<0, { api::memory::MAX_SEARCH_OFFSET }>>,
}

/// The result of a call of the tool `name`.
pub(super) async fn look_up(shared: &Shared, name: &str, arguments: Map<String, Value>) -> Value {
    let found = match name {
        tools::TASKS => tasks(shared, arguments).await,
        _ => memory_search(shared, arguments).await,
    };
    match found {
        Ok(found) => tools::success(&found.to_string(), &found),
        Err(error) => tools::failure(&error.into_parts().1),
    }
}

async fn tasks(shared: &Shared, arguments: Map<String, Value>) -> Result<Value, ApiError> {
    let TasksArguments { task_id, turn_id, limit, after } = parse_fields(arguments)?;
    let agent = &shared.agent;
    let Some(task_id) = task_id else {
        if turn_id.is_some() {
            let error = "`task_id`: must be given with `turn_id`".to_owned();
            return Err(crate::agent::AgentError::Invalid(error).into());
        }
        let query = ListConversations { limit, after, archived: None, pinned: None };
        return Ok(json!(agent.conversations(query).await?));
    };
    if let Some(turn_id) = turn_id {
        let report = agent.turn_report(&task_id, &turn_id, Duration::ZERO).await?;
        return Ok(json!({"turn": report}));
    }
    let limit = limit.map_or(DEFAULT_TURNS, BoundedInt::get).try_into().ok();
    let conversation = agent.conversation(&task_id).await?;
    let turns = agent.turns(&task_id, ListTurns { limit, before: None }).await?.turns;
    Ok(json!({"conversation": conversation, "turns": turns}))
}

async fn memory_search(shared: &Shared, arguments: Map<String, Value>) -> Result<Value, ApiError> {
    let SearchArguments { query, limit, offset } = parse_fields(arguments)?;
    let search = MemorySearch { query, limit, offset };
    let found = shared.agent.search_memory(search, SearchScope::WithEpisodes).await?;
    let results: Vec<_> = found.into_iter().map(to_memory_result).collect();
    Ok(json!({ "results": results }))
}
