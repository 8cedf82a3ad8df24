//! The exact fields of the contract's responses and events.

use api::{
    CallId, ConnectionId, EngineId, EngineImage, GrantId, HitlId, MessageId, ProductId, Timestamp, TurnId,
};
use serde_json::Value;

/// An engine in the list.
pub(crate) const ENGINE_SUMMARY: &str = "engine_id:engine user_id:text status:text url:url|null engine_version:image created_at:time last_health_at:time|null";
/// An engine with its key.
pub(crate) const ENGINE_RECORD: &str = "engine_id:engine user_id:text status:text url:url|null engine_version:image \
     created_at:time last_health_at:time|null api_key:engine-key";
/// The response of provision.
pub(crate) const PROVISIONED: &str = "engine_id:engine user_id:text status:text url:url api_key:engine-key";
/// The response of register.
pub(crate) const REGISTERED: &str = "product_id:product slug:text display_name:text policy:object created_at:time \
     platform_api_key:platform-key";

/// A row of the audit log.
pub(crate) const AUDIT_ROW: &str = "id:int at:time product_id:product engine_id:engine|null user_id:text|null event:text \
     duration_ms:int|null detail:object hash:text";
/// The explanation of an engine's state.
pub(crate) const EXPLANATION: &str = "engine_id:engine status:text last_transition:object next_action:object|null \
     awake_because:array|null restart_attempt:object|null caps:object|null";
/// The last transition of an engine.
pub(crate) const LAST_TRANSITION: &str = "at:time event:text from:text|null to:text|null reason:text|null";
/// The orchestrator's next action on an engine.
pub(crate) const NEXT_ACTION: &str = "action:text at:time|null";
/// The number of restarts of a failed engine.
pub(crate) const RESTART_ATTEMPT: &str = "n:int max:int";

/// The activity of an engine.
pub(crate) const ACTIVITY: &str =
    "running_turns:int pending_hitl:int last_activity_at:time|null confinement:text";
/// A request that awaits a person.
pub(crate) const HITL_REQUEST: &str = "request_id:hitl task_id:text kind:text question:text created_at:time";
/// A lasting grant.
pub(crate) const GRANT: &str = "id:grant tool:text scope:text task_id?:text prefix?:text created_at:time";
/// A tool server in the list.
pub(crate) const SERVER: &str = "name:text description:text transport:text auth:text connected:bool";
/// A connection to a tool server.
pub(crate) const CONNECTION: &str =
    "connection:connection server:text status:text tools:array created_at:time error?:text";
/// A task in the list.
pub(crate) const TASK_SUMMARY: &str = "task_id:text status:text message_count:int updated_at:time";
/// A message of a task.
pub(crate) const TASK_MESSAGE: &str =
    "message_id:message role:text content:text|array created_at:time superseded?:bool";

/// A turn of a task.
pub(crate) const TURN: &str = "turn_id:turn state:text message_id?:message queued_at?:time started_at?:time \
                               ended_at?:time position?:int stop_reason?:text answer_message_id?:message \
                               text?:text error?:object";
/// A message that waits for its turn.
pub(crate) const QUEUED_MESSAGE: &str =
    "turn_id:turn position:int message:text media_count:int size_bytes:int queued_at:time";

/// A schedule.
pub(crate) const SCHEDULE: &str = "id:text name:text when:object message:text task_id?:text missed:text options:object \
                                   state:text next_due_at:time|null last_due_at:time|null created_at:time \
                                   updated_at:time runs?:array";
/// A run of a schedule.
pub(crate) const SCHEDULE_RUN: &str = "due_at:time at:time outcome:text task_id?:text turn_id?:turn turn_state?:text \
                                       count?:int last_due_at?:time";

/// A tool server of the user.
pub(crate) const USER_SERVER: &str = "name:text url:text description?:text auth:text api_key_header?:text enabled:bool \
                                     status:text error?:text awaiting_approval:bool digest?:text tools?:array \
                                     created_at:time updated_at:time";
/// A tool of it.
pub(crate) const USER_SERVER_TOOL: &str = "name:text tool:text state:text description:text input_schema:object diff?:text \
                                          diff_truncated?:bool";

/// Asserts that `value` is an object with exactly these fields, each of its type. `fields` is a list of
/// `name:type`, where a type may be a choice (`url|null`) and a name that may be absent ends with `?`.
#[track_caller]
pub(crate) fn assert_fields(value: &Value, fields: &str) {
    let object = value.as_object().unwrap_or_else(|| panic!("not an object: {value}"));
    let fields: Vec<(&str, &str)> =
        fields.split_whitespace().map(|field| field.split_once(':').unwrap()).collect();
    for (name, types) in &fields {
        match object.get(name.trim_end_matches('?')) {
            Some(found) => {
                let matches = types.split('|').any(|one| matches_type(one, found));
                assert!(matches, "`{name}` is {found}, not {types}, in {value}");
            }
            None => assert!(name.ends_with('?'), "`{name}` is missing in {value}"),
        }
    }
    for name in object.keys() {
        let known = fields.iter().any(|(known, _)| known.trim_end_matches('?') == name);
        assert!(known, "`{name}` is not a field of the contract, in {value}");
    }
}

/// Asserts that the data of an event of type `kind` has exactly its documented fields.
#[track_caller]
pub(crate) fn assert_event(kind: &str, data: &Value) {
    assert_fields(data, &format!("task_id:text turn_id:turn ts:int {}", own_fields(kind, data)));
    if kind == "agent_event" {
        // A sub-agent's event has the fields of a turn's event, except those that the enclosing event has.
        let (kind, data) = (data["event"].as_str().unwrap(), &data["data"]);
        assert_ne!(kind, "agent_event", "sub-agents run no sub-agents: {data}");
        assert_fields(data, own_fields(kind, data));
    }
}

/// The fields of events of a type, except those that all events have.
#[track_caller]
fn own_fields(kind: &str, data: &Value) -> &'static str {
    match kind {
        "thread_lifecycle" => match data["phase"].as_str() {
            Some("started" | "errored" | "resumed" | "cancelled") => "phase:text message_id:message",
            Some("retrying") => "phase:text message_id:message void_after:int attempt:int",
            Some("completed") => {
                "phase:text message_id:message answer_message_id:message text:text stop_reason:text"
            }
            _ => panic!("unknown phase: {data}"),
        },
        "error" => "code:text message:text retryable:bool",
        "text_delta" | "thinking_delta" => "text:text",
        "content_block_start" => "index:int block_type:text",
        "content_block_stop" => "index:int",
        "tool_call" => "tool_call_id:call tool:text input:object",
        "tool_result" => "tool_call_id:call tool:text output:text error?:text duration_ms:int",
        "tool_hook" => {
            "tool_call_id:call tool:text hook:text on:text decision:text reason?:text failure?:text \
             input?:object note?:text result_replaced?:bool"
        }
        "hitl_request" => "request_id:hitl kind:text question:text created_at:time options?:array",
        "hitl_resolved" => "request_id:hitl answer:text",
        "working_memory_update" => "key:text value:any",
        "compaction_event" => "reason:text messages_collapsed:int tokens_before:int tokens_after:int",
        "usage" => {
            "model:text input_tokens:int output_tokens:int cache_read_tokens:int cache_write_tokens:int \
             reasoning_tokens:int cost_usd?:number"
        }
        "agent_event" => "tool_call_id:call agent:text event:text data:object",
        "approval_request" => {
            "request_id:hitl tool_call_id:call tool:text agent?:text input:object preview:object risk:text reason:text \
             decisions:array pattern_kind?:text default_pattern?:text created_at:time"
        }
        "approval_resolved" => {
            "request_id:hitl tool_call_id:call decision:text input?:object message?:text grant_id?:grant"
        }
        "usage_cap" => "level:text scope:text unit:text limit:number used:number resets_at:time|null",
        "citations" => "message_id:message citations:array",
        "busy_update" => match data["status"].as_str() {
            Some("queued") => "status:text position:int",
            Some("steered") => "status:text message_id:message",
            Some("cancelled") => "status:text",
            Some("failed") => "status:text message:text",
            _ => panic!("unknown status: {data}"),
        },
        _ => panic!("unknown event type {kind:?}: {data}"),
    }
}

fn matches_type(name: &str, value: &Value) -> bool {
    let text = value.as_str();
    match name {
        "any" => true,
        "null" => value.is_null(),
        "bool" => value.is_boolean(),
        "int" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "text" => text.is_some(),
        "url" => text.is_some_and(is_url),
        // The contract's format: three decimals and a `Z`.
        "time" => {
            text.is_some_and(|text| text.parse::<Timestamp>().is_ok_and(|time| time.to_string() == text))
        }
        "engine" => text.is_some_and(|text| text.parse::<EngineId>().is_ok()),
        "product" => text.is_some_and(|text| text.parse::<ProductId>().is_ok()),
        "turn" => text.is_some_and(|text| text.parse::<TurnId>().is_ok()),
        "message" => text.is_some_and(|text| text.parse::<MessageId>().is_ok()),
        "call" => text.is_some_and(|text| text.parse::<CallId>().is_ok()),
        "hitl" => text.is_some_and(|text| text.parse::<HitlId>().is_ok()),
        "grant" => text.is_some_and(|text| text.parse::<GrantId>().is_ok()),
        "connection" => text.is_some_and(|text| text.parse::<ConnectionId>().is_ok()),
        "image" => text.is_some_and(|text| text.parse::<EngineImage>().is_ok()),
        "engine-key" => text.is_some_and(|text| is_key("sk-svc-", text)),
        "platform-key" => text.is_some_and(|text| is_key("pk-svc-", text)),
        _ => panic!("unknown type: {name}"),
    }
}

fn is_url(text: &str) -> bool {
    let authority = text.strip_prefix("http://").and_then(|text| text.split_once(':'));
    authority.is_some_and(|(host, port)| match host {
        "127.0.0.1" => port.parse::<u16>().is_ok(),
        // A Pod below the Service of the engines.
        _ => host.starts_with("roundhouse-eng-") && host.split('.').nth(3) == Some("svc") && port == "8000",
    })
}

/// Whether `text` is the prefix and 32 bytes in base64url.
fn is_key(prefix: &str, text: &str) -> bool {
    let url_safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    text.strip_prefix(prefix).is_some_and(|random| random.len() == 43 && random.bytes().all(url_safe))
}
