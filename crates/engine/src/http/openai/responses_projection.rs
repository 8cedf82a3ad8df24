//! The events of a turn as the events of a response, and as a response's object.

use api::event::{BlockType, Event, Lifecycle, SentEvent, StopReason, Usage};
use api::{CallId, HitlId, TaskId, TurnId};
use serde_json::{Value, json};

use super::chat_projection::engine_stops;
use super::error::VendorError;
use super::responses_items::{self as items, Settings};
use crate::http::projection::{Projector, push_sse};

/// The sequence numbers of one event of the log: a response's event has the time of its event in the log since the
/// turn's first one, in milliseconds, times this, plus its place among those of the same event.
const NUMBERS_PER_MS: i64 = 1_000;

/// A response.
pub(super) struct ResponseProjection {
    turn_id: TurnId,
    task_id: TaskId,
    settings: Settings,
    numbers: Numbers,
    status: &'static str,
    error: Option<VendorError>,
    incomplete_reason: Option<&'static str>,
    items: Vec<Item>,
    open: Option<OpenText>,
    /// The calls of tools that have not finished, with their items.
    calls: Vec<(CallId, usize)>,
    /// The requests that wait for a person.
    pending: Vec<HitlId>,
    usage: Option<Usage>,
}

/// The numbering of a response's events, which is the same whenever the turn's events are read.
struct Numbers {
    /// The `ts` of the turn's first event.
    first_ts: Option<i64>,
    /// The number of the next event.
    next: i64,
    /// Events up to this number are not sent: the client has them.
    after: Option<i64>,
}

/// An item of the output.
struct Item {
    value: Value,
    /// The `ts` at which it began.
    ts: i64,
    /// It belongs to an attempt of the model that no longer counts.
    is_void: bool,
}

/// The block of text that is being received.
struct OpenText {
    item: usize,
    is_reasoning: bool,
    id: String,
    text: String,
}

impl Numbers {
    /// Moves on to the events of the log's event at `ts`.
    fn move_to(&mut self, ts: i64) {
        let first_ts = *self.first_ts.get_or_insert(ts);
        let begin = ts.saturating_sub(first_ts).saturating_mul(NUMBERS_PER_MS);
        self.next = self.next.max(begin);
    }
}

impl ResponseProjection {
    /// The response of a turn. `after`: events up to this number are not sent.
    pub(super) fn new(turn_id: TurnId, task_id: TaskId, settings: Settings, after: Option<i64>) -> Self {
        Self {
            turn_id,
            task_id,
            settings,
            numbers: Numbers { first_ts: None, next: 0, after },
            status: "in_progress",
            error: None,
            incomplete_reason: None,
            items: Vec::new(),
            open: None,
            calls: Vec::new(),
            pending: Vec::new(),
            usage: None,
        }
    }

    /// Its task and turn.
    pub(super) const fn turn(&self) -> (&TaskId, TurnId) {
        (&self.task_id, self.turn_id)
    }

    /// Whether the turn waits for a person.
    pub(super) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The turn was given up without an event that says so.
    pub(super) fn give_up(&mut self) {
        self.status = "failed";
    }

    /// The response's object as it is now.
    pub(super) fn object(&self) -> Value {
        let created_at = self.numbers.first_ts.unwrap_or_default() / 1_000;
        let mut object = items::response_fields(self.turn_id, &self.task_id, created_at, &self.settings);
        let error =
            self.error.as_ref().map(|error| json!({"code": error.code(), "message": error.message()}));
        let incomplete = self.incomplete_reason.map(|reason| json!({"reason": reason}));
        if let Some(fields) = object.as_object_mut() {
            for (name, value) in [
                ("status", json!(self.status)),
                ("error", json!(error)),
                ("incomplete_details", json!(incomplete)),
                ("output", Value::Array(self.output())),
                ("usage", self.usage.as_ref().map(items::usage).unwrap_or_default()),
            ] {
                fields.insert(name.to_owned(), value);
            }
        }
        object
    }

    /// The items that count. Of the messages of a response that has ended that is the last one: the answer.
    fn output(&self) -> Vec<Value> {
        let last_message = self.last_message();
        let has_ended = self.has_ended();
        let counts = |(index, item): &(usize, &Item)| {
            let is_earlier = has_ended && is_message(item) && Some(*index) != last_message;
            !item.is_void && !is_earlier
        };
        self.items.iter().enumerate().filter(counts).map(|(_, item)| item.value.clone()).collect()
    }

    fn last_message(&self) -> Option<usize> {
        self.items.iter().rposition(|item| is_message(item) && !item.is_void)
    }

    /// Sends an event of the response.
    fn emit(&mut self, out: &mut String, kind: &str, mut data: Value) {
        let number = self.numbers.next;
        self.numbers.next += 1;
        if self.numbers.after.is_some_and(|after| number <= after) {
            return;
        }
        if let Some(fields) = data.as_object_mut() {
            fields.insert("type".to_owned(), json!(kind));
            fields.insert("sequence_number".to_owned(), json!(number));
        }
        push_sse(out, Some(kind), &data);
    }

    fn emit_response(&mut self, out: &mut String, kind: &str) {
        let response = self.object();
        self.emit(out, kind, json!({"response": response}));
    }

    /// Adds an item and sends it.
    fn add_item(&mut self, out: &mut String, ts: i64, value: Value) -> usize {
        let index = self.items.len();
        self.emit(out, "response.output_item.added", json!({"output_index": index, "item": value}));
        self.items.push(Item { value, ts, is_void: false });
        index
    }

    /// Replaces an item by its final form and sends it.
    fn finish_item(&mut self, out: &mut String, index: usize, value: Value) {
        self.emit(out, "response.output_item.done", json!({"output_index": index, "item": value}));
        if let Some(item) = self.items.get_mut(index) {
            item.value = value;
        }
    }

    fn open_text(&mut self, out: &mut String, ts: i64, is_reasoning: bool) {
        self.close_text(out, "completed");
        let (prefix, number) = (if is_reasoning { "rs_" } else { "msg_" }, self.items.len());
        let id = items::item_id(prefix, self.turn_id, number);
        let value = if is_reasoning {
            items::reasoning(&id, "in_progress", None)
        } else {
            items::message(&id, "in_progress", &[])
        };
        let item = self.add_item(out, ts, value);
        let part = if is_reasoning {
            json!({"type": "reasoning_text", "text": ""})
        } else {
            items::text_part("", &[])
        };
        let data = json!({"item_id": id, "output_index": item, "content_index": 0, "part": part});
        self.emit(out, "response.content_part.added", data);
        self.open = Some(OpenText { item, is_reasoning, id, text: String::new() });
    }

    fn push_text(&mut self, out: &mut String, ts: i64, text: &str, is_reasoning: bool) {
        if self.open.as_ref().is_none_or(|open| open.is_reasoning != is_reasoning) {
            self.open_text(out, ts, is_reasoning);
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let mut data =
            json!({"item_id": open.id, "output_index": open.item, "content_index": 0, "delta": text});
        let kind = if is_reasoning {
            "response.reasoning_text.delta"
        } else {
            if let Some(fields) = data.as_object_mut() {
                fields.insert("logprobs".to_owned(), json!([]));
            }
            "response.output_text.delta"
        };
        self.emit(out, kind, data);
    }

    fn close_text(&mut self, out: &mut String, status: &str) {
        let Some(OpenText { item, is_reasoning, id, text }) = self.open.take() else { return };
        let place = |more: Value| {
            let mut data = json!({"item_id": id, "output_index": item, "content_index": 0});
            if let (Some(fields), Value::Object(more)) = (data.as_object_mut(), more) {
                fields.extend(more);
            }
            data
        };
        let (part, value) = if is_reasoning {
            self.emit(out, "response.reasoning_text.done", place(json!({"text": text})));
            let part = json!({"type": "reasoning_text", "text": text});
            (part, items::reasoning(&id, status, Some(&text)))
        } else {
            self.emit(out, "response.output_text.done", place(json!({"text": text, "logprobs": []})));
            let part = items::text_part(&text, &[]);
            (part.clone(), items::message(&id, status, &[part]))
        };
        self.emit(out, "response.content_part.done", place(json!({"part": part})));
        self.finish_item(out, item, value);
    }

    /// The events after `void_after` do not count any more.
    fn void_items(&mut self, out: &mut String, void_after: i64) {
        self.close_text(out, "incomplete");
        for item in self.items.iter_mut().filter(|item| item.ts > void_after) {
            item.is_void = true;
            if let Some(fields) = item.value.as_object_mut() {
                fields.insert("status".to_owned(), json!("incomplete"));
            }
        }
    }

    fn annotate(&mut self, out: &mut String, annotations: Vec<Value>) {
        let Some(index) = self.last_message() else { return };
        let Some(id) = self.items.get(index).map(|item| member(&item.value, "id")) else { return };
        for (number, annotation) in annotations.iter().enumerate() {
            let data = json!({
                "item_id": id, "output_index": index, "content_index": 0,
                "annotation_index": number, "annotation": annotation,
            });
            self.emit(out, "response.output_text.annotation.added", data);
        }
        let part = self.items.get_mut(index).and_then(|item| item.value.pointer_mut("/content/0"));
        if let Some(fields) = part.and_then(Value::as_object_mut) {
            fields.insert("annotations".to_owned(), Value::Array(annotations));
        }
    }

    fn complete(&mut self, out: &mut String, ts: i64, text: &str, stop_reason: StopReason) {
        self.close_text(out, "completed");
        let is_structured = self.settings.response_format.is_some();
        match self.last_message().filter(|_| !is_structured) {
            // The deltas of a turn that ended long ago are gone, and those of a form are held back.
            None if !text.is_empty() => {
                self.push_text(out, ts, text, false);
                self.close_text(out, "completed");
            }
            None => {}
            Some(index) => {
                let part = self.items.get_mut(index).and_then(|item| item.value.pointer_mut("/content/0"));
                if let Some(fields) = part.and_then(Value::as_object_mut) {
                    fields.insert("text".to_owned(), json!(text));
                }
            }
        }
        let kind = if stop_reason == StopReason::EndTurn {
            self.status = "completed";
            "response.completed"
        } else {
            self.status = "incomplete";
            self.incomplete_reason = Some("max_output_tokens");
            "response.incomplete"
        };
        self.pending.clear();
        self.emit_response(out, kind);
    }

    fn fail(&mut self, out: &mut String, status: &'static str, error: VendorError) {
        self.close_text(out, "incomplete");
        self.pending.clear();
        (self.status, self.error) = (status, Some(error));
        self.emit_response(out, "response.failed");
    }

    fn apply_lifecycle(&mut self, lifecycle: Lifecycle, ts: i64, out: &mut String) {
        match lifecycle {
            Lifecycle::Started { .. } => {
                self.emit_response(out, "response.created");
                self.emit_response(out, "response.in_progress");
            }
            Lifecycle::Retrying { void_after, .. } => self.void_items(out, void_after),
            Lifecycle::Completed { text, stop_reason, .. } => self.complete(out, ts, &text, stop_reason),
            Lifecycle::Cancelled { .. } => {
                self.fail(
                    out,
                    "cancelled",
                    VendorError::conflict("the turn was cancelled", "turn_cancelled"),
                );
            }
            Lifecycle::Errored { .. } | Lifecycle::Resumed { .. } => {}
        }
    }

    fn apply_call_event(&mut self, event: Event, ts: i64, out: &mut String) {
        match event {
            Event::ToolCall(call) => {
                self.close_text(out, "completed");
                let value = items::tool_call(&call);
                let id = member(&value, "id");
                let arguments = member(&value, "arguments");
                let index = self.add_item(out, ts, value);
                let place = json!({"item_id": id, "output_index": index});
                self.emit(out, "response.mcp_call.in_progress", place.clone());
                let mut done = place;
                if let Some(fields) = done.as_object_mut() {
                    fields.insert("arguments".to_owned(), arguments);
                }
                self.emit(out, "response.mcp_call_arguments.done", done);
                self.calls.push((call.tool_call_id, index));
            }
            Event::ToolResult(result) => {
                let Some(at) = self.calls.iter().position(|(id, _)| *id == result.tool_call_id) else {
                    return;
                };
                let (_, index) = self.calls.swap_remove(at);
                let Some(item) = self.items.get(index) else { return };
                let mut value = item.value.clone();
                items::finish_call(&mut value, &result);
                let kind = if result.error.is_some() {
                    "response.mcp_call.failed"
                } else {
                    "response.mcp_call.completed"
                };
                self.emit(out, kind, json!({"item_id": member(&value, "id"), "output_index": index}));
                self.finish_item(out, index, value);
            }
            Event::HitlRequest(request) => {
                let value = items::approval_request(&request);
                let index = self.add_item(out, ts, value.clone());
                self.finish_item(out, index, value);
                self.pending.push(request.request_id);
            }
            Event::HitlResolved(resolved) => self.pending.retain(|id| *id != resolved.request_id),
            _ => {}
        }
    }
}

fn is_message(item: &Item) -> bool {
    item.value.get("type").is_some_and(|kind| kind == "message")
}

/// A member of an item.
fn member(item: &Value, name: &str) -> Value {
    item.get(name).cloned().unwrap_or_default()
}

impl Projector for ResponseProjection {
    fn apply(&mut self, event: SentEvent, out: &mut String) {
        if self.has_ended() {
            return;
        }
        let SentEvent { ts, event, .. } = event;
        self.numbers.move_to(ts);
        let is_structured = self.settings.response_format.is_some();
        match event {
            Event::ThreadLifecycle(lifecycle) => self.apply_lifecycle(lifecycle, ts, out),
            Event::Error(failure) => self.fail(out, "failed", failure.into()),
            Event::ContentBlockStart(block) => match block.block_type {
                BlockType::Text if !is_structured => self.open_text(out, ts, false),
                BlockType::Thinking => self.open_text(out, ts, true),
                BlockType::Text | BlockType::ToolUse => self.close_text(out, "completed"),
            },
            Event::ContentBlockStop(_) => self.close_text(out, "completed"),
            Event::TextDelta(delta) if !is_structured => self.push_text(out, ts, &delta.text, false),
            Event::ThinkingDelta(delta) => self.push_text(out, ts, &delta.text, true),
            Event::Citations(citations) => self.annotate(out, items::annotations(&citations.citations)),
            Event::Usage(usage) => self.usage = Some(usage),
            event => self.apply_call_event(event, ts, out),
        }
    }

    fn interrupt(&mut self, out: &mut String) {
        if self.has_ended() {
            return;
        }
        // It has no number of its own: the client takes the response up again after the last event.
        let error = engine_stops();
        let number = self.numbers.next.saturating_sub(1);
        let data = json!({
            "type": "error", "code": error.code(), "message": error.message(), "param": null,
            "sequence_number": number,
        });
        push_sse(out, Some("error"), &data);
        self.status = "interrupted";
    }

    fn has_ended(&self) -> bool {
        self.status != "in_progress"
    }
}
