//! The events of a turn as updates of a session. It is a state machine without side effects: the same events always give
//! the same updates.

use std::collections::HashMap;

use api::CallId;
use api::approvals::{ApprovalDecision, ApprovalRequest, ApprovalResolved};
use api::citations::Citation;
use api::event::{BlockStart, Event, Failure, Lifecycle, SentEvent, StopReason, Usage};
use api::usage_caps::UsageCapEvent;
use serde_json::{Value, json};

use super::params::ClientFeatures;
use super::rpc::RpcError;
use super::tool_calls;

/// The key of working memory that holds the plan of a turn.
const PLAN_KEY: &str = "plan";

/// Translates the events of one turn.
pub(super) struct TurnUpdates {
    features: ClientFeatures,
    /// The number of the content block that is received.
    block: u32,
    /// The content of the calls that have not finished.
    calls: HashMap<CallId, Vec<Value>>,
    usage: Option<Usage>,
    end: Option<TurnEnd>,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TurnEnd {
    Completed(StopReason),
    Cancelled,
    Failed(Failure),
}

impl TurnUpdates {
    pub(super) fn new(features: ClientFeatures) -> Self {
        Self { features, block: 0, calls: HashMap::new(), usage: None, end: None }
    }

    /// Translates an event.
    pub(super) fn apply(&mut self, sent: &SentEvent) -> Vec<Value> {
        match &sent.event {
            Event::ThreadLifecycle(lifecycle) => self.apply_lifecycle(lifecycle),
            Event::Error(failure) => {
                self.end = Some(TurnEnd::Failed(failure.clone()));
                vec![]
            }
            Event::ContentBlockStart(BlockStart { index, .. }) => {
                self.block = *index;
                vec![]
            }
            Event::TextDelta(delta) => vec![self.chunk("agent_message_chunk", sent, &delta.text)],
            Event::ThinkingDelta(delta) => vec![self.chunk("agent_thought_chunk", sent, &delta.text)],
            Event::Usage(usage) => {
                self.usage = Some(usage.clone());
                vec![]
            }
            Event::WorkingMemoryUpdate(update) if update.key == PLAN_KEY => {
                plan(&update.value).into_iter().collect()
            }
            Event::CompactionEvent(_) if self.features.compaction => vec![json!({
                "sessionUpdate": "compaction_update", "status": "completed",
                "compactionId": format!("{}-{}", sent.turn_id, sent.ts),
            })],
            Event::UsageCap(cap) => self.usage_cap(cap),
            Event::Citations(citations) => {
                citations.citations.iter().map(|page| self.citation(sent, page)).collect()
            }
            Event::AgentEvent(wrapped) => match wrapped.inner() {
                Some(event @ (Event::ToolCall(_) | Event::ToolResult(_))) => self.apply_call(&event),
                _ => vec![],
            },
            event => self.apply_call(event),
        }
    }

    fn apply_lifecycle(&mut self, lifecycle: &Lifecycle) -> Vec<Value> {
        match lifecycle {
            Lifecycle::Completed { stop_reason, .. } => self.end = Some(TurnEnd::Completed(*stop_reason)),
            Lifecycle::Cancelled { .. } => self.end = Some(TurnEnd::Cancelled),
            Lifecycle::Retrying { .. } => {
                return self.notice(
                    "info",
                    "The answer begins anew",
                    "What it began with before does not count.",
                );
            }
            Lifecycle::Started { .. } | Lifecycle::Resumed { .. } | Lifecycle::Errored { .. } => {}
        }
        vec![]
    }

    fn apply_call(&mut self, event: &Event) -> Vec<Value> {
        match event {
            Event::ToolCall(call) => {
                self.calls.insert(call.tool_call_id, Vec::new());
                vec![tool_calls::announcement(call)]
            }
            Event::ToolResult(result) => {
                let before = self.calls.remove(&result.tool_call_id).unwrap_or_default();
                vec![tool_calls::outcome(result, &before)]
            }
            Event::ApprovalRequest(request) => vec![self.pending_call(request)],
            Event::ApprovalResolved(ApprovalResolved { tool_call_id, decision, .. }) => match decision {
                // The call's result follows and says that it failed.
                ApprovalDecision::Deny => vec![],
                _ => vec![tool_calls::status(*tool_call_id, "in_progress")],
            },
            _ => vec![],
        }
    }

    fn pending_call(&mut self, request: &ApprovalRequest) -> Value {
        let content = tool_calls::preview_content(&request.preview);
        self.calls.insert(request.tool_call_id, content.clone());
        json!({
            "sessionUpdate": "tool_call_update", "toolCallId": request.tool_call_id, "status": "pending",
            "content": content,
        })
    }

    /// A chunk of the block that is received. Chunks of one block belong to one message.
    fn chunk(&self, kind: &str, sent: &SentEvent, text: &str) -> Value {
        json!({
            "sessionUpdate": kind, "messageId": self.message_id(sent), "content": {"type": "text", "text": text},
        })
    }

    fn message_id(&self, sent: &SentEvent) -> String {
        format!("{}-{}", sent.turn_id, self.block)
    }

    /// A page that the answer names, as a link that belongs to its message.
    fn citation(&self, sent: &SentEvent, page: &Citation) -> Value {
        let name = page.title.as_deref().unwrap_or(&page.url);
        let link = json!({"type": "resource_link", "uri": page.url, "name": format!("[{}] {name}", page.n)});
        json!({"sessionUpdate": "agent_message_chunk", "messageId": self.message_id(sent), "content": link})
    }

    fn usage_cap(&self, cap: &UsageCapEvent) -> Vec<Value> {
        let described = serde_json::to_string(cap).unwrap_or_default();
        self.notice("warning", "A cap on usage is nearly or wholly used", &described)
    }

    fn notice(&self, severity: &str, title: &str, description: &str) -> Vec<Value> {
        let notice = json!({
            "sessionUpdate": "notice", "severity": severity, "title": title, "description": description,
        });
        if self.features.notices { vec![notice] } else { vec![] }
    }

    /// The outcome of the prompt whose turn this is.
    pub(super) fn outcome(&self) -> Result<Value, RpcError> {
        match &self.end {
            Some(TurnEnd::Completed(reason)) => {
                let mut response = stop(match reason {
                    StopReason::EndTurn => "end_turn",
                    StopReason::Budget => "max_tokens",
                    StopReason::MaxTurns | StopReason::Loop => "max_turn_requests",
                });
                if let Some(fields) = response.as_object_mut() {
                    let own = json!({"stop_reason": reason, "usage": self.usage});
                    fields.insert("_meta".to_owned(), json!({"roundhouse": own}));
                }
                Ok(response)
            }
            Some(TurnEnd::Cancelled) => Ok(stop("cancelled")),
            Some(TurnEnd::Failed(failure)) => {
                let Failure { code, message, retryable } = failure;
                Err(RpcError::internal(message).with_data(json!({"code": code, "retryable": retryable})))
            }
            None => Err(RpcError::internal("the end of the turn is not known; load the session again")),
        }
    }
}

/// The response to a prompt.
pub(super) fn stop(reason: &str) -> Value {
    json!({"stopReason": reason})
}

/// The steps of a plan; the engine does not say how far they are.
fn plan(value: &Value) -> Option<Value> {
    let steps = value.get("steps")?.as_array()?;
    let entries: Vec<Value> = steps
        .iter()
        .filter_map(Value::as_str)
        .map(|step| json!({"content": step, "priority": "medium", "status": "pending"}))
        .collect();
    (!entries.is_empty()).then(|| json!({"sessionUpdate": "plan", "entries": entries}))
}

#[cfg(test)]
#[path = "../../tests/unit/acp/updates.rs"]
mod tests;
