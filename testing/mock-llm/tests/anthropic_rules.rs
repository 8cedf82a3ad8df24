//! The rules of the Anthropic wire that do not depend on earlier answers: each rule is violated once, and the
//! error must be the vendor's. Unusual but valid requests must be accepted.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{
    messages_call, messages_request, provider, send_json, send_ok, versioned_messages_call, with_members,
};
use serde_json::{Value, json};

/// A message with this role.
fn role_message(role: &str, content: impl Into<Value>) -> Value {
    json!({"role": role, "content": content.into()})
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "look", "input": {}})
}

fn result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "done"})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn marked(mut block: Value, ttl: &str) -> Value {
    block["cache_control"] = json!({"type": "ephemeral", "ttl": ttl});
    block
}

fn image(media_type: &str, data: &str) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}})
}

fn tool(name: &str, schema: impl Into<Value>) -> Value {
    json!({"name": name, "input_schema": schema.into()})
}

/// A conversation that begins with the user.
fn messages(rest: &[Value]) -> Value {
    let mut messages = vec![role_message("user", json!("hi"))];
    messages.extend_from_slice(rest);
    json!({"messages": messages})
}

/// Sends each request, and expects a 400 whose message contains the words and a recorded refusal.
async fn assert_refused(cases: Vec<(Value, &str)>) {
    let provider = provider().await;
    for (changes, words) in cases {
        let (status, body) =
            send_json(messages_call(&provider, &with_members(messages_request(), changes.clone()))).await;
        assert_eq!((status, &body["type"]), (400, &json!("error")), "{changes} {body}");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{changes}\n is refused with {message}\n and not with {words}");
        let refusals = provider.take_refusals();
        assert_eq!(refusals.len(), 1);
        assert_eq!(refusals[0].reason, message);
    }
}

async fn assert_accepted(cases: Vec<Value>) {
    let provider = provider().await;
    for changes in cases {
        send_ok(messages_call(&provider, &with_members(messages_request(), changes))).await;
    }
}

#[tokio::test]
async fn parameters() {
    assert_refused(vec![
        (json!({"max_tokens": null}), "max_tokens: Field required"),
        (json!({"max_tokens": 0}), "max_tokens: Input should be greater than or equal to 1"),
        (json!({"max_tokens": "many"}), "max_tokens: Input should be a valid integer"),
        (json!({"model": null}), "model: Field required"),
        (json!({"messages": null}), "messages: Field required"),
        (json!({"messages": []}), "messages: at least one message is required"),
        (json!({"mystery": 1}), "mystery: Extra inputs are not permitted"),
        (json!({"stream": "yes"}), "stream: Input should be a valid boolean"),
        (json!({"temperature": 1.5}), "temperature: range: 0..1"),
        (json!({"stop_sequences": [" "]}), "stop_sequences: each stop sequence must contain non-whitespace"),
        (json!({"service_tier": "gold"}), "service_tier: Input should be 'auto' or 'standard_only'"),
        (json!({"metadata": {"name": "x"}}), "metadata.name: Extra inputs are not permitted"),
        (
            json!({"output_config": {"effort": "huge"}}),
            "output_config.effort: Input should be 'low', 'medium'",
        ),
        (json!({"system": [text("")]}), "system: text content blocks must be non-empty"),
    ])
    .await;
    assert_accepted(vec![
        json!({"system": "Be kind.", "temperature": 0.2, "top_p": 0.9, "top_k": 5, "metadata": {"user_id": "u"}}),
        json!({"system": [marked(text("Be kind."), "1h")], "output_config": {"effort": "max"}}),
    ])
    .await;
}

#[tokio::test]
async fn the_newest_version_has_no_sampling_parameters() {
    let provider = provider().await;
    for name in ["temperature", "top_p", "top_k"] {
        let body = with_members(messages_request(), json!({name: 1}));
        let call = versioned_messages_call(&provider, &body, "2026-10-21");
        let (status, body) = send_json(call).await;
        let message = format!("{name}: Extra inputs are not permitted");
        assert_eq!((status, &body["error"]["message"]), (400, &json!(message)));
    }
    provider.take_refusals();
}

#[tokio::test]
async fn message_contents() {
    let empty = "all messages must have non-empty content except for the optional final assistant message";
    assert_refused(vec![
        (
            json!({"messages": [role_message("assistant", json!("hi"))]}),
            "first message must use the \"user\" role",
        ),
        (messages(&[role_message("system", json!("hi"))]), "messages: Unexpected role \"system\""),
        (json!({"messages": [role_message("user", json!(""))]}), empty),
        (json!({"messages": [role_message("user", json!([]))]}), empty),
        (
            json!({"messages": [role_message("user", json!([text("")]))]}),
            "text content blocks must be non-empty",
        ),
        (json!({"messages": [role_message("user", json!([text(" ")]))]}), "must contain non-whitespace text"),
        (
            messages(&[role_message("assistant", json!("so "))]),
            "final assistant content cannot end with trailing whitespace",
        ),
        (
            messages(&[role_message("assistant", json!([text("so\n")]))]),
            "cannot end with trailing whitespace",
        ),
        (json!({"messages": [{"role": "user", "content": "hi", "id": 1}]}), "messages.0.id: Extra inputs"),
        (
            json!({"messages": [role_message("user", json!([{"type": "video"}]))]}),
            "messages.0.content.0: Input tag 'video'",
        ),
        (
            messages(&[role_message("assistant", json!([result("a")]))]),
            "`tool_result` blocks can only be in `user` messages",
        ),
        (
            messages(&[role_message("user", json!([call("a")]))]),
            "`tool_use` blocks can only be in `assistant` messages",
        ),
    ])
    .await;
    assert_accepted(vec![
        messages(&[role_message("assistant", json!("so"))]),
        messages(&[role_message("assistant", json!("Hello. ")), role_message("user", json!("on"))]),
        messages(&[role_message("user", json!("two in a row"))]),
    ])
    .await;
}

#[tokio::test]
async fn images() {
    let user = |block: Value| json!({"messages": [role_message("user", json!([block]))]});
    assert_refused(vec![
        (
            user(image("image/bmp", "QUJD")),
            "media_type: Input should be 'image/jpeg', 'image/png', 'image/gif'",
        ),
        (user(image("image/png", "not base64!")), "image.source.base64.data: invalid base64 data"),
        (user(json!({"type": "image", "source": {"type": "url", "url": "ftp://x"}})), "Only HTTPS URLs"),
        (
            messages(&[role_message("assistant", json!([image("image/png", "QUJD")]))]),
            "can only be in `user` messages",
        ),
    ])
    .await;
    assert_accepted(vec![user(image("image/png", "QUJD"))]).await;
}

#[tokio::test]
async fn calls_and_results() {
    let calls =
        |ids: &[&str]| role_message("assistant", json!(ids.iter().map(|id| call(id)).collect::<Vec<_>>()));
    let results =
        |ids: &[&str]| role_message("user", json!(ids.iter().map(|id| result(id)).collect::<Vec<_>>()));
    let unanswered = "`tool_use` ids were found without `tool_result` blocks immediately after: ";
    let bad_call = |member: &str, value: Value| {
        let mut call = call("a");
        call[member] = value;
        messages(&[role_message("assistant", json!([call])), results(&["a"])])
    };
    assert_refused(vec![
        (messages(&[calls(&["a"])]), "messages.1: `tool_use` ids were found without"),
        (messages(&[calls(&["a"]), role_message("user", json!("no"))]), unanswered),
        (messages(&[calls(&["a", "b"]), results(&["a"])]), "immediately after: b."),
        (messages(&[calls(&["a"]), role_message("user", json!([text("first"), result("a")]))]), unanswered),
        (messages(&[calls(&["a"]), role_message("user", json!("wait")), results(&["a"])]), unanswered),
        (
            messages(&[role_message("assistant", json!("hm")), results(&["a"])]),
            "unexpected `tool_use_id` found",
        ),
        (messages(&[calls(&["a"]), results(&["a", "b"])]), "messages.2.content.1: unexpected `tool_use_id`"),
        (messages(&[calls(&["a"]), results(&["a", "a"])]), "Found multiple `tool_result` blocks with id: a"),
        (
            messages(&[calls(&["a", "a"]), results(&["a"])]),
            "messages.1.content.1: `tool_use` ids must be unique",
        ),
        (
            messages(&[calls(&["a"]), results(&["a"]), calls(&["a"]), results(&["a"])]),
            "messages.3.content.0: `tool_use` ids must be unique",
        ),
        (bad_call("input", json!("{}")), "tool_use.input: Input should be a valid dictionary"),
        (bad_call("id", json!("a b")), "tool_use.id: String should match pattern"),
        (bad_call("name", json!("a.b")), "tool_use.name: String should match pattern"),
    ])
    .await;
    let rich_result = json!({"type": "tool_result", "tool_use_id": "a", "is_error": true,
        "content": [text("x"), image("image/gif", "QUJD")]});
    assert_accepted(vec![
        messages(&[calls(&["a", "b"]), results(&["b", "a"])]),
        messages(&[calls(&["a"]), role_message("user", json!([rich_result, text("and then")]))]),
    ])
    .await;
}

#[tokio::test]
async fn tools() {
    let object = || json!({"type": "object"});
    let one = |name: &str, schema: Value| json!({"tools": [tool(name, schema)]});
    let choice = |choice: Value| json!({"tools": [tool("look", object())], "tool_choice": choice});
    assert_refused(vec![
        (one("a b", object()), "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'"),
        (one(&"x".repeat(65), object()), "tools.0.custom.name"),
        (json!({"tools": [tool("a", object()), tool("a", object())]}), "tools: Tool names must be unique."),
        (json!({"tools": [{"name": "a"}]}), "tools.0.custom.input_schema: Field required"),
        (one("a", json!({})), "tools.0.custom.input_schema.type: Field required"),
        (one("a", json!({"type": "array"})), "tools.0.custom.input_schema.type: Input should be 'object'"),
        (
            one("a", json!({"type": "object", "anyOf": [{}]})),
            "does not support oneOf, allOf, or anyOf at the top",
        ),
        (one("a", json!({"type": "object", "properties": []})), "JSON schema is invalid"),
        (
            one("a", json!({"type": "object", "properties": {"x": {"type": "text"}}})),
            "JSON schema is invalid",
        ),
        (one("a", json!({"type": "object", "required": "x"})), "JSON schema is invalid"),
        (
            json!({"tools": [{"name": "a", "input_schema": object(), "colour": 1}]}),
            "tools.0.custom.colour: Extra",
        ),
        (json!({"tool_choice": {"type": "auto"}}), "tool_choice may only be specified while providing tools"),
        (choice(json!({"type": "maybe"})), "tool_choice: Input tag 'maybe'"),
        (choice(json!({"type": "tool", "name": "hear"})), "Tool 'hear' not found in provided tools"),
        (
            with_members(
                choice(json!({"type": "any"})),
                json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            ),
            "Thinking may not be enabled when tool_choice forces tool use.",
        ),
    ])
    .await;
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["x"], "properties": {
        "x": {"type": ["string", "null"], "enum": ["a"]}, "y": {"type": "array", "items": {"type": "integer"}},
    }});
    assert_accepted(vec![
        one("look", schema),
        choice(json!({"type": "tool", "name": "look", "disable_parallel_tool_use": true})),
        with_members(
            choice(json!({"type": "auto"})),
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ),
        with_members(choice(json!({"type": "any"})), json!({"thinking": {"type": "adaptive"}})),
    ])
    .await;
}

#[tokio::test]
async fn thinking_parameters() {
    let thinking = |thinking: Value| json!({"thinking": thinking});
    let enabled =
        |more: Value| with_members(thinking(json!({"type": "enabled", "budget_tokens": 1024})), more);
    assert_refused(vec![
        (thinking(json!({"type": "maybe"})), "thinking: Input tag 'maybe' found using 'type'"),
        (thinking(json!({"type": "enabled"})), "thinking.enabled.budget_tokens: Field required"),
        (
            thinking(json!({"type": "enabled", "budget_tokens": 1000})),
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        ),
        (
            thinking(json!({"type": "enabled", "budget_tokens": 2048})),
            "`max_tokens` must be greater than `thinking.budget_tokens`",
        ),
        (
            thinking(json!({"type": "adaptive", "budget_tokens": 1024})),
            "thinking.adaptive.budget_tokens: Extra",
        ),
        (enabled(json!({"temperature": 0.5})), "`temperature` may only be set to 1 when thinking is enabled"),
        (enabled(json!({"top_p": 0.5})), "`top_p` must be greater than or equal to 0.95"),
        (enabled(json!({"top_k": 5})), "`top_k` must be unset when thinking is enabled"),
    ])
    .await;
    assert_accepted(vec![
        thinking(json!({"type": "disabled"})),
        thinking(json!({"type": "adaptive", "display": "summarized"})),
        enabled(json!({"temperature": 1, "top_p": 0.97})),
    ])
    .await;
    let provider = provider().await;
    let beyond = json!({
        "thinking": {"type": "enabled", "budget_tokens": 9000}, "tools": [tool("look", json!({"type": "object"}))],
    });
    let interleaved_reply = messages_call(&provider, &with_members(messages_request(), beyond))
        .header("anthropic-beta", "other-2025-01-01,interleaved-thinking-2025-05-14");
    send_ok(interleaved_reply).await;
}

#[tokio::test]
async fn cache_marks() {
    let user = |blocks: Vec<Value>| json!({"messages": [role_message("user", json!(blocks))]});
    let sealed = json!({"type": "redacted_thinking", "data": "x", "cache_control": {"type": "ephemeral"}});
    assert_refused(vec![
        (
            user(vec![marked(text("a"), "5m"); 5]),
            "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        ),
        (
            with_members(
                user(vec![marked(text("a"), "5m"); 4]),
                json!({"cache_control": {"type": "ephemeral"}}),
            ),
            "Found 5.",
        ),
        (user(vec![marked(text("a"), "5m"), marked(text("b"), "1h")]), "must not come after a ttl='5m'"),
        (user(vec![marked(text("a"), "2h")]), "cache_control.ttl: Input should be '5m' or '1h'"),
        (user(vec![marked(text(""), "5m")]), "cache_control cannot be set for empty text blocks"),
        (
            messages(&[role_message("assistant", json!([sealed])), role_message("user", json!("on"))]),
            "cache_control: Extra inputs",
        ),
    ])
    .await;
    assert_accepted(vec![
        user(vec![marked(text("a"), "1h"), marked(text("b"), "5m")]),
        user(vec![marked(text("a"), "5m"); 4]),
    ])
    .await;
}
