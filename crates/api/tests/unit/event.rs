//! Tests: every event type can be parsed from its own encoding, and has exactly the specified fields.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::approvals::{ApprovalDecision, ApprovalPreview, ApprovalReason, ApprovalRisk, PatternKind};

fn hook_decision() -> Event {
    Event::ToolHook(ToolHook {
        tool_call_id: CallId::new(),
        tool: "t".into(),
        hook: "h".into(),
        on: HookPhase::Before,
        decision: HookDecision::Allow,
        reason: None,
        failure: None,
        input: Some(json!({"a": 1})),
        note: Some("n".into()),
        result_replaced: false,
    })
}

fn samples() -> Vec<(Event, &'static [&'static str])> {
    let message_id = MessageId::new();
    let call = CallId::new();
    let delta = || Delta { text: "line\nbreak \"quoted\" 🦀".into() };
    vec![
        (Event::ThreadLifecycle(Lifecycle::Started { message_id }), &["phase", "message_id"]),
        (
            Event::ThreadLifecycle(Lifecycle::Completed {
                message_id,
                answer_message_id: MessageId::new(),
                text: "done".into(),
                stop_reason: StopReason::EndTurn,
            }),
            &["phase", "message_id", "answer_message_id", "text", "stop_reason"],
        ),
        (Event::ThreadLifecycle(Lifecycle::Errored { message_id }), &["phase", "message_id"]),
        (Event::ThreadLifecycle(Lifecycle::Resumed { message_id }), &["phase", "message_id"]),
        (
            Event::ThreadLifecycle(Lifecycle::Retrying { message_id, void_after: 7, attempt: 2 }),
            &["phase", "message_id", "void_after", "attempt"],
        ),
        (Event::ThreadLifecycle(Lifecycle::Cancelled { message_id }), &["phase", "message_id"]),
        (
            Event::Error(Failure {
                code: FailureCode::ProviderUnavailable,
                message: "busy".into(),
                retryable: true,
            }),
            &["code", "message", "retryable"],
        ),
        (Event::TextDelta(delta()), &["text"]),
        (Event::ThinkingDelta(delta()), &["text"]),
        (
            Event::ContentBlockStart(BlockStart { index: 0, block_type: BlockType::ToolUse }),
            &["index", "block_type"],
        ),
        (Event::ContentBlockStop(BlockStop { index: 0 }), &["index"]),
        (
            Event::ToolCall(ToolCall { tool_call_id: call, tool: "t".into(), input: json!({"a": 1}) }),
            &["tool_call_id", "tool", "input"],
        ),
        (
            Event::ToolResult(ToolResult {
                tool_call_id: call,
                tool: "t".into(),
                output: "o".into(),
                error: None,
                duration_ms: 3,
            }),
            &["tool_call_id", "tool", "output", "duration_ms"],
        ),
        (
            Event::HitlRequest(HitlRequest {
                request_id: HitlId::new(),
                task_id: TaskId::new("a task").unwrap(),
                kind: HitlKind::Question,
                question: "Which?".into(),
                created_at: Timestamp::from_unix_ms(0),
                options: Some(vec!["this".into(), "that".into()]),
            }),
            &["request_id", "kind", "question", "created_at", "options"],
        ),
        (
            Event::HitlResolved(HitlResolved { request_id: HitlId::new(), answer: "yes".into() }),
            &["request_id", "answer"],
        ),
        (
            Event::WorkingMemoryUpdate(WorkingMemoryUpdate { key: "k".into(), value: json!([1]) }),
            &["key", "value"],
        ),
        (
            Event::CompactionEvent(Compaction {
                reason: CompactionReason::Reactive,
                messages_collapsed: 4,
                tokens_before: 100,
                tokens_after: 10,
            }),
            &["reason", "messages_collapsed", "tokens_before", "tokens_after"],
        ),
        (Event::Heartbeat(Heartbeat {}), &[]),
        (
            Event::Usage(Usage { model: "m".into(), ..Usage::default() }),
            &[
                "model",
                "input_tokens",
                "output_tokens",
                "cache_read_tokens",
                "cache_write_tokens",
                "reasoning_tokens",
            ],
        ),
    ]
}

/// The events beside those of the contract.
fn own_samples() -> Vec<(Event, &'static [&'static str])> {
    let call = CallId::new();
    vec![
        (hook_decision(), &["tool_call_id", "tool", "hook", "on", "decision", "input", "note"]),
        (Event::BusyUpdate(BusyUpdate::Queued { position: 2 }), &["status", "position"]),
        (Event::BusyUpdate(BusyUpdate::Steered { message_id: MessageId::new() }), &["status", "message_id"]),
        (Event::BusyUpdate(BusyUpdate::Cancelled {}), &["status"]),
        (Event::BusyUpdate(BusyUpdate::Failed { message: "no".into() }), &["status", "message"]),
        (
            Event::ApprovalRequest(Box::new(ApprovalRequest {
                request_id: HitlId::new(),
                tool_call_id: call,
                tool: "shell".into(),
                agent: None,
                input: json!({"command": "ls"}),
                preview: ApprovalPreview::Command { command: "ls".into(), folder: None, network: false },
                risk: ApprovalRisk::High,
                reason: ApprovalReason::Permission,
                decisions: vec![ApprovalDecision::AllowOnce],
                pattern_kind: Some(PatternKind::Command),
                default_pattern: Some("ls".into()),
                created_at: Timestamp::from_unix_ms(1),
            })),
            &[
                "request_id",
                "tool_call_id",
                "tool",
                "input",
                "preview",
                "risk",
                "reason",
                "decisions",
                "pattern_kind",
                "default_pattern",
                "created_at",
            ],
        ),
        (
            Event::ApprovalResolved(ApprovalResolved {
                request_id: HitlId::new(),
                tool_call_id: call,
                decision: ApprovalDecision::Deny,
                input: None,
                message: Some("no".into()),
                grant_id: None,
            }),
            &["request_id", "tool_call_id", "decision", "message"],
        ),
    ]
}

#[test]
fn every_event_reads_back_and_has_exactly_its_fields() {
    for (event, own) in samples().into_iter().chain(own_samples()) {
        let sent =
            SentEvent { task_id: TaskId::new("a task").unwrap(), turn_id: TurnId::new(), ts: 42, event };
        let sse = sent.to_sse().unwrap();
        let lines: Vec<&str> = sse.lines().collect();
        let (head, data) = lines.split_at(lines.iter().position(|line| line.starts_with("data")).unwrap());
        let data = data[0].strip_prefix("data: ").unwrap();
        assert!(sse.ends_with("\n\n") && sse.matches("data:").count() == 1, "{sse}");

        let kind = sent.event.kind();
        let is_stored = !matches!(kind, "heartbeat" | "busy_update");
        let expected = if is_stored { vec!["id: 42".to_owned()] } else { vec![] };
        let expected: Vec<String> = expected.into_iter().chain([format!("event: {kind}")]).collect();
        assert_eq!(head, expected);

        let fields: serde_json::Map<String, Value> = serde_json::from_str(data).unwrap();
        let fields: BTreeSet<&str> = fields.keys().map(String::as_str).collect();
        let own: BTreeSet<&str> = own.iter().copied().chain(["task_id", "turn_id", "ts"]).collect();
        assert_eq!(fields, own, "{kind}");
        assert_eq!(data.matches("\"task_id\"").count(), 1, "{data}");
        assert_eq!(SentEvent::from_sse(kind, data).unwrap(), sent);
    }
}

/// Returns the schemas that the event stream refers to, by name.
fn stream_schemas() -> std::collections::BTreeMap<String, Value> {
    let mut schemas = Vec::new();
    <TurnEvent as utoipa::ToSchema>::schemas(&mut schemas);
    schemas.into_iter().map(|(name, schema)| (name, serde_json::to_value(schema).unwrap())).collect()
}

#[test]
fn every_event_has_a_schema_with_exactly_its_fields() {
    let schemas = stream_schemas();
    for (event, own) in samples().into_iter().chain(own_samples()) {
        let kind = event.kind();
        let message = schemas.values().find(|schema| schema["properties"]["event"]["enum"] == json!([kind]));
        let message = message.unwrap_or_else(|| panic!("the stream has no schema of {kind}"));
        assert_eq!(message["properties"].get("id").is_some(), has_id(kind), "{kind}");
        let data = message["properties"]["data"]["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        let data = &schemas[data];
        let own: BTreeSet<&str> = own.iter().copied().chain(["task_id", "turn_id", "ts"]).collect();
        let fits = |variant: &Value| {
            let has = |field: &&str| variant["properties"].get(field).is_some();
            let required =
                variant["required"].as_array().unwrap().iter().map(|field| field.as_str().unwrap());
            own.iter().all(has) && required.collect::<BTreeSet<_>>().is_subset(&own)
        };
        match data["oneOf"].as_array() {
            Some(variants) => assert!(variants.iter().any(fits), "{kind}: {data}"),
            None => assert!(fits(data), "{kind}: {data}"),
        }
    }
}

#[test]
fn the_stream_has_no_event_that_cannot_be_parsed_and_none_twice() {
    let kinds: BTreeSet<&str> = TurnEvent::kinds().collect();
    assert_eq!(kinds.len(), TurnEvent::kinds().count());
    for kind in kinds {
        let error = Event::from_parts(kind, json!(7)).unwrap_err();
        assert!(!error.to_string().contains("unknown event type"), "{kind}");
    }
}

#[test]
fn unknown_types_and_wrong_data_are_errors() {
    let data = r#"{"task_id":"t","turn_id":"turn_0199a9f0000070008000000000000000","ts":1}"#;
    let error = SentEvent::from_sse("surprise", data).unwrap_err();
    assert!(error.to_string().contains("surprise"), "{error}");
    assert!(SentEvent::from_sse("text_delta", data).is_err());
    assert!(SentEvent::from_sse("heartbeat", "{}").is_err());
}

#[test]
fn only_completed_cancelled_and_error_end_a_turn() {
    for (event, _) in samples().into_iter().chain(own_samples()) {
        let ends = match &event {
            Event::Error(_) => true,
            Event::ThreadLifecycle(phase) => {
                matches!(phase, Lifecycle::Completed { .. } | Lifecycle::Cancelled { .. })
            }
            _ => false,
        };
        assert_eq!(event.ends_turn(), ends, "{event:?}");
    }
}
