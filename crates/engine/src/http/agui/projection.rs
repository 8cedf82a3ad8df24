//! The events of a turn as the events of a run.
//!
//! A run begins with the turn, or after the request to a person that it answers; it ends with the turn, or at the next
//! such request. What the client has already is left out, so that the same run again gives exactly the rest.

use std::collections::{BTreeMap, HashMap, HashSet};

use api::approvals::{ApprovalRequest, ApprovalResolved};
use api::event::{
    BlockStart, Event, HitlRequest, HitlResolved, Lifecycle, SentEvent, StopReason, ToolCall, ToolResult,
    Usage, WorkingMemoryUpdate,
};
use api::{HitlId, TurnId};
use serde_json::{Value, json};

use super::resume::{self, Expected};
use crate::agent::RECALLED_KEY;
use crate::http::openai::VendorError;
use crate::http::projection::{Projector, push_sse};

/// The version of the protocol.
const PROTOCOL_VERSION: &str = "1.0";

/// What the ids of all messages of a turn begin with.
pub(super) fn message_prefix(turn_id: TurnId) -> String {
    format!("{turn_id}-")
}

/// What the client has of a turn.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The bytes of texts that are yet to be passed over, by message; those of calls by call.
    texts: HashMap<String, usize>,
    /// The messages with results.
    results: HashSet<String>,
}

impl Seen {
    /// Adds a message that the client has.
    pub(super) fn add(&mut self, message: &Value) {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let id = text(message.get("id"));
        if message.get("role").is_some_and(|role| role == "tool") {
            self.results.insert(id);
            return;
        }
        if let Some(Value::String(content)) = message.get("content") {
            self.texts.insert(id, content.len());
        }
        for call in message.get("toolCalls").and_then(Value::as_array).into_iter().flatten() {
            let arguments = text(call.pointer("/function/arguments"));
            self.texts.insert(text(call.get("id")), arguments.len());
        }
    }

    /// The part of `text`, which continues the text called `id`, that the client does not have.
    fn rest<'a>(&mut self, id: &str, text: &'a str) -> &'a str {
        let Some(passed) = self.texts.get_mut(id) else { return text };
        let skipped = (*passed).min(text.len());
        *passed -= skipped;
        // What was sent before ends between two characters.
        text.get(skipped..).unwrap_or(text)
    }
}

/// The thread's working memory, with which a run begins.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownState {
    pub(super) memory: BTreeMap<String, Value>,
    /// The time of an event; the changes until then are in `memory`.
    pub(super) as_of: i64,
}

impl KnownState {
    /// The patch that brings a client up to date with a write at `ts`; `None` if nothing changes.
    fn patch(&mut self, ts: i64, update: WorkingMemoryUpdate) -> Option<Value> {
        let WorkingMemoryUpdate { key, value } = update;
        // What a turn recalls is told with its beginning, and no part of the memory.
        if ts <= self.as_of && key != RECALLED_KEY {
            return None;
        }
        let path = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        if value.is_null() {
            self.memory.remove(&key)?;
            return Some(json!({"op": "remove", "path": path}));
        }
        self.memory.insert(key, value.clone());
        Some(json!({"op": "add", "path": path, "value": value}))
    }
}

/// A run.
pub(super) struct RunProjection {
    thread: String,
    run_id: String,
    seen: Seen,
    state: KnownState,
    /// The request that the run answers, whose event it begins after, and the answer.
    resumes: Option<(HitlId, Expected)>,
    phase: Phase,
    ts: i64,
    /// The number of the content block that is received.
    block: u32,
    open: Option<OpenMessage>,
    /// The messages of the run, with the time of their events.
    messages: Vec<(String, i64)>,
    has_text: bool,
    /// The tool calls that wait for a decision.
    approvals: HashMap<HitlId, Box<ApprovalRequest>>,
    usage: Usage,
    /// What the turn had used before the run.
    usage_before: Usage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The run has not begun.
    Before,
    Running,
    Ended,
}

struct OpenMessage {
    id: String,
    is_reasoning: bool,
}

impl RunProjection {
    /// A run that begins with its turn.
    pub(super) fn new(thread: &str, run_id: String, seen: Seen, state: KnownState) -> Self {
        Self {
            thread: thread.to_owned(),
            run_id,
            seen,
            state,
            resumes: None,
            phase: Phase::Before,
            ts: 0,
            block: 0,
            open: None,
            messages: Vec::new(),
            has_text: false,
            approvals: HashMap::new(),
            usage: Usage::default(),
            usage_before: Usage::default(),
        }
    }

    /// The run begins after this request, which it answers as `expected`.
    pub(super) fn resuming(self, request_id: HitlId, expected: Expected) -> Self {
        Self { resumes: Some((request_id, expected)), ..self }
    }

    /// Sends an event, if the run has begun and has not ended.
    fn emit(&self, out: &mut String, kind: &str, data: Value) {
        if self.phase != Phase::Running {
            return;
        }
        let mut event = json!({"type": kind, "timestamp": self.ts});
        if let (Some(fields), Value::Object(data)) = (event.as_object_mut(), data) {
            fields.extend(data);
        }
        push_sse(out, None, &event);
    }

    fn begin(&mut self, out: &mut String) {
        self.phase = Phase::Running;
        self.usage_before = self.usage.clone();
        let (thread, run_id) = (&self.thread, &self.run_id);
        let data = json!({"threadId": thread, "runId": run_id, "protocolVersion": PROTOCOL_VERSION});
        self.emit(out, "RUN_STARTED", data);
        self.emit(out, "STATE_SNAPSHOT", json!({"snapshot": self.state.memory}));
    }

    fn finish(&mut self, out: &mut String, outcome: &Value, result: Option<Value>) {
        self.close(out);
        let mut data = json!({
            "threadId": self.thread, "runId": self.run_id, "outcome": outcome, "usage": [self.used()],
        });
        if let (Some(result), Some(fields)) = (result, data.as_object_mut()) {
            fields.insert("result".to_owned(), result);
        }
        self.emit(out, "RUN_FINISHED", data);
        self.phase = Phase::Ended;
    }

    fn fail(&mut self, out: &mut String, error: &VendorError) {
        self.close(out);
        if self.phase == Phase::Before {
            self.begin(out);
        }
        self.emit(out, "RUN_ERROR", json!({"message": error.message(), "code": error.code()}));
        self.phase = Phase::Ended;
    }

    /// What the run itself has used.
    fn used(&self) -> Value {
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let (now, before) = (&self.usage, &self.usage_before);
        json!({
            "model": now.model,
            "inputTokens": since(now.input_tokens, before.input_tokens),
            "outputTokens": since(now.output_tokens, before.output_tokens),
            "reasoningTokens": since(now.reasoning_tokens, before.reasoning_tokens),
            "cachedInputTokens": since(now.cache_read_tokens, before.cache_read_tokens),
            "cacheWriteInputTokens": since(now.cache_write_tokens, before.cache_write_tokens),
        })
    }

    fn push_text(&mut self, out: &mut String, turn_id: TurnId, text: &str, is_reasoning: bool) {
        let id = format!("{}{}", message_prefix(turn_id), self.block);
        if self.phase == Phase::Running {
            self.has_text |= !is_reasoning;
            if self.messages.last().is_none_or(|(last, _)| *last != id) {
                self.messages.push((id.clone(), self.ts));
            }
        }
        let rest = self.seen.rest(&id, text);
        if rest.is_empty() {
            return;
        }
        if self.open.as_ref().is_none_or(|open| open.id != id) {
            self.close(out);
            let data = json!({"messageId": id});
            if is_reasoning {
                self.emit(out, "REASONING_START", data);
                self.emit(out, "REASONING_MESSAGE_START", json!({"messageId": id, "role": "reasoning"}));
            } else {
                self.emit(out, "TEXT_MESSAGE_START", json!({"messageId": id, "role": "assistant"}));
            }
            self.open = Some(OpenMessage { id: id.clone(), is_reasoning });
        }
        let kind = if is_reasoning { "REASONING_MESSAGE_CONTENT" } else { "TEXT_MESSAGE_CONTENT" };
        self.emit(out, kind, json!({"messageId": id, "delta": rest}));
    }

    fn close(&mut self, out: &mut String) {
        let Some(OpenMessage { id, is_reasoning }) = self.open.take() else { return };
        let data = json!({"messageId": id});
        if is_reasoning {
            self.emit(out, "REASONING_MESSAGE_END", data.clone());
            self.emit(out, "REASONING_END", data);
        } else {
            self.emit(out, "TEXT_MESSAGE_END", data);
        }
    }

    fn call(&mut self, out: &mut String, turn_id: TurnId, call: &ToolCall) {
        self.close(out);
        let id = call.tool_call_id.to_string();
        let arguments = call.input.to_string();
        let rest = self.seen.rest(&id, &arguments);
        if rest.is_empty() {
            return;
        }
        let parent = format!("{}{id}", message_prefix(turn_id));
        let start = json!({"toolCallId": id, "toolCallName": call.tool, "parentMessageId": parent});
        self.emit(out, "TOOL_CALL_START", start);
        self.emit(out, "TOOL_CALL_ARGS", json!({"toolCallId": id, "delta": rest}));
        self.emit(out, "TOOL_CALL_END", json!({"toolCallId": id}));
    }

    fn result(&self, out: &mut String, turn_id: TurnId, result: &ToolResult) {
        let id = format!("{}{}-result", message_prefix(turn_id), result.tool_call_id);
        if self.seen.results.contains(&id) {
            return;
        }
        let content = result.error.as_ref().unwrap_or(&result.output);
        let own = json!({"failed": result.error.is_some(), "duration_ms": result.duration_ms});
        let data = json!({
            "messageId": id, "toolCallId": result.tool_call_id, "content": content, "role": "tool",
            "metadata": {"roundhouse": own},
        });
        self.emit(out, "TOOL_CALL_RESULT", data);
    }

    fn custom(&self, out: &mut String, event: &Event) {
        let value = serde_json::to_value(event).unwrap_or_default();
        self.emit(out, "CUSTOM", json!({"name": format!("roundhouse.{}", event.kind()), "value": value}));
    }

    fn apply_lifecycle(&mut self, lifecycle: Lifecycle, turn_id: TurnId, out: &mut String) {
        match lifecycle {
            Lifecycle::Started { .. } if self.resumes.is_none() => self.begin(out),
            Lifecycle::Started { .. } | Lifecycle::Resumed { .. } | Lifecycle::Errored { .. } => {}
            Lifecycle::Retrying { void_after, .. } => {
                self.close(out);
                let void: Vec<&String> =
                    self.messages.iter().filter(|(_, ts)| *ts > void_after).map(|(id, _)| id).collect();
                let data = json!({"name": "roundhouse.retrying", "value": {"void_message_ids": void}});
                self.emit(out, "CUSTOM", data);
            }
            Lifecycle::Completed { text, stop_reason, .. } => self.complete(out, turn_id, &text, stop_reason),
            Lifecycle::Cancelled { .. } => self.finish(out, &json!({"type": "cancelled"}), None),
        }
    }

    fn complete(&mut self, out: &mut String, turn_id: TurnId, text: &str, stop_reason: StopReason) {
        // The deltas of a turn that ended long ago are gone.
        if !self.has_text && !text.is_empty() {
            self.push_text(out, turn_id, text, false);
        }
        let result = json!({"text": text, "stop_reason": stop_reason});
        self.finish(out, &json!({"type": "success"}), Some(result));
    }

    fn apply_request(&mut self, request: &HitlRequest, turn_id: TurnId, out: &mut String) {
        if self.phase == Phase::Running {
            let approval = self.approvals.get(&request.request_id).map(Box::as_ref);
            let interrupt = resume::describe(turn_id, request, approval);
            self.finish(out, &json!({"type": "interrupt", "interrupts": [interrupt]}), None);
        } else if self.resumes.as_ref().is_some_and(|(id, _)| *id == request.request_id) {
            self.begin(out);
        }
    }

    /// Finds out whether the request was answered as this run did. An answer that came before counts.
    fn check_answer(&mut self, request_id: HitlId, given: &Expected, out: &mut String) {
        let Some((id, expected)) = &self.resumes else { return };
        let is_comparable = std::mem::discriminant(expected) == std::mem::discriminant(given);
        if *id == request_id && is_comparable && expected != given {
            let message =
                "the interrupt was answered before, in another way; the turn goes on with that answer";
            self.fail(out, &VendorError::conflict(message, "interrupt_answered"));
        }
    }
}

impl Projector for RunProjection {
    fn apply(&mut self, event: SentEvent, out: &mut String) {
        if self.phase == Phase::Ended {
            return;
        }
        self.ts = event.ts;
        let turn_id = event.turn_id;
        match event.event {
            Event::ThreadLifecycle(lifecycle) => self.apply_lifecycle(lifecycle, turn_id, out),
            Event::Error(failure) => self.fail(out, &failure.into()),
            Event::ContentBlockStart(BlockStart { index, .. }) => {
                self.close(out);
                self.block = index;
            }
            Event::ContentBlockStop(_) => self.close(out),
            Event::TextDelta(delta) => self.push_text(out, turn_id, &delta.text, false),
            Event::ThinkingDelta(delta) => self.push_text(out, turn_id, &delta.text, true),
            Event::ToolCall(call) => self.call(out, turn_id, &call),
            Event::ToolResult(result) => self.result(out, turn_id, &result),
            Event::ApprovalRequest(request) => {
                self.approvals.insert(request.request_id, request);
            }
            Event::HitlRequest(request) => self.apply_request(&request, turn_id, out),
            Event::ApprovalResolved(ApprovalResolved { request_id, decision, .. }) => {
                self.approvals.remove(&request_id);
                self.check_answer(request_id, &Expected::Decision(decision), out);
            }
            Event::HitlResolved(HitlResolved { request_id, answer }) => {
                self.check_answer(request_id, &Expected::Answer(answer), out);
            }
            Event::WorkingMemoryUpdate(update) => {
                if let Some(patch) = self.state.patch(self.ts, update) {
                    self.emit(out, "STATE_DELTA", json!({"delta": [patch]}));
                }
            }
            Event::Usage(usage) => self.usage = usage,
            event @ (Event::ToolHook(_)
            | Event::CompactionEvent(_)
            | Event::UsageCap(_)
            | Event::Citations(_)) => {
                self.custom(out, &event);
            }
            Event::AgentEvent(_) | Event::BusyUpdate(_) | Event::Heartbeat(_) => {}
        }
    }

    fn interrupt(&mut self, out: &mut String) {
        let message =
            "the engine stops; the turn goes on at its next start, and the same run again gives the rest";
        self.fail(out, &VendorError::unfinished("engine_stopping", message));
    }

    fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }
}
