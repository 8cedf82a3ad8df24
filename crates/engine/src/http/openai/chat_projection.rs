//! The events of a turn as the chunks of a chat completion, and as a whole completion.

use api::event::{Event, Lifecycle, SentEvent, StopReason, Usage};
use serde_json::{Value, json};

use super::error::VendorError;
use super::ids;
use crate::http::projection::{Projector, push_sse};

/// What stands between the texts of two blocks.
const BLOCK_SEPARATOR: &str = "\n\n";

/// A stream of chunks.
pub(super) struct ChatProjection {
    head: ChunkHead,
    /// The answer must match a schema: it is sent once it is known to.
    is_structured: bool,
    includes_usage: bool,
    usage: Option<Usage>,
    sent: SentText,
    has_ended: bool,
}

/// The text that was sent.
#[derive(Default)]
struct SentText {
    /// The `ts` of the last of it.
    last_ts: Option<i64>,
    /// A block has begun after another one's text.
    needs_separator: bool,
}

/// What all chunks of a completion have in common.
#[derive(Clone, Debug)]
pub(super) struct ChunkHead {
    model: String,
    id: String,
    created: i64,
}

impl ChunkHead {
    pub(super) fn new(model: String) -> Self {
        Self { model, id: String::new(), created: 0 }
    }

    /// Takes the id and the time from the turn's first event.
    fn begin(&mut self, event: &SentEvent) {
        if self.id.is_empty() {
            self.id = ids::with_prefix("chatcmpl-", event.turn_id);
            self.created = event.ts / 1_000;
        }
    }

    fn object(&self, kind: &str, choices: &Value) -> Value {
        let Self { model, id, created } = self;
        json!({"id": id, "object": kind, "created": created, "model": model, "choices": choices})
    }

    fn chunk(&self, delta: &Value, finish_reason: Option<&str>) -> Value {
        let choices = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason}]);
        self.object("chat.completion.chunk", &choices)
    }
}

impl ChatProjection {
    pub(super) fn new(model: String, is_structured: bool, includes_usage: bool) -> Self {
        Self {
            head: ChunkHead::new(model),
            is_structured,
            includes_usage,
            usage: None,
            sent: SentText::default(),
            has_ended: false,
        }
    }

    fn push_delta(&self, out: &mut String, delta: &Value) {
        push_sse(out, None, &self.head.chunk(delta, None));
    }

    fn push_text(&mut self, out: &mut String, ts: i64, text: &str) {
        if std::mem::take(&mut self.sent.needs_separator) {
            self.push_delta(out, &json!({"content": BLOCK_SEPARATOR}));
        }
        self.push_delta(out, &json!({"content": text}));
        self.sent.last_ts = Some(ts);
    }

    fn fail(&mut self, out: &mut String, error: &VendorError) {
        push_sse(out, None, &error.body());
        self.has_ended = true;
    }

    fn complete(&mut self, out: &mut String, ts: i64, text: &str, stop_reason: StopReason) {
        if (self.is_structured || self.sent.last_ts.is_none()) && !text.is_empty() {
            self.push_text(out, ts, text);
        }
        push_sse(out, None, &self.head.chunk(&json!({}), Some(finish_reason(stop_reason))));
        if self.includes_usage {
            let mut chunk = self.head.object("chat.completion.chunk", &json!([]));
            if let Some(fields) = chunk.as_object_mut() {
                fields.insert("usage".to_owned(), usage_of(self.usage.as_ref()));
            }
            push_sse(out, None, &chunk);
        }
        out.push_str("data: [DONE]\n\n");
        self.has_ended = true;
    }

    fn apply_lifecycle(&mut self, lifecycle: Lifecycle, ts: i64, out: &mut String) {
        match lifecycle {
            Lifecycle::Started { .. } => self.push_delta(out, &json!({"role": "assistant", "content": ""})),
            Lifecycle::Retrying { void_after, .. } => {
                if self.sent.last_ts.is_some_and(|sent| sent > void_after) {
                    let message = "the model was asked again after a break, and its new answer begins differently; \
                                   what was sent does not count, and a chat completion cannot say so: the turn \
                                   goes on, and its task has the answer";
                    self.fail(out, &VendorError::unfinished("answer_restarted", message));
                }
            }
            Lifecycle::Completed { text, stop_reason, .. } => self.complete(out, ts, &text, stop_reason),
            Lifecycle::Cancelled { .. } => self.fail(out, &cancelled()),
            Lifecycle::Errored { .. } | Lifecycle::Resumed { .. } => {}
        }
    }
}

impl Projector for ChatProjection {
    fn apply(&mut self, event: SentEvent, out: &mut String) {
        if self.has_ended {
            return;
        }
        self.head.begin(&event);
        let ts = event.ts;
        match event.event {
            Event::ThreadLifecycle(lifecycle) => self.apply_lifecycle(lifecycle, ts, out),
            Event::Error(failure) => self.fail(out, &failure.into()),
            Event::ContentBlockStart(_) => self.sent.needs_separator = self.sent.last_ts.is_some(),
            Event::TextDelta(delta) if !self.is_structured => self.push_text(out, ts, &delta.text),
            Event::ThinkingDelta(delta) => self.push_delta(out, &json!({"reasoning_content": delta.text})),
            Event::HitlRequest(request) => {
                let mut chunk = self.head.chunk(&json!({}), None);
                if let Some(fields) = chunk.as_object_mut() {
                    fields.insert("roundhouse".to_owned(), json!({"hitl_request": request}));
                }
                push_sse(out, None, &chunk);
            }
            Event::Citations(citations) => {
                self.push_delta(out, &json!({"annotations": annotations(&citations.citations)}));
            }
            Event::Usage(usage) => self.usage = Some(usage),
            _ => {}
        }
    }

    fn interrupt(&mut self, out: &mut String) {
        self.fail(out, &engine_stops());
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// The fold of a turn's events into a completion without a stream: the answer alone.
pub(super) struct ChatFold {
    head: ChunkHead,
    usage: Option<Usage>,
    annotations: Value,
}

impl ChatFold {
    pub(super) fn new(model: String) -> Self {
        Self { head: ChunkHead::new(model), usage: None, annotations: json!([]) }
    }

    /// Adds the next event. Returns the outcome at the turn's end.
    pub(super) fn apply(&mut self, event: SentEvent) -> Option<Result<Value, VendorError>> {
        self.head.begin(&event);
        match event.event {
            Event::ThreadLifecycle(Lifecycle::Completed { text, stop_reason, .. }) => {
                let message = json!({"role": "assistant", "content": text, "refusal": null, "annotations": self.annotations});
                let choices = json!([{
                    "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason(stop_reason),
                }]);
                let mut completion = self.head.object("chat.completion", &choices);
                if let Some(fields) = completion.as_object_mut() {
                    fields.insert("usage".to_owned(), usage_of(self.usage.as_ref()));
                }
                return Some(Ok(completion));
            }
            Event::ThreadLifecycle(Lifecycle::Cancelled { .. }) => return Some(Err(cancelled())),
            Event::Error(failure) => return Some(Err(failure.into())),
            Event::Citations(citations) => self.annotations = annotations(&citations.citations),
            Event::Usage(usage) => self.usage = Some(usage),
            _ => {}
        }
        None
    }
}

fn cancelled() -> VendorError {
    VendorError::conflict("the turn was cancelled", "turn_cancelled")
}

/// The error of a response that ends before its turn, because the engine stops.
pub(super) fn engine_stops() -> VendorError {
    let message = "the engine stops before the turn has ended; the turn goes on at its next start, and its task \
                   gets the answer";
    VendorError::unfinished("engine_stopping", message)
}

const fn finish_reason(stop_reason: StopReason) -> &'static str {
    match stop_reason {
        StopReason::EndTurn => "stop",
        StopReason::MaxTurns | StopReason::Budget | StopReason::Loop => "length",
    }
}

/// Pages that an answer names, as the vendor's annotations: one for each mark.
fn annotations(citations: &[api::citations::Citation]) -> Value {
    let marks = citations.iter().flat_map(|page| page.ranges.iter().map(move |range| (page, range)));
    let annotation = |(page, range): (&api::citations::Citation, &api::citations::TextRange)| {
        let title = page.title.as_deref().unwrap_or_default();
        let place = json!({
            "url": page.url, "title": title, "start_index": range.start, "end_index": range.end,
        });
        json!({"type": "url_citation", "url_citation": place})
    };
    marks.map(annotation).collect()
}

fn usage_of(usage: Option<&Usage>) -> Value {
    let usage = usage.cloned().unwrap_or_default();
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    })
}
