//! The response object: the body of an answer that is not streamed, and a member of several events.

use serde_json::{Value, json};

use crate::protocol::IncomingRequest;
use crate::reply::{Reply, Stop, TokenCounts};

/// Fixed, so that the transcripts of two runs are equal.
const CREATED_AT: u64 = 1_750_000_000;

/// The members that all response objects of an answer share: the id, and the echoed settings of the request.
pub(super) struct Response<'a> {
    request: &'a IncomingRequest,
    id: String,
}

/// The end of a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Completed,
    /// The response was truncated for this reason.
    Incomplete(&'static str),
}

impl Outcome {
    pub(super) fn from_reply(reply: &Reply) -> Self {
        match reply.stop_reason() {
            Stop::EndTurn | Stop::ToolUse => Self::Completed,
            Stop::MaxTokens => Self::Incomplete("max_output_tokens"),
            Stop::Refusal => Self::Incomplete("content_filter"),
        }
    }

    /// The status of the response, and of its last item.
    pub(super) fn status(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
        }
    }

    /// The name of the stream's last event.
    pub(super) fn event_name(self) -> &'static str {
        match self {
            Self::Completed => "response.completed",
            Self::Incomplete(_) => "response.incomplete",
        }
    }
}

impl<'a> Response<'a> {
    pub(super) fn new(request: &'a IncomingRequest, number: u64) -> Self {
        Self { request, id: format!("resp_{number:024}") }
    }

    /// The response when it starts.
    pub(super) fn in_progress(&self) -> Value {
        self.object("in_progress", &[], json!({}))
    }

    /// The response when it has ended.
    pub(super) fn ended(&self, outcome: Outcome, output: &[Value], counts: TokenCounts) -> Value {
        let details = match outcome {
            Outcome::Completed => Value::Null,
            Outcome::Incomplete(reason) => json!({"reason": reason}),
        };
        self.object(outcome.status(), output, json!({"incomplete_details": details, "usage": usage(counts)}))
    }

    /// The response when it has failed.
    pub(super) fn failed(&self, code: &str, message: &str) -> Value {
        self.object("failed", &[], json!({"error": {"code": code, "message": message}}))
    }

    fn object(&self, status: &str, output: &[Value], changes: Value) -> Value {
        let body = &self.request.body;
        let echoed = |name: &str, default: Value| match body.get(name) {
            None | Some(Value::Null) => default,
            Some(value) => value.clone(),
        };
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": CREATED_AT, "status": status, "background": false,
            "error": null, "incomplete_details": null, "instructions": echoed("instructions", Value::Null),
            "max_output_tokens": echoed("max_output_tokens", Value::Null), "max_tool_calls": null,
            "model": self.request.model(), "output": output,
            "parallel_tool_calls": echoed("parallel_tool_calls", true.into()), "previous_response_id": null,
            "prompt_cache_key": echoed("prompt_cache_key", Value::Null),
            "reasoning": echoed("reasoning", json!({"effort": null, "summary": null})),
            "service_tier": "default", "store": echoed("store", true.into()),
            "temperature": echoed("temperature", 1.into()), "text": echoed("text", json!({"format": {"type": "text"}})),
            "tool_choice": echoed("tool_choice", "auto".into()), "tools": echoed("tools", json!([])),
            "top_p": echoed("top_p", 1.into()), "truncation": echoed("truncation", "disabled".into()),
            "usage": null, "user": null, "metadata": echoed("metadata", json!({})),
        });
        if let (Some(members), Value::Object(changes)) = (response.as_object_mut(), changes) {
            members.extend(changes);
        }
        response
    }
}

/// The token counts in this wire's format: the input includes cached tokens.
fn usage(counts: TokenCounts) -> Value {
    let input = counts.input + counts.cache_read + counts.cache_write;
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": counts.cache_read, "cache_write_tokens": counts.cache_write},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": input + counts.output,
    })
}
