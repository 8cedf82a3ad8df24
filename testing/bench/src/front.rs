//! The other protocols that an engine speaks, as far as their measurement needs them: the request for a turn, and the
//! text in the stream that answers it.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::provider::Wire;
use crate::streamed::{StreamedResponse, TimedText};

/// A protocol whose answers are streams of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    ChatCompletions,
    Responses,
    AgUi,
    AgentToAgent,
}

impl Front {
    pub(crate) const ALL: [Self; 4] =
        [Self::ChatCompletions, Self::Responses, Self::AgUi, Self::AgentToAgent];

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::AgUi => "/agui",
            Self::AgentToAgent => "/a2a",
        }
    }

    /// A header of the request besides the key: the version of a protocol that requires it.
    pub(crate) const fn header(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::AgentToAgent => Some(("a2a-version", "1.0")),
            _ => None,
        }
    }

    /// The request for a turn in a new task, without planning.
    pub(crate) fn request(self, task: &str, message: &str) -> Value {
        let own = json!({"task_id": task, "direct": true});
        match self {
            Self::ChatCompletions => json!({
                "model": "default", "stream": true, "roundhouse": own,
                "messages": [{"role": "user", "content": message}],
            }),
            Self::Responses => {
                json!({"model": "default", "stream": true, "roundhouse": own, "input": message})
            }
            Self::AgUi => json!({
                "threadId": task, "runId": format!("run-{task}"), "tools": [], "context": [], "state": {},
                "messages": [{"id": "message", "role": "user", "content": message}],
                "forwardedProps": {"roundhouse": {"direct": true}},
            }),
            // No agents are configured, so nothing is planned.
            Self::AgentToAgent => json!({
                "jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage",
                "params": {"message": {
                    "messageId": task, "contextId": task, "role": "ROLE_USER", "parts": [{"text": message}],
                }},
            }),
        }
    }

    /// Parses the stream of a turn.
    ///
    /// # Errors
    /// The turn did not complete, or its stream has no text.
    pub(crate) fn text(self, response: &StreamedResponse) -> anyhow::Result<TimedText> {
        match self {
            Self::ChatCompletions => response.provider_text(Wire::OpenAi),
            Self::Responses => response.provider_text(Wire::Responses),
            Self::AgUi => response.json_text(|message| {
                let is = |kind: &str| message["type"] == kind;
                ensure!(!is("RUN_ERROR"), "the run failed: {message}");
                Ok((is("TEXT_MESSAGE_CONTENT").then(|| &message["delta"]), is("RUN_FINISHED")))
            }),
            Self::AgentToAgent => response.json_text(|message| {
                let state = message.pointer("/result/statusUpdate/status/state");
                let is_complete = state.is_some_and(|state| state == "TASK_STATE_COMPLETED");
                ensure!(state.is_none() || is_complete, "the task has another outcome: {message}");
                Ok((message.pointer("/result/artifactUpdate/artifact/parts/0/text"), is_complete))
            }),
        }
    }
}
