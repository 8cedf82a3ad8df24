//! The tools that callers see, and the parameters of a call.

use api::memory::{MAX_QUERY, MAX_SEARCH_OFFSET};
use serde_json::{Map, Value, json};

use super::revision::Revision;
use crate::http::json_rpc::{Fault, RequestId};

pub(super) const ASK: &str = "ask";
pub(super) const TASKS: &str = "tasks";
pub(super) const MEMORY_SEARCH: &str = "memory_search";

/// How long a caller may keep the list, in milliseconds: it changes only with the engine's version.
const LIST_TTL_MS: u64 = 300_000;

/// The parameters of `tools/call`.
pub(super) struct ToolCall {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
    /// What progress is reported under, if it is wanted.
    pub(super) progress_token: Option<Value>,
    /// What the caller's user answered to what an earlier answer to this call asked.
    pub(super) input_responses: Map<String, Value>,
    /// What that answer said about itself.
    pub(super) request_state: Option<String>,
}

impl ToolCall {
    pub(super) fn parse(mut params: Map<String, Value>) -> Result<Self, Fault> {
        let Some(Value::String(name)) = params.remove("name") else {
            return Err(Fault::invalid_params("`name`: must be a text"));
        };
        let arguments = object(params.remove("arguments"), "arguments")?;
        let progress_token = params.get("_meta").and_then(|meta| meta.get("progressToken")).cloned();
        // Like the id of a request, all that is sent about it repeats the token.
        if progress_token.clone().is_some_and(|token| RequestId::parse(token).is_none()) {
            let message = "`_meta.progressToken`: must be an integer or a text of at most 256 bytes";
            return Err(Fault::invalid_params(message));
        }
        let request_state = match params.remove("requestState") {
            None | Some(Value::Null) => None,
            Some(Value::String(state)) => Some(state),
            Some(_) => return Err(Fault::invalid_params("`requestState`: must be a text")),
        };
        let input_responses = object(params.remove("inputResponses"), "inputResponses")?;
        Ok(Self { name, arguments, progress_token, input_responses, request_state })
    }
}

fn object(value: Option<Value>, name: &str) -> Result<Map<String, Value>, Fault> {
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(fields)) => Ok(fields),
        Some(_) => Err(Fault::invalid_params(format!("`{name}`: must be an object"))),
    }
}

/// The result of `tools/list`, which has one page.
pub(super) fn list(revision: Revision, params: &Map<String, Value>) -> Result<Value, Fault> {
    if params.get("cursor").is_some_and(|cursor| !cursor.is_null()) {
        return Err(Fault::invalid_params("`cursor`: there is only one page"));
    }
    let mut result = json!({"tools": definitions()});
    if !revision.has_handshake()
        && let Some(fields) = result.as_object_mut()
    {
        fields.insert("ttlMs".to_owned(), json!(LIST_TTL_MS));
        fields.insert("cacheScope".to_owned(), json!("private"));
    }
    Ok(revision.complete(result))
}

fn definitions() -> Value {
    let text = |description: &str| json!({"type": "string", "minLength": 1, "description": description});
    let read_only = json!({"readOnlyHint": true, "openWorldHint": false});
    json!([
        {
            "name": ASK,
            "title": "Ask the agent",
            "description": "Gives the user's agent a message and returns its answer. It may take minutes: the agent \
                works with its own tools. The work goes on if the connection breaks; `tasks` then has the answer.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "message": text("What to do or to answer"),
                    "task_id": text("The conversation to continue: any text. A new one by default."),
                    "client_request_id":
                        text("Makes the call safe to repeat: a call with the same one joins the first one's turn"),
                },
                "required": ["message"],
                "additionalProperties": false,
            },
            "outputSchema": ask_output(),
            "annotations": {"readOnlyHint": false, "openWorldHint": true},
        },
        {
            "name": TASKS,
            "title": "Conversations of the agent",
            "description": "Without arguments, lists the conversations, the one changed last first. With a \
                `task_id`, what is known of that one and its newest turns; with a `turn_id` too, what that turn has \
                done and answered, or what it waits for.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "task_id": text("The conversation"),
                    "turn_id": text("A turn of it"),
                    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "Entries of a list"},
                    "after": text("The `next` of the page before, for the list of conversations"),
                },
                "additionalProperties": false,
            },
            "annotations": read_only,
        },
        {
            "name": MEMORY_SEARCH,
            "title": "Search the agent's memory",
            "description": "Searches what the agent remembers: its knowledge and the messages of all \
                conversations, best match first.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "maxLength": MAX_QUERY},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
                    "offset": {"type": "integer", "minimum": 0, "maximum": MAX_SEARCH_OFFSET, "default": 0},
                },
                "required": ["query"],
                "additionalProperties": false,
            },
            "annotations": read_only,
        },
    ])
}

/// The schema of the structured result of `ask`.
fn ask_output() -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "properties": {
            "task_id": text,
            "turn_id": text,
            "status": {"enum": ["queued", "running", "waiting_for_person", "completed", "failed", "cancelled"]},
            "text": {"type": "string", "description": "The answer, with `completed`"},
            "stop_reason": {"enum": ["end_turn", "max_turns", "budget", "loop"]},
            "error": {
                "type": "object",
                "properties": {"code": text, "message": text, "retryable": {"type": "boolean"}},
            },
            "pending": {
                "type": "array",
                "description": "What a person must answer before the turn goes on",
                "items": {"type": "object"},
            },
        },
        "required": ["task_id", "turn_id", "status", "pending"],
    })
}

/// The result of a call that succeeded.
pub(super) fn success(text: &str, structured: &Value) -> Value {
    json!({"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": false})
}

/// The result of a call that failed, for the model of the caller.
pub(super) fn failure(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}], "isError": true})
}
