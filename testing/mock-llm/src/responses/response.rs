//! The response object, which the whole form is and which several events carry.

use serde_json::{Value, json};

use crate::protocol::IncomingRequest;
use crate::reply::{Reply, Stop, TokenCounts};

/// Fixed, so that transcripts of two runs are equal.
const CREATED_AT: u64 = 1_750_000_000;

/// What every form of a response has: its id, and the request's settings said back.
pub(super) struct Response<'a> {
    request: &'a IncomingRequest,
    id: String,
}

/// How a response ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Completed,
    /// For this reason.
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

    /// The status of the response, and of an item that it ended in.
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

    /// As it begins.
    pub(super) fn in_progress(&self) -> Value {
        self.object("in_progress", &[], json!({}))
    }

    /// As it ends.
    pub(super) fn ended(&self, outcome: Outcome, output: &[Value], counts: TokenCounts) -> Value {
        let details = match outcome {
            Outcome::Completed => Value::Null,
            Outcome::Incomplete(reason) => json!({"reason": reason}),
        };
        self.object(outcome.status(), output, json!({"incomplete_details": details, "usage": usage(counts)}))
    }

    /// As it fails.
    pub(super) fn failed(&self, code: &str, message: &str) -> Value {
        self.object("failed", &[], json!({"error": {"code": code, "message": message}}))
    }

    fn object(&self, status: &str, output: &[Value], changes: Value) -> Value {
        let body = &self.request.body;
        let said = |name: &str, default: Value| match body.get(name) {
            None | Some(Value::Null) => default,
            Some(value) => value.clone(),
        };
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": CREATED_AT, "status": status, "background": false,
            "error": null, "incomplete_details": null, "instructions": said("instructions", Value::Null),
            "max_output_tokens": said("max_output_tokens", Value::Null), "max_tool_calls": null,
            "model": self.request.model(), "output": output,
            "parallel_tool_calls": said("parallel_tool_calls", true.into()), "previous_response_id": null,
            "prompt_cache_key": said("prompt_cache_key", Value::Null),
            "reasoning": said("reasoning", json!({"effort": null, "summary": null})),
            "service_tier": "default", "store": said("store", true.into()),
            "temperature": said("temperature", 1.into()), "text": said("text", json!({"format": {"type": "text"}})),
            "tool_choice": said("tool_choice", "auto".into()), "tools": said("tools", json!([])),
            "top_p": said("top_p", 1.into()), "truncation": said("truncation", "disabled".into()),
            "usage": null, "user": null, "metadata": said("metadata", json!({})),
        });
        if let (Some(members), Value::Object(changes)) = (response.as_object_mut(), changes) {
            members.extend(changes);
        }
        response
    }
}

/// Here the input's count includes what the cache served.
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
